"""Concurrent work on a GPU."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache

import torch

from sgqn.fast import switch

Join = Callable[[], None]
"""Waits, on the current stream, for what was put aside."""

MAIN_PRIORITY = -2
"""Of the stream that everything waits for in the end."""
BESIDE, FIRST, WEIGHTS, AHEAD = 0, 1, 2, 3
"""The streams: for what can wait a little, for what is wanted next, for gradients of weights, for the next update."""
_PRIORITIES = {BESIDE: -1, FIRST: MAIN_PRIORITY - 1, WEIGHTS: 0, AHEAD: 0}


def done() -> None:
    """Nothing to wait for."""


@contextmanager
def aside(device: torch.device, stream: int = BESIDE, since: torch.cuda.Event | None = None) -> Iterator[Join]:
    """If the fused kernels are switched on, work inside the block may run in parallel with what follows, until the
    yielded function is called. Otherwise it runs in order.

    It waits for all that was before it, or, with `since`, for what was before that `mark`. Tensors made inside may be
    used only after the call, and tensors used inside must live that long. Backward passes run where their forward
    passes ran.
    """
    if not _possible(device):
        yield done
        return
    beside = side(device, stream)
    if since is None:
        beside.wait_stream(torch.cuda.current_stream(device))
    else:
        beside.wait_event(since)
    with torch.cuda.stream(beside):
        yield lambda: torch.cuda.current_stream(device).wait_stream(beside)


def mark(device: torch.device) -> torch.cuda.Event | None:
    """This point of the current stream, for `aside`."""
    return torch.cuda.current_stream(device).record_event() if _possible(device) else None


@cache
def side(device: torch.device, stream: int) -> torch.cuda.Stream:
    # Gradients of weights come from several streams; the engine's waiting for each other is what we want.
    torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(False)
    return torch.cuda.Stream(device, priority=_PRIORITIES[stream])


def _possible(device: torch.device) -> bool:
    return switch.enabled() and device.type == "cuda"
