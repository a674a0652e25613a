"""Where simulations run and are drawn: in this process. `sgqn.envs.workers` has the same in worker processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from sgqn.envs.gl import GLRenderer
from sgqn.envs.shifts import find_shift
from sgqn.envs.simulation import Simulation
from sgqn.envs.suite import gl_error
from sgqn.envs.tasks import Task, check_renderer
from sgqn.envs.warp import WarpRenderer


class Stage(Protocol):
    """A fixed number of simulations of one task and shift, drawn together."""

    num_envs: int
    action_dim: int
    agent_step_seconds: float

    def reset(self, worlds: Sequence[int], seed: int, episodes: Sequence[int]) -> None: ...
    def step_async(self, actions: np.ndarray) -> None: ...
    def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Rewards, terminated, truncated, each (num_envs,)."""
        ...

    def frames(self) -> Tensor:
        """uint8 (num_envs, size, size, 3)."""
        ...

    def masks(self) -> Tensor | None:
        """bool (num_envs, size, size) where they were asked for; valid after `frames`."""
        ...

    def states(self) -> list[dict[str, Any]]: ...
    def restore(self, states: Sequence[dict[str, Any]]) -> None: ...
    def close(self) -> None: ...


def choose_renderer(name: str) -> str:
    """Resolve `auto`: OpenGL where a context can be made, else Warp."""
    if check_renderer(name) == "auto":
        return "gl" if gl_error() is None else "warp"
    return name


class LocalStage:
    """Simulations in this process, stepped one after the other."""

    def __init__(
        self,
        task: Task,
        shift: str,
        num_envs: int,
        size: int,
        renderer: str,
        device: torch.device,
        masks: bool,
    ):
        self._shift = find_shift(shift)
        self._device, self._want_masks = device, masks
        paint = renderer == "gl"
        self._simulations = [Simulation(task, self._shift, paint=paint) for _ in range(num_envs)]
        first = self._simulations[0]
        self.num_envs, self.action_dim = num_envs, first.action_dim
        self.agent_step_seconds = first.agent_step_seconds
        self._gl: list[GLRenderer] = []
        self._warp: WarpRenderer | None = None
        if paint:
            self._gl = [GLRenderer(simulation, size) for simulation in self._simulations]
        else:
            self._warp = WarpRenderer(first, num_envs, size, device, masks)
            self._rows = np.zeros((num_envs, first.scene.size), dtype=np.float32)
        self._actions = np.zeros((num_envs, self.action_dim))

    def reset(self, worlds: Sequence[int], seed: int, episodes: Sequence[int]) -> None:
        for world, episode in zip(worlds, episodes, strict=True):
            self._simulations[world].reset(episode, seed)
            if self._gl:
                self._gl[world].upload()
        if self._warp is not None:
            self._warp.set_colors(worlds, [self._shift.colors(seed, episode) for episode in episodes])

    def step_async(self, actions: np.ndarray) -> None:
        self._actions = actions

    def step_wait(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        results = [s.step(action) for s, action in zip(self._simulations, self._actions, strict=True)]
        rewards, terminated, truncated = zip(*results, strict=True)
        return np.array(rewards), np.array(terminated), np.array(truncated)

    def frames(self) -> Tensor:
        if self._warp is None:
            return torch.from_numpy(np.stack([gl.frame() for gl in self._gl])).to(self._device)
        for simulation, row in zip(self._simulations, self._rows, strict=True):
            simulation.write_scene(row)
        return self._warp.frames(self._rows)

    def masks(self) -> Tensor | None:
        if not self._want_masks:
            return None
        if self._warp is None:
            return torch.from_numpy(np.stack([gl.mask() for gl in self._gl])).to(self._device)
        return self._warp.masks()

    def states(self) -> list[dict[str, Any]]:
        return [simulation.state() for simulation in self._simulations]

    def restore(self, states: Sequence[dict[str, Any]]) -> None:
        for world, (simulation, state) in enumerate(zip(self._simulations, states, strict=True)):
            simulation.restore(state)
            if self._gl:
                self._gl[world].upload()
            elif self._warp is not None:
                self._warp.set_colors([world], [self._shift.colors(simulation.seed, simulation.episode)])

    def close(self) -> None:
        for simulation in self._simulations:
            simulation.close()
        self._simulations = []
        if self._warp is not None:
            self._warp.close()
