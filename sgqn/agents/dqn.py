"""DQN (Mnih et al., 2015) with double Q-learning, a dueling head and n-step returns, on shifted images."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sgqn.agents.base import Intervals, Losses, Metrics, Phase, Spec, adam
from sgqn.agents.learner import Learner
from sgqn.agents.registry import register_agent
from sgqn.agents.schedule import LinearSchedule
from sgqn.agents.settings import NetworkSettings, count, fraction, positive, ruled
from sgqn.augmentations import random_shift
from sgqn.losses import critic_loss, td_target
from sgqn.networks import DiscreteCritic, Encoder, ema_update, frozen_copy
from sgqn.replay import Batch


def probability(default: float) -> float:
    return ruled(default, lambda value: 0 <= value <= 1, "from 0 to 1")


@dataclass(frozen=True)
class DQNSettings(NetworkSettings):
    """Hyperparameters of DQN. The encoder is SGQN's."""

    batch_size: int = count(128)
    """Batch size."""
    discount: float = fraction(0.99)
    """Discount factor gamma."""
    n_steps: int = count(3)
    """Number of steps of n-step returns."""
    learning_rate: float = positive(1e-4)
    """Learning rate."""
    tau: float = fraction(0.01)
    """EMA rate of the target network."""
    update_every: int = count(1)
    """Agent steps per update; 4 in the original."""
    targets_every: int = count(1)
    """Updates per target network step."""
    first_epsilon: float = probability(1.0)
    """Initial probability of a random action."""
    last_epsilon: float = probability(0.05)
    """Final probability of a random action."""
    epsilon_steps: int = count(50_000)
    """Agent steps until epsilon reaches its final value."""
    shift_pad: int = count(4, least=0)
    """Maximum random shift in pixels; 0: none."""


class DQN(Learner):
    """Q-learning for discrete actions: the online network chooses the next action, the target network evaluates it."""

    def __init__(self, spec: Spec, settings: DQNSettings):
        super().__init__(spec, settings.batch_size)
        self.settings = settings
        self.discount, self.n_steps, self.update_every = settings.discount, settings.n_steps, settings.update_every
        self.intervals = Intervals(targets=settings.targets_every)
        encoder = Encoder(spec.channels, settings.encoder_layers, settings.encoder_filters, spec.image_size)
        self.critic = DiscreteCritic(encoder, spec.action_dim, settings.embedding_dim, settings.hidden_dim)
        self.target = frozen_copy(self.critic)
        updates = max(1, settings.epsilon_steps // settings.update_every)
        self.exploration = LinearSchedule(settings.first_epsilon, settings.last_epsilon, updates)

    def make_optimizers(self) -> None:
        self.optimizers["critic"] = adam(self.critic.parameters(), self.settings.learning_rate)

    def learn(self, batch: Batch, phase: Phase = Phase()) -> Metrics:  # noqa: B008
        values = self.values(self.encode(batch.obs), batch.action)
        metrics = self.critic_step(self.critic_losses(batch, values))
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

    def values(self, features: Tensor, action: Tensor) -> tuple[Tensor, ...]:
        return (chosen(self.critic.head(self.embed(features)), action),)

    def critic_losses(self, batch: Batch, values: tuple[Tensor, ...]) -> Losses:
        return {"critic": critic_loss(values, self.td_target(batch))}

    @torch.no_grad()
    def td_target(self, batch: Batch) -> Tensor:
        """y = r + gamma^n Q'(s', argmax_a Q(s', a))."""
        best = self.critic(batch.next_obs).argmax(dim=1)
        return td_target(batch.reward, batch.discount, (chosen(self.target(batch.next_obs), best),))

    def critic_step(self, losses: Losses) -> Metrics:
        metrics = super().critic_step(losses)
        self.exploration.advance()
        return metrics | {"epsilon": self.exploration()}

    def target_step(self) -> None:
        ema_update(self.target, self.critic, self.settings.tau)

    def policy(self, obs: Tensor, deterministic: bool) -> Tensor:
        """Integers (B,): the best actions, or random ones with probability epsilon."""
        best = self.critic(obs).argmax(dim=1)
        if deterministic:
            return best
        explores = torch.rand(len(best), generator=self.generator, device=best.device) < self.exploration()
        other = torch.randint(self.spec.action_dim, best.shape, generator=self.generator, device=best.device)
        return torch.where(explores, other, best)

    def left_out(self, all_critics: bool = False) -> dict[str, str | None]:
        """The target network."""
        del all_critics
        return {f"target.{name}": f"critic.{name}" for name in self.critic.state_dict()}


def chosen(values: Tensor, action: Tensor) -> Tensor:
    """The values of actions (B,), from values (B, num_actions) of all actions."""
    return values.gather(1, action[:, None]).squeeze(1)


register_agent("dqn", settings=DQNSettings, actions="discrete", augments=False)(
    lambda spec, settings, _: DQN(spec, settings)
)
