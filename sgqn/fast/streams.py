"""Two things at once on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

import torch

from sgqn.fast import switch

Join = Callable[[], None]
"""Waits, on the current stream, for what was put aside."""


def done() -> None:
    """Nothing to wait for."""


@contextmanager
def aside(device: torch.device, stream: int = 0) -> Iterator[Join]:
    """Where the fused kernels are switched on, what runs inside may run beside what follows, until the function that is
    yielded is called: small kernels then hide behind large ones. Elsewhere it simply runs.

    Tensors made inside may be used only after that call, and tensors used inside must live that long. Backward passes
    run where their forward passes ran. `stream` tells which of several to use.
    """
    if not (switch.enabled() and device.type == "cuda"):
        yield done
        return
    side = _side(device, stream)
    side.wait_stream(torch.cuda.current_stream(device))
    with torch.cuda.stream(side):
        yield lambda: torch.cuda.current_stream(device).wait_stream(side)


@cache
def _side(device: torch.device, stream: int) -> torch.cuda.Stream:
    del stream  # a key of the cache
    # Gradients of weights come from several streams; the engine's waiting for each other is what we want.
    torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(False)
    return torch.cuda.Stream(device)
