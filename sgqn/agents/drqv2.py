"""DrQ-v2 (Yarats et al., 2021): a deterministic actor, n-step returns and scheduled noise, on shifted images."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sgqn.agents.base import Intervals, Losses, Metrics, Phase, Spec, adam, minimize
from sgqn.agents.learner import Learner
from sgqn.agents.registry import register_agent
from sgqn.agents.schedule import LinearSchedule
from sgqn.agents.settings import NetworkSettings, count, fraction, positive, weight
from sgqn.augmentations import random_shift
from sgqn.losses import critic_loss, deterministic_actor_loss, policy_consistency_loss, td_target
from sgqn.networks import Critic, DeterministicActor, Encoder, ema_update, frozen_copy
from sgqn.replay import Batch


@dataclass(frozen=True)
class DrQv2Settings(NetworkSettings):
    """Hyperparameters of DrQ-v2. Defaults are the authors' values for easy tasks."""

    encoder_layers: int = count(4)
    """Number of convolutional layers of the encoder. SGQN's encoder has 11."""
    embedding_dim: int = count(50)
    """Embedding size of actor and critic."""
    batch_size: int = count(256)
    """Batch size; the authors use 512 for the walker tasks."""
    discount: float = fraction(0.99)
    """Discount factor gamma."""
    n_steps: int = count(3)
    """Number of steps of n-step returns; the authors use 1 for the walker tasks."""
    learning_rate: float = positive(1e-4)
    """Learning rate of actor and critic."""
    tau: float = fraction(0.01)
    """EMA rate of the target networks."""
    update_every: int = count(2)
    """Agent steps per update."""
    actor_every: int = count(1)
    """Updates per actor step."""
    targets_every: int = count(1)
    """Updates per target network step."""
    first_noise: float = weight(1.0)
    """Initial standard deviation of the exploration noise."""
    last_noise: float = weight(0.1)
    """Final standard deviation of the exploration noise."""
    noise_steps: int = count(100_000)
    """Agent steps until the noise reaches its final value; the authors use 500000 (medium) and 2000000 (hard tasks)."""
    noise_clip: float = weight(0.3)
    """Clipping range of the noise in the losses."""
    shift_pad: int = count(4, least=0)
    """Maximum random shift in pixels; 0: none."""


class DrQv2(Learner):
    """Double Q-learning with a deterministic actor, which explores with Gaussian noise; the critic trains the encoder.

    The target network has no convolutions: it uses the online features of the next observation.
    """

    def __init__(self, spec: Spec, settings: DrQv2Settings):
        super().__init__(spec, settings.batch_size)
        self.settings = settings
        self.discount, self.n_steps, self.update_every = settings.discount, settings.n_steps, settings.update_every
        self.intervals = Intervals(settings.actor_every, settings.targets_every)
        encoder = Encoder(spec.channels, settings.encoder_layers, settings.encoder_filters, spec.image_size)
        sizes = (spec.action_dim, settings.embedding_dim, settings.hidden_dim)
        self.critic = Critic(encoder, *sizes)
        self.actor = DeterministicActor(encoder.out_shape, *sizes)
        parts = {"projection": self.critic.projection, "heads": self.critic.heads}
        self.target = frozen_copy(nn.ModuleDict(parts))
        updates = max(1, settings.noise_steps // settings.update_every)
        self.exploration = LinearSchedule(settings.first_noise, settings.last_noise, updates)

    def make_optimizers(self) -> None:
        self.optimizers["critic"] = adam(self.critic.parameters(), self.settings.learning_rate)
        self.optimizers["actor"] = adam(self.actor.parameters(), self.settings.learning_rate)

    def learn(self, batch: Batch, phase: Phase = Phase()) -> Metrics:  # noqa: B008
        features = self.encode(batch.obs)
        metrics = self.critic_step(self.critic_losses(batch, self.values(features, batch.action)))
        if phase.actor:
            metrics |= self.actor_step(features)
        if phase.targets:
            self.target_step()
        return metrics

    @property
    def encoder(self) -> Encoder:
        return self.critic.encoder

    @property
    def projection(self) -> nn.Module:
        return self.critic.projection

    def view(self, obs: Tensor, generator: torch.Generator) -> Tensor:
        return random_shift(obs, generator, self.settings.shift_pad) if self.settings.shift_pad else obs

    def traced(self, obs: Tensor, trains: bool = True) -> tuple[Tensor, Tensor]:
        return self.encoder.traced(obs, trains)

    def values(self, features: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        return self.critic.heads(self.embed(features), action)

    def critic_losses(self, batch: Batch, values: tuple[Tensor, ...]) -> Losses:
        return {"critic": critic_loss(values, self.td_target(batch))}

    @torch.no_grad()
    def td_target(self, batch: Batch) -> Tensor:
        """y = r + gamma^n min Q'(s', mu(s') + clipped noise)."""
        features = self.encode(batch.next_obs)
        embedding = self.target["projection"](features)
        next_values = self.target["heads"](embedding, self.noisy(self.actor(features), self.settings.noise_clip))
        return td_target(batch.reward, batch.discount, next_values)

    def critic_step(self, losses: Losses) -> Metrics:
        metrics = super().critic_step(losses)
        self.exploration.advance()
        return metrics

    def actor_step(self, features: Tensor, distracted: Tensor | None = None, weight: float = 1.0) -> Metrics:
        features = features.detach()
        action = self.noisy(self.actor(features), self.settings.noise_clip)
        values = self.values(features, action)
        losses = {"actor": deterministic_actor_loss(values)}
        if distracted is not None:
            losses["actor_consistency"] = weight * self.policy_consistency(features, distracted.detach())
        metrics = minimize(self.optimizers["actor"], losses)
        return metrics | {"value": torch.stack(values).detach().mean(), "noise": self.exploration()}

    def policy_consistency(self, features: Tensor, distracted: Tensor) -> Tensor:
        with torch.no_grad():
            action = self.actor(features)
        return policy_consistency_loss(action, self.actor(distracted))

    def target_step(self) -> None:
        for name, target in self.target.items():
            ema_update(target, self.critic.get_submodule(name), self.settings.tau)

    def policy(self, obs: Tensor, deterministic: bool) -> Tensor:
        action = self.actor(self.encode(obs))
        return action if deterministic else self.noisy(action)

    def noisy(self, action: Tensor, clip: float | None = None) -> Tensor:
        """Actions with noise of the current scale, clamped to [-1, 1]; the gradient passes straight through."""
        noise = self.exploration() * self.noise(action)
        moved = action + (noise if clip is None else noise.clamp(-clip, clip))
        return moved - moved.detach() + moved.detach().clamp(-1, 1)

    def left_out(self, all_critics: bool = False) -> dict[str, str | None]:
        """The target network and the second critic, which only training uses."""
        found: dict[str, str | None] = {}
        for name in self.critic.state_dict():
            kept = name if all_critics else name.replace("heads.q2.", "heads.q1.")
            if not name.startswith("encoder."):
                found[f"target.{name}"] = f"critic.{kept}"
            if kept != name:
                found[f"critic.{name}"] = f"critic.{kept}"
        return found


register_agent("drqv2", settings=DrQv2Settings, actions="continuous", augments=False)(
    lambda spec, settings, _: DrQv2(spec, settings)
)
