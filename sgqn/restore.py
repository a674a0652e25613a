"""Build a trained agent from its configuration and weights, which may be damaged or somebody else's."""

from __future__ import annotations

import math
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn.modules import module as hooks
from torch.nn.parameter import is_lazy

from sgqn.agents import Agent, Spec, build_agent
from sgqn.config import TrainConfig
from sgqn.device import check_device
from sgqn.errors import DataError, InvalidValueError, SgqnError
from sgqn.reading import TensorInfo, described, difference, line

Weights = Mapping[str, Tensor]
Stored = Mapping[str, TensorInfo]
"""Dtypes and shapes of the weights in a file."""

SPARE = 8
"""Networks may have this many times the weights that are stored: target networks and others are not exported."""


def restore_agent(
    config: TrainConfig,
    spec: Spec,
    stored: Stored,
    weights: Callable[[Agent], Weights],
    origin: object,
    device: str | torch.device = "cpu",
) -> Agent:
    """An agent that is ready to act, with its task.

    `stored` bounds the size of its networks. `weights` is called with a fresh agent, compares its weights with what
    is stored before it reads them, and refuses those that are not finite.
    """
    device = check_device(device)
    try:
        with bounded(stored, origin):
            agent = build_agent(config.agent, spec, config.settings, seed=config.seed, device=device)
    except InvalidValueError as error:
        raise DataError(f"{origin}: no agent can be built from its configuration ({line(error)})") from error
    found = weights(agent)
    try:
        agent.load_state_dict(found)
    except RuntimeError as error:
        raise DataError(f"{origin}: the weights do not fit the configuration: {line(error)}") from error
    agent.eval()
    agent.task, agent.action_repeat = config.task, config.action_repeat
    return agent


def check_fits(stored: Stored, agent: Agent, origin: object) -> None:
    """Refuse weights of other names, dtypes or shapes than the agent's."""
    own = agent.state_dict()
    known = described({name: value for name, value in own.items() if not is_lazy(value)})
    open_ = {name: stored[name] for name in own.keys() - known.keys() if name in stored}  # lazy modules take any shape
    if wrong := difference(stored, {**known, **open_}):
        raise DataError(f"{origin}: the weights do not fit the configuration: {wrong}")


@contextmanager
def bounded(stored: Stored, origin: object) -> Iterator[None]:
    """Build networks whose configuration may be hostile: refused when they become much larger than what is stored."""
    numbers = SPARE * sum(math.prod(info.shape) for info in stored.values()) + (1 << 22)
    count = SPARE * len(stored) + 256
    thread = threading.get_ident()

    def register(module: torch.nn.Module, name: str, value: Any) -> None:
        nonlocal numbers, count
        if threading.get_ident() == thread and isinstance(value, Tensor) and not is_lazy(value):
            numbers, count = numbers - value.numel(), count - 1
            if min(numbers, count) < 0:
                raise DataError(f"{origin}: its configuration asks for larger networks than its weights are of")

    with ExitStack() as stack:
        for add in (hooks.register_module_parameter_registration_hook, hooks.register_module_buffer_registration_hook):
            stack.callback(add(register).remove)
        try:
            yield
        except SgqnError:
            raise
        except (RuntimeError, MemoryError, TypeError, ValueError, OverflowError) as error:
            raise DataError(f"{origin}: no agent can be built from its configuration ({line(error)})") from error
