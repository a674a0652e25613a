"""Guided backpropagation (Springenberg et al., 2015) without hooks.

Every ReLU that runs under a `TorchFunctionMode` becomes an autograd function with its own backward pass,
whether it is a module, a function or a tensor's method; the network is not touched. (TorchScript and compiled
modules hide their ReLUs from it.) Two ways to use it:

    attribution = guided_backprop(q, obs, action)            # its own forward and backward pass

    obs = differentiable(obs)
    with switchable_relu():                                  # one forward pass for the map and the loss
        q1, q2 = critic(obs, action)
    attribution = guided_gradient_of(q1, obs)
    critic_loss((q1, q2), target).backward(inputs=params)    # ordinary gradients, none for obs
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from sgqn.attribution.base import QFunction, gradient_of
from sgqn.attribution.gradient import gradient
from sgqn.attribution.registry import register_attribution
from sgqn.errors import InvalidValueError


def guided_gradient_of(value: Tensor, obs: Tensor, retain_graph: bool = True) -> Tensor:
    """Guided backpropagation through an existing graph, recorded under `switchable_relu`."""
    with guided():
        attribution = gradient_of(value, obs, retain_graph)
        if not _switch.asked:
            raise InvalidValueError("no ReLU to guide: compute the value inside `with switchable_relu():`")
    return attribution


@register_attribution("guided_backprop", of_graph=guided_gradient_of)
def guided_backprop(q: QFunction, obs: Tensor, action: Tensor) -> Tensor:
    """dQ(s, a) / ds if each ReLU, the Q head's too, passes back only positive gradients of active units."""
    with _ReplaceReLU(guided=lambda: True):
        return gradient(q, obs, action)


def switchable_relu() -> AbstractContextManager[object]:
    """Record ReLUs whose backward pass is the ordinary one, bit for bit, except inside `with guided():`."""
    return _ReplaceReLU(guided=is_guided)


@contextmanager
def guided() -> Iterator[None]:
    """Backward passes started inside are guided, for graphs recorded under `switchable_relu`.

    One at a time in a process: autograd runs CUDA's backward in threads of its own, so the switch is global,
    and no other thread should meanwhile run a backward pass through switchable ReLUs.
    """
    if not _switch.lock.acquire(blocking=False):
        raise RuntimeError("guided() is already active: it neither nests nor runs in two threads at once")
    try:
        _switch.on, _switch.asked = True, False
        yield
    finally:
        _switch.on = False
        _switch.lock.release()


def is_guided() -> bool:
    """Whether a backward pass running now is guided."""
    _switch.asked = True
    return _switch.on


def relu_rule() -> Callable[[], bool]:
    """The backward mode of ReLUs that run now. Fused operators that contain ReLUs check it in each backward pass."""
    active = _ReplaceReLU.active()
    return active.guided if active is not None else _never


def _never() -> bool:
    return False


class _Switch:
    """The process-wide state of `guided`. `asked`: whether any backward pass has read it."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.on = False
        self.asked = False


_switch = _Switch()


class _ReLU(torch.autograd.Function):
    """ReLU whose backward pass is guided if it runs inside `guided`."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, inplace: bool, guided: Callable[[], bool]) -> Tensor:
        if inplace:
            ctx.mark_dirty(x)
        out = torch.relu_(x) if inplace else torch.relu(x)
        ctx.save_for_backward(out)
        ctx.guided = guided
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:
        (out,) = ctx.saved_tensors
        grad = torch.ops.aten.threshold_backward(grad, out, 0)  # what F.relu's own backward calls
        return (grad.clamp_min(0) if ctx.guided() else grad), None, None


_IN_PLACE = {torch.relu_, Tensor.relu_}
_RELUS = {F.relu, torch.relu, Tensor.relu} | _IN_PLACE


class _ReplaceReLU(TorchFunctionMode):
    """While active in this thread, every form of ReLU runs as `_ReLU`."""

    _threads = threading.local()  # .modes: those that are active, the innermost last

    def __init__(self, guided: Callable[[], bool]) -> None:
        super().__init__()
        self.guided = guided

    @classmethod
    def active(cls) -> _ReplaceReLU | None:
        modes = getattr(cls._threads, "modes", ())
        return modes[-1] if modes else None

    def __enter__(self) -> _ReplaceReLU:
        self._threads.modes = (*getattr(self._threads, "modes", ()), self)
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._threads.modes = self._threads.modes[:-1]

    def __torch_function__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func not in _RELUS:
            return func(*args, **kwargs)
        x, inplace = _relu_arguments(*args, **kwargs)
        return _ReLU.apply(x, inplace or func in _IN_PLACE, self.guided)


def _relu_arguments(input: Tensor, inplace: bool = False) -> tuple[Tensor, bool]:
    return input, inplace
