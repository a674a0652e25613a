"""Images and masks in one pass each: random windows, overlays, quantile masks, filling, the mask prediction loss."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from sgqn import augmentations, losses
from sgqn.attribution import base
from sgqn.attribution import mask as masks
from sgqn.fast import compiler, switch
from sgqn.replaceable import replace


def fits_window(obs: Tensor, width: int) -> bool:
    return switch.takes(obs) and obs.dtype == torch.uint8 and width % 4 == 0


@replace(augmentations.window, fits=lambda obs, top, left, height, width: fits_window(obs, width))
def window(obs: Tensor, top: Tensor, left: Tensor, height: int, width: int) -> Tensor:
    """`sgqn.augmentations.window` of uint8 images."""
    batch, channels, rows, columns = obs.shape
    out = torch.empty(batch, channels, height, width, dtype=torch.uint8, device=obs.device)
    parts = min(16, -(-channels * height * width // 1024))
    arguments = (obs.contiguous(), top.contiguous(), left.contiguous(), out, channels, rows, columns, height, width)
    compiler.module("pointwise", obs.device).launch("window", (parts, batch), 256, 0, *arguments)
    return out


def fits_overlay(obs: Tensor, images: Tensor) -> bool:
    return switch.takes(obs) and obs.dtype == images.dtype == torch.uint8 and images[0].numel() % 4 == 0


@replace(augmentations.blend, fits=lambda obs, images, index, alpha: fits_overlay(obs, images))
def overlay(obs: Tensor, images: Tensor, index: Tensor, alpha: float) -> Tensor:
    """(1 - alpha) obs + alpha images[index], rounded to uint8."""
    out, frame = torch.empty_like(obs), images[0].numel()
    frames = obs[0].numel() // frame
    arguments = (obs.contiguous(), images, index, out, frame, frames, float(alpha))
    compiler.module("pointwise", obs.device).launch("blend", (8, len(obs)), 256, 0, *arguments)
    return out


def fits_moving_blend(obs: Tensor, images: Tensor) -> bool:
    return fits_overlay(obs, images) and obs.shape[3] % 4 == 0


@replace(augmentations.moving_blend, fits=lambda obs, images, index, alpha, down, right: fits_moving_blend(obs, images))
def moving_overlay(obs: Tensor, images: Tensor, index: Tensor, alpha: Tensor, down: Tensor, right: Tensor) -> Tensor:
    """`sgqn.augmentations.moving_blend`, rounded to uint8."""
    (channels, height, width), out = obs.shape[1:], torch.empty_like(obs, memory_format=torch.contiguous_format)
    each = (index, alpha, down.contiguous(), right.contiguous())
    arguments = (obs.contiguous(), images, *each, out, channels // 3, height, width)
    compiler.module("pointwise", obs.device).launch("moving_blend", (16, len(obs)), 256, 0, *arguments)
    return out


def fits_colors(obs: Tensor) -> bool:
    return switch.takes(obs) and obs.dtype == torch.uint8 and obs.shape[2:].numel() % 4 == 0


@replace(augmentations.recolored, fits=lambda obs, matrix: fits_colors(obs))
def recolored(obs: Tensor, matrix: Tensor) -> Tensor:
    """`sgqn.augmentations.recolored`, rounded to uint8."""
    out = torch.empty_like(obs, memory_format=torch.contiguous_format)
    arguments = (obs.contiguous(), matrix.contiguous(), out, obs.shape[1] // 3, obs.shape[2:].numel())
    compiler.module("pointwise", obs.device).launch("recolor", (8, len(obs)), 256, 0, *arguments)
    return out


def fits_fill(obs: Tensor, mask: Tensor, value: Tensor | float = 0) -> bool:
    single = isinstance(value, Tensor) and value.numel() == 1
    fits = switch.takes(obs) and obs.dtype == torch.uint8 and mask.dtype == torch.bool
    return fits and single and obs.shape == mask.shape and obs.numel() % 16 == 0


@replace(masks.fill, fits=fits_fill)
def fill(obs: Tensor, mask: Tensor, value: Tensor | float = 0) -> Tensor:
    """Where the mask is false, the value, rounded to uint8."""
    assert isinstance(value, Tensor)
    obs, mask = obs.contiguous(), mask.contiguous()
    out = torch.empty_like(obs)
    arguments = (obs, mask, value.float(), out, obs.numel())
    compiler.module("pointwise", obs.device).launch("fill_unmasked", 1056, 256, 0, *arguments)
    return out


def fits_floats(obs: Tensor) -> bool:
    return switch.takes(obs) and obs.dtype == torch.uint8 and obs.numel() % 4 == 0


def floats(obs: Tensor) -> Tensor:
    """uint8 to float32."""
    out = torch.empty(obs.shape, device=obs.device)
    compiler.module("pointwise", obs.device).launch("bytes_to_floats", 1056, 256, 0, obs.contiguous(), out, obs.numel())
    return out


@replace(base.differentiable, fits=lambda obs: isinstance(obs, Tensor) and not obs.is_inference() and fits_floats(obs))
def _differentiable(obs: Tensor) -> Tensor:
    return floats(obs.detach()).requires_grad_()


def fits_range(obs: Tensor) -> bool:
    return switch.takes(obs) and obs.dtype == torch.uint8 and obs.numel() % 16 == 0


def byte_range(obs: Tensor) -> Tensor:
    """The least and the greatest byte: two floats."""
    # Nothing is copied from the host here, which a capture would not allow.
    found = torch.arange(255, -256, -255, dtype=torch.int32, device=obs.device)[:2]
    compiler.module("pointwise", obs.device).launch("byte_range", 264, 256, 0, obs.contiguous(), found, obs.numel())
    return found.float()


@replace(masks.value_range, fits=fits_range)
def _value_range(obs: Tensor) -> tuple[Tensor, Tensor]:
    low, high = byte_range(obs)
    return low, high


def fits_share(mask: Tensor) -> bool:
    return switch.takes(mask) and mask.dtype == torch.bool and mask.numel() % 16 == 0


@replace(masks.share, fits=fits_share)
def share(mask: Tensor) -> Tensor:
    """The share of a boolean mask that is true."""
    found = torch.zeros((), device=mask.device)
    arguments = (mask.contiguous(), found, mask.numel(), 1.0 / mask.numel())
    compiler.module("pointwise", mask.device).launch("share_of_ones", 264, 256, 8 * 4, *arguments)
    return found


def fits_quantile(attribution: Tensor, frames: int) -> bool:
    channels, height, width = attribution.shape[1:]
    fits = switch.takes(attribution) and attribution.dtype == torch.float32
    return fits and channels == 3 * frames and height * width <= 8192 and height * width % 4 == 0


def quantile_mask(attribution: Tensor, kept: int) -> Tensor:
    """Per frame of three channels: magnitudes at or above the `kept`-th largest."""
    attribution = attribution.contiguous()
    mask = torch.empty(attribution.shape, dtype=torch.bool, device=attribution.device)
    batch, channels, height, width = attribution.shape
    arguments = (attribution, mask, height * width, kept)
    compiler.module("pointwise", mask.device).launch("quantile", batch * channels // 3, 512, 33 * 4, *arguments)
    return mask


def _fits_quantile_mask(attribution: Tensor, rho: float = 0.95, frames: int | None = None) -> bool:
    return attribution.ndim == 4 and fits_quantile(attribution, frames or attribution.shape[1] // 3)


@replace(masks.quantile_mask, fits=_fits_quantile_mask)
def _quantile_mask(attribution: Tensor, rho: float = 0.95, frames: int | None = None) -> Tensor:
    masks.check_rho(rho)
    size = attribution.shape[2:].numel()
    return quantile_mask(attribution, masks.num_at_or_above_quantile(size, rho, torch.float32))


def fits_logits(logits: Tensor, mask: Tensor) -> bool:
    whole = logits.is_contiguous() and logits.numel() % 8 == 0
    alike = logits.shape == mask.shape and mask.dtype == torch.bool
    return switch.takes(logits) and logits.dtype == torch.bfloat16 and alike and whole


@replace(losses.mask_prediction_loss, fits=fits_logits)
def bce(logits: Tensor, mask: Tensor) -> Tensor:
    """Mean binary cross-entropy of bf16 logits with a boolean mask."""
    loss: Tensor = _BCE.apply(logits, mask.contiguous())
    return loss


class _BCE(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, mask: Tensor) -> Tensor:
        loss = torch.zeros((), device=logits.device)
        kernels = compiler.module("pointwise", logits.device)
        kernels.launch("bce_forward", 1056, 256, 8 * 4, logits, mask, loss, logits.numel())
        ctx.save_for_backward(logits, mask)
        return loss

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor, None]:
        logits, mask = ctx.saved_tensors
        gradient = torch.empty_like(logits)
        arguments = (logits, mask, scale.float(), gradient, logits.numel())
        compiler.module("pointwise", logits.device).launch("bce_backward", 2112, 256, 0, *arguments)
        return gradient, None


@replace(masks.sign_agreement, fits=fits_logits)
def agreement(logits: Tensor, mask: Tensor) -> Tensor:
    """The share of logits whose sign agrees with the mask."""
    found = torch.zeros((), device=logits.device)
    arguments = (logits.detach(), mask.contiguous(), found, logits.numel())
    compiler.module("pointwise", logits.device).launch("agreement", 264, 256, 8 * 4, *arguments)
    return found
