"""Gymnasium environments as a user would register them: `gym:tests.envs.gym_envs:Walk-v0` and others."""

from __future__ import annotations

import time
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces


class Walk(gymnasium.Env[Any, Any]):
    """Images as observations, three actions from 1 on, masks and success: move a white square to the right edge."""

    observation_space: spaces.Space[Any] = spaces.Box(0, 255, (40, 30, 3), np.uint8)
    action_space: spaces.Space[Any] = spaces.Discrete(3, start=1)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.row, self.place = int(self.np_random.integers(30)), int(self.np_random.integers(20))
        return self.observe(), self.info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        self.row = int(np.clip(self.row + self.np_random.integers(-1, 2), 0, 30))
        self.place = max(0, self.place + int(action) - 2)
        return self.observe(), self.place / 20 - 0.1, self.place >= 20, False, self.info()

    def observe(self) -> Any:
        image = np.full((40, 30, 3), (10, 200, 30), np.uint8)  # green all over: masks say where clips show
        image[self.row : self.row + 10, self.place : self.place + 10] = (0, 255, 0)
        return image

    def info(self) -> dict[str, Any]:
        background = np.ones((40, 30), bool)
        background[self.row : self.row + 10, self.place : self.place + 10] = False
        return {"background_mask": background, "is_success": self.place >= 20}


class Slide(gymnasium.Env[Any, Any]):
    """Vectors as observations, an image when rendered, actions in [0, 10] and [-3, 1], no masks."""

    metadata = {"render_modes": ["rgb_array"], "render_fps": 20}  # noqa: RUF012
    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)
    action_space = spaces.Box(np.array([[0.0], [-3.0]], np.float32), np.array([[10.0], [1.0]], np.float32))

    def __init__(self, render_mode: str | None = None):
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.place = self.np_random.uniform(0, 50, 2)
        return self.place.astype(np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action)
        self.last = action
        self.place = np.clip(self.place + action[:, 0] / 5 + self.np_random.normal(0, 0.5, 2), 0, 50)
        return self.place.astype(np.float32), float(self.place.sum()), False, False, {}

    def render(self) -> Any:
        assert self.render_mode == "rgb_array"
        image = np.zeros((64, 64, 3), np.uint8)
        x, y = self.place.astype(int)
        image[y : y + 14, x : x + 14] = (220, 60, 30)
        return image


class Short(Slide):
    """The same with masks, and over after a number of steps that the seed decides."""

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        obs, _ = super().reset(seed=seed)
        self.left = int(self.np_random.integers(2, 12))
        return obs, self.info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        obs, reward, *_ = super().step(action)
        self.left -= 1
        return obs, reward, self.left == 0, False, {**self.info(), "success": self.left == 0}

    def info(self) -> dict[str, Any]:
        x, y = self.place.astype(int)
        shown = np.zeros((64, 64), bool)
        shown[y : y + 14, x : x + 14] = True
        return {"foreground_mask": shown, "background_mask": ~shown}


class Grey(Walk):
    """Greyscale observations without any mask, smaller than what agents see."""

    observation_space = spaces.Box(0, 255, (40, 30), np.uint8)

    def observe(self) -> Any:
        return super().observe()[..., 0]

    def info(self) -> dict[str, Any]:
        return {}


class Noisy(Grey):
    """Draws from the clock."""

    def observe(self) -> Any:
        return super().observe() ^ np.uint8(time.perf_counter_ns() // 100 % 251)


class Blind(Slide):
    metadata = {"render_modes": ["human"]}  # noqa: RUF012


class Many(Walk):
    action_space = spaces.MultiDiscrete([2, 3])


class Unbounded(Walk):
    action_space = spaces.Box(-np.inf, np.inf, (2,), np.float32)


class BadMask(Walk):
    def info(self) -> dict[str, Any]:
        return {"background_mask": np.ones((3, 4), np.uint8)}


class Broken(Walk):
    def __init__(self) -> None:
        raise RuntimeError("no licence\nfound")


for one in (Walk, Slide, Short, Grey, Noisy, Blind, Many, Unbounded, BadMask, Broken):
    limit = None if one is Grey else 24
    gymnasium.register(f"{one.__name__}-v0", f"{__name__}:{one.__name__}", max_episode_steps=limit)
