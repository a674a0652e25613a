"""Observations of the same states in distracting scenes, which keep the pixels that an attribution points to."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from sgqn.agents.settings import Settings, named, ruled, share, weight
from sgqn.attribution.mask import chosen, contrasting, edges, varied_masks
from sgqn.augmentations import AUGMENTATIONS, Augmentation, random_colors, recolored
from sgqn.errors import InvalidValueError

VISIBLE = 8
"""Change of a colour, of 255, from which a pixel counts as changed."""


@dataclass(frozen=True)
class DistractionSettings(Settings):
    """Hyperparameters of distracted observations. An observation is replaced, recolored, overlaid or, in the remaining
    share, left as it is."""

    augmentation: str = named("moving_overlay:alpha=1", "augmentation", lambda: AUGMENTATIONS)
    """Augmentation that gives the pixels of a distracting scene."""
    replaced: float = share(0.6)
    """Share of observations whose pixels outside the mask are replaced by augmented ones."""
    recolored: float = share(0.3)
    """Share of observations whose pixels outside the mask change their colours."""
    overlaid: float = share(0.05)
    """Share of observations that are blended with augmented ones, without a mask."""
    sided: float = share(0.4)
    """Share of replaced and recolored observations that change on one side of a random line only."""
    fringed: float = share(0.5)
    """Share of replaced observations in which a random colour shines through the edges of what the mask keeps."""
    color_jitter: float = weight(1.0)
    """Largest strength of the colour change of the pixels that the mask keeps."""
    kept_rho: tuple[float, ...] = ruled(
        (0.9, 0.95, 0.9, 0.9, 0.9, 0.95, 0.95, 0.95),
        lambda value: all(0 <= rho < 1 for rho in value),
        "numbers of at least 0 and below 1",
    )
    """Quantiles of the attribution masks of distracted observations; one of them is drawn for each."""
    kept_margin: tuple[int, ...] = ruled(
        (1, 2, 2, 4, 4, 4, 4, 4), lambda value: all(0 <= margin <= 40 for margin in value), "integers from 0 to 40"
    )
    """Pixels by which these masks are grown, one number for each of `kept_rho`."""
    kept_contrast: tuple[float, ...] = ruled(
        (0.2, 0.3, 0.4, 0.5, 0.4, 0.5, 0.6, 0.6),
        lambda value: all(0 <= contrast <= 1 for contrast in value),
        "numbers from 0 to 1",
    )
    """Contrast to the pixels around these masks that a pixel inside must have to be kept, relative to the largest, one
    for each of `kept_rho`; 0 keeps all."""

    def __post_init__(self) -> None:
        super().__post_init__()
        lengths = [len(self.kept_rho), len(self.kept_margin), len(self.kept_contrast)]
        if len({*lengths}) > 1 or not lengths[0]:
            raise InvalidValueError(
                "kept_rho, kept_margin and kept_contrast must have the same length, at least 1, not "
                + ", ".join(map(str, lengths))
            )
        if (total := self.replaced + self.recolored + self.overlaid) > 1 + 1e-6:
            raise InvalidValueError(f"replaced, recolored and overlaid must add up to at most 1, not {total:g}")


class Distracted(NamedTuple):
    """Observations in distracting scenes."""

    obs: Tensor
    """float32 in [0, 255], (B, C, H, W)."""
    kept: Tensor
    """The pixels that show what they showed before, possibly in other colours: (B, frames, H, W)."""
    replaced: Tensor
    """The pixels that show something else: (B, frames, H, W)."""


class Distraction:
    """Puts observations into distracting scenes. All methods draw from the generator that they are given."""

    def __init__(self, settings: DistractionSettings, augmentation: Augmentation):
        self.settings, self.augmentation = settings, augmentation

    @torch.no_grad()
    def masks(self, obs: Tensor, attribution: Tensor, generator: torch.Generator, copies: int = 1) -> Tensor:
        """The pixels to keep, (copies * B, C, H, W), with a random quantile, margin and contrast for each."""
        settings = self.settings
        kind = torch.randint(len(settings.kept_rho), (copies, len(obs)), generator=generator, device=obs.device)
        mask = varied_masks(attribution, settings.kept_rho, settings.kept_margin, kind)
        contrast = chosen(settings.kept_contrast, kind.flatten())
        return contrasting(obs.repeat(copies, 1, 1, 1), mask, contrast)

    @torch.no_grad()
    def __call__(self, obs: Tensor, mask: Tensor, generator: torch.Generator) -> Distracted:
        """The observations with other pixels outside the mask and other colours inside."""
        settings = self.settings
        draws = torch.rand((12, len(obs)), generator=generator, device=obs.device)
        kind, choice, amount, inside, outside, fringe, *more = draws
        color, line = torch.stack(more[:3], dim=1), more[3:]
        replaced, recolors = settings.replaced, settings.replaced + settings.recolored
        changed = recolors + settings.overlaid  # the rest is not
        is_recolored, is_overlaid = (kind >= replaced) & (kind < recolors), (kind >= recolors) & (kind < changed)
        tint = self._tint(obs, mask, color, (kind < replaced) & (fringe < settings.fringed))
        tinted = (obs + tint).round().clamp(0, 255).to(obs.dtype)
        body = recolored(tinted, random_colors(settings.color_jitter * inside * (choice < 0.6), generator)).float()
        scene = recolored(obs, random_colors(outside * is_recolored, generator)).float()
        opacity = torch.where(choice < 0.2, 0.5 + 0.5 * amount, 1.0)
        opacity = torch.where(is_overlaid, 0.1 + 0.5 * amount, opacity) * ~is_recolored
        opacity, is_overlaid, is_same = (row[:, None, None, None] for row in (opacity, is_overlaid, kind >= changed))
        scene = torch.where(is_overlaid, body, scene)
        scene = torch.lerp(scene, self.augmentation(obs, generator).float(), opacity)
        side = self._side(obs, *line)[:, None] | is_overlaid
        seen = torch.where(is_same, obs, torch.where(mask & ~is_overlaid, body, torch.where(side, scene, obs)))
        kept, is_tinted, is_other = mask[:, ::3], _visible(tint), _visible(seen - obs)
        return Distracted(seen, kept & ~is_tinted, is_other & ~kept)

    def _tint(self, obs: Tensor, mask: Tensor, color: Tensor, chosen: Tensor) -> Tensor:
        """The change of the edges of the kept pixels if a colour (B, 3), from 0 to 1, replaces what is behind them."""
        if not self.settings.fringed:
            return torch.zeros_like(obs, dtype=torch.float32)
        amount, behind = edges(obs, mask)
        color = 255 * color.repeat(1, obs.shape[1] // 3)[:, :, None, None]
        amount = (amount * chosen[:, None, None, None]).repeat_interleave(3, dim=1)
        return amount * (color - behind)

    def _side(self, obs: Tensor, sided: Tensor, angle: Tensor, offset: Tensor) -> Tensor:
        """The pixels on one side of a random line through the image, or all of them: (B, H, W)."""
        rows, columns = (torch.linspace(-1, 1, size, device=obs.device) for size in obs.shape[2:])
        angle, offset = 2 * math.pi * angle[:, None, None], 1.6 * offset[:, None, None] - 0.8
        beyond = rows[:, None] * angle.sin() + columns * angle.cos() > offset
        return beyond | (sided >= self.settings.sided)[:, None, None]


def _visible(change: Tensor) -> Tensor:
    """The pixels of (B, 3 k, H, W) that change visibly in one of their colours: (B, k, H, W)."""
    return change.abs().unflatten(1, (-1, 3)).amax(dim=2) > VISIBLE
