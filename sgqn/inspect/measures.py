"""Attributions and masks compared with the ground truth, and how well a mask is predicted.

Measures are per stacked frame: they take maps and masks (B, C, H, W) and the simulator's ground truth, bool
(B, frames, H, W), and return float64 (B, frames). A pixel's magnitude is its largest absolute attribution over the
colours of its frame, as for masks. Two rules cover degenerate frames:

- A map or mask that ranks no pixel (constant, zero, empty) scores the base rate; an empty mask's IoU is 0.
- A frame that does not show the controlled system gives NaN, also for the base rate. So does a map with NaN.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from sgqn.attribution.mask import magnitude_of
from sgqn.errors import InvalidValueError

# Comparison with the ground truth


def base_rate(truth: Tensor) -> Tensor:
    """The share of a frame's pixels that show the controlled system: what a uniform map scores."""
    if truth.ndim != 4 or truth.dtype != torch.bool:
        raise InvalidValueError(f"a ground truth is bool (B, frames, H, W), not {truth.dtype} {tuple(truth.shape)}")
    share = truth.sum(dim=(2, 3)).double() / truth.shape[2:].numel()
    return torch.where(share == 0, math.nan, share)


def mass_share(attribution: Tensor, truth: Tensor) -> Tensor:
    """The share of the magnitude that lies on the controlled system."""
    base = base_rate(truth)
    magnitude = _magnitude_like(attribution, truth)
    peak = magnitude.amax(dim=(2, 3), keepdim=True)
    mass = torch.where(peak == 0, 1, magnitude / peak)
    share = (mass * truth).sum(dim=(2, 3)) / mass.sum(dim=(2, 3))
    return torch.where(base.isnan(), base, share)


def pointing(attribution: Tensor, truth: Tensor) -> Tensor:
    """The pointing game: 1 if the strongest pixel is on the system, else 0; for ties, the share that is."""
    base = base_rate(truth)
    magnitude = _magnitude_like(attribution, truth)
    strongest = magnitude == magnitude.amax(dim=(2, 3), keepdim=True)
    share = (strongest & truth).sum(dim=(2, 3)).double() / strongest.sum(dim=(2, 3))
    return torch.where(base.isnan(), base, share)


def mask_share(mask: Tensor, truth: Tensor) -> Tensor:
    """The share of a mask's pixels that lie on the controlled system (its precision)."""
    base = base_rate(truth)
    both, kept, _ = _overlap(mask, truth)
    return torch.where(base.isnan() | (kept == 0), base, both / kept)


def iou(mask: Tensor, truth: Tensor) -> Tensor:
    """Intersection over union of a mask and the controlled system."""
    base = base_rate(truth)
    both, kept, shown = _overlap(mask, truth)
    return torch.where(base.isnan(), base, both / (kept + shown - both))


def iou_ceiling(mask: Tensor, truth: Tensor) -> Tensor:
    """The best IoU of any mask that keeps as many pixels as this one: smaller size over larger size."""
    base = base_rate(truth)
    _, kept, shown = _overlap(mask, truth)
    return torch.where(base.isnan(), base, torch.minimum(kept, shown) / torch.maximum(kept, shown))


def _magnitude_like(attribution: Tensor, truth: Tensor) -> Tensor:
    _check_fit(attribution, truth)
    return magnitude_of(attribution.double(), truth.shape[1])


def _overlap(mask: Tensor, truth: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """How many values of each frame, over its colours, are in both, in the mask, in the truth."""
    _check_mask(mask)
    _check_fit(mask, truth)
    masks = mask.unflatten(1, (truth.shape[1], -1))  # (B, frames, colours, H, W)
    truths = truth[:, :, None].expand_as(masks)
    both, kept, shown = (part.sum(dim=(2, 3, 4)).double() for part in (masks & truths, masks, truths))
    return both, kept, shown


def _check_mask(mask: Tensor) -> None:
    if mask.dtype != torch.bool:
        raise InvalidValueError(f"a mask is bool, not {mask.dtype}: compare probabilities with 0.5 first")


def _check_fit(values: Tensor, truth: Tensor) -> None:
    fits = values.ndim == 4 and len(values) == len(truth) and values.shape[2:] == truth.shape[2:]
    if not fits or values.shape[1] % truth.shape[1]:
        raise InvalidValueError(
            f"(B, frames * colours, H, W) and a ground truth (B, frames, H, W) must fit, "
            f"not {tuple(values.shape)} and {tuple(truth.shape)}"
        )


# The predicted mask


def binary(mask: Tensor) -> Tensor:
    """A mask as booleans; soft masks are thresholded at 0.5, as in the training log."""
    return mask if mask.dtype == torch.bool else mask > 0.5


def mask_iou(one: Tensor, other: Tensor, frames: int) -> Tensor:
    """IoU of two boolean masks (B, C, H, W), colours counted one by one: (B, frames). NaN where both are empty."""
    ours, theirs = (mask.unflatten(1, (frames, -1)).flatten(2) for mask in (one, other))
    return (ours & theirs).sum(dim=2) / (ours | theirs).sum(dim=2).double()


class Agreement(NamedTuple):
    """How well M_theta predicts the attribution mask; each (B, frames)."""

    accuracy: Tensor
    """Share of values on the right side of 0.5. Predicting nothing already scores rho."""
    iou: Tensor
    """IoU of the prediction at 0.5 and the mask. Predicting nothing scores 0."""
    average_precision: Tensor
    """Area under precision over recall, over all thresholds. A constant prediction scores the share kept."""


def agreement(predicted: Tensor, mask: Tensor, frames: int | None = None) -> Agreement:
    """Compare probabilities with the true attribution mask, both (B, C, H, W), colours counted one by one.

    Without `frames`, three colours a frame. Where the mask is empty, IoU and average precision are NaN.
    """
    _check_mask(mask)
    if predicted.shape != mask.shape:
        raise InvalidValueError(f"a prediction {tuple(predicted.shape)} of a mask {tuple(mask.shape)}: shapes differ")
    frames = magnitude_of(predicted, frames).shape[1]
    scores, wanted = (part.unflatten(1, (frames, -1)).flatten(2) for part in (predicted, mask))  # (B, frames, values)
    said = scores > 0.5
    return Agreement(
        accuracy=(said == wanted).double().mean(dim=2),
        iou=torch.where(wanted.any(dim=2), mask_iou(predicted > 0.5, mask, frames), math.nan),
        average_precision=_average_precision(scores, wanted),
    )


def _average_precision(scores: Tensor, wanted: Tensor) -> Tensor:
    """The mean, over the wanted values, of the precision among all values that score at least as high."""
    falling, order = (-scores).sort(dim=-1)
    hits = wanted.gather(-1, order)
    precision = hits.cumsum(dim=-1) / torch.arange(1, hits.shape[-1] + 1, device=hits.device).double()
    last_of_tie = torch.searchsorted(falling, falling, right=True) - 1
    return (precision.gather(-1, last_of_tie) * hits).sum(dim=-1) / hits.sum(dim=-1)
