"""Registers `sgqn/<task>-<shift>-v0` with Gymnasium: on `import sgqn`, and whenever a family is registered.

Gymnasium imports the package for an id with its name in front: `gymnasium.make("sgqn:sgqn/walker-walk-train-v0")`.
"""

from __future__ import annotations

from sgqn.envs import forks  # noqa: F401 (notes which process it is imported by)
from sgqn.envs.families import Family, built_in


def register() -> None:
    """Register every listed task of this package's families; safe to call again."""
    for family in built_in():
        register_tasks(family)


def register_tasks(family: Family) -> None:
    """Register the tasks that a family lists under each of their shifts."""
    import gymnasium

    for task in family.tasks:
        for shift in family.shifts(task):
            name = f"sgqn/{task}-{shift}-v0"
            if name not in gymnasium.registry:
                gymnasium.register(
                    id=name,
                    entry_point="sgqn.envs.env:make",
                    vector_entry_point="sgqn.envs.vector:make_vec",
                    kwargs={"task": task, "shift": shift},
                )
