"""Guided Grad-CAM (Selvaraju et al., 2017)."""

from __future__ import annotations

from torch import Tensor, nn

from sgqn.attribution.base import QFunction
from sgqn.attribution.grad_cam import grad_cam
from sgqn.attribution.guided_backprop import guided_backprop
from sgqn.attribution.registry import register_attribution


@register_attribution("guided_grad_cam", needs_captum=True)
def guided_grad_cam(
    q: QFunction, obs: Tensor, action: Tensor, layer: nn.Module | None = None, stride: int | None = None
) -> Tensor:
    """Guided backpropagation times Grad-CAM: its detail, in the places that Grad-CAM names.

    `layer` and `stride` are those of `grad_cam`. The factors are multiplied here and not by Captum, whose guided
    backpropagation sees only ReLUs that are modules: the encoder's are not.
    """
    return guided_backprop(q, obs, action) * grad_cam(q, obs, action, layer, stride)
