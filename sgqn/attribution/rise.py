"""RISE (Petsiuk et al., 2018), adapted to values."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from sgqn.attribution.base import QFunction
from sgqn.attribution.common import OnStep, check_images, check_natural, colours, inputs, one_value, random, repeat
from sgqn.attribution.registry import register_attribution
from sgqn.errors import InvalidValueError


def check_arguments(masks: int, cell: int, keep: float, batch_size: int) -> None:
    check_natural(masks=masks, cell=cell, batch_size=batch_size)
    if not 0 < keep < 1:
        raise InvalidValueError(f"keep, the probability that a cell is visible, must lie between 0 and 1, not {keep!r}")


@register_attribution("rise", check=check_arguments)
def rise(
    q: QFunction,
    obs: Tensor,
    action: Tensor,
    masks: int = 2000,
    cell: int = 12,
    keep: float = 0.5,
    fill: float = 0.0,
    per_frame: bool = False,
    batch_size: int = 256,
    generator: torch.Generator | None = None,
    on_step: OnStep | None = None,
) -> Tensor:
    """E[Q | the pixel is visible] - E[Q], over images with random soft masks.

    A mask is a coarse grid of cells of `cell` pixels, each shown with probability `keep`, enlarged with soft edges and
    moved by a random part of a cell; hidden pixels become `fill` (0 to 255). It hides all channels alike, so the map is
    the same for all stacked frames; with `per_frame`, each frame of three colours has its own mask.

    The paper's map is only E[Q | visible], for class scores. A value has no natural zero, and without the second term
    the sampling frequency of pixels would dominate the map. All observations share the masks; without a generator, they
    are the same at each call. A pass has at most `batch_size` images, or all observations if they are more.
    """
    check_images(obs)
    check_arguments(masks, cell, keep, batch_size)
    together = colours(obs, per_frame)
    layers, (height, width) = obs.shape[1] // together, obs.shape[2:]
    generator = random(generator)
    values = one_value(q)
    with torch.inference_mode(False), torch.no_grad():
        obs, action = inputs(obs, action)
        obs = obs.detach()
        # All draws come first, so that they do not depend on the batch size.
        grid = (masks, layers, math.ceil(height / cell) + 1, math.ceil(width / cell) + 1)
        cells = (torch.rand(grid, generator=generator, device=generator.device) < keep).to(obs)
        moves = torch.randint(cell, (masks, 2), generator=generator, device=generator.device).tolist()

        whole = values(obs, action)  # taken off every value, to save digits
        weighted = obs.new_zeros(len(obs), layers, height, width)
        seen, mean = obs.new_zeros(layers, height, width), torch.zeros_like(whole)
        at_once = max(1, batch_size // len(obs))
        for done in range(0, masks, at_once):
            shown = _enlarged(cells[done : done + at_once], moves[done : done + at_once], cell, height, width)
            over_colours = shown.repeat_interleave(together, dim=1)[:, None]
            images = fill + over_colours * (obs - fill)  # (masks, B, C, H, W)
            value = values(images.flatten(0, 1), repeat(action, len(shown))).unflatten(0, (len(shown), -1)) - whole
            weighted += torch.einsum("mb,mlhw->blhw", value.to(obs.dtype), shown)
            seen += shown.sum(dim=0)
            mean += value.sum(dim=0) / masks
            if on_step is not None:
                on_step(done + len(shown), masks)
        result = torch.where(seen > 0, weighted / seen - mean[:, None, None, None], 0)
        return result.repeat_interleave(together, dim=1).to(obs.dtype)


def _enlarged(cells: Tensor, moves: list[list[int]], cell: int, height: int, width: int) -> Tensor:
    """Grids (n, layers, h, w) as soft masks (n, layers, height, width), each moved."""
    size = [side * cell for side in cells.shape[2:]]
    large = F.interpolate(cells, size=size, mode="bilinear", align_corners=False)
    return torch.stack([m[:, y : y + height, x : x + width] for m, (y, x) in zip(large, moves, strict=True)])
