"""One environment: `sgqn.make`."""

from __future__ import annotations

from typing import Any, TypedDict, Unpack

import gymnasium
import numpy as np
import torch

from sgqn.envs import forks
from sgqn.envs.checks import check_action, check_count, check_render_mode, check_seed, check_sizes, check_view
from sgqn.envs.families import check_shift, find_task
from sgqn.envs.pixels import Pixels
from sgqn.envs.stage import LocalStage, Stage, choose_renderer
from sgqn.envs.view import View
from sgqn.envs.workers import WorkerStage
from sgqn.errors import SgqnError, UnknownNameError


class CommonOptions(TypedDict, total=False):
    """Options of `make` and `make_vec`, for editors and type checkers."""

    action_repeat: int | None
    image_size: int
    frame_stack: int | None
    masks: bool
    render_mode: str | None


class EnvOptions(CommonOptions, total=False):
    """Options of `make`."""

    width: int | None
    height: int | None
    camera_id: int | None
    camera_name: str | None


class PixelEnv(gymnasium.Env[np.ndarray, Any]):
    """A task with pixel observations, in one of its shifts; by default the training scene.

    Observations are uint8 (3 * frame_stack, image_size, image_size). Actions lie in [-1, 1] (others are clipped), or
    are integers where the task has discrete ones. Episode k after `reset(seed=s)` is always the same;
    `reset(options={"episode": k})` jumps to it. With `masks=True`, `info["mask"]` has the pixels of each stacked frame
    that show the controlled system. If a task can be solved, `info["success"]` is true while it is solved.

    With `render_mode="rgb_array"`, `render` returns the newest frame, or with `width`, `height`, `camera_id` or
    `camera_name` an image of that size from that camera, which observations do not depend on.
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
        width: int | None = None,
        height: int | None = None,
        camera_id: int | None = None,
        camera_name: str | None = None,
    ):
        forks.prepare()
        self.render_mode = check_render_mode(render_mode)
        self.task = find_task(task, action_repeat)
        self.shift = check_shift(task, shift)
        frame_stack = self.task.defaults.frame_stack if frame_stack is None else frame_stack
        check_sizes(image_size, frame_stack)
        viewed = check_view(render_mode, width, height, camera_id, camera_name, image_size)
        self._seed, self._episode = check_seed(seed), -1
        device = torch.device("cpu")
        renderer = choose_renderer(self.task, renderer)
        found = self.task.family.shift(task, self.shift)
        self._pixels = Pixels(1, image_size, frame_stack, found, device, self.task.episode_steps)
        self._stage: Stage
        self._view: View | None = None
        if renderer == "gl" and forks.is_forked():  # OpenGL does not survive a fork: it needs a separate process
            if viewed is not None:
                raise SgqnError(
                    "a forked process cannot render other sizes or cameras with OpenGL: use renderer='warp', or start "
                    "the process with the method 'spawn'"
                )
            self._stage = WorkerStage(self.task, found, 1, image_size, renderer, device, masks)
        else:
            self._stage = stage = LocalStage(self.task, found, 1, image_size, renderer, device, masks)
            if viewed is not None:
                self._view = View(stage, self._pixels, renderer, *viewed)
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
        if self._view is not None:
            self._view.start()
        frames = self._stage.frames()
        self._pixels.start([0], self._seed, [self._episode], frames, self._stage.masks(), self._stage.screens())
        self._pixels.prefetch([self._episode + 1])
        self._running = True
        return self._observation(), self._info()

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        if not self._running:
            raise SgqnError("the episode has ended or not started: call reset() first")
        self._stage.step_async(check_action(action, self.action_space)[None])
        rewards, terminated, truncated = self._stage.step_wait()
        frames = self._stage.frames()
        self._pixels.push(frames, self._stage.masks(), self._stage.screens())
        self._running = not (terminated[0] or truncated[0])
        return self._observation(), float(rewards[0]), bool(terminated[0]), bool(truncated[0]), self._info()

    def render(self) -> np.ndarray | None:
        """The newest frame of the observation, or an image from the chosen camera: uint8 (H, W, 3)."""
        if self.render_mode is None:
            return None
        if self._view is not None:
            return self._view.image()
        return self._pixels.observations[0, -3:].permute(1, 2, 0).numpy().copy()

    def close(self) -> None:
        self._running = False
        self._pixels.close()
        if self._view is not None:
            self._view.close()
        self._stage.close()

    def _observation(self) -> np.ndarray:
        return self._pixels.observations[0].numpy()

    def _info(self) -> dict[str, Any]:
        info: dict[str, Any] = {"episode_number": self._episode}  # no text: torchrl takes numbers only
        successes = self._stage.successes()
        if successes is not None:
            info["success"] = bool(successes[0])
        if self._pixels.masks is not None:
            info["mask"] = self._pixels.masks[0].numpy()
        return info


def make(
    task: str, shift: str | None = None, seed: int = 0, renderer: str = "auto", **options: Unpack[EnvOptions]
) -> PixelEnv:
    """A task in a shift as a Gymnasium environment; see `PixelEnv` for the options."""
    return PixelEnv(task, shift, seed, renderer, **options)


def describe(metadata: dict[str, Any], renderer: str, source: str, step_seconds: float) -> dict[str, Any]:
    """An environment's metadata: which renderer and which backgrounds made its pixels."""
    return {**metadata, "renderer": renderer, "backgrounds": source, "render_fps": max(1, round(1 / step_seconds))}


def read_episode(options: dict[str, Any] | None, default: int) -> int:
    """The episode in `reset`'s options."""
    for name in options or {}:
        if name != "episode":
            raise UnknownNameError("option of reset", name, ("episode",))
    return check_count("options['episode']", (options or {}).get("episode", default))
