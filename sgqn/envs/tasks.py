"""Names from before there were task families."""

# For compatibility: this file can be deleted once nothing imports it.

from __future__ import annotations

from typing import Any

from sgqn.envs.checks import check_count, check_seed
from sgqn.envs.families import Task, all_shifts, all_tasks, find_task
from sgqn.errors import UnknownNameError

__all__ = [
    "ACTION_REPEAT",
    "CONTROL_STEPS",
    "PAPER_TASKS",
    "RENDERERS",
    "SHIFTS",
    "TASKS",
    "Task",
    "check_count",
    "check_renderer",
    "check_seed",
    "check_shift",
    "find_task",
]

PAPER_TASKS = ("walker-walk", "walker-stand", "ball_in_cup-catch", "cartpole-swingup", "finger-spin")
RENDERERS = ("gl", "warp", "auto")
CONTROL_STEPS = 1000
ACTION_REPEAT = {"cartpole": 8, "finger": 2}

TASKS: tuple[str, ...]
SHIFTS: tuple[str, ...]


def __getattr__(name: str) -> Any:
    if name == "TASKS":
        return all_tasks()
    if name == "SHIFTS":
        return all_shifts()
    raise AttributeError(f"module 'sgqn.envs.tasks' has no attribute {name!r}")


def check_shift(shift: str) -> str:
    if shift not in all_shifts():
        raise UnknownNameError("shift", shift, all_shifts())
    return shift


def check_renderer(renderer: str) -> str:
    if renderer not in RENDERERS:
        raise UnknownNameError("renderer", renderer, RENDERERS)
    return renderer
