"""The agents by name: the one place where an algorithm's name decides anything."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from sgqn.agents.base import Agent, Phase, Spec
from sgqn.agents.drq import drq
from sgqn.agents.rad import rad
from sgqn.agents.sac import SAC
from sgqn.agents.settings import AgentSettings
from sgqn.agents.sgqn import SGQN
from sgqn.agents.soda import SODA
from sgqn.agents.svea import SVEA
from sgqn.augmentations import Augmentation
from sgqn.errors import SgqnError, UnknownNameError

__all__ = ["AGENTS", "Agent", "AgentSettings", "Phase", "Spec", "build_agent", "find_agent"]


@dataclass(frozen=True)
class Recipe:
    """How an agent is put together."""

    build: Callable[[Spec, AgentSettings, Augmentation], Agent]
    crops: bool = False
    """It is shown pictures larger than its networks see (100 for 84), and crops them itself."""
    augments: bool = True
    """It uses the strong augmentation: overlay or random convolution."""
    masks: bool = False
    """It masks by attribution, so rho and the settings around it mean something to it."""


AGENTS: dict[str, Recipe] = {
    "sac": Recipe(lambda spec, settings, _: SAC(spec, settings), augments=False),
    "drq": Recipe(lambda spec, settings, _: drq(spec, settings), augments=False),
    "rad": Recipe(lambda spec, settings, _: rad(spec, settings), crops=True, augments=False),
    "soda": Recipe(lambda spec, settings, augmentation: SODA(rad(spec, settings), augmentation), crops=True),
    "svea": Recipe(SVEA),
    "svea_soda": Recipe(lambda spec, settings, augmentation: SODA(SVEA(spec, settings, augmentation), augmentation)),
    "sgqn": Recipe(lambda spec, settings, augmentation: SGQN(drq(spec, settings), augmentation), masks=True),
    "sac_consistency": Recipe(
        lambda spec, settings, augmentation: SGQN(drq(spec, settings), augmentation, selfsup=False),
        augments=False,
        masks=True,
    ),
    "sac_selfsup": Recipe(
        lambda spec, settings, augmentation: SGQN(drq(spec, settings), augmentation, consistency=False), masks=True
    ),
}


def no_augmentation(obs: Tensor, generator: torch.Generator) -> Tensor:
    """Stands in where an agent only acts, or has no strong augmentation."""
    raise SgqnError("this agent was built without an augmentation: it can act, but not learn")


def find_agent(name: str) -> Recipe:
    if name not in AGENTS:
        raise UnknownNameError("agent", name, AGENTS)
    return AGENTS[name]


def build_agent(
    name: str,
    spec: Spec,
    settings: AgentSettings,
    augmentation: Augmentation = no_augmentation,
    *,
    seed: int = 0,
    device: str | torch.device = "cpu",
) -> Agent:
    """An agent with fresh weights, which depend on the seed alone."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)  # not torch.manual_seed, which would also seed every GPU
        agent = find_agent(name).build(spec, settings, augmentation)
    agent.to(device)
    agent.generator = torch.Generator(device=device).manual_seed(seed)
    agent.preparer = torch.Generator(device=device).manual_seed(seed + 3)
    agent.make_optimizers()
    return agent
