"""SGQN around DrQ-v2."""

from __future__ import annotations

from dataclasses import dataclass

from sgqn.agents.base import Spec
from sgqn.agents.drqv2 import DrQv2, DrQv2Settings
from sgqn.agents.registry import register_agent
from sgqn.agents.sgqn import SGQN, SaliencySettings
from sgqn.augmentations import Augmentation


@dataclass(frozen=True)
class SGDrQv2Settings(SaliencySettings, DrQv2Settings):
    """Hyperparameters of SGQN and of DrQ-v2."""


@register_agent("sgdrqv2", settings=SGDrQv2Settings, actions="continuous", masks=True)
def sgdrqv2(spec: Spec, settings: SGDrQv2Settings, augmentation: Augmentation) -> SGQN:
    return SGQN(DrQv2(spec, settings), settings, augmentation)
