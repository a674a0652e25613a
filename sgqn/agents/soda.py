"""SODA (Hansen & Wang, 2021): features of an augmented picture predict a slow copy's features of the clean one."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from sgqn.agents.base import Agent, Metrics, Phase, adam, minimize
from sgqn.agents.sac import SAC
from sgqn.augmentations import Augmentation
from sgqn.losses import byol_loss
from sgqn.networks import SodaMLP, ema_update, frozen_copy
from sgqn.replay import Batch


class SODA(Agent):
    """A learner (SAC, or SVEA) and, every other update, a step of feature prediction on a batch of its own."""

    def __init__(self, learner: SAC, augmentation: Augmentation):
        super().__init__(learner.spec, learner.batch_size)
        self.settings = learner.settings
        self.learner = learner
        self.augmentation = augmentation
        features = math.prod(learner.critic.encoder.out_shape)
        dim = self.settings.embedding_dim
        self.projector = SodaMLP(features, dim, dim)
        self.predictor = SodaMLP(dim, dim, dim)
        self.slow = frozen_copy(nn.Sequential(learner.critic.encoder, self.projector))

    def make_optimizers(self) -> None:
        self.learner.generator = self.generator
        self.learner.make_optimizers()
        trained = [*self.learner.critic.encoder.parameters()]
        trained += [*self.projector.parameters(), *self.predictor.parameters()]
        self.optimizers = self.learner.optimizers
        self.optimizers["auxiliary"] = adam(trained, self.settings.soda_learning_rate)

    def sample_size(self, phase: Phase) -> int:
        return self.batch_size + (self.settings.soda_batch_size if phase.auxiliary else 0)

    def update(self, batch: Batch, phase: Phase = Phase()) -> Metrics:  # noqa: B008
        own = Batch(*(part[: self.batch_size] for part in batch))
        metrics = self.learner.update(own, phase)
        if phase.auxiliary:
            metrics |= self.auxiliary_step(batch.obs[self.batch_size :])
        return metrics

    def auxiliary_step(self, obs: Tensor) -> Metrics:
        view = obs if self.learner.view is None else self.learner.view(obs, self.generator)
        features = self.learner.encode(self.augmentation(view, self.generator))
        prediction = self.predictor(self.projector(features))
        with torch.no_grad():
            target = self.slow(view)
        metrics = minimize(self.optimizers["auxiliary"], {"soda": byol_loss(prediction, target)})
        online = nn.Sequential(self.learner.critic.encoder, self.projector)
        ema_update(self.slow, online, self.settings.soda_tau)
        return metrics

    def policy(self, obs: Tensor, deterministic: bool) -> Tensor:
        return self.learner.policy(obs, deterministic)
