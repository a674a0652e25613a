"""One environment: `sgqn.make`."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import torch

from sgqn.envs.checks import check_action, check_count, check_seed, check_sizes
from sgqn.envs.families import check_shift, find_task
from sgqn.envs.pixels import Pixels
from sgqn.envs.stage import LocalStage, choose_renderer
from sgqn.errors import InvalidValueError, SgqnError, UnknownNameError


class PixelEnv(gymnasium.Env[np.ndarray, Any]):
    """A task seen through its camera, under one of its shifts: by default the one to train in.

    Observations are uint8 (3 * frame_stack, image_size, image_size). Actions lie in [-1, 1] (others are clipped), or
    are integers where the task has discrete ones. Episode k after `reset(seed=s)` is the same for everyone;
    `reset(options={"episode": k})` jumps there. With `masks=True`, `info["mask"]` tells which pixels of each stacked
    frame show the controlled system. Where a task can be solved, `info["success"]` tells whether it is at this moment.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 10}  # noqa: RUF012

    def __init__(
        self,
        task: str,
        shift: str | None = None,
        seed: int = 0,
        renderer: str = "auto",
        *,
        action_repeat: int | None = None,
        image_size: int = 84,
        frame_stack: int | None = None,
        masks: bool = False,
        render_mode: str | None = None,
    ):
        if render_mode not in (None, "rgb_array"):
            raise InvalidValueError(f"render_mode must be None or 'rgb_array', not {render_mode!r}")
        self.task = find_task(task, action_repeat)
        self.shift = check_shift(task, shift)
        frame_stack = self.task.defaults.frame_stack if frame_stack is None else frame_stack
        check_sizes(image_size, frame_stack)
        self._seed, self._episode = check_seed(seed), -1
        self.render_mode = render_mode
        device = torch.device("cpu")
        renderer = choose_renderer(self.task, renderer)
        found = self.task.family.shift(task, self.shift)
        self._pixels = Pixels(1, image_size, frame_stack, found, device, self.task.episode_steps)
        self._stage = LocalStage(self.task, found, 1, image_size, renderer, device, masks)
        self.observation_space = gymnasium.spaces.Box(0, 255, (3 * frame_stack, image_size, image_size), dtype=np.uint8)
        self.action_space = self._stage.action_space
        self.metadata = describe(self.metadata, renderer, self._pixels.source, self._stage.agent_step_seconds)
        self._running = False

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        new_seed = self._seed if seed is None else check_seed(seed)
        episode = read_episode(options, default=self._episode + 1 if seed is None else 0)
        super().reset(seed=None if seed is None else new_seed)
        self._seed, self._episode = new_seed, episode
        self._stage.reset([0], self._seed, [self._episode])
        frames = self._stage.frames()
        self._pixels.start([0], self._seed, [self._episode], frames, self._stage.masks(), self._stage.screens())
        self._pixels.prefetch([self._episode + 1])
        self._running = True
        return self._observation(), self._info()

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        if not self._running:
            raise SgqnError("the episode is over (or never began): call reset() first")
        self._stage.step_async(check_action(action, self.action_space)[None])
        rewards, terminated, truncated = self._stage.step_wait()
        frames = self._stage.frames()
        self._pixels.push(frames, self._stage.masks(), self._stage.screens())
        self._running = not (terminated[0] or truncated[0])
        return self._observation(), float(rewards[0]), bool(terminated[0]), bool(truncated[0]), self._info()

    def render(self) -> np.ndarray | None:
        """The newest frame, as the agent sees it."""
        if self.render_mode != "rgb_array":
            return None
        return self._pixels.observations[0, -3:].permute(1, 2, 0).numpy().copy()

    def close(self) -> None:
        self._running = False
        self._pixels.close()
        self._stage.close()

    def _observation(self) -> np.ndarray:
        return self._pixels.observations[0].numpy()

    def _info(self) -> dict[str, Any]:
        info = {
            "episode_number": self._episode,
            "renderer": self.metadata["renderer"],
            "backgrounds": self.metadata["backgrounds"],
        }
        successes = self._stage.successes()
        if successes is not None:
            info["success"] = bool(successes[0])
        if self._pixels.masks is not None:
            info["mask"] = self._pixels.masks[0].numpy()
        return info


def make(task: str, shift: str | None = None, seed: int = 0, renderer: str = "auto", **options: Any) -> PixelEnv:
    """A task under a shift as a Gymnasium environment; see `PixelEnv` for the options."""
    return PixelEnv(task, shift, seed, renderer, **options)


def describe(metadata: dict[str, Any], renderer: str, source: str, step_seconds: float) -> dict[str, Any]:
    """An environment's metadata: which renderer and which backgrounds made its pixels."""
    return {**metadata, "renderer": renderer, "backgrounds": source, "render_fps": max(1, round(1 / step_seconds))}


def read_episode(options: dict[str, Any] | None, default: int) -> int:
    """The episode that `reset`'s options ask for."""
    for name in options or {}:
        if name != "episode":
            raise UnknownNameError("option of reset", name, ("episode",))
    return check_count("options['episode']", (options or {}).get("episode", default))
