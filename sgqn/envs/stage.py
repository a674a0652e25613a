"""Runs and renders simulations in this process. `sgqn.envs.workers` does the same in worker processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from sgqn.envs.families import Task, check_renderer
from sgqn.envs.opengl import gl_error
from sgqn.envs.shifts import Shift
from sgqn.envs.simulation import MujocoSimulation, Renderer
from sgqn.envs.warp import WarpRenderer


class Stage(Protocol):
    """A fixed number of simulations of one task and shift, rendered together."""

    num_envs: int
    action_space: spaces.Box | spaces.Discrete
    agent_step_seconds: float

    def reset(self, worlds: Sequence[int], seed: int, episodes: Sequence[int]) -> None: ...
    def step_async(self, actions: np.ndarray) -> None:
        """float64 (num_envs, size), or int64 (num_envs,) where actions are discrete."""
        ...

    def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Rewards, terminated, truncated, each (num_envs,)."""
        ...

    def frames(self) -> Tensor:
        """uint8 (num_envs, size, size, 3)."""
        ...

    def masks(self) -> Tensor | None:
        """bool (num_envs, size, size) where they were asked for; valid after `frames`."""
        ...

    def screens(self) -> Tensor | None:
        """Where clips show, bool (num_envs, size, size); None where there are none, or they replace green pixels."""
        ...

    def successes(self) -> np.ndarray | None:
        """Whether each simulation is in a state that solves its task, bool (num_envs,); None if the task has none."""
        ...

    def states(self) -> list[dict[str, Any]]: ...
    def restore(self, states: Sequence[dict[str, Any]]) -> None: ...
    def close(self) -> None: ...


def choose_renderer(task: Task, name: str) -> str:
    """Resolve `auto`: the first renderer of the task's family that works here."""
    if check_renderer(task.name, name) != "auto":
        return name
    names = task.family.renderers(task.name)
    return next((name for name in names if name != "gl" or gl_error() is None), names[0])


class LocalStage:
    """Simulations in this process, stepped one after the other."""

    def __init__(
        self,
        task: Task,
        shift: Shift,
        num_envs: int,
        size: int,
        renderer: str,
        device: torch.device,
        masks: bool,
    ):
        self._device, self._want_masks = device, masks
        self.simulations = [task.family.load(task, shift) for _ in range(num_envs)]
        first = self.simulations[0]
        self.num_envs, self.action_space = num_envs, first.action_space
        self.agent_step_seconds = first.agent_step_seconds
        self.has_screens = first.has_screen and shift.video is not None
        self._renderers: list[Renderer] = []
        self._warp: WarpRenderer | None = None
        if renderer == "warp":
            assert isinstance(first, MujocoSimulation)
            self._warp = WarpRenderer(first, num_envs, size, device, masks)
            self._rows = np.zeros((num_envs, first.scene.size), dtype=np.float32)
        else:
            self._renderers = [simulation.make_renderer(size) for simulation in self.simulations]

    def reset(self, worlds: Sequence[int], seed: int, episodes: Sequence[int]) -> None:
        for world, episode in zip(worlds, episodes, strict=True):
            self.simulations[world].reset(episode, seed)
        self._start(worlds)

    def step_async(self, actions: np.ndarray) -> None:
        self._actions = actions

    def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        results = [s.step(action) for s, action in zip(self.simulations, self._actions, strict=True)]
        rewards, terminated, truncated = zip(*results, strict=True)
        return np.array(rewards), np.array(terminated), np.array(truncated)

    def frames(self) -> Tensor:
        if self._warp is None:
            return torch.from_numpy(np.stack([one.frame() for one in self._renderers])).to(self._device)
        for simulation, row in zip(self.simulations, self._rows, strict=True):
            simulation.write_scene(row)  # type: ignore[attr-defined]
        return self._warp.frames(self._rows)

    def masks(self) -> Tensor | None:
        if not self._want_masks:
            return None
        if self._warp is None:
            return torch.from_numpy(np.stack([one.mask() for one in self._renderers])).to(self._device)
        return self._warp.masks()

    def screens(self) -> Tensor | None:
        if not self.has_screens:
            return None
        return torch.from_numpy(np.stack([one.screen() for one in self._renderers])).to(self._device)

    def successes(self) -> np.ndarray | None:
        found = [simulation.success for simulation in self.simulations]
        return None if found[0] is None else np.array(found, dtype=bool)

    def states(self) -> list[dict[str, Any]]:
        return [simulation.state() for simulation in self.simulations]

    def restore(self, states: Sequence[dict[str, Any]]) -> None:
        for simulation, state in zip(self.simulations, states, strict=True):
            simulation.restore(state)
        self._start(range(self.num_envs))

    def close(self) -> None:
        for renderer in self._renderers:
            renderer.close()
        for simulation in self.simulations:
            simulation.close()
        self.simulations, self._renderers = [], []
        if self._warp is not None:
            self._warp.close()

    def _start(self, worlds: Sequence[int]) -> None:
        """New episodes have begun in some worlds: change to their appearances."""
        if self._warp is not None:
            self._warp.set_appearances(worlds, [self.simulations[world].appearance for world in worlds])
            return
        for world in worlds:
            self._renderers[world].start()
