"""Build a trained agent from its configuration and weights."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from sgqn.agents import Agent, Spec, build_agent
from sgqn.config import TrainConfig
from sgqn.device import check_device
from sgqn.errors import DataError

Weights = Mapping[str, Tensor]


def restore_agent(
    config: TrainConfig,
    spec: Spec,
    weights: Callable[[Agent], Weights],
    origin: object,
    device: str | torch.device = "cpu",
) -> Agent:
    """An agent that is ready to act, with its task; `weights` is called with a fresh agent."""
    agent = build_agent(config.agent, spec, config.settings, seed=config.seed, device=check_device(device))
    try:
        agent.load_state_dict(weights(agent))
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise DataError(f"{origin}: the weights do not fit the configuration: {reason}") from error
    agent.eval()
    agent.task, agent.action_repeat = config.task, config.action_repeat
    return agent
