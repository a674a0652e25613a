"""SODA (Hansen & Wang, 2021): features of an augmented picture predict a slow copy's features of the clean one."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from sgqn.agents.base import Agent, Metrics, Phase, adam, minimize
from sgqn.agents.learner import Learner
from sgqn.augmentations import Augmentation
from sgqn.errors import InvalidValueError
from sgqn.losses import byol_loss
from sgqn.networks import SodaMLP, ema_update, frozen_copy
from sgqn.replay import Batch


class SODA(Agent):
    """A learner (SAC, or SVEA) and, every other update, a step of feature prediction on a batch of its own."""

    def __init__(self, learner: Learner, augmentation: Augmentation):
        super().__init__(learner.spec, learner.batch_size)
        self.settings = learner.settings
        self.learner = learner
        self.augmentation = augmentation
        dim = self.settings.embedding_dim
        self.projector = SodaMLP(math.prod(learner.encoder.out_shape), dim, dim)
        self.predictor = SodaMLP(dim, dim, dim)
        self.slow = frozen_copy(nn.Sequential(learner.encoder, self.projector))

    def make_optimizers(self) -> None:
        self.learner.generator, self.learner.preparer = self.generator, self.preparer
        self.learner.make_optimizers()
        self.optimizers = self.learner.optimizers
        trained = nn.ModuleList([self.learner.encoder, self.projector, self.predictor]).parameters()
        self.optimizers["auxiliary"] = adam(trained, self.settings.soda_learning_rate)

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
        """L_SODA between two views of each picture, the online one strongly augmented too."""
        clean, other = (self.learner.view(obs, self.generator) for _ in range(2))
        augmented = self.augmentation(other, self.generator)
        prediction = self.predictor(self.projector(self.learner.encode(augmented)))
        with torch.no_grad():
            target = self.slow(clean)
        metrics = minimize(self.optimizers["auxiliary"], {"soda": byol_loss(prediction, target)})
        # Batch norm's running averages are each network's own; in training they are not used.
        ema_update(self.slow, nn.Sequential(self.learner.encoder, self.projector), self.settings.soda_tau)
        return metrics

    def policy(self, obs: Tensor, deterministic: bool) -> Tensor:
        return self.learner.policy(obs, deterministic)

    def value(self, obs: Tensor, action: Tensor) -> Tensor:
        return self.learner.value(obs, action)
