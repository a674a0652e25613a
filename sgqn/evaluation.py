"""The benchmark's protocol: deterministic actions, whole episodes, the same ones for everyone with the same seed.

`evaluate` plays them with an agent; `record` does so with the agent of a run and keeps the results in the run's folder.
"""

from __future__ import annotations

import dataclasses
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sgqn import run as runs
from sgqn.agents.base import Agent
from sgqn.config import versions
from sgqn.envs.tasks import check_renderer, check_shift, find_task
from sgqn.envs.vector import PixelVectorEnv, make_vec
from sgqn.envs.warp import num_cores
from sgqn.errors import DataError, InvalidValueError

MAX_ENVS = 16

CHUNK = 4
"""Observations in one forward pass on a CPU."""

Policy = Callable[[Tensor], Tensor]


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
    """Play episodes 0 .. episodes - 1 of the seed, several at a time; `on_step(done, total)` reports agent steps.

    Everyone who evaluates with the same seed meets the same starts, colours and clips. `watch` is shown every moment.
    An agent that was loaded acts with the action repeat that it was trained with, unless another one is given.
    """
    if not all(hasattr(agent, name) for name in ("act", "device", "spec")):
        raise InvalidValueError(f"evaluate plays an Agent, such as sgqn.load_agent gives one, not {agent!r}")
    trained_on = getattr(agent, "task", None)
    _check(episodes, seed)
    if action_repeat is None and trained_on == task:
        action_repeat = agent.action_repeat
    total = episodes * find_task(task, action_repeat).episode_steps

    def report(done: int) -> None:
        if on_step is not None:
            on_step(done, total)

    report(0)
    envs = make_vec(
        task,
        min(episodes, num_envs or _even_share(episodes)),
        shift=shift,
        seed=seed,
        renderer=renderer,
        device=agent.device,
        action_repeat=action_repeat,
        image_size=agent.spec.render_size,
        frame_stack=agent.spec.channels // 3,
        masks=watch is not None,
        num_workers=num_workers,
        num_episodes=episodes,
    )
    try:
        if envs.action_dim != agent.spec.action_dim:
            trained = f", trained on {trained_on}," if trained_on else ""
            takes = f"{task} takes {envs.action_dim}"
            raise InvalidValueError(f"this agent{trained} gives actions of {agent.spec.action_dim} numbers: {takes}")
        with _policy_of(agent) as policy:
            returns = _play(policy, envs, episodes, report, watch)
    finally:
        envs.close()
    renderer, backgrounds = envs.metadata["renderer"], envs.metadata["backgrounds"]
    return Evaluation(task, shift, seed, renderer, backgrounds, tuple(returns.tolist()))


def record(
    path: str | Path,
    shifts: Sequence[str],
    episodes: int = 30,
    seed: int = 0,
    renderer: str = "auto",
    device: str = "cpu",
    on_step: Callable[[str, int, int], None] | None = None,
) -> list[dict[str, Any]]:
    """Evaluate a run's agent in some shifts; each result is appended to the run's log as soon as it is there.

    Everything that can be wrong with the arguments is found before the first episode. `on_step(shift, done, total)`
    reports agent steps.
    """
    if not shifts:
        raise InvalidValueError("name at least one shift, such as --shift train video_hard")
    for shift in shifts:
        check_shift(shift)
    _check(episodes, seed)
    check_renderer(renderer)
    agent, config, step, home = runs.load(path, device)
    if home is not None:
        _check_writable(home / runs.EVALUATIONS)
    lines = []
    for shift in dict.fromkeys(shifts):

        def say(done: int, total: int, shift: str = shift) -> None:
            if on_step is not None:
                on_step(shift, done, total)

        start = time.monotonic()
        repeat = config.action_repeat
        result = evaluate(agent, config.task, shift, episodes, seed, renderer, action_repeat=repeat, on_step=say)
        seconds = round(time.monotonic() - start, 1)
        lines.append({"step": step, **result.to_dict(), "seconds": seconds, "versions": versions()})
        if home is not None:
            runs.append_line(home / runs.EVALUATIONS, lines[-1])
    return lines


def _check(episodes: int, seed: int) -> None:
    if episodes < 1:
        raise InvalidValueError(f"episodes must be at least 1, not {episodes!r}")
    if seed < 0:
        raise InvalidValueError(f"seed must be 0 or more, not {seed!r}")


def _check_writable(log: Path) -> None:
    """Find out before minutes of work, not after them, that a result could not be kept."""
    target = log if log.exists() else log.parent
    if log.is_dir() or not os.access(target, os.W_OK):
        raise DataError(f"{log} cannot be written to: results of this run could not be kept")


def _even_share(episodes: int) -> int:
    """The number of environments, at most MAX_ENVS, that leaves fewest of them idle at the end."""
    return math.ceil(episodes / math.ceil(episodes / MAX_ENVS))


@contextmanager
def _policy_of(agent: Agent) -> Iterator[Policy]:
    """Deterministic actions for a batch; on a CPU they do not depend on what else is in the batch, to the last bit.

    There the size of a batch and the number of threads change the order of sums: a pixel flips, and the episode is
    another. So every pass has CHUNK observations and one thread, and as many passes as there are cores run at once.
    """
    if agent.device.type != "cpu":
        yield agent.act
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(num_cores(), "sgqn-policy") as pool:
            yield lambda obs: torch.cat(list(pool.map(agent.act, _chunks(obs))))[: len(obs)]
    finally:
        torch.set_num_threads(threads)


def _chunks(obs: Tensor) -> Sequence[Tensor]:
    """Parts of CHUNK rows; the last row fills up the last part."""
    filling = obs[-1:].expand(-len(obs) % CHUNK, *obs.shape[1:])
    return torch.cat([obs, filling]).split(CHUNK)


def _play(
    policy: Policy,
    envs: PixelVectorEnv,
    episodes: int,
    report: Callable[[int], None],
    watch: Callable[[Moment], None] | None,
) -> np.ndarray:
    """The return of every episode. Environment i plays the episodes i, i + n, i + 2n ... and then rests."""
    returns = np.zeros(episodes)
    playing = np.arange(envs.num_envs)
    steps = np.zeros(envs.num_envs, dtype=int)
    obs, info = envs.reset()
    finished = 0
    while finished < episodes:
        action = policy(obs)
        running = playing < episodes
        if watch is not None:
            _show(watch, steps, playing, running, obs, action, info["mask"])
        obs, reward, terminated, truncated, info = envs.step(action)
        returns[playing[running]] += reward[running]
        steps[running] += 1
        over = terminated | truncated
        playing[over] += envs.num_envs
        steps[over] = 0
        finished += int(over.sum())
        report(finished * envs.task.episode_steps + int(steps.sum()))
    return returns


def _show(
    watch: Callable[[Moment], None],
    steps: np.ndarray,
    playing: np.ndarray,
    running: np.ndarray,
    obs: Tensor,
    action: Tensor,
    mask: Tensor,
) -> None:
    """One moment for all environments at the same step of their episodes: for all, unless episodes end early."""
    for step in np.unique(steps[running]).tolist():
        at = np.flatnonzero(running & (steps == step))
        rows = torch.as_tensor(at, device=obs.device)
        watch(Moment(step, playing[at], obs[rows], action[rows], mask.to(obs.device)[rows]))
