"""Whether the fused kernels are switched on, for the thread that asks."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor

_state = threading.local()
_blocks = itertools.count(1)


@contextmanager
def kernels(encoder: bool = True) -> Iterator[None]:
    """Networks that run inside use fused kernels if one fits, that of the encoder only if requested."""
    before = current_block(), encoder_enabled()
    _state.block, _state.encoder = next(_blocks), encoder
    try:
        yield
    finally:
        _state.block, _state.encoder = before


def enabled() -> bool:
    return current_block() != 0


def takes(x: Tensor) -> bool:
    """Whether the kernels are on and can work on this tensor."""
    return enabled() and x.is_cuda


def encoder_enabled() -> bool:
    return getattr(_state, "encoder", False)


def current_block() -> int:
    """The number of the `kernels()` block that is being run, 0 outside. Weights converted in another one may be old:
    the replay of a captured update changes them without a trace on the host."""
    return getattr(_state, "block", 0)
