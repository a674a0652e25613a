"""DrQ (Yarats et al., 2020) with K = M = 1: SAC on randomly shifted images."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from sgqn.agents.base import Spec
from sgqn.agents.registry import register_agent
from sgqn.agents.sac import SAC, SACSettings
from sgqn.agents.settings import count
from sgqn.augmentations import Augmentation, random_shift


@dataclass(frozen=True)
class DrQSettings(SACSettings):
    """Hyperparameters of DrQ."""

    shift_pad: int = count(4, least=0)
    """Maximum random shift in pixels; 4 in the authors' code, 0 (none) in the paper's text on SGQN."""


def shift_view(settings: DrQSettings) -> Augmentation | None:
    """DrQ's random shift, or None if its range is zero."""
    return partial(random_shift, pad=settings.shift_pad) if settings.shift_pad else None


def drq(spec: Spec, settings: DrQSettings) -> SAC:
    return SAC(spec, settings, view=shift_view(settings))


register_agent("drq", settings=DrQSettings, actions="continuous", augments=False)(
    lambda spec, settings, _: drq(spec, settings)
)
