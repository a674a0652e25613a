"""What a value learner is to the methods that wrap it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sgqn.agents.base import Agent, Losses, Metrics, minimize
from sgqn.agents.settings import AgentSettings
from sgqn.fast.streams import Join, done
from sgqn.networks import Encoder
from sgqn.replay import Batch


class Learner(Agent):
    """A value learner as SGQN and SODA need it: they add losses to its critic step and steps of their own.

    `encode` and `values` are the online networks; gradients flow through both. A learner with discrete actions answers
    `values` for the actions taken, and one without an actor does nothing in `actor_step`.
    """

    settings: AgentSettings

    @property
    def encoder(self) -> Encoder:
        """f_theta: observations to feature maps."""
        raise NotImplementedError

    @property
    def projection(self) -> nn.Module:
        """Feature maps to the embedding that the values are computed from."""
        raise NotImplementedError

    def prepare(self, batch: Batch) -> Batch:
        """What the update sees of obs and next obs."""
        obs, next_obs = (self.view(obs, self.preparer) for obs in (batch.obs, batch.next_obs))
        return batch._replace(obs=obs, next_obs=next_obs)

    def view(self, obs: Tensor, generator: torch.Generator) -> Tensor:
        """A weakly augmented observation; every call draws anew."""
        del generator
        return obs

    def encode(self, obs: Tensor) -> Tensor:
        return self.encoder(obs)

    def embed(self, features: Tensor) -> Tensor:
        return self.projection(features)

    def values(self, features: Tensor, action: Tensor) -> tuple[Tensor, ...]:
        """Q_i(s, a) of every critic, each (B,)."""
        raise NotImplementedError

    def value(self, obs: Tensor, action: Tensor) -> Tensor:
        return self.values(self.encode(obs), action)[0]

    def critic_losses(self, batch: Batch, values: tuple[Tensor, ...]) -> Losses:
        raise NotImplementedError

    def critic_step(self, losses: Losses, before_step: Join = done) -> Metrics:
        return minimize(self.optimizers["critic"], losses, before_step)

    def actor_features(self, obs: Tensor) -> Tensor:
        """What `actor_step` wants of the observations."""
        with torch.no_grad():
            return self.encode(obs)

    def actor_step(self, features: Tensor) -> Metrics:
        del features
        return {}

    def target_step(self) -> None:
        raise NotImplementedError
