"""A small critic for the tests of attribution methods."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from sgqn import attribution, networks

ACTIONS = 2


class ModuleCritic(nn.Module):
    """Q1 of a tiny critic, with every ReLU a module of its own, as Captum needs it."""

    def __init__(self, critic: networks.Critic) -> None:
        super().__init__()
        convs = list(critic.encoder.convs)
        layers: list[nn.Module] = [convs[0]]
        for conv in convs[1:]:
            layers += [nn.ReLU(), conv]
        self.features = nn.Sequential(*layers)
        self.projection = critic.projection
        self.head = critic.heads.q1

    def forward(self, obs: Tensor, action: Tensor) -> Tensor:
        embedding = self.projection(self.features(obs / 255))
        return self.head(torch.cat([embedding, action], 1)).squeeze(1)


def perturbed_critic() -> networks.Critic:
    encoder = networks.Encoder(num_layers=4, num_filters=6, image_size=24)
    critic = networks.Critic(encoder, ACTIONS, embedding_dim=10, hidden_dim=16)
    with torch.no_grad():  # away from the sparse initialisation
        for p in critic.parameters():
            p.add_(0.2 * torch.randn_like(p))
    return critic


def q1(critic: networks.Critic) -> attribution.QFunction:
    return lambda obs, action: critic(obs, action)[0]


def batch(n: int = 3) -> tuple[Tensor, Tensor]:
    return torch.rand(n, 9, 24, 24) * 255, torch.rand(n, ACTIONS) * 2 - 1
