"""A deterministic actor-critic: the three methods that an agent needs."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

import sgqn


@dataclass(frozen=True)
class Settings:
    """A plain dataclass: its fields become options of `sgqn train --agent ddpg`."""

    batch_size: int = 16
    """Transitions in one update."""
    learning_rate: float = 1e-3
    """Learning rate of actor and critic."""
    noise: float = 0.3
    """Standard deviation of the exploration noise."""


class DDPG(sgqn.agents.Agent):
    def __init__(self, spec, settings):
        super().__init__(spec, settings.batch_size)
        self.settings = settings
        convolution = nn.Conv2d(spec.channels, 8, 5, stride=4)
        self.encoder = nn.Sequential(convolution, nn.ReLU(), nn.Flatten(), nn.LazyLinear(32))
        self.encoder(torch.zeros(1, spec.channels, spec.image_size, spec.image_size))
        self.actor = nn.Sequential(nn.ReLU(), nn.Linear(32, spec.action_dim), nn.Tanh())
        self.critic = nn.Sequential(nn.Linear(32 + spec.action_dim, 32), nn.ReLU(), nn.Linear(32, 1))

    def make_optimizers(self):
        self.optimizers["all"] = torch.optim.Adam(self.parameters(), self.settings.learning_rate)

    def learn(self, batch, phase=None):
        features = self.features(batch.obs)
        with torch.no_grad():
            following = self.features(batch.next_obs)
            target = batch.reward + batch.discount * self.q(following, self.actor(following))
        critic_loss = F.mse_loss(self.q(features, batch.action), target)
        actor_loss = -self.q(features.detach(), self.actor(features.detach())).mean()
        self.optimizers["all"].zero_grad()
        (critic_loss + actor_loss).backward()
        self.optimizers["all"].step()
        return {"loss/critic": critic_loss.detach(), "loss/actor": actor_loss.detach()}

    def policy(self, obs, deterministic):
        action = self.actor(self.features(obs))
        if deterministic:
            return action
        noise = torch.randn(action.shape, generator=self.generator, device=action.device)
        return (action + self.settings.noise * noise).clamp(-1, 1)

    def value(self, obs, action):  # optional: what attributions explain
        return self.q(self.features(obs), action)

    def features(self, obs):
        return self.encoder(obs.float() / 255)

    def q(self, features, action):
        return self.critic(torch.cat([features, action], dim=1)).squeeze(1)


@sgqn.register_agent("ddpg", settings=Settings, augments=False)
def build(spec, settings, augmentation):
    return DDPG(spec, settings)
