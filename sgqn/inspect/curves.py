"""Deletion and insertion: how the value changes as the most salient pixels are removed or shown first."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from sgqn.attribution.base import QFunction
from sgqn.attribution.common import check_images, check_natural, one_value
from sgqn.attribution.mask import magnitude_of
from sgqn.errors import InvalidValueError, UnknownNameError

FILLS = ("zero", "mean", "blur")


@dataclass(frozen=True)
class ValueCurve:
    """Q(s', a) of images s' that show a growing (insertion) or shrinking (deletion) share of the pixels of s."""

    shown: Tensor
    """(S,) the share that is still, or already, shown: from 1 to 0 in a deletion, from 0 to 1 in an insertion."""
    values: Tensor
    """(B, S)"""

    @property
    def whole(self) -> Tensor:
        """Q(s, a), (B,)."""
        return self.values[:, self.shown.argmax()]

    @property
    def filled(self) -> Tensor:
        """The value of the completely filled image, (B,)."""
        return self.values[:, self.shown.argmin()]

    @property
    def normalised(self) -> Tensor:
        """(Q(s') - Q(filled)) / (Q(s) - Q(filled)), (B, S): 1 at the whole image. NaN if both are equal."""
        span = (self.whole - self.filled)[:, None]
        return torch.where(span == 0, math.nan, (self.values - self.filled[:, None]) / span)

    @property
    def area(self) -> Tensor:
        """Under the normalised curve, by trapezoids, (B,). Deletion: lower is better; insertion: higher is better."""
        return self._integral(self.normalised)

    @property
    def pooled(self) -> Tensor:
        """The normalised curve of all observations together, (S,), each weighted by |Q(s) - Q(filled)|.

        Unlike a plain mean, it is not dominated by observations whose value hardly depends on the image.
        """
        span = self.whole - self.filled
        total = span.abs().sum()
        weighted = (span.sign()[:, None] * (self.values - self.filled[:, None])).sum(dim=0)
        return torch.where(total == 0, math.nan, weighted / total)

    @property
    def pooled_area(self) -> Tensor:
        """Under the pooled curve, a scalar."""
        return self._integral(self.pooled)

    @property
    def changed(self) -> Tensor:
        """Mean |Q(s') - Q(s)| over mean |Q(s) - Q(filled)|, (S,): 0 at the whole image, 1 at the filled one.

        Unlike `pooled`, it counts pixels that raise the value and pixels that lower it alike, as a magnitude does.
        """
        total = (self.whole - self.filled).abs().sum()
        change = (self.values - self.whole[:, None]).abs().sum(dim=0)
        return torch.where(total == 0, math.nan, change / total)

    @property
    def changed_area(self) -> Tensor:
        """Under `changed`, a scalar. Most salient pixels first: higher is better; least salient first: lower."""
        return self._integral(self.changed)

    def reversed(self) -> ValueCurve:
        return ValueCurve(self.shown.flip(0), self.values.flip(1))

    def _integral(self, heights: Tensor) -> Tensor:
        return torch.trapezoid(heights, self.shown.to(heights)) / (self.shown[-1] - self.shown[0])


def deletion(
    q: QFunction,
    obs: Tensor,
    action: Tensor,
    attribution: Tensor,
    steps: int = 20,
    fill: str | float | Tensor = "mean",
    least_first: bool = False,
    frames: int | None = None,
    batch_size: int = 256,
) -> ValueCurve:
    """Q(s, a) as the most salient pixels are removed first, in `steps` equal parts of every frame.

    Pixels are ordered per frame by magnitude, ties by position (row by row, the first is the more salient).
    `least_first` is that order backwards. A removed pixel becomes `fill`: "zero", "mean" (the mean of its channel),
    "blur" (the blurred image), a number, or an image that broadcasts to `obs`. Without `frames`, three colours a
    frame. A pass has at most `batch_size` images.
    """
    check_images(obs)
    check_natural(steps=steps, batch_size=batch_size)
    if attribution.shape != obs.shape or len(action) != len(obs):
        raise InvalidValueError(
            f"observations {tuple(obs.shape)} need an attribution of that shape and as many actions, "
            f"not {tuple(attribution.shape)} and {len(action)}"
        )
    magnitude = magnitude_of(attribution, frames)  # (B, frames, H, W)
    pixels = magnitude.shape[2:].numel()
    order = magnitude.flatten(2).argsort(dim=2, descending=True, stable=True)
    rank = order.argsort(dim=2)  # 0 is removed first
    rank = (pixels - 1 - rank if least_first else rank).view_as(magnitude)
    images = obs if obs.is_floating_point() else obs.to(torch.get_default_dtype())
    blank = filled(images, fill)
    removed = torch.arange(steps + 1, device=obs.device) * pixels // steps
    q = one_value(q)
    values = []
    with torch.no_grad():
        for part in torch.arange(len(obs) * (steps + 1), device=obs.device).split(batch_size):
            row, step = part // (steps + 1), part % (steps + 1)
            shows = rank[row] >= removed[step, None, None, None]
            shows = shows.repeat_interleave(obs.shape[1] // shows.shape[1], dim=1)
            values.append(q(torch.where(shows, images[row], blank[row]), action[row]))
    return ValueCurve(1 - removed.double() / pixels, torch.cat(values).view(len(obs), steps + 1))


def insertion(
    q: QFunction,
    obs: Tensor,
    action: Tensor,
    attribution: Tensor,
    steps: int = 20,
    fill: str | float | Tensor = "mean",
    least_first: bool = False,
    frames: int | None = None,
    batch_size: int = 256,
) -> ValueCurve:
    """Q(s, a) as the most salient pixels are put into the filled image first: the rest as in `deletion`.

    Showing the most salient is the same as having removed the least salient: this is that deletion, backwards.
    """
    return deletion(q, obs, action, attribution, steps, fill, not least_first, frames, batch_size).reversed()


def filled(obs: Tensor, fill: str | float | Tensor) -> Tensor:
    """The image that replaces removed pixels, like `obs`, floats."""
    if not isinstance(fill, str):
        try:
            return torch.as_tensor(fill).to(obs).expand_as(obs)
        except RuntimeError as error:
            shape = tuple(torch.as_tensor(fill).shape)
            raise InvalidValueError(f"a fill for observations {tuple(obs.shape)} cannot be {shape}") from error
    if fill == "zero":
        return torch.zeros_like(obs)
    if fill == "mean":
        return obs.mean(dim=(2, 3), keepdim=True).expand_as(obs)
    if fill == "blur":
        return blurred(obs, sigma=max(obs.shape[2:]) / 16)
    raise UnknownNameError("fill", fill, FILLS)


def blurred(obs: Tensor, sigma: float) -> Tensor:
    """Gaussian blur of float images (B, C, H, W), cut off at three sigma; the border is replicated."""
    radius = math.ceil(3 * sigma)
    bell = torch.exp(-0.5 * (torch.arange(-radius, radius + 1, device=obs.device, dtype=obs.dtype) / sigma) ** 2)
    bell = (bell / bell.sum()).view(1, 1, 1, -1)
    flat = F.pad(obs.flatten(0, 1)[:, None], (radius,) * 4, mode="replicate")
    return F.conv2d(F.conv2d(flat, bell), bell.mT)[:, 0].view_as(obs)
