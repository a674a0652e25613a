"""SODA (Hansen & Wang, 2021): features of an augmented image predict a slow copy's features of the clean one."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sgqn.agents.base import Metrics, Phase, Spec, minimize
from sgqn.agents.learner import Learner, Wrapper
from sgqn.agents.rad import rad
from sgqn.agents.registry import register_agent
from sgqn.agents.sac import SACSettings
from sgqn.agents.settings import count, fraction, named, positive
from sgqn.augmentations import AUGMENTATIONS, Augmentation
from sgqn.errors import InvalidValueError
from sgqn.losses import byol_loss
from sgqn.networks import SodaMLP, ema_update, frozen_copy
from sgqn.replay import Batch


@dataclass(frozen=True)
class SODASettings(SACSettings):
    """Hyperparameters of SODA."""

    augmentation: str = named("overlay", "augmentation", lambda: AUGMENTATIONS)
    """Strong augmentation."""
    auxiliary_every: int = count(2)
    """Updates per feature prediction step."""
    soda_batch_size: int = count(256, least=2)  # batch norm needs two
    """Batch size of the feature prediction."""
    soda_tau: float = fraction(0.005)
    """EMA rate of the slow network."""
    soda_learning_rate: float = positive(1e-3)
    """Learning rate of the feature prediction."""


class SODA(Wrapper):
    """A learner (SAC or SVEA) with a feature prediction step on a separate batch, every second update."""

    def __init__(self, learner: Learner, settings: SODASettings, augmentation: Augmentation):
        super().__init__(learner, augmentation, settings.auxiliary_every)
        self.settings = settings
        dim = settings.embedding_dim
        self.projector = SodaMLP(math.prod(learner.encoder.out_shape), dim, dim)
        self.predictor = SodaMLP(dim, dim, dim)
        self.slow = frozen_copy(nn.Sequential(learner.encoder, self.projector))

    def make_optimizers(self) -> None:
        super().make_optimizers()
        trained = nn.ModuleList([self.learner.encoder, self.projector, self.predictor]).parameters()
        self.optimizers["auxiliary"] = self.learner.make_optimizer(trained, self.settings.soda_learning_rate)

    def sample_size(self, phase: Phase) -> int:
        return self.batch_size + (self.settings.soda_batch_size if phase.auxiliary else 0)

    def learn(self, batch: Batch, phase: Phase = Phase()) -> Metrics:  # noqa: B008
        if len(batch.obs) < self.sample_size(phase):
            raise InvalidValueError(f"this update takes {self.sample_size(phase)} transitions, not {len(batch.obs)}")
        metrics = self.learner.update(Batch(*(part[: self.batch_size] for part in batch)), phase)
        if phase.auxiliary:
            metrics |= self.auxiliary_step(batch.obs[self.batch_size :])
        return metrics

    def auxiliary_step(self, obs: Tensor) -> Metrics:
        """L_SODA between two views of each image, the online one strongly augmented too."""
        clean, other = (self.learner.view(obs, self.generator) for _ in range(2))
        augmented = self.augmentation(other, self.generator)
        prediction = self.predictor(self.projector(self.learner.encode(augmented)))
        with torch.no_grad():
            target = self.slow(clean)
        metrics = minimize(self.optimizers["auxiliary"], {"soda": byol_loss(prediction, target)})
        # Batch norm's running averages are each network's own; in training they are not used.
        ema_update(self.slow, nn.Sequential(self.learner.encoder, self.projector), self.settings.soda_tau)
        return metrics

    def left_out(self, all_critics: bool = False) -> dict[str, str | None]:
        """What the learner leaves out, and the networks of the feature prediction."""
        own = nn.ModuleDict({"projector": self.projector, "predictor": self.predictor, "slow": self.slow})
        return {**super().left_out(all_critics), **dict.fromkeys(own.state_dict())}


@register_agent("soda", settings=SODASettings, actions="continuous", crops=True)
def soda(spec: Spec, settings: SODASettings, augmentation: Augmentation) -> SODA:
    return SODA(rad(spec, settings), settings, augmentation)
