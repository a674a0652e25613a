"""The attribution methods by name, optionally with arguments: `smoothgrad`, `smoothgrad:samples=4,noise=0.2`."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from torch import Tensor

from sgqn.attribution.base import Attribution, QFunction
from sgqn.attribution.common import captum
from sgqn.errors import InvalidValueError, SgqnError
from sgqn.registry import Registry, import_submodules

Function = TypeVar("Function", bound=Callable[..., Any])
OfGraph = Callable[..., Tensor]
Check = Callable[..., None]


@dataclass(frozen=True)
class Method:
    """An attribution method: `method(q, obs, action)` is an attribution like obs."""

    name: str
    function: Attribution
    of_graph: OfGraph | None = None
    """of_graph(value, obs): the same from a forward pass under `switchable_relu`, for methods that need no other.

    If it has parameters of these names, it is also given `features`, the encoder's feature map (B, C, h, w) in the
    same graph, and `pixels_per_feature`, their distance in the image (None if the encoder does not say).
    """
    needs_captum: bool = False
    check_arguments: Check | None = None
    """Takes some or all of the function's arguments and raises an error for invalid values."""

    def __call__(self, q: QFunction, obs: Tensor, action: Tensor) -> Tensor:
        return self.function(q, obs, action)

    def check(self) -> None:
        """Raise an error if a requirement of the method is not installed, before any work starts."""
        if self.needs_captum:
            captum()

    def with_arguments(self, text: str) -> Method:
        """The method with the arguments of a name, after its colon: `samples=4,noise=0.2`."""
        kinds = _kinds(self.function)
        arguments: dict[str, Any] = {}
        for part in text.split(","):
            name, equals, value = (piece.strip() for piece in part.partition("="))
            if not equals or name not in kinds:
                known = ", ".join(f"{known}={kind.__name__}" for known, kind in kinds.items()) or "none"
                raise InvalidValueError(f"{part!r} is not an argument of {self.name!r}; its arguments: {known}")
            if name in arguments:
                raise InvalidValueError(f"{self.name}: {name} is given twice: {text!r}")
            arguments[name] = _parsed(f"{self.name}: {name}", value, kinds[name])
        if self.check_arguments is not None:
            defaults = {name: inspect.signature(self.function).parameters[name].default for name in kinds}
            try:
                self.check_arguments(**accepted(self.check_arguments, defaults | arguments))
            except InvalidValueError as error:
                raise InvalidValueError(f"{self.name}: {error}") from None
        shares = self.of_graph is not None and arguments.keys() <= inspect.signature(self.of_graph).parameters.keys()
        return replace(
            self,
            name=f"{self.name}:{text}",
            function=partial(self.function, **arguments),
            of_graph=partial(self.of_graph, **arguments) if self.of_graph is not None and shares else None,
        )


class Methods(Registry[Method]):
    """The registry of methods. Names may include arguments."""

    def __getitem__(self, name: str) -> Method:
        plain, colon, arguments = name.partition(":")
        method = super().__getitem__(plain)
        return method.with_arguments(arguments) if colon else method

    def __contains__(self, name: object) -> bool:
        return super().__contains__(name.partition(":")[0] if isinstance(name, str) else name)

    def origin(self, name: str) -> str:
        return super().origin(name.partition(":")[0])


METHODS = Methods("attribution method", lambda: import_submodules("sgqn.attribution"))


def register_attribution(
    name: str, *, of_graph: OfGraph | None = None, needs_captum: bool = False, check: Check | None = None
) -> Callable[[Function], Function]:
    """Register `method(q, obs, action) -> attribution like obs` under a name.

    Parameters after these three that are numbers or booleans can be set in the name: `name:samples=4`. `check` takes
    any of them by name and raises an error for invalid values. `Method` explains `of_graph`.
    """

    def register(function: Function) -> Function:
        METHODS.register(name, Method(name, function, of_graph, needs_captum, check), function.__module__)
        return function

    return register


def find_method(name: str) -> Method:
    return METHODS[name]


def get(name: str) -> Attribution:
    """The attribution method of that name."""
    return METHODS[name].function


def check(name: str) -> None:
    """Raise an error for an unknown method, or one whose requirements are not installed."""
    METHODS[name].check()


def available() -> list[str]:
    """The names of the methods that can run here: without Captum, not those that use it."""
    found = []
    for name, method in METHODS.items():
        try:
            method.check()
        except SgqnError:
            continue
        found.append(name)
    return found


def accepted(function: Callable[..., Any], offered: Mapping[str, Any]) -> dict[str, Any]:
    """The offered arguments that match a parameter of the function."""
    names = inspect.signature(function).parameters
    return {name: value for name, value in offered.items() if name in names}


def _kinds(function: Callable[..., Any]) -> dict[str, type]:
    """The parameters of a method that can be set in a name, with the type of their annotation or default."""
    try:
        hints = typing.get_type_hints(function)
    except (NameError, TypeError):  # of a type that is not imported, or no plain function
        hints = {}
    found: dict[str, type] = {}
    for name, parameter in list(inspect.signature(function).parameters.items())[3:]:
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
