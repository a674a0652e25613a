"""SGQN around SVEA. Masked pixels become those of the augmented observation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sgqn.agents.base import Spec
from sgqn.agents.registry import register_agent
from sgqn.agents.sgqn import SGQN, SaliencySettings
from sgqn.agents.svea import SVEA, SVEASettings
from sgqn.augmentations import Augmentation


@dataclass(frozen=True)
class SGSVEASettings(SaliencySettings, SVEASettings):
    """Hyperparameters of SGQN and of SVEA."""

    mask_fill: Literal["random", "zero", "augmented"] = "augmented"
    """Value of masked pixels: that of the augmented observation, one random value per batch, or zero."""


@register_agent("sgsvea", settings=SGSVEASettings, actions="continuous", masks=True)
def sgsvea(spec: Spec, settings: SGSVEASettings, augmentation: Augmentation) -> SGQN:
    return SGQN(SVEA(spec, settings, augmentation), settings, augmentation)
