"""What the tests of sweeps share: runs that take seconds."""

from __future__ import annotations

from typing import Any

from sgqn.sweep import Planned, plan

QUICK: dict[str, Any] = {
    "task": "cartpole-swingup",
    "agent": "sac",
    "preset": "tiny",
    "steps": 60,
    "warmup_steps": 20,
    "num_envs": 2,
    "action_repeat": 50,
    "image_size": 24,
    "encoder_layers": 2,
    "encoder_filters": 4,
    "hidden_dim": 16,
    "embedding_dim": 8,
    "batch_size": 8,
    "log_every": 10,
    "images_every": 0,
    "evaluate_every": 0,
    "checkpoint_every": 20,
    "replay_capacity": 50,
    "resources": {"cpus": 1},
}


def quick(**changes: Any) -> list[Planned]:
    return plan({**QUICK, **changes})
