"""Agents: one file each, found by name. `register_agent` adds others."""

from __future__ import annotations

import torch
from torch import Tensor

from sgqn.agents.base import Agent, Intervals, Phase, Spec
from sgqn.agents.learner import Learner
from sgqn.agents.registry import AGENTS, AgentEntry, make_settings, register_agent
from sgqn.agents.settings import Settings, validate
from sgqn.augmentations import Augmentation
from sgqn.errors import InvalidValueError, SgqnError
from sgqn.replay import Batch

__all__ = [
    "AGENTS",
    "Agent",
    "AgentEntry",
    "Batch",
    "Intervals",
    "Learner",
    "Phase",
    "Settings",
    "Spec",
    "build_agent",
    "check_actions",
    "make_settings",
    "no_augmentation",
    "register_agent",
]


def no_augmentation(obs: Tensor, generator: torch.Generator) -> Tensor:
    """The augmentation of agents that only act, or have none."""
    raise SgqnError("this agent was built without an augmentation: it can act, but not learn")


def check_actions(name: str, spec: Spec) -> None:
    """Refuse an agent that cannot learn the actions of an environment."""
    entry = AGENTS[name]
    if not entry.takes(spec.discrete):
        size, others = spec.action_dim, ", ".join(sorted(one for one in AGENTS if AGENTS[one].takes(spec.discrete)))
        wanted = f"one of {size} discrete actions" if spec.discrete else f"actions of {size} numbers"
        instead = f": use one of {others}" if others else ""
        raise InvalidValueError(f"agent {name!r} has {entry.actions} actions only, not {wanted}{instead}")


def build_agent(
    name: str,
    spec: Spec,
    settings: object,
    augmentation: Augmentation = no_augmentation,
    *,
    seed: int = 0,
    device: str | torch.device = "cpu",
) -> Agent:
    """An agent with fresh weights, which depend only on the seed."""
    entry = AGENTS[name]
    if not isinstance(settings, entry.settings):
        expected = entry.settings.__name__
        raise SgqnError(f"agent {name!r} takes {expected}, not {type(settings).__name__}: {settings!r}")
    validate(settings)
    check_actions(name, spec)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # not torch.manual_seed, which would also seed every GPU
        agent = entry.build(spec, settings, augmentation)
    agent.to(device)
    agent.generator = torch.Generator(device=device).manual_seed(seed)
    agent.preparer = torch.Generator(device=device).manual_seed(seed + 3)
    agent.make_optimizers()
    return agent
