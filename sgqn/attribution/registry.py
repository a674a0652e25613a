"""The attribution methods by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import Tensor

from sgqn.attribution.base import Attribution, QFunction
from sgqn.attribution.common import captum
from sgqn.errors import SgqnError
from sgqn.registry import Registry, import_submodules

Function = TypeVar("Function", bound=Callable[..., Any])
OfGraph = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class Method:
    """An attribution method: `method(q, obs, action)` is an attribution like obs."""

    name: str
    function: Attribution
    of_graph: OfGraph | None = None
    """of_graph(value, obs): the same from a forward pass under `switchable_relu`, for methods that need no other."""
    needs_captum: bool = False

    def __call__(self, q: QFunction, obs: Tensor, action: Tensor) -> Tensor:
        return self.function(q, obs, action)

    def check(self) -> None:
        """Refuse a method that lacks what it needs: before minutes of work, not after them."""
        if self.needs_captum:
            captum()


METHODS: Registry[Method] = Registry("attribution method", lambda: import_submodules("sgqn.attribution"))


def register_attribution(
    name: str, *, of_graph: OfGraph | None = None, needs_captum: bool = False
) -> Callable[[Function], Function]:
    """Register `method(q, obs, action) -> attribution like obs` under a name."""

    def register(function: Function) -> Function:
        METHODS.register(name, Method(name, function, of_graph, needs_captum), function.__module__)
        return function

    return register


def find_method(name: str) -> Method:
    return METHODS[name]


def get(name: str) -> Attribution:
    """The attribution method of that name."""
    return METHODS[name].function


def check(name: str) -> None:
    """Refuse an unknown method, and one that lacks what it needs."""
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
