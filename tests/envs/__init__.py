from __future__ import annotations

from typing import Any

from sgqn.envs.families import find_task


def load(task: str, shift: str = "train") -> Any:
    """A simulation of a task under a shift."""
    return find_task(task).load(shift)
