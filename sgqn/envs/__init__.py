"""Tasks of all families as Gymnasium environments with pixel observations."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from sgqn.envs.opengl import choose_backend

if TYPE_CHECKING:
    from sgqn.envs.env import PixelEnv, make
    from sgqn.envs.families import Defaults, Family, Task, all_shifts, all_tasks, find_task, register_family
    from sgqn.envs.shifts import Appearance, PixelChange, Shift
    from sgqn.envs.simulation import MujocoSimulation, Renderer, Simulation
    from sgqn.envs.vector import PixelVectorEnv, make_vec

__all__ = [
    "Appearance",
    "Defaults",
    "Family",
    "MujocoSimulation",
    "PixelChange",
    "PixelEnv",
    "PixelVectorEnv",
    "Renderer",
    "Shift",
    "Simulation",
    "Task",
    "all_shifts",
    "all_tasks",
    "find_task",
    "make",
    "make_vec",
    "register_family",
]

choose_backend()

_LAZY = {
    **dict.fromkeys(("PixelEnv", "make"), "env"),
    **dict.fromkeys(("PixelVectorEnv", "make_vec"), "vector"),
    **dict.fromkeys(("Defaults", "Family", "Task", "all_shifts", "all_tasks"), "families"),
    **dict.fromkeys(("find_task", "register_family"), "families"),
    **dict.fromkeys(("Appearance", "PixelChange", "Shift"), "shifts"),
    **dict.fromkeys(("MujocoSimulation", "Renderer", "Simulation"), "simulation"),
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'sgqn.envs' has no attribute {name!r}")
    return getattr(importlib.import_module(f"sgqn.envs.{_LAZY[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
