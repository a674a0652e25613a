"""Experience of an on-policy learner: rollouts of the current policy, discarded after learning from them.

A rollout has `rollout_steps` steps of every environment. When it is full, advantages are estimated with the weights
that collected it, it is used for `epochs` epochs in batches, and the next rollout starts.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from sgqn import reading
from sgqn.errors import InvalidValueError

if TYPE_CHECKING:
    from sgqn.agents.base import Agent, Phase
    from sgqn.config import TrainConfig

CHUNK = 256
"""Observations in one forward pass of `Rollouts.finish`."""


class RolloutBatch(NamedTuple):
    """Steps of a rollout, on its device."""

    obs: Tensor  # uint8 (B, C, H, W)
    action: Tensor  # (B, *action_shape)
    log_prob: Tensor  # float32 (B,): log pi(a | s) of the policy that acted
    advantage: Tensor  # float32 (B,)
    target: Tensor  # float32 (B,): the return that the value is fitted to


class ActorCritic(Protocol):
    """The interface of a rollout's learner; without gradients."""

    def judge(self, obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """log pi(a | s) and V(s), each (B,)."""


class Rollouts:
    """The current rollout. `config.settings` has `rollout_steps`, `epochs`, `batch_size`, `discount`, `gae_lambda`."""

    overlaps = False

    def __init__(self, config: TrainConfig, agent: Agent, device: torch.device):
        settings: Any = config.settings
        self.steps, self.envs, self.device = int(settings.rollout_steps), config.num_envs, device
        self.batch_size, self.epochs = int(settings.batch_size), int(settings.epochs)
        self.discount, self.gae_lambda = float(settings.discount), float(settings.gae_lambda)
        total = self.steps * self.envs
        if total < self.batch_size:
            raise InvalidValueError(
                f"a rollout of {self.steps} steps of {self.envs} environments has {total} steps, fewer than the "
                f"batch_size {self.batch_size}: raise rollout_steps or num_envs"
            )
        learner: Any = getattr(agent, "learner", agent)  # SGQN's, or the agent itself
        self.learner: ActorCritic = learner
        self.generators: dict[str, torch.Generator] = {}
        self._shuffler = torch.Generator().manual_seed(config.seed + 1)
        self.updates = 0
        self._due = 0  # updates that all rollouts so far have asked for
        self._filled = 0  # steps of the current rollout
        spec = agent.spec
        self.discrete = spec.action_dim if spec.discrete else 0
        pixels = (spec.channels, spec.render_size, spec.render_size)
        shape, kind = ((), torch.int64) if spec.discrete else ((spec.action_dim,), torch.float32)
        rows = (self.steps, self.envs)
        self._data = {
            "obs": torch.zeros(*rows, *pixels, dtype=torch.uint8, device=device),
            "action": torch.zeros(*rows, *shape, dtype=kind, device=device),
            "log_prob": torch.zeros(rows, device=device),
            "advantage": torch.zeros(rows, device=device),
            "target": torch.zeros(rows, device=device),
            "reward": torch.zeros(rows, device=device),
            "goes_on": torch.ones(rows, device=device),
            "bonus": torch.zeros(rows, device=device),
        }
        count = total // self.batch_size * self.batch_size
        self._order = torch.zeros(self.epochs * count, dtype=torch.int64, device=device)
        self._cursor = torch.zeros((), dtype=torch.int64, device=device)
        self._within = torch.arange(self.batch_size, device=device)
        self._obs: Tensor | None = None

    def start(self, obs: Tensor) -> None:
        self._obs = obs.clone()

    def add(
        self, actions: Tensor, rewards: np.ndarray, next_obs: Any, terminated: np.ndarray, truncated: np.ndarray,
        reset_obs: Any,
    ) -> None:  # fmt: skip
        assert self._obs is not None
        data, step = self._data, self._filled
        data["obs"][step], data["action"][step] = self._obs, actions
        data["reward"][step] = torch.as_tensor(rewards, dtype=torch.float32)
        over = terminated | truncated
        data["goes_on"][step] = torch.as_tensor(~over, dtype=torch.float32)
        data["bonus"][step] = 0.0
        cut = np.flatnonzero(truncated & ~terminated).tolist()
        if cut:  # bootstrap at the time limit
            data["bonus"][step, cut] = self.discount * self._values(next_obs[cut])
        self._obs = (next_obs if reset_obs is None else reset_obs).clone()
        self._filled += 1
        if self._filled == self.steps:
            self._finish()

    def explores(self, step: int) -> bool:
        del step
        return False

    def due(self, step: int) -> int:
        del step
        return self._due - self.updates

    def sample(self, phase: Phase) -> RolloutBatch:
        """The next batch of the current epoch. The cursor is on the device: a captured update moves it."""
        del phase
        index = self._order[self._cursor * self.batch_size + self._within]
        self._cursor.add_(1)
        return RolloutBatch(*(self._data[name].flatten(0, 1)[index] for name in RolloutBatch._fields))

    def state_dict(self) -> dict[str, Any]:
        return {
            "updates": self.updates,
            "due": self._due,
            "filled": self._filled,
            "data": {name: tensor.cpu() for name, tensor in self._data.items()},
            "order": self._order.cpu(),
            "cursor": self._cursor.cpu(),
            "shuffler": self._shuffler.get_state(),
        }

    def save(self, folder: Path, tag: str) -> None:
        """All of it is in `state_dict`."""

    def prune(self, folder: Path, tags: list[str]) -> None:
        pass

    def load(self, folder: Path, tag: str, state: dict[str, Any], step: int, obs: Tensor) -> None:
        batches, total = len(self._order) // self.batch_size, self.steps * self.envs
        due = reading.integer(state["due"], "due")
        updates = reading.integer(state["updates"], "updates", max(0, due - batches), due)
        filled = reading.integer(state["filled"], "filled", 0, self.steps - 1)
        found = reading.mapping(state["data"], "the rollout", list(self._data))
        for name, tensor in (*self._data.items(), ("order", self._order), ("cursor", self._cursor)):
            reading.tensor(found.get(name, state.get(name)), name, tensor.shape, tensor.dtype)
        for name, most in (("order", total - 1), ("cursor", batches)):
            if not 0 <= int(state[name].min()) <= int(state[name].max()) <= most:
                raise ValueError(f"{name} is not from 0 to {most}")
        if self.discrete and not 0 <= int(found["action"].min()) <= int(found["action"].max()) < self.discrete:
            raise ValueError(f"discrete actions are not from 0 to {self.discrete - 1}")
        self.updates, self._due, self._filled = updates, due, filled
        for name, tensor in self._data.items():
            tensor.copy_(found[name])
        self._order.copy_(state["order"])
        self._cursor.copy_(state["cursor"])
        self._shuffler.set_state(state["shuffler"])
        self._obs = obs.clone()

    def _values(self, obs: Tensor) -> Tensor:
        """V(s); the action does not matter to it."""
        return self._judge(obs, self._data["action"][0, :1].expand(len(obs), *self._data["action"].shape[2:]))[1]

    @torch.no_grad()
    def _judge(self, obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        parts = [self.learner.judge(o, a) for o, a in zip(obs.split(CHUNK), action.split(CHUNK), strict=True)]
        return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])

    def _finish(self) -> None:
        """Estimate the advantages and schedule the updates. The weights are still those that acted."""
        data, shape = self._data, (self.steps, self.envs)
        assert self._obs is not None
        log_prob, values = self._judge(data["obs"].flatten(0, 1), data["action"].flatten(0, 1))
        data["log_prob"].copy_(log_prob.view(shape))
        advantage = generalized_advantages(
            data["reward"] + data["bonus"],
            values.view(shape),
            self._values(self._obs),
            data["goes_on"],
            self.discount,
            self.gae_lambda,
        )
        data["advantage"].copy_(advantage)
        data["target"].copy_(advantage + values.view(shape))
        total, count = self.steps * self.envs, len(self._order) // self.epochs
        orders = [torch.randperm(total, generator=self._shuffler)[:count] for _ in range(self.epochs)]
        self._order.copy_(torch.cat(orders))
        self._cursor.zero_()
        self._filled = 0
        self._due += len(self._order) // self.batch_size


def generalized_advantages(
    reward: Tensor, value: Tensor, last_value: Tensor, goes_on: Tensor, discount: float, gae_lambda: float
) -> Tensor:
    """Generalized advantage estimates (Schulman et al., 2016) of steps in rows of time, (T, N).

    `goes_on` is 0 in the last step of an episode; `last_value` (N,) is of the observations after the last row.
    """
    advantages, following, running = [], last_value, torch.zeros_like(last_value)
    for step in reversed(range(len(reward))):
        error = reward[step] + discount * goes_on[step] * following - value[step]
        running = error + discount * gae_lambda * goes_on[step] * running
        advantages.append(running)
        following = value[step]
    return torch.stack(advantages[::-1])
