"""SVEA (Hansen et al., 2021): the critic also learns from strongly augmented images, with the clean target."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from sgqn.agents.base import Losses, Spec
from sgqn.agents.drq import DrQSettings, shift_view
from sgqn.agents.registry import register_agent
from sgqn.agents.sac import SAC
from sgqn.agents.settings import named, weight
from sgqn.augmentations import AUGMENTATIONS, Augmentation
from sgqn.losses import critic_loss, svea_loss
from sgqn.replay import Batch


@dataclass(frozen=True)
class SVEASettings(DrQSettings):
    """Hyperparameters of SVEA."""

    augmentation: str = named("overlay", "augmentation", lambda: AUGMENTATIONS)
    """Strong augmentation."""
    svea_alpha: float = weight(0.5)
    """Weight of the critic's loss on clean images."""
    svea_beta: float = weight(0.5)
    """Weight of the critic's loss on augmented images."""


class SVEA(SAC):
    """SAC on shifted images whose critic loss is a mixture over clean and augmented observations."""

    def __init__(self, spec: Spec, settings: SVEASettings, augmentation: Augmentation):
        super().__init__(spec, settings, view=shift_view(settings))
        self.augmentation, self.weights = augmentation, (settings.svea_alpha, settings.svea_beta)

    def critic_losses(self, batch: Batch, values: tuple[Tensor, ...]) -> Losses:
        target = self.td_target(batch)
        augmented = self.values(self.encode(self.augmentation(batch.obs, self.generator)), batch.action)
        clean_loss, augmented_loss = critic_loss(values, target), critic_loss(augmented, target)
        return {"critic": svea_loss(clean_loss, augmented_loss, *self.weights)}


register_agent("svea", settings=SVEASettings, actions="continuous")(SVEA)
