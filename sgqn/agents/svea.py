"""SVEA (Hansen et al., 2021): the critic also learns from strongly augmented pictures, with the clean target."""

from __future__ import annotations

from torch import Tensor

from sgqn.agents.base import Losses, Spec
from sgqn.agents.drq import shift_view
from sgqn.agents.sac import SAC
from sgqn.agents.settings import AgentSettings
from sgqn.augmentations import Augmentation
from sgqn.losses import critic_loss, svea_loss
from sgqn.replay import Batch


class SVEA(SAC):
    """SAC on shifted pictures whose critic loss is a mixture over clean and augmented observations."""

    def __init__(self, spec: Spec, settings: AgentSettings, augmentation: Augmentation):
        super().__init__(spec, settings, view=shift_view(settings))
        self.augmentation = augmentation

    def critic_losses(self, batch: Batch, values: tuple[Tensor, ...]) -> Losses:
        target = self.td_target(batch)
        augmented = self.values(self.encode(self.augmentation(batch.obs, self.generator)), batch.action)
        clean_loss, augmented_loss = critic_loss(values, target), critic_loss(augmented, target)
        return {"critic": svea_loss(clean_loss, augmented_loss, self.settings.svea_alpha, self.settings.svea_beta)}
