"""Visual reinforcement learning that generalizes to unseen scenes.

Names are imported on first use, so that `import sgqn` and the environment workers stay light.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from sgqn.envs.registration import register
from sgqn.errors import DataError, InvalidValueError, SgqnError, UnknownNameError, WorkerError

if TYPE_CHECKING:
    from sgqn import agents, attribution, saliency
    from sgqn.agents import register_agent
    from sgqn.agents.guided import SaliencyGuided
    from sgqn.attribution import register_attribution
    from sgqn.augmentations import register_augmentation
    from sgqn.callbacks import Callback
    from sgqn.config import TrainConfig, configure
    from sgqn.envs import make, make_vec, register_family
    from sgqn.evaluation import Policy, evaluate
    from sgqn.loading import load_agent
    from sgqn.loggers import register_logger
    from sgqn.policies import record
    from sgqn.training import resume, train

__version__ = "0.1.0"

_LAZY = {
    "Callback": "sgqn.callbacks",
    "Policy": "sgqn.evaluation",
    "SaliencyGuided": "sgqn.agents.guided",
    "TrainConfig": "sgqn.config",
    "configure": "sgqn.config",
    "make": "sgqn.envs",
    "make_vec": "sgqn.envs",
    "record": "sgqn.policies",
    "register_agent": "sgqn.agents",
    "register_attribution": "sgqn.attribution",
    "register_augmentation": "sgqn.augmentations",
    "register_family": "sgqn.envs.families",
    "register_logger": "sgqn.loggers",
    "resume": "sgqn.training",
    "train": "sgqn.training",
    "evaluate": "sgqn.evaluation",
    "load_agent": "sgqn.loading",
    "agents": "",
    "attribution": "",
    "saliency": "",
}

__all__ = [
    "Callback",
    "DataError",
    "InvalidValueError",
    "Policy",
    "SaliencyGuided",
    "SgqnError",
    "TrainConfig",
    "UnknownNameError",
    "WorkerError",
    "agents",
    "attribution",
    "configure",
    "evaluate",
    "load_agent",
    "make",
    "make_vec",
    "record",
    "register_agent",
    "register_attribution",
    "register_augmentation",
    "register_family",
    "register_logger",
    "resume",
    "saliency",
    "train",
]

register()


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'sgqn' has no attribute {name!r}")
    if not _LAZY[name]:
        return importlib.import_module(f"sgqn.{name}")
    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
