"""The type of attribution methods, and the gradient computation of gradient methods."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from sgqn.errors import InvalidValueError
from sgqn.replaceable import replaceable

QFunction: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""q(obs, action) -> (B,) or (B, 1)."""

Attribution: TypeAlias = Callable[[QFunction, Tensor, Tensor], Tensor]
"""M(Q, s, a): method(q, obs, action) -> one number per input value, a float tensor of obs's shape."""


def check_tensor(name: str, given: object) -> None:
    if not isinstance(given, Tensor):
        kind = type(given).__name__
        raise InvalidValueError(f"{name} must be a torch tensor, a batch of them, not {kind}: torch.as_tensor(x)[None]")


@replaceable
def differentiable(obs: Tensor) -> Tensor:
    """A float view or copy of `obs` that requires gradients; `obs` itself does not change."""
    check_tensor("obs", obs)
    # An inference tensor can't take part in autograd; its copy made outside inference mode can.
    obs = obs.clone() if obs.is_inference() else obs.detach()
    return (obs if obs.is_floating_point() else obs.to(torch.get_default_dtype())).requires_grad_()


def gradient_of(value: Tensor, obs: Tensor, retain_graph: bool = True) -> Tensor:
    """d value / d obs of an existing graph: `value` is q(obs, action), `obs` requires gradients.

    Reads the graph only: no parameter's `.grad` is touched, and it stays usable if `retain_graph`.
    """
    batch = obs.shape[0]
    if value.shape not in ((batch,), (batch, 1)):
        raise InvalidValueError(
            f"q must return one value per observation, ({batch},) or ({batch}, 1), not {tuple(value.shape)}"
        )
    (attribution,) = torch.autograd.grad(value, obs, torch.ones_like(value), retain_graph=retain_graph)
    return attribution
