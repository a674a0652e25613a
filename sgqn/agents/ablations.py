"""The paper's ablations: SGQN without one of its two losses."""

from __future__ import annotations

from sgqn.agents.base import Spec
from sgqn.agents.drq import drq
from sgqn.agents.registry import register_agent
from sgqn.agents.sgqn import SGQN, SGQNSettings
from sgqn.augmentations import Augmentation
from sgqn.errors import InvalidValueError


@register_agent("sac_consistency", settings=SGQNSettings, actions="continuous", augments=False, masks=True)
def sac_consistency(spec: Spec, settings: SGQNSettings, augmentation: Augmentation) -> SGQN:
    """SGQN without mask prediction."""
    if settings.mask_fill == "augmented":
        raise InvalidValueError("mask_fill 'augmented' needs an augmentation, and sac_consistency has none: use sgqn")
    return SGQN(drq(spec, settings), settings, augmentation, without="selfsup")


@register_agent("sac_selfsup", settings=SGQNSettings, actions="continuous", masks=True)
def sac_selfsup(spec: Spec, settings: SGQNSettings, augmentation: Augmentation) -> SGQN:
    """SGQN without the consistency loss."""
    return SGQN(drq(spec, settings), settings, augmentation, without="consistency")
