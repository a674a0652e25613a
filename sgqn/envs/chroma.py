"""The chroma key of the video shifts: which pixels are green screen, and what is shown there instead.

The DMControl Generalization Benchmark reads each pixel as floats, turns it to HSV and keeps hue 100..185
degrees, saturation 80..255 and value 70..255. On the boundary (hue exactly 100 or 185 degrees, saturation
exactly 80) its verdict is whatever float64 rounding makes of it, so no plain integer formula equals it: 7,524
of the 2^24 colours would have the other hue verdict. But rounding keeps order: with the largest and smallest
channel fixed, the verdict changes once along the third. So one limit per pair of extremes, found with the
float arithmetic itself, is exact and quick.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sgqn.errors import InvalidValueError

HUE = (100.0, 185.0)  # degrees
SATURATION = (80.0, 255.0)
VALUE = (70.0, 255.0)

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]


def is_key(frames: Tensor) -> Tensor:
    """Which pixels the benchmark replaces: uint8 (..., H, W, 3) -> bool (..., H, W)."""
    if frames.dtype != torch.uint8 or frames.shape[-1:] != (3,):
        raise InvalidValueError(f"the chroma key needs uint8 (..., 3), not {frames.dtype} {tuple(frames.shape)}")
    red, green, blue = frames.unbind(-1)
    bluish = blue > green  # the limit that matters is 185 degrees, set by green; else it is 100, set by red
    smallest = torch.minimum(torch.minimum(red, green), blue)
    largest = torch.maximum(green, blue)  # where red is larger still, no limit in the table lets it pass
    third = torch.where(bluish, green.bitwise_not(), red)
    index = largest.int().mul_(256).add_(smallest).add_(bluish, alpha=256 * 256)
    limit = _limits(frames.device).index_select(0, index.flatten()).view(index.shape)
    return third < limit


def replace(frames: Tensor, backgrounds: Tensor, where: Tensor | None = None) -> Tensor:
    """New frames that show the background where the frame is green screen; both uint8 (..., H, W, 3).

    `where`, bool (..., H, W), takes the place of the chroma key.
    """
    if frames.shape != backgrounds.shape or backgrounds.dtype != torch.uint8:
        got = f"{backgrounds.dtype} {tuple(backgrounds.shape)}"
        raise InvalidValueError(f"backgrounds must be uint8 {tuple(frames.shape)} like the frames, not {got}")
    mask = (is_key(frames) if where is None else where).to(torch.uint8).mul_(255).unsqueeze(-1)
    # torch.where(key, backgrounds, frames), but faster on a CPU, whose broadcast `where` is slow.
    return (frames ^ backgrounds).bitwise_and_(mask).bitwise_xor_(frames)


def float_rule(red: Floats, green: Floats, blue: Floats) -> Bools:
    """The benchmark's arithmetic on channels 0..255: float64 `colorsys.rgb_to_hsv`, then the ranges."""
    r, g, b = red / 255.0, green / 255.0, blue / 255.0
    high, low = np.maximum(np.maximum(r, g), b), np.minimum(np.minimum(r, g), b)
    grey = high == low
    spread = np.where(grey, 1.0, high - low)
    rc, gc, bc = (high - r) / spread, (high - g) / spread, (high - b) / spread
    sixth = np.where(r == high, bc - gc, np.where(g == high, 2.0 + rc - bc, 4.0 + gc - rc))
    hue = (sixth / 6.0) % 1.0 * 360.0
    saturation = spread / np.where(grey, 1.0, high) * 255.0
    value = high * 255.0
    return ~grey & _within(hue, HUE) & _within(saturation, SATURATION) & _within(value, VALUE)


def _within(x: Floats, bounds: tuple[float, float]) -> Bools:
    return (bounds[0] <= x) & (x <= bounds[1])


@functools.cache
def _limits(device: torch.device) -> Tensor:
    """uint8 (2 * 256 * 256,): at [blue above green][largest][smallest], the third's first value that fails.

    The third channel is red where green is the largest; where blue is, it is green, counted down from 255.
    """
    high, low = np.meshgrid(np.arange(256.0), np.arange(256.0), indexing="ij")
    greenish = _first_failing(lambda red: float_rule(red, high, low), low, high)
    bluish = _first_failing(lambda rest: float_rule(low, 255.0 - rest, high), 255.0 - high, 255.0 - low)
    return torch.from_numpy(np.stack([greenish, bluish]).astype(np.uint8)).flatten().to(device)


def _first_failing(passes: Callable[[Floats], Bools], start: Floats, end: Floats) -> Floats:
    """Bisects for where `passes` turns false between start and end, where it is false; 0 if never true."""
    never = ~passes(start) | (start >= end)
    good, bad = start, end
    for _ in range(8):
        middle = np.floor((good + bad) / 2)
        passed = passes(middle)
        good, bad = np.where(passed, middle, good), np.where(passed, bad, middle)
    return np.where(never, 0.0, bad)
