"""Things by name: agents, attribution methods, augmentations, task families.

A name is written once, where the thing is registered. The package's own modules register on the first lookup, then
plugins (`sgqn.plugins`), so that importing `sgqn` stays light and a new thing is one new file.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import typing
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Generic, Protocol, TypeVar

from sgqn import plugins
from sgqn.errors import InvalidValueError, UnknownNameError

T = TypeVar("T")


class Registry(Mapping[str, T], Generic[T]):
    """The registered things of one kind, in the order of registration. An unknown name is an `UnknownNameError`."""

    def __init__(self, kind: str, load_own: Callable[[], None]):
        """`load_own` imports the package's own modules that register such things."""
        self.kind = kind
        self._stages = [load_own, plugins.load_installed]
        self._things: dict[str, T] = {}
        self._origins: dict[str, str] = {}

    def register(self, name: str, thing: T, origin: str) -> None:
        """Add an entry of the module `origin`, which may replace its own entries when it is imported again."""
        if not re.fullmatch(r"[A-Za-z0-9]([A-Za-z0-9_-]*)", name):
            raise InvalidValueError(f"{self.kind} {name!r}: a name has letters, digits, '_' and '-'")
        if self._origins.get(name, origin) != origin:
            other = self._origins[name]
            raise InvalidValueError(f"{self.kind} {name!r} is registered already, by {other}: choose another name")
        self._things[name], self._origins[name] = thing, origin

    def registered(self) -> dict[str, T]:
        """The names that are registered so far, without loading anything."""
        return dict(self._things)

    def origin(self, name: str) -> str:
        """The module that registered the name."""
        self[name]
        return self._origins[name]

    def __getitem__(self, name: str) -> T:
        if name not in self:
            raise UnknownNameError(self.kind, name, self._things)
        return self._things[name]

    def __contains__(self, name: object) -> bool:
        while name not in self._things and self._stages:  # plugins are loaded for unknown names only
            self._stages.pop(0)()
        return name in self._things

    def __iter__(self) -> Iterator[str]:
        self._load()
        return iter(self._things)

    def __len__(self) -> int:
        self._load()
        return len(self._things)

    def _load(self) -> None:
        while self._stages:
            self._stages.pop(0)()  # removed first: what is loaded may look names up


class TakesArguments(Protocol):
    def with_arguments(self: T, text: str) -> T:
        """The thing with the arguments of a name, after its colon: `samples=4,noise=0.2`."""


P = TypeVar("P", bound=TakesArguments)


class ParametricRegistry(Registry[P]):
    """A registry whose names may include arguments: `smoothgrad`, `smoothgrad:samples=4,noise=0.2`."""

    def __getitem__(self, name: str) -> P:
        plain, colon, arguments = name.partition(":")
        thing = super().__getitem__(plain)
        return thing.with_arguments(arguments) if colon else thing

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name.partition(":")[0] if isinstance(name, str) else name)

    def origin(self, name: str) -> str:
        return super().origin(name.partition(":")[0])


def parse_arguments(name: str, text: str, function: Callable[..., Any], skipped: int) -> dict[str, Any]:
    """The arguments `samples=4,noise=0.2` of a function: of its parameters after the first `skipped`, those that are
    numbers or booleans. `name` is for error messages."""
    kinds = _kinds(function, skipped)
    arguments: dict[str, Any] = {}
    for part in text.split(","):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or key not in kinds:
            known = ", ".join(f"{known}={kind.__name__}" for known, kind in kinds.items()) or "none"
            raise InvalidValueError(f"{part!r} is not an argument of {name!r}; its arguments: {known}")
        if key in arguments:
            raise InvalidValueError(f"{name}: {key} is given twice: {text!r}")
        arguments[key] = _parsed(f"{name}: {key}", value, kinds[key])
    return arguments


def check_arguments(name: str, check: Callable[..., None], function: Callable[..., Any], given: dict[str, Any]) -> None:
    """Call `check` with those of the function's arguments, given or default, that it takes."""
    parameters = inspect.signature(function).parameters
    values = {key: one.default for key, one in parameters.items() if one.default is not inspect.Parameter.empty}
    try:
        check(**accepted(check, values | given))
    except InvalidValueError as error:
        raise InvalidValueError(f"{name}: {error}") from None


def accepted(function: Callable[..., Any], offered: Mapping[str, Any]) -> dict[str, Any]:
    """The offered arguments that match a parameter of the function."""
    names = inspect.signature(function).parameters
    return {name: value for name, value in offered.items() if name in names}


def _kinds(function: Callable[..., Any], skipped: int) -> dict[str, type]:
    """The parameters that can be set in a name, with the type of their annotation or default."""
    try:
        hints = typing.get_type_hints(function)
    except (NameError, TypeError):  # of a type that is not imported, or no plain function
        hints = {}
    found: dict[str, type] = {}
    for name, parameter in list(inspect.signature(function).parameters.items())[skipped:]:
        hint = hints.get(name, type(parameter.default))
        for kind in (bool, int, float):
            if hint is kind or kind in typing.get_args(hint):
                found[name] = kind
    return found


def _parsed(what: str, text: str, kind: type) -> Any:
    texts = {"true": True, "false": False}
    try:
        return texts[text.lower()] if kind is bool else kind(text)
    except (ValueError, KeyError):
        wanted = {bool: "true or false", int: "an integer", float: "a number"}[kind]
        raise InvalidValueError(f"{what} must be {wanted}, not {text!r}") from None


def import_submodules(package: str) -> None:
    """Import every module of a package, in alphabetical order."""
    path = importlib.import_module(package).__path__
    for module in sorted(found.name for found in pkgutil.iter_modules(path)):
        importlib.import_module(f"{package}.{module}")
