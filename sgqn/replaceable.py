"""Plain functions that a faster version may replace.

Plain code only marks a function or a method with `@replaceable`. A faster version is registered with `@replace(plain,
fits=...)`; it runs for the arguments that `fits` accepts, the plain one for all others. A test checks that both compute
the same.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
Faster = TypeVar("Faster", bound=Callable[..., Any])

_replacements: dict[Callable[..., Any], list[tuple[Callable[..., bool], Callable[..., Any]]]] = {}


def replaceable(plain: Callable[P, R]) -> Callable[P, R]:
    """Let faster versions register for this function or method."""
    registered: list[tuple[Callable[..., bool], Callable[..., Any]]] = []

    @functools.wraps(plain)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        for fits, faster in registered:
            if fits(*args, **kwargs):
                return faster(*args, **kwargs)
        return plain(*args, **kwargs)

    _replacements[call] = registered
    return call


def replace(plain: Callable[..., R], fits: Callable[..., bool]) -> Callable[[Faster], Faster]:
    """Register a faster version of a replaceable function; of several that fit, the one registered first runs.

    `fits` and the faster version take what the plain one takes, a method's `self` first.
    """

    def register(faster: Faster) -> Faster:
        _replacements[plain].append((fits, faster))
        return faster

    return register
