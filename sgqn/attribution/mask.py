"""From an attribution map to the mask of salient pixels, and from a mask to the masked observation.

Masks are made per stacked frame: the magnitude of a pixel is its largest absolute attribution over RGB.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sgqn.errors import InvalidValueError
from sgqn.replaceable import replaceable

Mask: TypeAlias = Callable[[Tensor], Tensor]
"""attribution -> a mask of its shape, boolean or in [0, 1]; make one with `functools.partial`."""


@replaceable
def quantile_mask(attribution: Tensor, rho: float = 0.95, frames: int | None = None) -> Tensor:
    """M_rho: the pixels at or above the rho-quantile of their frame; boolean, (B, C, H, W) like the map.

    Keeps what `magnitude >= torch.quantile(magnitude, rho)` keeps. Ties at the threshold are all kept, so a constant
    frame is kept completely and its consistency loss is zero; so is a frame with fewer non-zero pixels than are to be
    kept. A frame with NaN is masked completely.
    """
    check_rho(rho)
    magnitude = magnitude_of(attribution, frames)  # (B, frames, H, W)
    if magnitude.dtype not in (torch.float32, torch.float64):
        magnitude = magnitude.float()
    # topk finds the same pixels as torch.quantile would, several times faster.
    kept = num_at_or_above_quantile(magnitude.shape[2:].numel(), rho, magnitude.dtype)
    threshold = magnitude.flatten(2).topk(kept, sorted=False).values.amin(dim=2)
    return _over_colours(magnitude >= threshold[:, :, None, None], attribution)


def check_rho(rho: float) -> None:
    if not 0 <= rho <= 1:
        raise InvalidValueError(f"rho must lie in [0, 1], not {rho}")


def soft_mask(attribution: Tensor, temperature: float = 1.0, frames: int | None = None) -> Tensor:
    """The paper's soft alternative: (magnitude / its frame's maximum)^(1 / temperature), in [0, 1].

    That is a softmax of log magnitude, scaled to 1 at the strongest pixel: at temperature 1 the map itself,
    towards 0 that pixel alone, towards infinity every pixel. A constant frame is kept completely.
    """
    if not temperature > 0:
        raise InvalidValueError(f"temperature must be positive, not {temperature}")
    magnitude = magnitude_of(attribution, frames)  # (B, frames, H, W)
    peak = magnitude.amax(dim=(2, 3), keepdim=True)
    share = torch.where(peak == 0, 1, magnitude / peak)
    return _over_colours(share ** (1 / temperature), attribution)


def contrast_mask(
    obs: Tensor, attribution: Tensor, rho: float = 0.95, margin: int = 4, contrast: float = 0.5
) -> Tensor:
    """The pixels of M_rho, and up to `margin` pixels next to them, that stand out from the scene: boolean, like obs.

    Attributions are blurred, so M_rho has background next to a body, and not all of the body. Here, pixels are kept in
    all frames or none, if their colour does not continue from the pixels around (`contrasting`).
    """
    kind = torch.zeros((1, len(obs)), dtype=torch.long, device=obs.device)
    near = varied_masks(attribution, (rho,), (margin,), kind)
    return contrasting(obs, near, torch.full((len(obs),), contrast, device=obs.device))


def varied_masks(attribution: Tensor, rhos: Sequence[float], margins: Sequence[int], kind: Tensor) -> Tensor:
    """Masks with different quantiles and margins: that of kind i has the quantile rhos[i] and is grown by margins[i]
    pixels. `kind` (copies, B) has one for each mask; boolean, (copies * B, 1, H, W). A pixel that one frame keeps is
    kept in all frames."""
    magnitude = magnitude_of(attribution.float(), None)  # (B, frames, H, W)
    copies, batch = kind.shape
    pixels, device = magnitude.shape[2:].numel(), magnitude.device
    counts = [num_at_or_above_quantile(pixels, rho, magnitude.dtype) for rho in rhos]
    largest = magnitude.flatten(2).topk(max(counts)).values
    thresholds = torch.stack([largest[..., count - 1] for count in counts])  # (len(rhos), B, frames)
    threshold = thresholds[kind, torch.arange(batch, device=device)].flatten(0, 1)
    mask = (magnitude.repeat(copies, 1, 1, 1) >= threshold[:, :, None, None]).any(dim=1, keepdim=True)
    sizes = [mask]
    for _ in range(max(margins)):
        sizes.append(grown(sizes[-1]))
    return torch.stack(sizes)[chosen(margins, kind.flatten()), torch.arange(copies * batch, device=device)]


def chosen(values: Sequence[float], kind: Tensor) -> Tensor:
    """values[kind], without copying the values from host to device."""
    dtype = torch.get_default_dtype() if any(isinstance(value, float) for value in values) else kind.dtype
    rows = [torch.full((), value, dtype=dtype, device=kind.device) for value in values]
    return torch.stack(rows)[kind]


def contrasting(obs: Tensor, mask: Tensor, contrast: Tensor) -> Tensor:
    """The pixels of a mask (B, 1, H, W) whose colour does not continue from the pixels outside: in one of the colours,
    they differ from `inpainted` by at least `contrast` (B,), relative to the largest difference in their frame;
    boolean, shaped like the observations (B, C, H, W)."""
    batch, channels, height, width = obs.shape
    frames = obs.float().view(batch * channels // 3, 3, height, width)
    difference = (frames - inpainted(frames, mask.repeat_interleave(channels // 3, dim=0))).abs().amax(dim=1)
    difference = difference.view(batch, channels // 3, height, width) * mask
    differs = difference >= contrast[:, None, None, None] * difference.amax(dim=(2, 3), keepdim=True)
    return (mask & differs).repeat_interleave(3, dim=1)


def edges(obs: Tensor, mask: Tensor, reach: int = 2) -> tuple[Tensor, Tensor]:
    """How much of a mask's pixels shows what is behind them, as on the antialiased edge of a body: (B, frames, H, W) in
    [0, 1], zero inside and outside of the mask; and the observations without the masked pixels, float, like obs.

    An edge pixel is a mixture of body and scene. It differs from the scene by as much of the body's contrast, which is
    the largest within `reach` pixels, as it shows of the body.
    """
    batch, channels, height, width = obs.shape
    kept = mask[:, ::3]
    near = kept
    for _ in range(reach):  # pixels next to a mask show some of the body too
        near = grown(near)
    frames = obs.reshape(-1, 3, height, width).float()
    behind = inpainted(frames, near.reshape(-1, 1, height, width))
    contrast = (frames - behind).abs().amax(dim=1).view(kept.shape)
    largest = F.max_pool2d(contrast, 2 * reach + 1, stride=1, padding=reach)
    shown = 1 - contrast / largest.clamp(min=1)
    return shown * (kept & grown(~kept)), behind.view(batch, channels, height, width)


def inpainted(frames: Tensor, hole: Tensor) -> Tensor:
    """Images (N, C, H, W) whose pixels in the hole (N, 1, H, W) are weighted means of pixels around it: averages over
    ever larger squares, of which the smallest that knows a pixel counts most."""
    known = (~hole).float()
    sums, weights = [frames * known], [known]
    while max(sums[-1].shape[-2:]) > 1:
        for levels in (sums, weights):
            levels.append(F.avg_pool2d(levels[-1], 2, ceil_mode=True, count_include_pad=False))
    found = sums.pop() / weights.pop().clamp(min=1e-6)
    for total, weight in zip(reversed(sums), reversed(weights), strict=True):
        coarse = F.interpolate(found, size=total.shape[-2:], mode="bilinear", align_corners=False)
        found = total + (1 - weight) * coarse
    return found


def grown(mask: Tensor) -> Tensor:
    """A boolean mask with the pixels next to those that it keeps, also diagonally."""
    wide = mask.clone()
    wide[..., 1:] |= mask[..., :-1]
    wide[..., :-1] |= mask[..., 1:]
    tall = wide.clone()
    tall[..., 1:, :] |= wide[..., :-1, :]
    tall[..., :-1, :] |= wide[..., 1:, :]
    return tall


@replaceable
def share(mask: Tensor) -> Tensor:
    """The share of pixels that a mask keeps, a scalar."""
    return mask.mean(dtype=torch.float32)


@replaceable
def sign_agreement(logits: Tensor, mask: Tensor) -> Tensor:
    """The share of pixels whose logit is positive where they are salient (more than half), and only there."""
    salient = mask if mask.dtype == torch.bool else mask > 0.5
    return share((logits.detach() > 0) == salient)


@replaceable
def fill(obs: Tensor, mask: Tensor, value: Tensor | float = 0) -> Tensor:
    """s ⊙ M + value (1 - M): pixels outside the mask become `value` (0 in the paper), a number or a tensor.

    A soft mask interpolates between the two. A fused version may round the value and keep uint8.
    """
    if mask.dtype == torch.bool:
        return torch.where(mask, obs, value)
    return mask * obs + (1 - mask) * value


def random_value(obs: Tensor, generator: torch.Generator) -> Tensor:
    """A scalar drawn uniformly between the smallest and the largest value of the batch."""
    low, high = value_range(obs)
    return low + (high - low) * torch.rand((), generator=generator, device=obs.device)


@replaceable
def value_range(obs: Tensor) -> tuple[Tensor, Tensor]:
    """The smallest and the largest value of a batch, as floats."""
    low, high = torch.aminmax(obs)
    return low.float(), high.float()


def magnitude_of(attribution: Tensor, frames: int | None) -> Tensor:
    """(B, frames * colours, H, W) -> (B, frames, H, W). Without `frames`, three colours a frame."""
    if attribution.ndim != 4:
        raise InvalidValueError(f"an attribution is (B, C, H, W), not {tuple(attribution.shape)}")
    channels = attribution.shape[1]
    if frames is None and channels % 3:
        raise InvalidValueError(f"{channels} channels do not divide into frames of three colours")
    frames = channels // 3 if frames is None else frames
    if frames < 1 or channels % frames:
        raise InvalidValueError(f"{channels} channels do not divide into {frames} frames")
    return attribution.unflatten(1, (frames, -1)).abs().amax(dim=2)


def _over_colours(mask: Tensor, attribution: Tensor) -> Tensor:
    """Repeat a mask (B, frames, H, W) over the colours of each frame: (B, C, H, W)."""
    return mask.repeat_interleave(attribution.shape[1] // mask.shape[1], dim=1)


def num_at_or_above_quantile(n: int, rho: float, dtype: torch.dtype) -> int:
    """How many of n distinct numbers are >= their rho-quantile, interpolated linearly at rank rho (n - 1)."""
    # torch.quantile computes the rank in the map's precision: 0.1 * 30 is 3 in float32, above 3 in float64.
    number = np.float64 if dtype == torch.float64 else np.float32
    return n - math.ceil(number(rho) * number(n - 1))
