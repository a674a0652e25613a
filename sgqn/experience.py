"""Experience: stores collected transitions and decides when updates are due.

The trainer collects transitions; an `Experience` stores them, says how many updates are due, and samples batches.
`OffPolicy` is a replay buffer with one update per agent step. An on-policy learner brings another one
(`register_agent(..., experience=...)`), which is filled by the current policy, asks for its updates when it is full and
then starts again.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from sgqn.agents import AGENTS, Agent, Phase
from sgqn.config import TrainConfig
from sgqn.errors import DataError
from sgqn.reading import integer, sha256
from sgqn.replay import MANIFEST, Batch, Replay, prune

logger = logging.getLogger(__name__)


class Experience(Protocol):
    """The interface of experience for the trainer."""

    updates: int
    """Updates made so far."""
    overlaps: bool
    """Whether updates may run while the environments step: not if the next actions depend on them."""
    generators: dict[str, torch.Generator]
    """By name, the sources of random numbers that are part of a checkpoint."""

    def start(self, obs: Tensor) -> None:
        """All environments start an episode at `obs`."""

    def add(
        self, actions: Tensor, rewards: np.ndarray, next_obs: Any, terminated: np.ndarray, truncated: np.ndarray,
        reset_obs: Any,
    ) -> None:  # fmt: skip
        """One step of every environment; `reset_obs` are the next episodes' first observations, None if none ended."""

    def explores(self, step: int) -> bool:
        """Whether actions at this step are drawn uniformly instead of from the policy."""

    def due(self, step: int) -> int:
        """How many updates are due at this step."""

    def sample(self, phase: Phase) -> Batch:
        """The batch of the next update; tensors only."""

    def state_dict(self) -> dict[str, Any]: ...

    def save(self, folder: Path, tag: str) -> None:
        """Write what a checkpoint called `tag` needs in addition to `state_dict`."""

    def prune(self, folder: Path, tags: list[str]) -> None:
        """Delete files that none of these checkpoints needs."""

    def load(self, folder: Path, tag: str, state: dict[str, Any], step: int, obs: Tensor) -> None:
        """Continue from a checkpoint; `obs` are the current observations."""


class OffPolicy:
    """A replay buffer and one update every `agent.update_every` steps, after some random steps."""

    overlaps = True

    def __init__(self, config: TrainConfig, agent: Agent, device: torch.device):
        self.config, self.agent, self.device = config, agent, device
        self.replay: Replay  # created by `start` or `load`, because there may not be memory for two
        self.generators = {"sampler": torch.Generator(device).manual_seed(config.seed + 1)}
        self.updates = 0
        self.learn_from = config.warmup_steps
        self.forgiven = 0  # steps for which a run resumed without its replay could not make updates

    def start(self, obs: Tensor) -> None:
        shortest = min(40, self.config.episode_steps)
        self.replay = Replay(self._capacity, **self._options, device=self.device, shortest_episode=shortest)
        self.replay.start(obs)

    @property
    def _options(self) -> dict[str, Any]:
        """What the replay of this run and agent is like."""
        config, spec = self.config, self.agent.spec
        return {
            "num_envs": config.num_envs,
            "frame_shape": (3, spec.render_size, spec.render_size),
            "action_shape": () if spec.discrete else (spec.action_dim,),
            "action_dtype": torch.int64 if spec.discrete else torch.float32,
            "stack": config.frame_stack,
            "discount": self.agent.discount,
            "n_steps": self.agent.n_steps,
        }

    def add(
        self, actions: Tensor, rewards: np.ndarray, next_obs: Any, terminated: np.ndarray, truncated: np.ndarray,
        reset_obs: Any,
    ) -> None:  # fmt: skip
        self.replay.add(actions, rewards, next_obs, terminated, truncated, reset_obs=reset_obs)

    def explores(self, step: int) -> bool:
        return step < self.config.warmup_steps and not AGENTS[self.config.agent].copies

    def due(self, step: int) -> int:
        """One update every `agent.update_every` steps, once the replay holds enough to learn from."""
        return (step - self.forgiven) // self.agent.update_every - self.updates if step >= self.learn_from else 0

    def sample(self, phase: Phase) -> Batch:
        batch = self.replay.sample(self.agent.sample_size(phase), self.generators["sampler"])
        return self.agent.prepare(batch)

    def state_dict(self) -> dict[str, Any]:
        return {
            "updates": self.updates,
            "learn_from": self.learn_from,
            "forgiven": self.forgiven,
            "replay": self.replay.fingerprint() if self.config.save_replay else False,
        }

    def save(self, folder: Path, tag: str) -> None:
        if self.config.save_replay:
            self.replay.save(folder, tag)

    def prune(self, folder: Path, tags: list[str]) -> None:
        if self.config.save_replay:
            prune(folder, tags)

    def load(self, folder: Path, tag: str, state: dict[str, Any], step: int, obs: Tensor) -> None:
        self.updates, self.forgiven = (integer(state[name], name, 0, step) for name in ("updates", "forgiven"))
        warmup = self.config.warmup_steps
        self.learn_from = integer(state["learn_from"], "learn_from", warmup, step + warmup)
        saved = state["replay"]
        if not isinstance(saved, bool):
            sha256(saved, "replay")
        if saved and folder.exists():
            largest = max(self.config.replay_capacity, self.config.num_envs)
            rows = (step - (self.learn_from - warmup)) // self.config.num_envs  # since it was empty
            self.replay = Replay.load(folder, tag, self.device, self._capacity, self._options, rows, largest)
            if isinstance(saved, str) and self.replay.fingerprint() != saved:  # older checkpoints have none
                raise DataError(f"{folder / tag}{MANIFEST}: the replay of another checkpoint")
            if self.agent.spec.discrete:
                self.replay.check_actions(self.agent.spec.action_dim)
            return
        self.learn_from = step + self.config.warmup_steps
        self.forgiven = step - self.updates * self.agent.update_every
        logger.warning(
            "the replay was not saved or has been removed: it is filled again, and learning continues at step %d",
            self.learn_from,
        )
        self.start(obs)

    @property
    def _capacity(self) -> int:
        return min(self.config.replay_capacity, max(self.config.steps, self.config.num_envs))
