"""Pixel filters for shifts of any environment: colour jitter and a random convolution, sampled once per episode.

Both are linear maps of a pixel and its neighbours. Weights are multiples of 1/256, so that float32 sums are exact and a
frame is the same on every device and in every batch.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

GREY = 127.5
_SCALE = 256
Map = tuple[np.ndarray, float]
"""Weights (3, 3, k, k) from the colours of a neighbourhood to a colour, and a brightness to add, of 255."""


@dataclass(frozen=True)
class LinearChange:
    """Maps every neighbourhood of k x k pixels to a colour; mid-grey stays what it is, but for the brightness."""

    make: Callable[[np.random.Generator], Map]

    def draw(self, random: np.random.Generator) -> np.ndarray:
        weights, brightness = self.make(random)
        weights = np.rint(_SCALE * weights.reshape(3, -1))
        offset = np.rint(GREY * (_SCALE - weights.sum(axis=1)) + _SCALE * brightness)
        return np.concatenate([weights, offset[:, None]], axis=1).astype(np.float32)

    def apply(self, frames: Tensor, parameters: Tensor) -> Tensor:
        import torch.nn.functional as F

        weights, offset = parameters[..., :-1], parameters[..., -1:]  # (N, 3, 3 k k), (N, 3, 1)
        images = frames.permute(0, 3, 1, 2).float()
        width = round((weights.shape[-1] / 3) ** 0.5)
        margin = width // 2
        if margin:
            images = F.unfold(F.pad(images, (margin,) * 4, mode="replicate"), width)
        changed = weights @ images.flatten(2) + offset  # (N, 3, H W), integers
        changed = changed.add_(_SCALE // 2).div_(_SCALE).floor_().clamp_(0, 255)
        return changed.view(len(frames), 3, *frames.shape[1:3]).permute(0, 2, 3, 1).byte()


def _jitter(random: np.random.Generator) -> Map:
    """Brightness, contrast, saturation and hue, as torchvision's ColorJitter names them."""
    brightness = random.uniform(-30, 30)
    contrast, saturation = random.uniform(0.6, 1.2), random.uniform(0.3, 1.6)
    angle = random.uniform(-np.pi / 2, np.pi / 2)
    turn = np.array([[1, 0, 0], [0, np.cos(angle), -np.sin(angle)], [0, np.sin(angle), np.cos(angle)]])
    chroma = np.diag([1.0, saturation, saturation])
    return (contrast * _FROM_YIQ @ chroma @ turn @ _TO_YIQ)[..., None, None], brightness


def _convolution(random: np.random.Generator) -> Map:
    """Half the image, half a convolution with normal weights: objects keep their outlines and change colour."""
    weights = random.normal(0, 0.25, (3, 3, 3, 3))
    weights[range(3), range(3), 1, 1] += 1.0
    return 0.5 * weights, 0.0


_TO_YIQ = np.array([[0.299, 0.587, 0.114], [0.5959, -0.2746, -0.3213], [0.2115, -0.5227, 0.3112]])
_FROM_YIQ = np.linalg.inv(_TO_YIQ)

COLOR_JITTER = LinearChange(_jitter)
"""Another brightness, contrast, saturation and hue in each episode."""
RANDOM_CONV = LinearChange(_convolution)
"""Another 3x3 convolution of the colours in each episode, mixed with the image."""
