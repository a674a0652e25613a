"""SVEA+SODA, the paper's combination of both losses."""

from __future__ import annotations

from dataclasses import dataclass

from sgqn.agents.base import Spec
from sgqn.agents.registry import register_agent
from sgqn.agents.soda import SODA, SODASettings
from sgqn.agents.svea import SVEA, SVEASettings
from sgqn.augmentations import Augmentation


@dataclass(frozen=True)
class SVEASODASettings(SVEASettings, SODASettings):
    """Hyperparameters of SVEA+SODA: those of both."""


@register_agent("svea_soda", settings=SVEASODASettings, actions="continuous")
def svea_soda(spec: Spec, settings: SVEASODASettings, augmentation: Augmentation) -> SODA:
    return SODA(SVEA(spec, settings, augmentation), settings, augmentation)
