"""Agents small enough for tests, batches for them, and a way to look at their gradients."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from sgqn.agents import AGENTS, Agent, Phase, Spec, build_agent
from sgqn.agents.ppo import PPO
from sgqn.agents.sgqn import SGQNSettings
from sgqn.augmentations import overlay
from sgqn.replay import Batch
from sgqn.rollout import RolloutBatch

NAMES = sorted(AGENTS)
OFF_POLICY = [name for name in NAMES if AGENTS[name].experience is None]
COPIES = {name for name in NAMES if AGENTS[name].copies}
ACTIONS = 2
SIZE = 48
RENDER = 56
VALUES: dict[str, Any] = {
    "encoder_layers": 4,
    "encoder_filters": 8,
    "embedding_dim": 16,
    "hidden_dim": 32,
    "decoder_filters": (16, 8),
    "batch_size": 6,
    "soda_batch_size": 5,
    "rho": 0.9,
    "restorer_filters": (8, 8, 8),
}
SETTINGS = SGQNSettings(**{name: VALUES[name] for name in VALUES if name in SGQNSettings.__dataclass_fields__})
CRITIC_ONLY = Phase(actor=False, targets=False, auxiliary=False)
PICTURES = torch.randint(256, (7, 3, SIZE, SIZE), dtype=torch.uint8, generator=torch.Generator().manual_seed(99))
OVERLAY = partial(overlay, images=PICTURES)


def settings_of(name: str, **values: Any) -> Any:
    """An agent's settings with those of the values that it has."""
    kind = AGENTS[name].settings
    names = {field.name for field in dataclasses.fields(kind)}
    return kind(**{key: value for key, value in values.items() if key in names})


def spec_for(name: str, size: int = SIZE) -> Spec:
    """What an agent can be built for."""
    entry = AGENTS[name]
    render = RENDER * size // SIZE if entry.crops else size
    return Spec(ACTIONS, image_size=size, render_size=render, discrete=not entry.takes(discrete=False))


def small(name: str, seed: int = 0, *, perturb: bool = True, double: bool = False, **settings: Any) -> Any:
    """An agent; `perturb` moves every weight off the sparse initialisation, so that all pixels count."""
    agent = build_agent(name, spec_for(name), settings_of(name, **VALUES | settings), OVERLAY, seed=seed)
    if perturb:
        generator = torch.Generator().manual_seed(seed + 1)
        with torch.no_grad():
            for parameter in agent.parameters():
                parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return agent.double() if double else agent


def batch_for(agent: Agent, seed: int = 0, phase: Phase = Phase()) -> Any:  # noqa: B008
    generator = torch.Generator().manual_seed(seed)
    n, size = agent.sample_size(phase), agent.spec.render_size

    def pictures() -> Tensor:
        return torch.randint(20, 230, (n, 9, size, size), dtype=torch.uint8, generator=generator)

    def actions() -> Tensor:
        if agent.spec.discrete:
            return torch.randint(ACTIONS, (n,), generator=generator)
        return torch.rand(n, ACTIONS, generator=generator) * 2 - 1

    if isinstance(getattr(agent, "learner", agent), PPO):
        numbers = torch.randn(3, n, generator=generator)
        return RolloutBatch(pictures(), actions(), numbers[0] - 2, numbers[1], numbers[2])
    discount = torch.full((n,), 0.99)
    discount[1] = 0  # a terminal state
    return Batch(
        obs=pictures(),
        action=actions(),
        reward=torch.rand(n, generator=generator),
        discount=discount,
        next_obs=pictures(),
    )


def snapshot(module: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in module.state_dict().items()}


def gradients(module: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad.clone() for name, p in module.named_parameters() if p.grad is not None}


def changed(module: nn.Module, before: dict[str, Tensor]) -> set[str]:
    """Names of what differs from a snapshot, up to the first two dots."""
    return {
        ".".join(name.split(".")[:3])
        for name, value in module.state_dict().items()
        if not torch.equal(value, before[name])
    }


def same(left: dict[str, Tensor], right: dict[str, Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(value, right[name]) for name, value in left.items())
