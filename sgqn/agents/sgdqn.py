"""SGQN around DQN."""

from __future__ import annotations

from dataclasses import dataclass

from sgqn.agents.base import Spec
from sgqn.agents.dqn import DQN, DQNSettings
from sgqn.agents.registry import register_agent
from sgqn.agents.sgqn import SGQN, SaliencySettings
from sgqn.augmentations import Augmentation


@dataclass(frozen=True)
class SGDQNSettings(SaliencySettings, DQNSettings):
    """Hyperparameters of SGQN and of DQN."""


@register_agent("sgdqn", settings=SGDQNSettings, actions="discrete", masks=True)
def sgdqn(spec: Spec, settings: SGDQNSettings, augmentation: Augmentation) -> SGQN:
    return SGQN(DQN(spec, settings), settings, augmentation)
