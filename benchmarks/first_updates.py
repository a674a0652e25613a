"""Measure what the first updates do to an agent: how much of its embedding still depends on the state.

    python benchmarks/first_updates.py                             # about ten minutes on one CPU core
    python benchmarks/first_updates.py --task walker-walk --agent svea
    python benchmarks/first_updates.py --tiny                      # check that the script works, in seconds

A new agent learns from 1,000 transitions of random actions, with the paper's networks and some learning rates. Prints a
Markdown table: the share of the critic's embedding, and of the encoder's features, that varies over 64 states, which is
their variance over states relative to their mean square. Where it is near zero, all states look alike to the agent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import tyro
from torch import Tensor

import sgqn
from sgqn.agents import Phase, Spec, build_agent, make_settings
from sgqn.agents.learner import Learner
from sgqn.augmentations import random_conv
from sgqn.replay import Batch

VARIANTS: dict[str, dict[str, Any]] = {
    "defaults": {},
    "learning_rate 3e-4": {"learning_rate": 3e-4},
    "learning_rate 1e-4": {"learning_rate": 1e-4},
    "projection_rate 0.1": {"projection_rate": 0.1},
    "learning_rate_warmup 1000": {"learning_rate_warmup": 1000},
    "both": {"projection_rate": 0.1, "learning_rate_warmup": 1000},
}
MARKS = (1, 10, 100, 300)
PROBES = 64


@dataclass
class Options:
    """What to measure."""

    task: str = "finger-spin"
    agent: str = "drq"
    """An agent around SAC."""
    batch_size: int = 16
    """Batch size; the paper's 128 takes eight times as long."""
    seed: int = 0
    tiny: bool = False
    """Small networks, few transitions and ten updates, to check that the script works."""


def transitions(options: Options) -> Batch:
    """Of random actions."""
    envs = sgqn.make_vec(options.task, num_envs=8, renderer="warp", seed=options.seed)
    rng = np.random.default_rng(options.seed)
    played = []
    try:
        before = np.array(envs.reset()[0])
        for _ in range(10 if options.tiny else 125):
            action = rng.uniform(-1, 1, envs.action_space.shape).astype(np.float32)
            after, reward, terminated, truncated, _ = envs.step(action)
            going = ~(terminated | truncated)
            step = (before, action, reward.astype(np.float32), after)
            played.append([torch.from_numpy(part[going]) for part in step])  # copies
            before = np.array(after)
    finally:
        envs.close()
    obs, actions, rewards, next_obs = (torch.cat(parts) for parts in zip(*played, strict=True))
    return Batch(obs, actions, rewards, torch.full_like(rewards, 0.99), next_obs)


def varying(x: Tensor) -> float:
    return float(x.var(dim=0, correction=0).sum() / x.square().mean(dim=0).sum())


def measure(options: Options, data: Batch, settings: dict[str, Any]) -> dict[int, tuple[float, float]]:
    """Shares of embedding and features that vary, by the number of updates."""
    sizes = {"encoder_layers": 3, "encoder_filters": 4, "hidden_dim": 16} if options.tiny else {}
    spec = Spec(data.action.shape[1], channels=data.obs.shape[1])
    chosen = make_settings(options.agent, batch_size=options.batch_size, **settings, **sizes)
    agent: Any = build_agent(options.agent, spec, chosen, random_conv, seed=options.seed)
    learner: Learner = getattr(agent, "learner", agent)
    probes = data.obs[:: max(1, len(data.obs) // PROBES)][:PROBES]
    drawn = torch.Generator().manual_seed(options.seed)

    @torch.no_grad()
    def look() -> tuple[float, float]:
        features = learner.encode(probes)
        return varying(learner.embed(features)), varying(features.flatten(1))

    found = {0: look()}
    for update in range(1, (10 if options.tiny else MARKS[-1]) + 1):
        index = torch.randint(len(data.obs), (options.batch_size,), generator=drawn)
        due = update % 2 == 0
        agent.update(Batch(*(part[index] for part in data)), Phase(due, due, due))
        if update in MARKS:
            found[update] = look()
    return found


def main(options: Options) -> None:
    data = transitions(options)
    print(
        f"{options.task}, {options.agent}, batch size {options.batch_size}, seed {options.seed}: embedding (features)"
    )
    for number, (name, settings) in enumerate(VARIANTS.items()):
        found = measure(options, data, settings)
        if not number:
            print(f"| | {' | '.join(f'update {mark}' for mark in found)} |", "|---" * (1 + len(found)) + "|", sep="\n")
        cells = (f"{embedding:.1e} ({features:.2f})" for embedding, features in found.values())
        print(f"| {name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
