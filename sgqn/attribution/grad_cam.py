"""Grad-CAM (Selvaraju et al., 2017)."""

from __future__ import annotations

import threading
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from sgqn.attribution.base import QFunction, gradient_of
from sgqn.attribution.common import check_images, check_natural, inputs, one_value
from sgqn.attribution.registry import register_attribution
from sgqn.errors import InvalidValueError


def check_arguments(stride: int | None) -> None:
    if stride is not None:
        check_natural(stride=stride)


def grad_cam_of(
    value: Tensor,
    obs: Tensor,
    features: Tensor,
    pixels_per_feature: int | None = None,
    *,
    stride: int | None = None,
    relu: bool = True,
    retain_graph: bool = True,
) -> Tensor:
    """Grad-CAM of an existing graph: one backward pass from `value` to `features` (B, C, h, w), which stops there."""
    gradient = gradient_of(value, features, retain_graph)
    dtype = torch.promote_types(features.dtype, torch.float32)
    weights = gradient.to(dtype).mean(dim=(2, 3), keepdim=True)
    cam = (weights * features.detach().to(dtype)).sum(dim=1, keepdim=True).to(obs.dtype)
    cam = cam.clamp_min(0) if relu else cam
    return _over_image(cam, obs.shape[2:], stride or pixels_per_feature).expand_as(obs).contiguous()


@register_attribution("grad_cam", of_graph=grad_cam_of, check=check_arguments)
def grad_cam(
    q: QFunction,
    obs: Tensor,
    action: Tensor,
    layer: nn.Module | None = None,
    stride: int | None = None,
    relu: bool = True,
) -> Tensor:
    """Channels of a feature map, weighted by the mean gradient of Q, summed, rectified, enlarged to the image.

    The same for all channels of `obs`, so for all stacked frames. Without `relu`, negative contributions are included.

    `layer`: the module whose output (B, C, H, W) is taken; by default the last one that q runs and that has such an
    output, which for this package's agents is the encoder. Its own output counts, also if q then changes it in place.

    `stride`: pixels between neighbouring features. The map is then centred in the image, as after convolutions without
    padding, and its border is replicated. By default `layer.pixels_per_feature`, which the encoder has; for a layer
    without it the map is stretched over the image.
    """
    check_images(obs)
    check_arguments(stride)
    with torch.inference_mode(False), torch.enable_grad():
        obs, action = inputs(obs, action)
        layer = _last_layer(q, obs[:1].detach(), action[:1]) if layer is None else layer
        value, features = _value_and_features(q, obs, action, layer)
        spacing = getattr(layer, "pixels_per_feature", None)
        return grad_cam_of(value, obs, features, spacing, stride=stride, relu=relu, retain_graph=False)


def _is_map(output: Any) -> bool:
    return isinstance(output, Tensor) and output.ndim == 4


def _last_layer(q: QFunction, obs: Tensor, action: Tensor) -> nn.Module:
    """The last module that q runs whose output is a feature map."""
    found: list[nn.Module] = []
    thread = threading.get_ident()

    def note(module: nn.Module, args: Any, output: Any) -> None:
        if threading.get_ident() == thread and _is_map(output):
            found.append(module)

    hook = register_module_forward_hook(note)  # of every module: q may be any function
    try:
        with torch.no_grad():
            q(obs, action)
    finally:
        hook.remove()
    if not found:
        raise InvalidValueError("Grad-CAM needs a feature map: q runs no module whose output is (B, C, H, W)")
    return found[-1]


def _value_and_features(q: QFunction, obs: Tensor, action: Tensor, layer: nn.Module) -> tuple[Tensor, Tensor]:
    """q(obs, action), and the output of the layer on the way."""
    found: list[Tensor] = []
    thread = threading.get_ident()

    def keep(module: nn.Module, args: Any, output: Any) -> Tensor | None:
        if threading.get_ident() != thread or not _is_map(output):
            return None
        found.append(output)
        return output.clone()  # which q may change in place

    hook = layer.register_forward_hook(keep)
    try:
        value = one_value(q)(obs, action)
    finally:
        hook.remove()
    if not found:
        raise InvalidValueError(
            f"Grad-CAM: q does not run this {type(layer).__name__}, or its output is not (B, C, H, W)"
        )
    return value, found[-1]


def _over_image(cam: Tensor, size: torch.Size, stride: int | None) -> Tensor:
    """(B, 1, h, w) -> (B, 1, *size), bilinear."""
    if stride is None:
        return F.interpolate(cam, size=list(size), mode="bilinear", align_corners=False)
    # grid_sample counts from -1, the first feature, to 1, the last.
    across = [
        (torch.arange(pixels, device=cam.device, dtype=cam.dtype) - (pixels - 1) / 2) * 2 / (stride * max(1, n - 1))
        for pixels, n in zip(size, cam.shape[2:], strict=True)
    ]
    y, x = torch.meshgrid(*across, indexing="ij")
    grid = torch.stack([x, y], dim=-1).expand(len(cam), -1, -1, -1)
    return F.grid_sample(cam, grid, mode="bilinear", padding_mode="border", align_corners=True)
