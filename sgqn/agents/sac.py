"""Soft actor-critic from pixels (Haarnoja et al., 2018), the base of most agents."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sgqn.agents.base import Intervals, Losses, Metrics, Phase, Spec, adam, minimize
from sgqn.agents.learner import Learner
from sgqn.agents.registry import register_agent
from sgqn.agents.settings import NetworkSettings, count, fraction, positive, weight
from sgqn.augmentations import Augmentation, center_crop
from sgqn.errors import InvalidValueError
from sgqn.losses import actor_loss, critic_loss, policy_consistency_loss, soft_td_target, temperature_loss
from sgqn.networks import Actor, Critic, Encoder, ema_update_critic, frozen_copy
from sgqn.replay import Batch


@dataclass(frozen=True)
class SACSettings(NetworkSettings):
    """Hyperparameters of SAC. Defaults follow the authors' code; fields state where the paper's text differs."""

    batch_size: int = count(128)
    """Batch size."""
    discount: float = fraction(0.99)
    """Discount factor gamma."""
    learning_rate: float = positive(1e-3)
    """Learning rate of actor and critic."""
    learning_rate_warmup: int = count(0, least=0)
    """Steps of each optimizer in which its learning rate rises from zero, except the temperature's."""
    projection_rate: float = positive(1.0)
    """Learning rate of the projections of actor and critic, relative to that of the other weights."""
    temperature_learning_rate: float = positive(1e-4)
    """Learning rate of the entropy temperature."""
    initial_temperature: float = positive(0.1)
    """Initial entropy temperature."""
    lowest_temperature: float = weight(0.0)
    """Lower bound of the temperature; with 0 there is none."""
    encoder_tau: float = fraction(0.05)
    """EMA rate of the target's encoder and projection."""
    critic_tau: float = fraction(0.01)
    """EMA rate of the target's Q heads."""
    actor_every: int = count(2)
    """Updates per step of actor and temperature; 1 in the paper's text."""
    targets_every: int = count(2)
    """Updates per target network step."""
    actor_trains_encoder: bool = False
    """Whether the actor loss trains the encoder; no in the authors' code, yes in the paper's text."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.lowest_temperature > self.initial_temperature:
            raise InvalidValueError(
                f"lowest_temperature must be at most initial_temperature ({self.initial_temperature:g}), "
                f"not {self.lowest_temperature:g}"
            )


class SAC(Learner):
    """Double Q-learning with an entropy bonus; critic and actor share the convolutions, which the critic trains.

    `view` is the weak augmentation of sampled observations: none (SAC), a random shift (DrQ), a crop (RAD).
    """

    def __init__(self, spec: Spec, settings: SACSettings, view: Augmentation | None = None):
        super().__init__(spec, settings.batch_size)
        self.settings = settings
        self.discount, self.actor_trains_encoder = settings.discount, settings.actor_trains_encoder
        self.intervals = Intervals(settings.actor_every, settings.targets_every)
        self.weak_augmentation = view
        encoder = Encoder(spec.channels, settings.encoder_layers, settings.encoder_filters, spec.image_size)
        self.critic = Critic(encoder, spec.action_dim, settings.embedding_dim, settings.hidden_dim)
        self.actor = Actor(encoder.out_shape, spec.action_dim, settings.embedding_dim, settings.hidden_dim)
        self.target = frozen_copy(self.critic)
        self.log_alpha = nn.Parameter(torch.tensor(math.log(settings.initial_temperature)))
        self.target_entropy = -float(spec.action_dim)

    def make_optimizers(self) -> None:
        trained = list(self.actor.parameters())
        if self.actor_trains_encoder:
            trained += self.critic.encoder.parameters()
        self.optimizers["critic"] = self.make_optimizer(self.critic.parameters(), self.settings.learning_rate)
        self.optimizers["actor"] = self.make_optimizer(trained, self.settings.learning_rate)
        self.optimizers["temperature"] = adam([self.log_alpha], self.settings.temperature_learning_rate, beta=0.5)

    def make_optimizer(self, parameters: Iterable[Tensor], learning_rate: float) -> torch.optim.Optimizer:
        projections = [self.critic.projection.linear.weight, self.actor.projection.linear.weight]
        warmup, scale = self.settings.learning_rate_warmup, self.settings.projection_rate
        return adam(parameters, learning_rate, warmup=warmup, scaled=projections, scale=scale)

    def learn(self, batch: Batch, phase: Phase = Phase()) -> Metrics:  # noqa: B008
        values = self.values(self.encode(batch.obs), batch.action)
        metrics = self.critic_step(self.critic_losses(batch, values))
        if phase.actor:
            metrics |= self.actor_step(self.actor_features(batch.obs))
        if phase.targets:
            self.target_step()
        return metrics

    @property
    def encoder(self) -> Encoder:
        return self.critic.encoder

    @property
    def projection(self) -> nn.Module:
        return self.critic.projection

    def mean_action(self, features: Tensor) -> Tensor:
        return self.actor.mean_action(features)

    def view(self, obs: Tensor, generator: torch.Generator) -> Tensor:
        return obs if self.weak_augmentation is None else self.weak_augmentation(obs, generator)

    def traced(self, obs: Tensor, trains: bool = True) -> tuple[Tensor, Tensor]:
        return self.encoder.traced(obs, trains)

    def values(self, features: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        return self.critic.heads(self.embed(features), action)

    def critic_losses(self, batch: Batch, values: tuple[Tensor, ...]) -> Losses:
        return {"critic": critic_loss(values, self.td_target(batch))}

    @torch.no_grad()
    def td_target(self, batch: Batch) -> Tensor:
        """y = r + gamma (min Q'(s', a') - alpha log pi(a'|s')), a' drawn from the policy."""
        policy = self.actor(self.encode(batch.next_obs), self.noise(batch.action))
        next_values = self.target(batch.next_obs, policy.action)
        return soft_td_target(batch.reward, batch.discount, next_values, policy.log_prob, self.alpha)

    def actor_step(self, features: Tensor, distracted: Tensor | None = None, weight: float = 1.0) -> Metrics:
        """Actor and temperature, on the critic's features."""
        policy = self.actor(features, self._noise_for(features), detach_encoder=not self.actor_trains_encoder)
        values = self.values(features.detach(), policy.action)
        losses = {"actor": actor_loss(values, policy.log_prob, self.alpha)}
        if distracted is not None:
            losses["actor_consistency"] = weight * self.policy_consistency(features, distracted.detach())
        metrics = minimize(self.optimizers["actor"], losses)
        loss = temperature_loss(self.log_alpha, policy.log_prob, self.target_entropy)
        metrics |= minimize(self.optimizers["temperature"], {"temperature": loss})
        if self.settings.lowest_temperature:
            with torch.no_grad():
                self.log_alpha.clamp_(min=math.log(self.settings.lowest_temperature))
        return metrics | {
            "temperature": self.alpha.detach(),
            "entropy": -policy.log_prob.detach().mean(),
            "value": torch.stack(values).detach().mean(),
        }

    def policy_consistency(self, features: Tensor, distracted: Tensor) -> Tensor:
        noise = self._noise_for(features)
        with torch.no_grad():
            action = self.actor(features, noise).action
        return policy_consistency_loss(action, self.actor(distracted, noise, detach_encoder=False).action)

    def _noise_for(self, features: Tensor) -> Tensor:
        return self.noise(features.new_empty(len(features), self.spec.action_dim))

    def target_step(self) -> None:
        ema_update_critic(self.target, self.critic, self.settings.encoder_tau, self.settings.critic_tau)

    def policy(self, obs: Tensor, deterministic: bool) -> Tensor:
        features = self.encode(center_crop(obs, self.spec.image_size))
        if deterministic:
            return self.mean_action(features)
        return self.actor(features, self._noise_for(features)).action

    def left_out(self, all_critics: bool = False) -> dict[str, str | None]:
        """The target networks and the second critic, which only training uses."""
        found: dict[str, str | None] = {}
        for name in self.critic.state_dict():
            kept = name if all_critics else name.replace("heads.q2.", "heads.q1.")
            found[f"target.{name}"] = f"critic.{kept}"
            if kept != name:
                found[f"critic.{name}"] = f"critic.{kept}"
        return found

    @property
    def alpha(self) -> Tensor:
        return self.log_alpha.exp()


register_agent("sac", settings=SACSettings, actions="continuous", augments=False)(
    lambda spec, settings, _: SAC(spec, settings)
)
