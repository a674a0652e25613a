"""The tasks by name: every task of dm_control's suite as `domain-task`.

The list is written out so that importing it costs nothing; a test holds it against `suite.ALL_TASKS`.
"""

from __future__ import annotations

from dataclasses import dataclass
from numbers import Integral
from typing import SupportsInt

from sgqn.errors import InvalidValueError, UnknownNameError

SUITE: dict[str, tuple[str, ...]] = {
    "acrobot": ("swingup", "swingup_sparse"),
    "ball_in_cup": ("catch",),
    "cartpole": ("balance", "balance_sparse", "swingup", "swingup_sparse", "two_poles", "three_poles"),
    "cheetah": ("run",),
    "dog": ("stand", "walk", "trot", "run", "fetch"),
    "finger": ("spin", "turn_easy", "turn_hard"),
    "fish": ("upright", "swim"),
    "hopper": ("stand", "hop"),
    "humanoid": ("stand", "walk", "run", "run_pure_state"),
    "humanoid_CMU": ("stand", "walk", "run"),
    "lqr": ("lqr_2_1", "lqr_6_2"),
    "manipulator": ("bring_ball", "bring_peg", "insert_ball", "insert_peg"),
    "pendulum": ("swingup",),
    "point_mass": ("easy", "hard"),
    "quadruped": ("walk", "run", "escape", "fetch"),
    "reacher": ("easy", "hard"),
    "stacker": ("stack_2", "stack_4"),
    "swimmer": ("swimmer6", "swimmer15"),
    "walker": ("stand", "walk", "run"),
}

TASKS: tuple[str, ...] = tuple(f"{domain}-{task}" for domain, tasks in SUITE.items() for task in tasks)
PAPER_TASKS = ("walker-walk", "walker-stand", "ball_in_cup-catch", "cartpole-swingup", "finger-spin")
SHIFTS = ("train", "color_easy", "color_hard", "video_easy", "video_hard")
RENDERERS = ("gl", "warp", "auto")

CONTROL_STEPS = 1000
"""Control steps in an episode, whatever the action repeat; then the episode is truncated."""

ACTION_REPEAT = {"cartpole": 8, "finger": 2}
DEFAULT_ACTION_REPEAT = 4


@dataclass(frozen=True)
class Task:
    """A dm_control task and how many control steps one agent step takes."""

    domain: str
    task: str
    action_repeat: int

    @property
    def name(self) -> str:
        return f"{self.domain}-{self.task}"

    @property
    def episode_steps(self) -> int:
        """Agent steps in an episode."""
        return -(-CONTROL_STEPS // self.action_repeat)


def find_task(name: str, action_repeat: int | None = None) -> Task:
    """The task called `name`, with the paper's action repeat unless one is given."""
    if name not in TASKS:
        raise UnknownNameError("task", name, TASKS)
    domain, _, task = name.partition("-")
    if action_repeat is None:
        action_repeat = ACTION_REPEAT.get(domain, DEFAULT_ACTION_REPEAT)
    if not 1 <= action_repeat <= CONTROL_STEPS:
        raise InvalidValueError(f"action_repeat must be between 1 and {CONTROL_STEPS}, not {action_repeat!r}")
    return Task(domain, task, action_repeat)


def check_shift(shift: str) -> str:
    if shift not in SHIFTS:
        raise UnknownNameError("shift", shift, SHIFTS)
    return shift


def check_seed(seed: SupportsInt) -> int:
    return check_count("seed", seed)


def check_count(name: str, value: SupportsInt) -> int:
    if not isinstance(value, Integral) or isinstance(value, bool) or value < 0:
        raise InvalidValueError(f"{name} must be a whole number from 0 on, not {value!r}")
    return int(value)


def check_renderer(renderer: str) -> str:
    if renderer not in RENDERERS:
        raise UnknownNameError("renderer", renderer, RENDERERS)
    return renderer
