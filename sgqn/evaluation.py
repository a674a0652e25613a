"""The benchmark's protocol: deterministic actions, whole episodes, the same ones for everyone with the same seed.

`evaluate` plays them with an agent, or any other policy; `record` does so with the agent of a run and keeps the results
in the run's folder, as `sgqn.policies.record` does for other policies.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
import os
import reprlib
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from sgqn import loading, reading, run_folder
from sgqn.agents.base import Agent
from sgqn.config import versions
from sgqn.envs.checks import check_action, check_seed
from sgqn.envs.families import check_renderer, check_shift, find_task
from sgqn.envs.vector import PixelVectorEnv, make_vec
from sgqn.envs.warp import num_cores
from sgqn.errors import DataError, InvalidValueError

MAX_ENVS = 16
MAX_EPISODES = 1_000_000

CHUNK = 4
"""Observations in one forward pass on a CPU."""

Act = Callable[..., Any]
Actions = Callable[[Tensor, np.ndarray], Tensor]
"""Actions for observations, and for which of them an episode starts, bool (B,)."""


class Policy(Protocol):
    """All that `evaluate` asks of a policy that is not an agent of this package: actions for observations."""

    def act(self, obs: Any, /) -> Any:
        """Actions (B, A) in [-1, 1] for observations, uint8 (B, 3 * frames, H, W), each of another episode.

        `obs` is a numpy array, or a tensor where `evaluate` was given a device, and is the policy's to keep or change.
        The actions may be an array, a tensor or lists; they are played as they are, so whether they are deterministic,
        as the benchmark has them, is up to the policy. Discrete actions are integers (B,).

        It is asked once a step. A policy with memory has a parameter `episode_start` too, which is given a boolean
        array like `obs`, (B,): the rows in which a new episode starts.
        """


@dataclass(frozen=True)
class Evaluation:
    """The returns of an agent in one shift, and what made its images."""

    task: str
    shift: str
    seed: int
    renderer: str
    backgrounds: str
    returns: tuple[float, ...]
    successes: tuple[bool, ...] | None = field(default=None, kw_only=True)
    """Whether each episode ended with the task solved; None if the task has no such notion."""

    @property
    def episodes(self) -> int:
        return len(self.returns)

    @property
    def mean(self) -> float:
        return float(np.mean(self.returns))

    @property
    def std(self) -> float:
        return float(np.std(self.returns))

    @property
    def success_rate(self) -> float | None:
        """Share of the episodes that ended with the task solved."""
        return None if self.successes is None else float(np.mean(self.successes))

    def to_dict(self) -> dict[str, Any]:
        found = {**dataclasses.asdict(self), "returns": list(self.returns), "mean": self.mean, "std": self.std}
        if self.successes is None:
            del found["successes"]
            return found
        return {**found, "successes": list(self.successes), "success_rate": self.success_rate}


class Moment(NamedTuple):
    """What an agent meets at one step of the episodes that are still going on, one row each."""

    step: int
    episodes: np.ndarray
    obs: Tensor
    action: Tensor
    mask: Tensor
    """The controlled system in each stacked frame, by the simulator: bool (B, frames, H, W)."""


def evaluate(
    agent: Policy | Act,
    task: str,
    shift: str = "train",
    episodes: int = 30,
    seed: int = 0,
    renderer: str = "auto",
    *,
    num_envs: int | None = None,
    num_workers: int | None = None,
    action_repeat: int | None = None,
    image_size: int | None = None,
    frame_stack: int | None = None,
    device: str | torch.device | None = None,
    on_step: Callable[[int, int], None] | None = None,
    watch: Callable[[Moment], None] | None = None,
) -> Evaluation:
    """Play episodes 0 .. episodes - 1 of the seed, several at a time; `on_step(done, total)` reports agent steps.

    `agent` is one of this package, a `Policy`, or a function that does what a policy's `act` does. Everyone who
    evaluates with the same seed meets the same starts, colours and clips. `watch` is shown every moment.

    An agent that was loaded acts with the action repeat that it was trained with, unless another one is given, and sees
    frames as it was trained on them. Another policy has the task's action repeat and number of frames, of
    84 x 84 pixels, unless others are given: as tensors on `device`, or without one as numpy arrays.
    """
    act = act_of(agent)
    _check(episodes, seed)
    seen = seen_by(agent, task, image_size, frame_stack, device)
    if isinstance(agent, Agent) and action_repeat is None and agent.task == task:
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
        action_repeat=action_repeat,
        masks=watch is not None,
        num_workers=num_workers,
        num_episodes=episodes,
        **seen,
    )
    try:
        policies: AbstractContextManager[Actions] = nullcontext(_asking(act, envs.action_space, device is None))
        if isinstance(agent, Agent):
            _check_fit(agent, task, envs)
            policies = _policy_of(agent)
        with policies as policy:
            returns, successes = _play(policy, envs, episodes, report, watch)
    finally:
        envs.close()
    renderer, backgrounds = envs.metadata["renderer"], envs.metadata["backgrounds"]
    solved = None if successes is None else tuple(successes.tolist())
    return Evaluation(task, shift, seed, renderer, backgrounds, tuple(returns.tolist()), successes=solved)


def record(
    path: str | Path,
    shifts: Sequence[str] | None = None,
    episodes: int = 30,
    seed: int = 0,
    renderer: str = "auto",
    device: str = "cpu",
    on_step: Callable[[str, int, int], None] | None = None,
    out: Path | None = None,
) -> list[dict[str, Any]]:
    """Evaluate a run's agent in some shifts, by default in those that its task is tested in.

    Each result is appended to the run's log as soon as it is there. Results of an exported agent are kept in
    `out`/<task>/<agent>/<seed> if `out` is given.

    Everything that can be wrong with the arguments is found before the first episode. `on_step(shift, done, total)`
    reports agent steps.
    """
    _check(episodes, seed)
    agent, config, step, home, precision = loading.load(path, device)
    shifts = check_plan(config.task, shifts, episodes, seed, renderer)
    home = run_folder.results_folder(config, home, out)
    if home is not None:
        check_writable(home / run_folder.EVALUATIONS)
    keep = None if home is None else partial(run_folder.append_line, home / run_folder.EVALUATIONS)
    return play_shifts(agent, config.task, shifts, episodes, seed, renderer, step, precision, keep, on_step)


def play_shifts(
    agent: Policy | Act,
    task: str,
    shifts: Sequence[str],
    episodes: int,
    seed: int,
    renderer: str,
    step: int | None,
    precision: str,
    keep: Callable[[dict[str, Any]], None] | None,
    on_step: Callable[[str, int, int], None] | None,
    **options: Any,
) -> list[dict[str, Any]]:
    """Evaluate in each shift; the results as lines of a log, each given to `keep` as soon as it is there."""
    lines = []
    for shift in dict.fromkeys(shifts):

        def say(done: int, total: int, shift: str = shift) -> None:
            if on_step is not None:
                on_step(shift, done, total)

        start = time.monotonic()
        result = evaluate(agent, task, shift, episodes, seed, renderer, on_step=say, **options)
        seconds = round(time.monotonic() - start, 1)
        made_with = {"weights": precision, "seconds": seconds, "versions": versions()}
        lines.append({"step": step, **result.to_dict(), **made_with})
        if keep is not None:
            keep(lines[-1])
    return lines


def act_of(agent: Any) -> Act:
    """What is called with observations: the policy's `act`, or the policy itself."""
    for act in (getattr(agent, "act", None), agent):
        if callable(act) and not isinstance(agent, type):
            return act
    hint = " (wrap it: lambda obs: model.predict(obs, deterministic=True)[0])" if hasattr(agent, "predict") else ""
    raise InvalidValueError(
        "evaluate plays an agent that sgqn.load_agent gave, an object with act(obs) or a function of observations, "
        f"not a {type(agent).__name__}: {reprlib.repr(agent)}{hint}"
    )


def seen_by(
    agent: Any, task: str, image_size: int | None, frame_stack: int | None, device: str | torch.device | None
) -> dict[str, Any]:
    """What the observations of a policy are like, as arguments of `make_vec`."""
    size, frames, place = 84, find_task(task).defaults.frame_stack, "cpu" if device is None else device
    if isinstance(agent, Agent):
        size, frames, place = agent.spec.render_size, agent.spec.channels // 3, agent.device
        if device is not None:
            raise InvalidValueError(
                f"this agent is on {place}: leave out device={str(device)!r}, or move it by agent.to"
            )
    return {
        "image_size": size if image_size is None else image_size,
        "frame_stack": frames if frame_stack is None else frame_stack,
        "device": place,
    }


def _check_fit(agent: Agent, task: str, envs: PixelVectorEnv) -> None:
    spec = agent.spec
    if (envs.action_dim, envs.discrete) != (spec.action_dim, spec.discrete):
        trained = f", trained on {agent.task}," if agent.task else ""
        gives, takes = _actions(spec.action_dim, spec.discrete), _actions(envs.action_dim, envs.discrete)
        raise InvalidValueError(f"this agent{trained} gives {gives}: {task} takes {takes}")


def _actions(size: int, discrete: bool) -> str:
    return f"one of {size} discrete actions" if discrete else f"actions of {size} numbers"


def check_plan(task: str, shifts: Sequence[str] | None, episodes: int, seed: int, renderer: str) -> Sequence[str]:
    """Refuse what cannot be evaluated; returns the shifts, by default those that the task is tested in."""
    _check(episodes, seed)
    shifts = find_task(task).test_shifts if shifts is None else shifts
    if not shifts:
        raise InvalidValueError("name at least one shift")
    for shift in shifts:
        check_shift(task, shift)
    check_renderer(task, renderer)
    return shifts


def _check(episodes: int, seed: int) -> None:
    if episodes < 1:
        raise InvalidValueError(f"episodes must be at least 1, not {episodes!r}")
    if episodes > MAX_EPISODES:
        raise InvalidValueError(f"episodes must be at most {MAX_EPISODES:,}, not {episodes!r}")
    check_seed(seed)


def check_writable(log: Path) -> None:
    """Find out before minutes of work, not after them, that a result could not be kept."""
    reading.check_inside(log, log.parent)
    target = next(path for path in (log, *log.absolute().parents) if path.exists())
    if log.is_dir() or not os.access(target, os.W_OK):
        raise DataError(f"{log} cannot be written to: results of this run could not be kept")


def _even_share(episodes: int) -> int:
    """The number of environments, at most MAX_ENVS, that leaves fewest of them idle at the end."""
    return math.ceil(episodes / math.ceil(episodes / MAX_ENVS))


@contextmanager
def _policy_of(agent: Agent) -> Iterator[Actions]:
    """Deterministic actions for a batch; on a CPU they do not depend on what else is in the batch, to the last bit.

    There the size of a batch and the number of threads change the order of sums: a pixel flips, and the episode is
    another. So every pass has CHUNK observations and one thread, and as many passes as there are cores run at once.
    """
    if agent.device.type != "cpu":
        yield lambda obs, _: agent.act(obs)
        return
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with ThreadPoolExecutor(num_cores(), "sgqn-policy") as pool:
            yield lambda obs, _: torch.cat(list(pool.map(agent.act, _chunks(obs))))[: len(obs)]
    finally:
        torch.set_num_threads(threads)


def _asking(act: Act, space: spaces.Space[Any], as_numpy: bool) -> Actions:
    """The actions of a policy about which nothing is known: one call for the whole batch, which is a copy."""
    told = _takes_episode_start(act)

    def policy(obs: Tensor, starts: np.ndarray) -> Tensor:
        seen = obs.clone().numpy(force=True) if as_numpy else obs.clone()
        begun = starts.copy() if as_numpy else torch.as_tensor(starts.copy(), device=obs.device)
        given = act(seen, episode_start=begun) if told else act(seen)
        try:
            action = check_action(given, space)
        except (TypeError, ValueError) as error:
            asked, kind = f"actions {space.shape}", type(given).__name__
            raise InvalidValueError(f"a policy was asked for {asked} and gave a {kind}: {error}") from error
        return torch.as_tensor(action, device=obs.device)

    return policy


def _takes_episode_start(act: Act) -> bool:
    """Whether a policy has memory, and so a parameter `episode_start`."""
    try:
        return "episode_start" in inspect.signature(act).parameters
    except (TypeError, ValueError):  # a function that was not written in Python
        return False


def _chunks(obs: Tensor) -> Sequence[Tensor]:
    """Parts of CHUNK rows; the last row fills up the last part."""
    filling = obs[-1:].expand(-len(obs) % CHUNK, *obs.shape[1:])
    return torch.cat([obs, filling]).split(CHUNK)


def _play(
    policy: Actions,
    envs: PixelVectorEnv,
    episodes: int,
    report: Callable[[int], None],
    watch: Callable[[Moment], None] | None,
) -> tuple[np.ndarray, np.ndarray | None]:
    """The return of every episode, and whether it ended with the task solved where that can be said.

    Environment i plays the episodes i, i + n, i + 2n ... and then rests.
    """
    returns = np.zeros(episodes)
    successes: np.ndarray | None = None
    playing = np.arange(envs.num_envs)
    steps = np.zeros(envs.num_envs, dtype=int)
    over = np.ones(envs.num_envs, dtype=bool)
    obs, info = envs.reset()
    finished = 0
    while finished < episodes:
        action = policy(obs, over)
        running = playing < episodes
        if watch is not None:
            _show(watch, steps, playing, running, obs, action, info["mask"])
        obs, reward, terminated, truncated, info = envs.step(action)
        returns[playing[running]] += reward[running]
        steps[running] += 1
        over = terminated | truncated
        solved = info.get("final_info", {}).get("success")
        if solved is not None:
            successes = np.zeros(episodes, dtype=bool) if successes is None else successes
            successes[playing[over]] = solved[over]
        playing[over] += envs.num_envs
        steps[over] = 0
        finished += int(over.sum())
        report(finished * envs.task.episode_steps + int(steps.sum()))
    return returns, successes


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
