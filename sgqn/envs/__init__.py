"""The DMControl Generalization Benchmark as Gymnasium environments."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from sgqn.envs.suite import choose_backend
from sgqn.envs.tasks import PAPER_TASKS, RENDERERS, SHIFTS, TASKS

if TYPE_CHECKING:
    from sgqn.envs.env import PixelEnv, make
    from sgqn.envs.vector import PixelVectorEnv, make_vec

__all__ = ["PAPER_TASKS", "RENDERERS", "SHIFTS", "TASKS", "PixelEnv", "PixelVectorEnv", "make", "make_vec"]

choose_backend()

_LAZY = {"PixelEnv": "env", "make": "env", "PixelVectorEnv": "vector", "make_vec": "vector"}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'sgqn.envs' has no attribute {name!r}")
    return getattr(importlib.import_module(f"sgqn.envs.{_LAZY[name]}"), name)
