"""The attribution methods by name, optionally with arguments: `smoothgrad`, `smoothgrad:samples=4,noise=0.2`."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from torch import Tensor

from sgqn.attribution.base import Attribution, QFunction
from sgqn.attribution.common import captum
from sgqn.errors import SgqnError
from sgqn.registry import ParametricRegistry, check_arguments, import_submodules, parse_arguments

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
        arguments = parse_arguments(self.name, text, self.function, skipped=3)
        if self.check_arguments is not None:
            check_arguments(self.name, self.check_arguments, self.function, arguments)
        shares = self.of_graph is not None and arguments.keys() <= inspect.signature(self.of_graph).parameters.keys()
        return replace(
            self,
            name=f"{self.name}:{text}",
            function=partial(self.function, **arguments),
            of_graph=partial(self.of_graph, **arguments) if self.of_graph is not None and shares else None,
        )


METHODS: ParametricRegistry[Method] = ParametricRegistry(
    "attribution method", lambda: import_submodules("sgqn.attribution")
)


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
