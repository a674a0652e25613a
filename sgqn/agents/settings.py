"""Hyperparameters: dataclasses whose fields become command line options and are validated at construction.

    @dataclass(frozen=True)
    class MySettings(Settings):
        learning_rate: float = positive(1e-3)
        '''Learning rate of everything.'''

A plain dataclass also works: `validate` checks the types of its fields.
"""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from sgqn.errors import InvalidValueError, UnknownNameError
from sgqn.registry import Registry


@dataclass(frozen=True)
class Settings:
    """Base of the agents' settings: checks every field by its type and its rule."""

    def __post_init__(self) -> None:
        validate(self)


class Rule(typing.NamedTuple):
    """A check of a value, and its description."""

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


def share(default: float) -> Any:
    return ruled(default, lambda value: 0 <= value <= 1, "at least 0 and at most 1")


def quantile(default: float) -> Any:
    return ruled(default, lambda value: 0 <= value < 1, "at least 0 and below 1 (0.95 keeps one pixel in twenty)")


@dataclass(frozen=True)
class NetworkSettings(Settings):
    """Sizes of the networks of the built-in learners. Defaults are those of SGQN's authors."""

    encoder_layers: int = count(11)
    """Number of convolutional layers of the encoder."""
    encoder_filters: int = count(32)
    """Filters per convolution."""
    embedding_dim: int = count(100)
    """Embedding size."""
    hidden_dim: int = count(1024)
    """Size of the two hidden layers that follow the embedding."""


def validate(settings: Any) -> None:
    """Check every field of a dataclass by its type and rule; the first invalid value raises an error."""
    hints = typing.get_type_hints(type(settings))
    for one in fields(settings):
        value = getattr(settings, one.name)
        check_type(one.name, value, hints[one.name])
        rule = one.metadata.get("rule")
        if rule is not None and not rule.accepts(value):
            raise InvalidValueError(f"{one.name} must be {rule.text}, not {value!r}")
        if "names" in one.metadata:
            names = one.metadata["names"]()
            if isinstance(names, Registry):
                names[value]  # raises an error with the reason
            elif value not in names:
                raise UnknownNameError(one.metadata["kind"], value, names)


def check_type(name: str, value: Any, hint: Any) -> None:
    """Raise an error, which mentions `name`, unless the value has the type of the hint."""
    if typing.get_origin(hint) is Literal and value not in typing.get_args(hint):
        raise UnknownNameError(name, value, map(str, typing.get_args(hint)))
    if not _fits(value, hint):
        raise InvalidValueError(f"{name} must be {_in_words(hint)}, not {value!r}")


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value has a type; unsupported types accept any value."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin is Literal:
        return value in parts
    if origin in (typing.Union, types.UnionType):
        return any(_fits(value, part) for part in parts)
    if origin is tuple:
        of = parts[:1] * len(value) if isinstance(value, tuple) and parts[1:] == (...,) else parts
        return isinstance(value, tuple) and len(value) == len(of) and all(map(_fits, value, of))
    return _KINDS[hint][0](value) if hint in _KINDS else True


def _in_words(hint: Any) -> str:
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return " or ".join(map(_in_words, parts))
    if origin is tuple:
        return f"a list{'' if parts[1:] == (...,) else f' of {len(parts)}'}, each {_in_words(parts[0])}"
    return _KINDS[hint][1] if hint in _KINDS else str(hint)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


_KINDS: dict[Any, tuple[Callable[[Any], bool], str]] = {
    int: (_is_integer, "an integer"),
    float: (lambda value: isinstance(value, float) or _is_integer(value), "a number"),
    bool: (lambda value: isinstance(value, bool), "true or false"),
    str: (lambda value: isinstance(value, str), "a string"),
    type(None): (lambda value: value is None, "none"),
}
