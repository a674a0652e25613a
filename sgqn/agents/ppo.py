"""Proximal policy optimization (Schulman et al., 2017), for discrete and continuous actions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sgqn.agents.base import Losses, Metrics, Phase, Spec, adam, minimize
from sgqn.agents.learner import Learner
from sgqn.agents.registry import register_agent
from sgqn.agents.settings import NetworkSettings, count, fraction, positive, weight
from sgqn.augmentations import center_crop
from sgqn.networks import Encoder, Projection, mlp
from sgqn.rollout import RolloutBatch, Rollouts


@dataclass(frozen=True)
class PPOSettings(NetworkSettings):
    """Hyperparameters of PPO."""

    hidden_dim: int = count(256)
    """Size of the two hidden layers of policy and value."""
    rollout_steps: int = count(128)
    """Steps per environment in a rollout."""
    epochs: int = count(4)
    """Epochs per rollout."""
    batch_size: int = count(256)
    """Batch size."""
    discount: float = fraction(0.99)
    """Discount factor gamma."""
    gae_lambda: float = fraction(0.95)
    """Lambda of generalized advantage estimation."""
    learning_rate: float = positive(5e-4)
    """Learning rate."""
    clip: float = positive(0.2)
    """Clipping range of the probability ratio."""
    value_weight: float = weight(0.5)
    """Weight of the value loss."""
    entropy_weight: float = weight(0.01)
    """Weight of the entropy bonus."""
    max_grad_norm: float = positive(0.5)
    """Maximum gradient norm."""


class PPO(Learner):
    """An actor-critic with shared convolutions and embedding; the clipped objective on advantages of a rollout.

    Its values are V(s), log pi(a | s) and the entropy of pi(. | s). SGQN's consistency loss uses all three;
    attributions explain one of the first two.
    """

    def __init__(self, spec: Spec, settings: PPOSettings):
        super().__init__(spec, settings.batch_size)
        self.settings, self.discount = settings, settings.discount
        self.convs = Encoder(spec.channels, settings.encoder_layers, settings.encoder_filters, spec.image_size)
        self.trunk = Projection(math.prod(self.convs.out_shape), settings.embedding_dim)
        self.actor = mlp(settings.embedding_dim, settings.hidden_dim, spec.action_dim)
        self.critic = mlp(settings.embedding_dim, settings.hidden_dim, 1)
        self.log_std = nn.Parameter(torch.zeros(0 if spec.discrete else spec.action_dim))
        last = self.actor[-1]
        assert isinstance(last, nn.Linear)
        with torch.no_grad():  # initially uniform over actions
            last.weight.mul_(0.01)
            last.bias.zero_()

    def make_optimizers(self) -> None:
        self.optimizers["critic"] = adam(self.parameters(), self.settings.learning_rate)

    def learn(self, batch: Any, phase: Phase = Phase()) -> Metrics:  # noqa: B008
        values = self.values(self.encode(batch.obs), batch.action)
        return self.critic_step(self.critic_losses(batch, values))

    @property
    def encoder(self) -> Encoder:
        return self.convs

    @property
    def projection(self) -> nn.Module:
        return self.trunk

    def prepare(self, batch: Any) -> Any:
        """Observations are not augmented: the probability ratio needs those that the policy acted on."""
        return batch

    def traced(self, obs: Tensor, trains: bool = True) -> tuple[Tensor, Tensor]:
        return self.encoder.traced(obs, trains)

    def values(self, features: Tensor, action: Tensor) -> tuple[Tensor, ...]:
        """V(s), log pi(a | s) and the entropy of pi(. | s)."""
        embedding = self.embed(features)
        return (self.critic(embedding).squeeze(1), *self.log_prob(embedding, action))

    def explained(self, values: tuple[Tensor, ...], target: str) -> Tensor:
        return values[1 if target == "log_prob" else 0]

    def critic_losses(self, batch: Any, values: tuple[Tensor, ...]) -> Losses:
        """The clipped policy objective, the value loss and the entropy bonus, each with its weight."""
        rollout: RolloutBatch = batch
        value, log_prob, entropy = values
        return {
            "policy": clipped_policy_loss(log_prob, rollout.log_prob, rollout.advantage, self.settings.clip),
            "value": self.settings.value_weight * F.mse_loss(value, rollout.target),
            "entropy": -self.settings.entropy_weight * entropy.mean(),
        }

    def critic_step(self, losses: Losses) -> Metrics:
        """One step of policy and value; the gradient is clipped."""
        return minimize(self.optimizers["critic"], losses, self.settings.max_grad_norm)

    def target_step(self) -> None:
        """PPO has no target networks."""

    def log_prob(self, embedding: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """log pi(a | s) and the entropy of pi(. | s), each (B,)."""
        outputs = self.actor(embedding)
        if self.spec.discrete:
            logs = outputs.log_softmax(dim=1)
            return logs.gather(1, action[:, None]).squeeze(1), -(logs.exp() * logs).sum(dim=1)
        standard = (action - outputs) / self.log_std.exp()
        constant = self.log_std.sum() + 0.5 * math.log(2 * math.pi) * self.spec.action_dim
        entropy = (self.log_std + 0.5 * math.log(2 * math.pi * math.e)).sum()
        return -0.5 * standard.square().sum(dim=1) - constant, entropy.expand(len(action))

    @torch.no_grad()
    def judge(self, obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """log pi(a | s) and V(s), for the rollout."""
        embedding = self.embed(self.encode(obs))
        return self.log_prob(embedding, action)[0].float(), self.critic(embedding).squeeze(1).float()

    def policy(self, obs: Tensor, deterministic: bool) -> Tensor:
        """Continuous actions may lie outside [-1, 1], where the environment clips them."""
        outputs = self.actor(self.embed(self.encode(center_crop(obs, self.spec.image_size)))).float()
        if self.spec.discrete:
            if deterministic:
                return outputs.argmax(dim=1)
            return torch.multinomial(outputs.softmax(dim=1), 1, generator=self.generator).squeeze(1)
        if deterministic:
            return outputs.clamp(-1, 1)
        noise = torch.randn(outputs.shape, generator=self.generator, device=outputs.device)
        return outputs + self.log_std.exp() * noise


def clipped_policy_loss(log_prob: Tensor, old_log_prob: Tensor, advantage: Tensor, clip: float) -> Tensor:
    """-E[min(r A, clip(r, 1 - c, 1 + c) A)], r the ratio of the probabilities, A normalized over the batch."""
    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
    ratio = (log_prob - old_log_prob).exp()
    return -torch.minimum(ratio * advantage, ratio.clamp(1 - clip, 1 + clip) * advantage).mean()


register_agent("ppo", settings=PPOSettings, augments=False, experience=Rollouts)(
    lambda spec, settings, _: PPO(spec, settings)
)
