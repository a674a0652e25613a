"""DrQ (Yarats et al., 2020) with K = M = 1: SAC on randomly shifted pictures."""

from __future__ import annotations

from functools import partial

from sgqn.agents.base import Spec
from sgqn.agents.sac import SAC
from sgqn.agents.settings import AgentSettings
from sgqn.augmentations import Augmentation, random_shift


def shift_view(settings: AgentSettings) -> Augmentation | None:
    """DrQ's random shift, or nothing where its range is zero."""
    return partial(random_shift, pad=settings.shift_pad) if settings.shift_pad else None


def drq(spec: Spec, settings: AgentSettings) -> SAC:
    return SAC(spec, settings, view=shift_view(settings))
