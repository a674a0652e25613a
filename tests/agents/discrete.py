"""A learner with discrete actions, one critic and no actor: SGQN asks nothing more of a learner than what is here."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sgqn.agents.base import Losses, Metrics, Phase, Spec, adam
from sgqn.agents.learner import Learner
from sgqn.agents.sgqn import SGQNSettings
from sgqn.networks import Encoder, Projection, frozen_copy
from sgqn.replay import Batch


class TinyDQN(Learner):
    def __init__(self, spec: Spec, settings: SGQNSettings):
        super().__init__(spec, settings.batch_size)
        self.settings = settings
        self.conv = Encoder(spec.channels, settings.encoder_layers, settings.encoder_filters, spec.image_size)
        self.linear = Projection(self.conv.out_shape[0] * self.conv.out_shape[1] ** 2, settings.embedding_dim)
        self.head = nn.Linear(settings.embedding_dim, spec.action_dim)
        self.target = frozen_copy(nn.Sequential(self.conv, self.linear, self.head))

    @property
    def encoder(self) -> Encoder:
        return self.conv

    @property
    def projection(self) -> nn.Module:
        return self.linear

    def make_optimizers(self) -> None:
        self.optimizers["critic"] = adam(nn.ModuleList([self.conv, self.linear, self.head]).parameters(), 1e-3)

    def values(self, features: Tensor, action: Tensor) -> tuple[Tensor, ...]:
        return (self.head(self.embed(features)).gather(1, action[:, None])[:, 0],)

    def critic_losses(self, batch: Batch, values: tuple[Tensor, ...]) -> Losses:
        target = batch.reward + batch.discount * self.target(batch.next_obs).amax(1)
        return {"critic": F.mse_loss(values[0], target)}

    def target_step(self) -> None:
        pass

    def learn(self, batch: Batch, phase: Phase = Phase()) -> Metrics:  # noqa: B008
        values = self.values(self.encode(batch.obs), batch.action)
        return self.critic_step(self.critic_losses(batch, values))

    def policy(self, obs: Tensor, deterministic: bool) -> Tensor:
        best = self.head(self.embed(self.encode(obs))).argmax(1)
        if deterministic:
            return best
        explored = torch.rand(len(best), generator=self.generator, device=best.device) < 0.3
        other = torch.randint(self.spec.action_dim, best.shape, generator=self.generator, device=best.device)
        return torch.where(explored, other, best)
