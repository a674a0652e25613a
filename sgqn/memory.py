"""A lower bound of the memory that a run needs, computed before anything is allocated."""

from __future__ import annotations

import copy
import dataclasses
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from sgqn.agents import AGENTS
from sgqn.config import TrainConfig, preset
from sgqn.device import total_memory
from sgqn.errors import InvalidValueError, SgqnError
from sgqn.run_folder import render_size

PER_WEIGHT = 16
"""Bytes of a weight in single precision, its gradient and Adam's two moments."""
PER_ENVIRONMENT = 1_000_000
"""Bytes of a simulation. One of MuJoCo has 12 million."""


def check(config: TrainConfig, device: torch.device) -> None:
    """Refuse a run that cannot fit into the device's memory, and name the option that makes it so large."""
    needed, memory = least(config), total_memory(device)
    if needed > memory:
        option, value = _largest(config)
        raise InvalidValueError(
            f"{option} {value}: a run of this size needs at least {needed / 1e9:,.0f} GB of memory, "
            f"{'this machine' if device.type == 'cpu' else device} has {memory / 1e9:,.0f} GB: "
            f"choose a smaller --{option.replace('_', '-')}"
        )


def least(config: TrainConfig) -> int:
    """Bytes that a run needs at least: simulations, observations, replay, overlay images, networks and one batch."""
    entry, settings = AGENTS[config.agent], config.settings
    shown, frame, stacked = render_size(config), 3 * config.image_size**2, 3 * config.frame_stack
    observation = stacked * shown**2
    rollout = getattr(settings, "rollout_steps", 0)
    if entry.experience is None:
        capacity = min(config.replay_capacity, max(config.steps, config.num_envs))  # as in `OffPolicy`
        experience = capacity * (3 * shown**2 + 8 * (config.frame_stack + 1))
    else:
        experience = rollout * config.num_envs * (observation + 8 * getattr(settings, "epochs", 0))
    images = config.overlay_images * frame if entry.augments else 0
    envs = config.num_envs * (observation + PER_ENVIRONMENT)
    return envs + experience + images + PER_WEIGHT * _weights(config) + _batch(config)


def _weights(config: TrainConfig) -> int:
    """Weights of the encoder, the critic's projection and heads, and the decoder; other settings have none."""
    filters, layers, embedding, hidden = _sizes(config)
    features = filters * _map_size(config, layers) ** 2
    decoder = getattr(config.settings, "decoder_filters", ())
    chain = (filters, *decoder, 3 * config.frame_stack) if decoder else ()
    return (
        9 * (3 * config.frame_stack * filters + max(0, layers - 1) * filters**2)
        + features * embedding
        + embedding * hidden
        + hidden**2
        + 9 * sum(one * other for one, other in itertools.pairwise(chain))
    )


def _batch(config: TrainConfig) -> int:
    """Observations and next observations of an update, and the encoder's activations for the former."""
    filters, layers, _, hidden = _sizes(config)
    batch = getattr(config.settings, "batch_size", 0) + getattr(config.settings, "soda_batch_size", 0)
    activations = filters * layers * _map_size(config, layers) ** 2 + hidden
    return batch * (2 * 3 * config.frame_stack * config.image_size**2 + 4 * activations)


def _sizes(config: TrainConfig) -> tuple[int, ...]:
    names = ("encoder_filters", "encoder_layers", "embedding_dim", "hidden_dim")
    return tuple(getattr(config.settings, name, 0) for name in names)


def _map_size(config: TrainConfig, layers: int) -> int:
    """Width of the encoder's last feature map; too many layers are refused elsewhere."""
    return max(0, (config.image_size - 3) // 2 + 1 - 2 * (layers - 1))


def _largest(config: TrainConfig) -> tuple[str, str]:
    """The option whose value, replaced by that of the preset tiny, reduces the memory most."""
    small = preset("tiny", config.task, config.agent)
    smaller = {name: _replaced(config, name, getattr(small, name)) for name in _sized(config)}
    for name in _sized(config.settings):
        settings = _replaced(config.settings, name, getattr(small.settings, name))
        smaller[name] = _replaced(config, "settings", settings)
    option = min(smaller, key=lambda name: least(smaller[name]))
    value = getattr(config if hasattr(config, option) else config.settings, option)
    return option, " ".join(f"{one:,}" for one in (value if isinstance(value, tuple) else (value,)))


def _sized(values: Any) -> list[str]:
    """The fields that hold one or several integers. Fewer steps would be another run."""
    found = {one.name: getattr(values, one.name) for one in dataclasses.fields(values) if one.name != "steps"}
    parts = {name: value if isinstance(value, tuple) else (value,) for name, value in found.items()}
    return [name for name in parts if parts[name] and all(type(part) is int for part in parts[name])]


def _replaced(values: Any, name: str, value: Any) -> Any:
    """A copy with another value, which is not validated against the others."""
    other = copy.copy(values)
    object.__setattr__(other, name, value)
    return other


@contextmanager
def enough() -> Iterator[None]:
    """Report an allocation that fails as a run that is too large, where the lower bound was too low."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        text = str(error)
        expected = isinstance(error, MemoryError | torch.OutOfMemoryError) or "allocate memory" in text
        if isinstance(error, SgqnError) or not expected:
            raise
        raise InvalidValueError(
            f"there is not enough memory for a run of this size ({text.splitlines()[0] if text else 'MemoryError'}): "
            "choose smaller values, such as those of --preset tiny"
        ) from error
