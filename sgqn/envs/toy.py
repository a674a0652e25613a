"""A toy task to compare agents within minutes on a CPU: `gym:sgqn/Catch-v0`.

The training scene has a plain background. `info["background_mask"]` makes it a task of the family `gym` with a moving
distractor: in `video_hard`, clips play behind ball and paddle.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

SIZE = 84
BALLS = 10
RADIUS, FALL, DRIFT = 5, 10, 5
PADDLE, HEIGHT, MOVE = 22, 5, 12
"""Pixels: width and height of the paddle, and how far an action moves it."""
BACKGROUND, BALL, BAT = (24, 28, 44), (250, 210, 60), (90, 170, 250)
_TOP, _BOTTOM = RADIUS, SIZE - HEIGHT - RADIUS
_Y, _X = np.mgrid[:SIZE, :SIZE]


class Catch(gymnasium.Env[np.ndarray, int]):
    """Catch ten balls, one after another: 1 for each that the paddle catches, -1 for each that it misses.

    Actions: left, stay, right. A ball falls for 7 steps and drifts to one side; walls reflect it.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 15}  # noqa: RUF012
    observation_space = spaces.Box(0, 255, (SIZE, SIZE, 3), np.uint8)
    action_space = spaces.Discrete(3)  # type: ignore[assignment]

    def __init__(self, render_mode: str | None = None):
        self.render_mode = render_mode
        self.balls = self.caught = 0
        self.paddle = self.x = self.y = self.drift = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        super().reset(seed=seed)
        self.balls = self.caught = 0
        self.paddle = int(self.np_random.integers(SIZE - PADDLE + 1))
        self._drop()
        return self._observe()

    def step(self, action: int) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.paddle = int(np.clip(self.paddle + MOVE * (int(action) - 1), 0, SIZE - PADDLE))
        self.x, self.y = self.x + self.drift, self.y + FALL
        if not RADIUS <= self.x < SIZE - RADIUS:
            self.drift = -self.drift
            self.x = int(np.clip(self.x, RADIUS, SIZE - RADIUS - 1))
        reward = 0.0
        if self.y >= _BOTTOM:
            caught = self.paddle - RADIUS < self.x < self.paddle + PADDLE + RADIUS
            reward = 1.0 if caught else -1.0
            self.balls, self.caught = self.balls + 1, self.caught + caught
        over = self.balls == BALLS
        if reward and not over:
            self._drop()
        obs, info = self._observe()
        return obs, reward, over, False, {**info, "is_success": over and self.caught == BALLS}

    def render(self) -> np.ndarray:
        return self._observe()[0]

    def _drop(self) -> None:
        self.x, self.y = int(self.np_random.integers(RADIUS, SIZE - RADIUS)), _TOP
        self.drift = int(self.np_random.integers(-DRIFT, DRIFT + 1))

    def _observe(self) -> tuple[np.ndarray, dict[str, Any]]:
        image = np.full((SIZE, SIZE, 3), BACKGROUND, np.uint8)
        ball = (_X - self.x) ** 2 + (_Y - self.y) ** 2 <= RADIUS**2
        bat = np.zeros((SIZE, SIZE), bool)
        bat[SIZE - HEIGHT :, self.paddle : self.paddle + PADDLE] = True
        image[bat], image[ball] = BAT, BALL
        return image, {"background_mask": ~(ball | bat)}
