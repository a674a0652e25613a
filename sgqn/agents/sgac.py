"""SGAC, saliency-guided actor-critic: SGQN whose masked pixels become a distracting scene, for critic and actor."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from sgqn.agents.base import Losses, Metrics, Spec
from sgqn.agents.drq import drq
from sgqn.agents.registry import register_agent
from sgqn.agents.settings import named, weight
from sgqn.agents.sgqn import SGQN
from sgqn.agents.sgsvea import SGSVEASettings
from sgqn.agents.svea import SVEA
from sgqn.attribution.mask import Mask
from sgqn.augmentations import AUGMENTATIONS, Augmentation, color_jitter
from sgqn.replay import Batch


@dataclass(frozen=True)
class SGACSettings(SGSVEASettings):
    """Hyperparameters of SGAC."""

    augmentation: str = named("moving_overlay:alpha=0.6,spread=0.3", "augmentation", lambda: AUGMENTATIONS)
    """Strong augmentation tau: of masked pixels, for the mask prediction, and for the critic."""
    color_jitter: float = weight(0.3)
    """Strength of the colour change of distracted observations; 0 for none."""
    policy_consistency_weight: float = weight(10.0)
    """Weight of the policy consistency loss; 0 for none."""
    policy_trains_encoder: bool = True
    """Whether the policy consistency loss also trains the encoder, in the critic step."""
    augmented_critic: bool = True
    """Whether the critic also learns from augmented observations, as in SVEA."""


class SGAC(SGQN):
    """SGQN with a distracted observation s' in place of the masked one: the pixels outside the mask become those of the
    augmented observation, and all colours change. The value and the action must be the same in s and s'.
    """

    settings: SGACSettings

    def masking(self, obs: Tensor) -> Mask:
        strength = self.settings.color_jitter
        return super().masking(color_jitter(obs, self.generator, strength) if strength else obs)

    def further_losses(self, features: Tensor, masked_features: Tensor) -> Losses:
        loss_weight = self.settings.policy_consistency_weight
        if not loss_weight or not self.settings.policy_trains_encoder:
            return {}
        return {"policy_consistency": loss_weight * self.learner.policy_consistency(features, masked_features)}

    def actor_step(self, features: Tensor, batch: Batch, mask: Tensor | None) -> Metrics:
        """A gradient step on L_pi + w L_PC."""
        loss_weight = self.settings.policy_consistency_weight
        if not loss_weight or mask is None:
            return self.learner.actor_step(features)
        with torch.no_grad():
            distracted = self.learner.encode(self.masking(batch.obs)(mask))
        return self.learner.actor_step(features, distracted, loss_weight)


@register_agent("sgac", settings=SGACSettings, actions="continuous", masks=True)
def sgac(spec: Spec, settings: SGACSettings, augmentation: Augmentation) -> SGAC:
    learner = SVEA(spec, settings, augmentation) if settings.augmented_critic else drq(spec, settings)
    return SGAC(learner, settings, augmentation)
