"""Many environments at once: `sgqn.make_vec`."""

from __future__ import annotations

from typing import Any, Unpack

import gymnasium
import numpy as np
import torch
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space
from torch import Tensor

from sgqn.device import check_device
from sgqn.envs import forks
from sgqn.envs.checks import check_action, check_render_mode, check_seed, check_sizes
from sgqn.envs.env import CommonOptions, PixelEnv, describe, read_episode
from sgqn.envs.families import check_shift, find_task
from sgqn.envs.pixels import Pixels
from sgqn.envs.simulation import action_dim
from sgqn.envs.stage import LocalStage, Stage, choose_renderer
from sgqn.envs.workers import WorkerStage
from sgqn.errors import InvalidValueError, SgqnError
from sgqn.reading import integer


class VectorOptions(CommonOptions, total=False):
    """Options of `make_vec`."""

    device: str | torch.device | None
    num_workers: int | None
    num_episodes: int | None


class PixelVectorEnv(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """`num_envs` environments of one task and shift, stepped together.

    Environment i plays the episodes i, i + num_envs, i + 2 num_envs ... of the seed, each of them the episode that a
    single environment would play. `info` has the keys of a single environment in Gymnasium's form: an array for all
    environments, and under `_key` which of them have a value.

    When an episode ends, the step that ends it also starts the next one (Gymnasium's `SAME_STEP`): the returned
    observation is the new episode's first. `info["final_obs"]` holds the true last one and `info["final_info"]` the
    info that came with it, in the rows that `info["_final_obs"]` marks.

    With `num_episodes`, only that many episodes are played. An environment without a remaining episode is idle: it
    repeats its last one, with rewards of 0 and no end of episode.

    Observations are numpy arrays, or torch tensors on `device` if it is given: with the Warp renderer, they are created
    there and never copied to the host. `info["final_obs"]` is then one tensor instead of an array of arrays.

    With `render_mode="rgb_array"`, `render` returns the newest frame of each environment.
    """

    metadata: dict[str, Any] = {**PixelEnv.metadata, "autoreset_mode": AutoresetMode.SAME_STEP}  # noqa: RUF012

    def __init__(
        self,
        task: str,
        num_envs: int,
        shift: str | None = None,
        seed: int = 0,
        renderer: str = "auto",
        *,
        device: str | torch.device | None = None,
        action_repeat: int | None = None,
        image_size: int = 84,
        frame_stack: int | None = None,
        masks: bool = False,
        render_mode: str | None = None,
        num_workers: int | None = None,
        num_episodes: int | None = None,
    ):
        forks.prepare()
        if num_envs < 1:
            raise InvalidValueError(f"num_envs must be at least 1, not {num_envs!r}")
        if num_episodes is not None and num_episodes < num_envs:
            raise InvalidValueError(f"{num_episodes!r} episodes are too few for {num_envs} environments")
        self.render_mode = check_render_mode(render_mode)
        self.task = find_task(task, action_repeat)
        self.shift = check_shift(task, shift)
        frame_stack = self.task.defaults.frame_stack if frame_stack is None else frame_stack
        check_sizes(image_size, frame_stack)
        self._seed = check_seed(seed)
        self.returns_numpy = device is None
        """Whether observations are numpy arrays, not tensors."""
        on = check_device(device or "cpu")
        renderer = choose_renderer(self.task, renderer)
        self.num_envs = num_envs
        found = self.task.family.shift(task, self.shift)
        self._pixels = Pixels(num_envs, image_size, frame_stack, found, on, self.task.episode_steps)
        self._stage: Stage
        if num_workers == 0:
            if renderer == "gl" and forks.is_forked():
                raise InvalidValueError("num_workers=0 cannot render with OpenGL in a forked process: leave it out")
            self._stage = LocalStage(self.task, found, num_envs, image_size, renderer, on, masks)
        else:
            self._stage = WorkerStage(self.task, found, num_envs, image_size, renderer, on, masks, num_workers)
        self.single_observation_space = gymnasium.spaces.Box(
            0, 255, (3 * frame_stack, image_size, image_size), dtype=np.uint8
        )
        self.single_action_space = self._stage.action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.metadata = describe(self.metadata, renderer, self._pixels.source, self._stage.agent_step_seconds)
        self.autoreset_mode = self.metadata["autoreset_mode"]  # where torchrl looks for it
        self.action_dim = action_dim(self._stage.action_space)
        """Size of a continuous action, or the number of discrete ones."""
        self.discrete = isinstance(self._stage.action_space, gymnasium.spaces.Discrete)
        self._episodes: list[int] = []
        self._num_episodes = num_episodes
        self._resting = np.zeros(num_envs, dtype=bool)
        self._next_first = 0  # the first episode of a reset that names none

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Reset: with a seed to its episode 0, or to `options["episode"]`."""
        if isinstance(seed, list | tuple | np.ndarray):
            raise InvalidValueError(
                f"seed must be one number, not {seed!r}: the environments share the episodes of one seed"
            )
        new_seed = self._seed if seed is None else check_seed(seed)
        first = read_episode(options, default=self._next_first if seed is None else 0)
        if self._num_episodes is not None and first + self.num_envs > self._num_episodes:
            raise InvalidValueError(
                f"no {self.num_envs} episodes are left from {first} on: there are {self._num_episodes}"
            )
        super().reset(seed=None if seed is None else new_seed)
        self._seed, self._episodes = new_seed, [first + world for world in range(self.num_envs)]
        self._resting[:] = False
        self._next_first = first + self.num_envs
        self._start(list(range(self.num_envs)))
        return self._out(self._pixels.observations), self._info()

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        self.step_async(actions)
        return self.step_wait()

    def step_async(self, actions: Any) -> None:
        """Send the actions to the simulations and return at once; `step_wait` returns the results."""
        if not self._episodes:
            raise SgqnError("call reset() before step()")
        self._stage.step_async(check_action(actions, self.action_space))

    def step_wait(self) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        rewards, terminated, truncated = self._stage.step_wait()
        frames = self._stage.frames()
        observations = self._pixels.push(frames, self._stage.masks(), self._stage.screens())
        info: dict[str, Any] = {}
        over = np.flatnonzero(terminated | truncated).tolist()
        if self._resting.any():
            awake = ~self._resting
            rewards, terminated, truncated = rewards * awake, terminated & awake, truncated & awake
        ended = terminated | truncated
        if ended.any():
            info["final_obs"], info["_final_obs"] = self._final(observations, ended), ended
            info["final_info"], info["_final_info"] = self._info(ended), ended.copy()
        if over:
            for world in over:
                self._move_on(world)
            self._next_first = max(self._next_first, max(self._episodes) + 1)
            self._start(over)
        return self._out(self._pixels.observations), rewards, terminated, truncated, {**info, **self._info()}

    def render(self) -> tuple[np.ndarray, ...] | None:
        """The newest frame of each environment: uint8 (image_size, image_size, 3)."""
        if self.render_mode is None:
            return None
        return tuple(self._pixels.observations[:, -3:].permute(0, 2, 3, 1).cpu().numpy().copy())

    def state_dict(self) -> dict[str, Any]:
        """Everything that `load_state_dict` needs to continue bit for bit: plain numbers, numpy arrays, tensors."""
        return {
            "seed": self._seed,
            "next_first": self._next_first,
            "episodes": list(self._episodes),
            "resting": self._resting.tolist(),
            "simulations": self._stage.states(),
            "pixels": self._pixels.state(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> Any:
        """Continue from a saved state; returns the observations it was left with."""
        if len(state["episodes"]) != self.num_envs:
            raise InvalidValueError(
                f"the state is of {len(state['episodes'])} environments, this one has {self.num_envs}"
            )
        seed, first = check_seed(state["seed"]), integer(state["next_first"], "next_first")
        episodes = [integer(episode, "an episode") for episode in state["episodes"]]
        resting = state.get("resting", [False] * self.num_envs)
        if len(resting) != self.num_envs or not all(isinstance(one, bool) for one in resting):
            raise InvalidValueError(f"the state does not say which of {self.num_envs} environments rest")
        simulations = [
            self._checked(values, seed, episode) for values, episode in zip(state["simulations"], episodes, strict=True)
        ]
        self._pixels.check(state["pixels"])
        self._seed, self._next_first, self._episodes = seed, first, episodes
        self._resting[:] = resting
        self._stage.restore(simulations)
        self._pixels.restore(state["pixels"])
        return self._out(self._pixels.observations)

    def _checked(self, values: dict[str, Any], seed: int, episode: int) -> dict[str, Any]:
        """The state of a simulation, with plausible numbers only."""
        if (values["seed"], values["episode"]) != (seed, episode):
            raise InvalidValueError("the state of a simulation is of another episode")
        integer(values["steps"], "steps", 0, (self.task.episode_steps + 1) * self.task.action_repeat)  # control steps
        for name, value in values.items():
            array = np.asarray(value)
            if array.dtype.kind not in "biuf" or not np.isfinite(array).all():
                raise InvalidValueError(f"the state of a simulation has {name} that are not finite numbers")
        return values

    def close_extras(self, **_: Any) -> None:
        self._pixels.close()
        self._stage.close()

    def _move_on(self, world: int) -> None:
        if self._is_left(self._episodes[world] + self.num_envs):
            self._episodes[world] += self.num_envs
        else:
            self._resting[world] = True

    def _start(self, worlds: list[int]) -> None:
        episodes = [self._episodes[world] for world in worlds]
        upcoming = [episode + self.num_envs for episode in episodes if self._is_left(episode + self.num_envs)]
        self._pixels.prefetch([*episodes, *upcoming])
        self._stage.reset(worlds, self._seed, episodes)
        frames = self._stage.frames()
        self._pixels.start(worlds, self._seed, episodes, frames, self._stage.masks(), self._stage.screens())

    def _is_left(self, episode: int) -> bool:
        return self._num_episodes is None or episode < self._num_episodes

    def _out(self, tensor: Tensor) -> Any:
        return tensor.numpy() if self.returns_numpy else tensor

    def _final(self, observations: Tensor, ended: np.ndarray) -> Any:
        """The last observations: an array of arrays, as Gymnasium's vector environments have it, or one tensor."""
        if not self.returns_numpy:
            return observations
        final = np.full(self.num_envs, None, dtype=object)
        for world in np.flatnonzero(ended):
            final[world] = observations[world].numpy()
        return final

    def _info(self, rows: np.ndarray | None = None) -> dict[str, Any]:
        """Info of single environments, for all or some of them: `key`, and under `_key` which of them it is for."""
        values: dict[str, Any] = {"episode_number": np.array(self._episodes)}
        successes = self._stage.successes()
        if successes is not None:
            values["success"] = successes
        if self._pixels.masks is not None:
            values["mask"] = self._out(self._pixels.masks)
        info: dict[str, Any] = {}
        for key, value in values.items():
            info[key] = value if rows is None else _only(value, rows)
            info[f"_{key}"] = np.ones(self.num_envs, dtype=bool) if rows is None else rows.copy()
        return info


def _only(values: Any, rows: np.ndarray) -> Any:
    """An array with zeros in the other rows. A tensor stays as it is."""
    if isinstance(values, Tensor):
        return values
    return np.where(rows.reshape(-1, *[1] * (values.ndim - 1)), values, values.dtype.type(0))


def make_vec(
    task: str,
    num_envs: int,
    shift: str | None = None,
    seed: int = 0,
    renderer: str = "auto",
    **options: Unpack[VectorOptions],
) -> PixelVectorEnv:
    """Many environments of a task as one Gymnasium vector environment; see `PixelVectorEnv` for the options."""
    return PixelVectorEnv(task, num_envs, shift, seed, renderer, **options)
