"""The shifts of a task. All tasks share the benchmark's until task families declare their own."""

from __future__ import annotations

from sgqn.envs.tasks import SHIFTS, check_shift

CLEAN = SHIFTS[0]
"""The scene that agents are trained in."""


def shifts_of(task: str) -> tuple[str, ...]:
    """All shifts, the training scene first, then the easiest to the hardest."""
    del task
    return SHIFTS


def check(task: str, shift: str) -> str:
    """The shift, if the task has it."""
    del task
    return check_shift(shift)


def hardest(task: str) -> str:
    return shifts_of(task)[-1]
