"""The agents by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from sgqn.agents.base import Agent
from sgqn.registry import Registry, import_submodules

Build = Callable[..., Agent]
"""build(spec, settings, augmentation) -> Agent"""
Registered = TypeVar("Registered", bound=Build)
Actions = Literal["any", "continuous", "discrete"]


@dataclass(frozen=True)
class AgentEntry:
    """How to build an agent, and its properties that are needed before it is built."""

    build: Build
    settings: type
    """The dataclass of its hyperparameters."""
    crops: bool = False
    """It gets larger images than its networks use (100 for 84) and crops them."""
    augments: bool = True
    """It uses the strong augmentation of its settings."""
    masks: bool = False
    """It learns with attribution masks, so it uses the quantile rho."""
    experience: Callable[..., Any] | None = None
    """experience(config, agent, device) creates its `sgqn.experience.Experience`; None: a replay buffer."""
    actions: Actions = "any"
    """The kind of actions that it supports."""
    steps: int | None = None
    """Default number of training steps; None: that of the task."""
    copies: bool = False
    """It starts from a trained agent, which acts while this one learns: returns while training are not its own, and no
    random steps come first."""

    def takes(self, discrete: bool) -> bool:
        """Whether it supports discrete, or else continuous actions."""
        return self.actions in ("any", "discrete" if discrete else "continuous")


AGENTS: Registry[AgentEntry] = Registry("agent", lambda: import_submodules("sgqn.agents"))


def register_agent(
    name: str,
    *,
    settings: type,
    crops: bool = False,
    augments: bool = True,
    masks: bool = False,
    experience: Callable[..., Any] | None = None,
    actions: Actions = "any",
    steps: int | None = None,
    copies: bool = False,
) -> Callable[[Registered], Registered]:
    """Register `build(spec, settings, augmentation) -> Agent` under a name; `settings` is a dataclass.

    The dataclass's fields become options of `sgqn train --agent NAME`. `AgentEntry` explains the rest.
    """

    def register(build: Registered) -> Registered:
        entry = AgentEntry(build, settings, crops, augments, masks, experience, actions, steps, copies)
        AGENTS.register(name, entry, build.__module__)
        return build

    return register


def make_settings(agent: str, **values: Any) -> Any:
    """The settings of an agent; defaults are those of its dataclass."""
    return AGENTS[agent].settings(**values)
