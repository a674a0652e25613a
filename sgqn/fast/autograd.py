"""Helpers of the fused operators' backward passes."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, Generic, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from sgqn.fast.streams import WEIGHTS, side

Sums = TypeVar("Sums")
Work = Callable[[], Sequence[Tensor | None]]


def wanted(ctx: Any) -> list[bool]:
    """Which tensor inputs of a function need a gradient in the current backward pass. `ctx.needs_input_grad` covers all
    backward passes; attribution needs only the gradient of the image, a loss only that of the weights.
    """
    edges = [function for function, _ in ctx.next_functions]
    return [function is not None and _will_run(function) for function in edges]


def _will_run(function: Any) -> bool:
    try:
        return torch._C._will_engine_execute_node(function)
    except RuntimeError:  # a leaf that `torch.autograd.grad` was asked for; the engine says so with an error
        return True


class Uses(Generic[Sums]):
    """Sums the gradients of weights over all their uses in one backward pass, where autograd would add them up itself,
    tensor by tensor. The last use hands them over."""

    def __init__(self) -> None:
        self._uses: list[weakref.ref[Any]] = []
        self._task = -1
        self._left = 0
        self._sums: Sums | None = None
        self._ended: torch.cuda.Event | None = None

    def note(self, ctx: Any) -> None:
        """In a forward pass: the weights are used here."""
        self._uses = [use for use in self._uses if use() is not None]
        self._uses.append(weakref.ref(ctx))

    def take_turn(self, make: Callable[[], Sums]) -> tuple[Sums, bool, bool]:
        """In a backward pass: the sums to add to, whether this is the first use, and whether it is the last."""
        task = torch._C._current_graph_task_id()
        if task != self._task:
            uses = (use() for use in self._uses)
            self._task, self._sums, self._left = task, None, sum(use is not None and _will_run(use) for use in uses)
            self._ended = None
        if self._ended is not None:
            torch.cuda.current_stream().wait_event(self._ended)
        first, sums = self._sums is None, self._sums if self._sums is not None else make()
        self._left -= 1
        last = self._left <= 0
        self._task, self._sums = (-1, None) if last else (task, sums)
        return sums, first, last

    def end_turn(self, device: torch.device) -> None:
        """All has been added: the next use, perhaps on another stream, waits for it."""
        if device.type == "cuda":
            self._ended = torch.cuda.current_stream(device).record_event()


class Later:
    """Gradients of weights computed in parallel with the rest of a backward pass.

    An operator takes the parameters that `gate` returns; its backward pass leaves the work with `put` and returns
    `placeholders` for their gradients. The gate's backward pass, on a stream of its own, does the work, and autograd
    makes readers of the gradients wait. With `uses`, each gate is one use of the weights.
    """

    def __init__(self, uses: Uses[Any] | None = None):
        self.uses = uses
        self._work: Work | None = None
        self._reads: tuple[Tensor, ...] = ()

    def gate(self, parameters: Sequence[Tensor]) -> Sequence[Tensor]:
        device = parameters[0].device
        if not (torch.is_grad_enabled() and any(p.requires_grad for p in parameters)):
            return parameters
        with torch.cuda.stream(side(device, WEIGHTS)) if device.type == "cuda" else nullcontext():
            gated: tuple[Tensor, ...] = _Gate.apply(self, *parameters)
        return gated

    def put(self, work: Work, reads: tuple[Tensor, ...]) -> None:
        """`work` returns the gradients of all parameters; `reads` are the tensors that it reads."""
        self._work, self._reads = work, reads

    def take(self) -> Sequence[Tensor | None]:
        assert self._work is not None
        for tensor in self._reads:
            if tensor.is_cuda:  # its memory may be given away only when this stream has read it
                tensor.record_stream(torch.cuda.current_stream(tensor.device))
        work, self._work, self._reads = self._work, None, ()
        return work()


def placeholders(shapes: Sequence[torch.Size], device: torch.device) -> tuple[Tensor, ...]:
    """Placeholder gradients, for the gate."""
    return tuple(torch.empty((), device=device).expand(shape) for shape in shapes)


class _Gate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, later: Later, *parameters: Tensor) -> tuple[Tensor, ...]:
        ctx.later = later
        if later.uses is not None:
            later.uses.note(ctx)
        return tuple(p.view_as(p) for p in parameters)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *_: Tensor) -> tuple[Any, ...]:
        return None, *ctx.later.take()


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """bf16 x bf16 -> float32, of two matrices or two stacks of them."""
    if a.is_cuda:
        return (torch.mm if a.ndim == 2 else torch.bmm)(a, b, out_dtype=torch.float32)
    with torch.autocast("cpu", enabled=False):
        return torch.matmul(a.float(), b.float())


def over_uses(factors: Sequence[tuple[Tensor, ...]]) -> list[Tensor]:
    """The factors of all uses of a weight, one after another in the batch: its gradient is then one product.

    cuBLAS is slow at adding to an existing sum.
    """
    return [torch.cat(part) if len(part) > 1 else part[0] for part in zip(*factors, strict=True)]


def half_matmul(a: Tensor, b: Tensor) -> Tensor:
    """bf16 x bf16 -> bf16, summed in float32."""
    return torch.matmul(a, b) if a.is_cuda else matmul(a, b).bfloat16()


def linear_relu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """relu(x weight^T + bias), all bf16, in one kernel."""
    if x.is_cuda:
        return torch._addmm_activation(bias, x, weight.t(), use_gelu=False)
    return (matmul(x, weight.t()) + bias.float()).relu().bfloat16()


def conv(x: Tensor, weight: Tensor, stride: Any = 1, padding: int = 0) -> Tensor:
    """bf16, summed in float32; channels last."""
    if x.is_cuda:
        out = F.conv2d(x, weight, None, stride, padding)
    else:
        out = F.conv2d(x.float(), weight.float(), None, stride, padding).bfloat16()
    return out.contiguous(memory_format=torch.channels_last)


def conv_backward(
    gradient: Tensor, x: Tensor, weight: Tensor, stride: Any = 1, padding: int = 0, *, of_x: bool, of_weight: bool
) -> tuple[Any, Any]:
    """The gradients of `conv`'s input (bf16, channels last) and of its weight, each only if it is asked for."""
    given = (gradient, x, weight) if x.is_cuda else (gradient.float(), x.float(), weight.float())
    strides = [stride] * 2 if isinstance(stride, int) else list(stride)
    shape: Any = (None, strides, [padding] * 2, [1, 1], False, [0, 0], 1, [of_x, of_weight, False])
    d_x, d_weight, _ = torch.ops.aten.convolution_backward(*given, *shape)
    if d_x is not None:
        d_x = d_x.to(torch.bfloat16).contiguous(memory_format=torch.channels_last)
    return d_x, d_weight
