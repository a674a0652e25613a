"""Grad-CAM (Selvaraju et al., 2017), by Captum."""

from __future__ import annotations

import threading
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook

from sgqn.attribution.base import QFunction
from sgqn.attribution.common import captum, check_natural, check_pictures, inputs, one_value
from sgqn.attribution.registry import register_attribution
from sgqn.errors import InvalidValueError


@register_attribution("grad_cam", needs_captum=True)
def grad_cam(
    q: QFunction,
    obs: Tensor,
    action: Tensor,
    layer: nn.Module | None = None,
    stride: int | None = None,
    relu: bool = True,
) -> Tensor:
    """Channels of a feature map, weighted by the mean gradient of Q, summed, rectified, enlarged to the picture.

    The same for all channels of `obs`, so for all stacked frames. Without `relu`, also what lowers the value.

    `layer`: the module whose output (B, C, H, W) is taken; by default the last one that q runs and that has such an
    output, which for this package's agents is the encoder. Its own output counts, also if q then changes it in place.

    `stride`: pixels between neighbouring features. The map then lies centred in the picture, as after convolutions
    without padding, and its rim is continued outwards. By default `layer.pixels_per_feature`, which the encoder has;
    for a layer without it the map is stretched over the picture, as Captum does.
    """
    check_pictures(obs)
    if stride is not None:
        check_natural(stride=stride)
    with torch.inference_mode(False), torch.enable_grad():
        obs, action = inputs(obs, action)
        layer = _layer_of(q, obs[:1].detach(), action[:1], layer)
        method = captum().LayerGradCam(one_value(q), layer)
        cam = method.attribute(obs, additional_forward_args=(action,), relu_attributions=relu).detach()
        cam = cam.to(obs.dtype)
    stride = stride or getattr(layer, "pixels_per_feature", None)
    return _over_picture(cam, obs.shape[2:], stride).expand_as(obs).contiguous()


def _layer_of(q: QFunction, obs: Tensor, action: Tensor, layer: nn.Module | None) -> nn.Module:
    """`layer` if q runs it and it makes a feature map, the last one that does if it is None."""
    found: list[nn.Module] = []
    thread = threading.get_ident()

    def note(module: nn.Module, args: Any, output: Any) -> None:
        if threading.get_ident() == thread and isinstance(output, Tensor) and output.ndim == 4:
            found.append(module)

    hook = register_module_forward_hook(note)  # of every module: q may be any function
    try:
        with torch.no_grad():
            q(obs, action)
    finally:
        hook.remove()
    if layer is None:
        if not found:
            raise InvalidValueError("Grad-CAM needs a feature map: q runs no module whose output is (B, C, H, W)")
        return found[-1]
    if not any(module is layer for module in found):
        raise InvalidValueError(
            f"Grad-CAM: q does not run this {type(layer).__name__}, or its output is not (B, C, H, W)"
        )
    return layer


def _over_picture(cam: Tensor, size: torch.Size, stride: int | None) -> Tensor:
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
