"""Vanilla gradient (Simonyan et al., 2014)."""

from __future__ import annotations

import torch
from torch import Tensor

from sgqn.attribution.base import QFunction, differentiable, gradient_of
from sgqn.attribution.registry import register_attribution


@register_attribution("gradient", of_graph=gradient_of)
def gradient(q: QFunction, obs: Tensor, action: Tensor) -> Tensor:
    """M(Q, s, a) = dQ(s, a) / ds, also under `torch.no_grad` and for uint8 observations."""
    with torch.inference_mode(False), torch.enable_grad():
        obs = differentiable(obs)
        action = action.clone() if action.is_inference() else action.detach()
        return gradient_of(q(obs, action), obs, retain_graph=False)
