"""Observations of the same states in distracting scenes, which keep the pixels that an attribution points to."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sgqn.agents.settings import Settings, named, ruled, share, weight
from sgqn.attribution.mask import varied_masks
from sgqn.augmentations import AUGMENTATIONS, Augmentation, random_colors, recolored
from sgqn.errors import InvalidValueError


@dataclass(frozen=True)
class DistractionSettings(Settings):
    """Hyperparameters of distracted observations. An observation is replaced, recolored, overlaid or, in the remaining
    share, left as it is."""

    augmentation: str = named("moving_overlay:alpha=1", "augmentation", lambda: AUGMENTATIONS)
    """Augmentation that gives the pixels of a distracting scene."""
    replaced: float = share(0.5)
    """Share of observations whose pixels outside the mask are replaced by augmented ones."""
    recolored: float = share(0.2)
    """Share of observations whose pixels outside the mask change their colours."""
    overlaid: float = share(0.15)
    """Share of observations that are blended with augmented ones, without a mask."""
    color_jitter: float = weight(0.6)
    """Largest strength of the colour change of the pixels that the mask keeps."""
    kept_rho: tuple[float, ...] = ruled(
        (0.8, 0.9, 0.95, 0.95, 0.95, 0.98, 0.98),
        lambda value: all(0 <= rho < 1 for rho in value),
        "numbers of at least 0 and below 1",
    )
    """Quantiles of the attribution masks of distracted observations; one of them is drawn for each."""
    kept_margin: tuple[int, ...] = ruled(
        (0, 1, 1, 2, 4, 2, 4), lambda value: all(0 <= margin <= 40 for margin in value), "integers from 0 to 40"
    )
    """Pixels by which these masks are grown, one number for each of `kept_rho`."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if len(self.kept_rho) != len(self.kept_margin) or not self.kept_rho:
            lengths = f"{len(self.kept_rho)} and {len(self.kept_margin)}"
            raise InvalidValueError(f"kept_rho and kept_margin must be lists of the same length, not {lengths}")
        if (total := self.replaced + self.recolored + self.overlaid) > 1 + 1e-6:
            raise InvalidValueError(f"replaced, recolored and overlaid must add up to at most 1, not {total:g}")


class Distraction:
    """Puts observations into distracting scenes. All methods draw from the generator that they are given."""

    def __init__(self, settings: DistractionSettings, augmentation: Augmentation):
        self.settings, self.augmentation = settings, augmentation

    @torch.no_grad()
    def masks(self, attribution: Tensor, generator: torch.Generator, copies: int = 1) -> Tensor:
        """The pixels to keep, with a random quantile and margin for each observation: (copies * B, 1, H, W)."""
        return varied_masks(attribution, self.settings.kept_rho, self.settings.kept_margin, generator, copies)

    @torch.no_grad()
    def __call__(self, obs: Tensor, mask: Tensor, generator: torch.Generator) -> Tensor:
        """The observations with other pixels outside the mask and other colours inside, float32 in [0, 255]."""
        settings = self.settings
        kind, choice, amount, inside, outside = torch.rand((5, len(obs)), generator=generator, device=obs.device)
        replaced, recolors = settings.replaced, settings.replaced + settings.recolored
        changed = recolors + settings.overlaid  # the rest is not
        is_recolored, is_overlaid = (kind >= replaced) & (kind < recolors), (kind >= recolors) & (kind < changed)
        body = recolored(obs, random_colors(settings.color_jitter * inside * (choice < 0.6), generator))
        scene = recolored(obs, random_colors(outside * is_recolored, generator))
        opacity = torch.where(choice < 0.4, 0.5 + 0.5 * amount, 1.0)
        opacity = torch.where(is_overlaid, 0.1 + 0.5 * amount, opacity) * ~is_recolored
        opacity, is_overlaid, is_same = (row[:, None, None, None] for row in (opacity, is_overlaid, kind >= changed))
        scene = torch.where(is_overlaid, body, scene)
        scene = torch.lerp(scene, self.augmentation(obs, generator).float(), opacity)
        return torch.where(is_same, obs, torch.where(mask & ~is_overlaid, body, scene))
