"""The benchmark's protocol: deterministic actions, whole episodes, the same ones for everyone with the same seed."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sgqn.agents.base import Agent
from sgqn.envs.vector import make_vec
from sgqn.errors import InvalidValueError

MAX_ENVS = 16


@dataclass(frozen=True)
class Evaluation:
    """The returns of an agent in one shift, and what made its pictures."""

    task: str
    shift: str
    seed: int
    renderer: str
    backgrounds: str
    returns: tuple[float, ...]

    @property
    def episodes(self) -> int:
        return len(self.returns)

    @property
    def mean(self) -> float:
        return float(np.mean(self.returns))

    @property
    def std(self) -> float:
        return float(np.std(self.returns))

    def to_dict(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "returns": list(self.returns), "mean": self.mean, "std": self.std}


class Moment(NamedTuple):
    """What an agent meets at one step of the episodes that are still going on, one row each."""

    step: int
    episodes: np.ndarray
    obs: Tensor
    action: Tensor
    mask: Tensor
    """The controlled system in each stacked frame, by the simulator: bool (B, frames, H, W)."""


def evaluate(
    agent: Agent,
    task: str,
    shift: str = "train",
    episodes: int = 30,
    seed: int = 0,
    renderer: str = "auto",
    *,
    num_envs: int | None = None,
    num_workers: int | None = None,
    action_repeat: int | None = None,
    on_step: Callable[[int, int], None] | None = None,
    watch: Callable[[Moment], None] | None = None,
) -> Evaluation:
    """Play episodes 0 .. episodes - 1 of the seed, several at a time; `on_step(done, total)` reports steps.

    Everyone who evaluates with the same seed meets the same starts, colours and clips. `watch` is shown every moment.
    """
    if episodes < 1:
        raise InvalidValueError(f"episodes must be at least 1, not {episodes!r}")
    count = min(episodes, num_envs or MAX_ENVS)
    rounds = math.ceil(episodes / count)
    envs = make_vec(
        task,
        count,
        shift=shift,
        seed=seed,
        renderer=renderer,
        device=agent.device,
        action_repeat=action_repeat,
        image_size=agent.spec.render_size,
        frame_stack=agent.spec.channels // 3,
        masks=watch is not None,
        num_workers=num_workers,
    )
    try:
        returns = np.zeros((rounds, count))
        total = rounds * envs.task.episode_steps
        for index in range(rounds):
            obs, info = envs.reset(seed=seed, options={"episode": index * count})
            playing = np.arange(index * count, (index + 1) * count)
            running = playing < episodes
            for step in range(envs.task.episode_steps):
                with torch.no_grad():
                    action = agent.act(obs, deterministic=True)
                if watch is not None and running.any():
                    rows = torch.as_tensor(np.flatnonzero(running), device=obs.device)
                    mask = info["mask"].to(obs.device)
                    watch(Moment(step, playing[running], obs[rows], action[rows], mask[rows]))
                obs, reward, terminated, truncated, info = envs.step(action)
                returns[index] += reward * running
                running &= ~(terminated | truncated)
                if on_step is not None:
                    on_step(index * envs.task.episode_steps + step + 1, total)
        renderer, backgrounds = envs.metadata["renderer"], envs.metadata["backgrounds"]
    finally:
        envs.close()
    # Round r plays episodes r * count .. (r + 1) * count - 1: the rows in order.
    kept = tuple(float(value) for value in returns.reshape(-1)[:episodes])
    return Evaluation(task, shift, seed, renderer, backgrounds, kept)
