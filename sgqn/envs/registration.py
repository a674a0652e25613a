"""Registers `sgqn/<task>-<shift>-v0` with Gymnasium: on `import sgqn`, or by Gymnasium's own plugin lookup."""

from __future__ import annotations

from sgqn.envs.tasks import SHIFTS, TASKS


def register() -> None:
    """Register every task and shift once; safe to call again."""
    import gymnasium

    for task in TASKS:
        for shift in SHIFTS:
            name = f"sgqn/{task}-{shift}-v0"
            if name not in gymnasium.registry:
                gymnasium.register(id=name, entry_point="sgqn.envs.env:make", kwargs={"task": task, "shift": shift})
