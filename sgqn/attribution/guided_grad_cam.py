"""Guided Grad-CAM (Selvaraju et al., 2017)."""

from __future__ import annotations

from torch import Tensor, nn

from sgqn.attribution.base import QFunction
from sgqn.attribution.grad_cam import check_arguments, grad_cam, grad_cam_of
from sgqn.attribution.guided_backprop import guided_backprop, guided_gradient_of
from sgqn.attribution.registry import register_attribution


def guided_grad_cam_of(
    value: Tensor,
    obs: Tensor,
    features: Tensor,
    pixels_per_feature: int | None = None,
    *,
    stride: int | None = None,
    retain_graph: bool = True,
) -> Tensor:
    """Guided Grad-CAM of an existing graph, recorded under `switchable_relu`: a guided and a short backward pass."""
    detail = guided_gradient_of(value, obs)
    return detail * grad_cam_of(value, obs, features, pixels_per_feature, stride=stride, retain_graph=retain_graph)


@register_attribution("guided_grad_cam", of_graph=guided_grad_cam_of, check=check_arguments)
def guided_grad_cam(
    q: QFunction, obs: Tensor, action: Tensor, layer: nn.Module | None = None, stride: int | None = None
) -> Tensor:
    """Guided backpropagation times Grad-CAM: fine detail within Grad-CAM's regions.

    `layer` and `stride` are those of `grad_cam`.
    """
    return guided_backprop(q, obs, action) * grad_cam(q, obs, action, layer, stride)
