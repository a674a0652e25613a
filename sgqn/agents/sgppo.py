"""SGQN around PPO: the attribution mask of the state value, or of the action's log-probability."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sgqn.agents.base import Spec
from sgqn.agents.ppo import PPO, PPOSettings
from sgqn.agents.registry import register_agent
from sgqn.agents.sgqn import SGQN, SaliencySettings
from sgqn.augmentations import Augmentation
from sgqn.rollout import Rollouts


@dataclass(frozen=True)
class SGPPOSettings(SaliencySettings, PPOSettings):
    """Hyperparameters of SGQN and of PPO."""

    attribution_target: Literal["value", "log_prob"] = "value"  # type: ignore[assignment]
    """Attributed value: V(s), or log pi(a | s)."""


@register_agent("sgppo", settings=SGPPOSettings, masks=True, experience=Rollouts)
def sgppo(spec: Spec, settings: SGPPOSettings, augmentation: Augmentation) -> SGQN:
    return SGQN(PPO(spec, settings), settings, augmentation)
