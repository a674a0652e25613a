"""Hyperparameters: dataclasses whose fields become options of the command and are checked when they are made.

    @dataclass(frozen=True)
    class MySettings(Settings):
        learning_rate: float = positive(1e-3)
        '''Learning rate of everything.'''

A plain dataclass will do too: `validate` checks the types of its fields.
"""

from __future__ import annotations

import math
import typing
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from sgqn.errors import InvalidValueError, UnknownNameError


@dataclass(frozen=True)
class Settings:
    """Base of the agents' settings: checks every field by its type and its rule."""

    def __post_init__(self) -> None:
        validate(self)


class Rule(typing.NamedTuple):
    """What a value must be: a check, and the words for it."""

    accepts: Callable[[Any], bool]
    text: str


def ruled(default: Any, accepts: Callable[[Any], bool], text: str) -> Any:
    """A field whose values must pass a check; `text` completes "NAME must be ..."."""
    return field(default=default, metadata={"rule": Rule(accepts, text)})


def named(default: str, kind: str, names: Callable[[], Iterable[str]]) -> Any:
    """A field whose values are registered names of some kind."""
    return field(default=default, metadata={"kind": kind, "names": names})


def count(default: int, least: int = 1) -> Any:
    text = "a positive integer" if least == 1 else f"an integer of at least {least}"
    return ruled(default, lambda value: _is_integer(value) and value >= least, text)


def positive(default: float) -> Any:
    return ruled(default, lambda value: 0 < value < math.inf, "a positive number")


def weight(default: float) -> Any:
    return ruled(default, lambda value: 0 <= value < math.inf, "a non-negative number")


def fraction(default: float) -> Any:
    return ruled(default, lambda value: 0 < value <= 1, "above 0 and at most 1")


def quantile(default: float) -> Any:
    return ruled(default, lambda value: 0 <= value < 1, "at least 0 and below 1 (0.95 keeps one pixel in twenty)")


def validate(settings: Any) -> None:
    """Check every field of a dataclass by its type and its rule; the first that is wrong is an error."""
    hints = typing.get_type_hints(type(settings))
    for one in fields(settings):
        value = getattr(settings, one.name)
        _check_type(one.name, value, hints[one.name])
        rule = one.metadata.get("rule")
        if rule is not None and not rule.accepts(value):
            raise InvalidValueError(f"{one.name} must be {rule.text}, not {value!r}")
        if "names" in one.metadata and value not in (names := one.metadata["names"]()):
            raise UnknownNameError(one.metadata["kind"], value, names)


def _check_type(name: str, value: Any, hint: Any) -> None:
    if typing.get_origin(hint) is Literal:
        if value not in typing.get_args(hint):
            raise UnknownNameError(name, value, map(str, typing.get_args(hint)))
        return
    checks: dict[Any, tuple[Callable[[Any], bool], str]] = {
        int: (_is_integer, "an integer"),
        float: (lambda v: isinstance(v, float) or _is_integer(v), "a number"),
        bool: (lambda v: isinstance(v, bool), "true or false"),
        str: (lambda v: isinstance(v, str), "a string"),
    }
    if hint in checks and not checks[hint][0](value):
        raise InvalidValueError(f"{name} must be {checks[hint][1]}, not {value!r}")


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
