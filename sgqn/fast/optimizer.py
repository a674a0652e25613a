"""Adam whose step is one kernel where the fused kernels are switched on: PyTorch's arithmetic and state otherwise."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sgqn.agents import base as plain
from sgqn.fast import compiler, switch
from sgqn.fast.weights import Converted, copies_of
from sgqn.replaceable import replace

MOST_TENSORS, CHUNK = 48, 4096


class Adam(plain.Adam):
    """The plain code's Adam, fused. Its state is the same, so that one can continue where the other stopped."""

    def step(self, closure: Callable[[], float] | None = None) -> Any:
        loss, copied = None, []
        if closure is None and not self.decay and all(self._fits(group) for group in self.param_groups):
            for group in self.param_groups:
                copied += self._step(group)
        else:
            loss = super().step(closure)
        # The fused step changes weights without autograd, or holders of a converted copy, noticing.
        torch.autograd.graph.increment_version([p for group in self.param_groups for p in group["params"]])
        for form in copied:
            form.mark_fresh()
        return loss

    def _fits(self, group: dict[str, Any]) -> bool:
        tensors = group["params"]
        if not switch.takes(tensors[0]) or len(tensors) > MOST_TENSORS:
            return False
        if group["weight_decay"] or group["amsgrad"] or group["maximize"] or not group["capturable"]:
            return False
        return all(p.grad is not None and p.dtype == torch.float32 and self.state.get(p) for p in tensors)

    def _step(self, group: dict[str, Any]) -> list[Converted]:
        """Returns the converted weights that it has brought up to date."""
        parameters: list[Tensor] = group["params"]
        state = [self.state[p] for p in parameters]
        torch._foreach_add_([s["step"] for s in state], 1)
        gradients = [p.grad.contiguous() for p in parameters if p.grad is not None]
        columns = (
            parameters,
            gradients,
            [s["exp_avg"] for s in state],
            [s["exp_avg_sq"] for s in state],
            [s["step"] for s in state],
        )
        sizes = np.array([p.numel() for p in parameters])
        blocks = np.concatenate([[0], np.cumsum(-(-sizes // CHUNK))])
        table = np.zeros(1 + MOST_TENSORS + 1 + 9 * MOST_TENSORS, dtype=np.int64)  # struct AdamTable
        table[0] = len(parameters)
        table[1 : 2 + len(parameters)] = blocks
        copies, forms = copies_of(parameters)
        addresses: list[Any] = [[tensor.data_ptr() for tensor in column] for column in columns]
        addresses += [
            [0 if copy is None else copy.data_ptr() for copy in copies],
            [max(1, p.shape[-1] if p.ndim else 1) for p in parameters],
            [0 if copy is None else _pitch(copy) for copy in copies],
        ]
        for index, column in enumerate([sizes, *addresses]):
            start = 2 + MOST_TENSORS + index * MOST_TENSORS
            table[start : start + len(parameters)] = column
        keep1, keep2 = group["betas"]
        numbers = map(float, (group["lr"], self.warmup, keep1, keep2, 1 - keep1, 1 - keep2, group["eps"]))
        kernels = compiler.module("pointwise", parameters[0].device)
        kernels.launch("adam", int(blocks[-1]), 256, 0, table.tobytes(), *numbers)
        return forms


def _pitch(copy: Tensor) -> int:
    """Elements from row to row; negative for bf16."""
    pitch = copy.stride(0) if copy.ndim == 2 else copy.numel()
    return -pitch if copy.dtype == torch.bfloat16 else pitch


def supported(parameter: Tensor) -> bool:
    return parameter.is_cuda


@replace(plain.make_adam, fits=lambda parameters, *_: supported(parameters[0]))
def _make_adam(parameters: Sequence[Tensor], learning_rate: float, beta: float) -> Adam:
    """Capturable, so that its step can be part of a CUDA graph."""
    on_gpu = parameters[0].is_cuda
    return Adam(parameters, learning_rate, betas=(beta, 0.999), fused=True, capturable=on_gpu)
