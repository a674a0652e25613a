from __future__ import annotations

from typing import Any

import pytest

from sgqn.envs.families import find_task


def load(task: str, shift: str = "train") -> Any:
    """A simulation of a task under a shift; the test is skipped where the task's family lacks something."""
    skip_if_missing(task)
    return find_task(task).load(shift)


def skip_if_missing(task: str) -> None:
    """Skip the test where the family of a task lacks what it needs."""
    reason = find_task(task).family.missing()
    if reason is not None:
        pytest.skip(reason)
