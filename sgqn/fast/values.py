"""Losses of values in one kernel each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from sgqn.fast import compiler, switch
from sgqn.losses import soft_td_target, sum_of_squared_errors
from sgqn.replaceable import replace


def fits(tensors: Sequence[Tensor], most: int) -> bool:
    """Rows of float32 of one length, not too many."""
    first = tensors[0]
    alike = all(t.dtype == torch.float32 and t.shape == first.shape and t.ndim == 1 for t in tensors)
    return len(tensors) <= most and switch.takes(first) and alike


def squared_errors(pairs: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """The sum over one or two pairs of the mean squared difference."""
    loss: Tensor = _SquaredErrors.apply(*(a for a, _ in pairs), *(b for _, b in pairs))
    return loss


class _SquaredErrors(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *rows: Tensor) -> Tensor:
        number, count, device = len(rows) // 2, len(rows[0]), rows[0].device
        kept, loss = torch.empty(number, count, device=device), torch.empty((), device=device)
        a, b = [row.contiguous() for row in rows[:number]], [row.contiguous() for row in rows[number:]]
        arguments = (a[0], a[-1], b[0], b[-1], kept, loss, number, count)
        compiler.module("pointwise", device).launch("squared_errors", 1, 256, 8 * 4, *arguments)
        ctx.save_for_backward(kept)
        return loss

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:
        (kept,) = ctx.saved_tensors
        of_a = kept * scale
        of_b: tuple[Tensor | None, ...] = (None,) * len(kept)
        if any(ctx.needs_input_grad[len(kept) :]):
            of_b = (-of_a).unbind()
        return *of_a.unbind(), *of_b


def soft_target(reward: Tensor, discount: Tensor, values: Sequence[Tensor], log_pi: Tensor, alpha: Tensor) -> Tensor:
    """reward + discount (min of two values - alpha log_pi), without gradient."""
    out, (first, second) = torch.empty_like(reward), (value.contiguous() for value in values)
    arguments = (reward, discount, first, second, log_pi.contiguous(), alpha, out, len(out))
    compiler.module("pointwise", out.device).launch("soft_target", 1, 256, 0, *arguments)
    return out


# ---- what they replace


def _fits_target(reward: Tensor, discount: Tensor, next_qs: Iterable[Tensor], next_log_pi: Tensor, _: Tensor) -> bool:
    if torch.is_grad_enabled() or not isinstance(next_qs, tuple | list) or len(next_qs) != 2:
        return False
    return fits([reward, discount, *next_qs, next_log_pi], 5)


@replace(soft_td_target, fits=_fits_target)
def _soft_td_target(
    reward: Tensor, discount: Tensor, next_qs: Iterable[Tensor], next_log_pi: Tensor, alpha: Tensor
) -> Tensor:
    return soft_target(reward, discount, list(next_qs), next_log_pi, alpha)


@replace(sum_of_squared_errors, fits=lambda pairs, *names: fits([row for pair in pairs for row in pair], 4))
def _sum_of_squared_errors(pairs: Sequence[tuple[Tensor, Tensor]], left: str, right: str) -> Tensor:
    return squared_errors(pairs)
