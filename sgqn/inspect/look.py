"""The attribution of an agent's value, its mask, and the predicted mask."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sgqn import attribution
from sgqn.agents.base import Agent
from sgqn.attribution import Attribution, OnStep
from sgqn.errors import InvalidValueError
from sgqn.registry import accepted

AT_ONCE = 16
"""Observations attributed together."""
PERCENTILE = 99.5
"""Percentile of the attributions drawn together that gets the brightest colour."""


def attribute(
    agent: Agent,
    seen: Tensor,
    actions: Tensor,
    method: str | Attribution,
    on_step: OnStep | None = None,
    batch_size: int | None = None,
) -> Tensor:
    """The attribution (B, C, H, W) of `agent.value` to what the networks see, by a method or the name of one.

    `on_step` and `batch_size` (images in one pass) are passed on to methods that take them.
    """
    chosen: Any = attribution.get(method) if isinstance(method, str) else method
    options = {"on_step": on_step, "batch_size": batch_size}
    given = accepted(chosen, {name: value for name, value in options.items() if value is not None})
    result: Tensor = chosen(agent.value, seen, actions, **given)
    if result.shape != seen.shape:
        shapes = f"{tuple(result.shape)} for observations {tuple(seen.shape)}"
        raise InvalidValueError(f"an attribution has the shape of the observations: {method} gave {shapes}")
    return result


@torch.no_grad()
def predict(agent: Agent, seen: Tensor, actions: Tensor) -> Tensor | None:
    """The prediction of the decoder M_theta, (B, C, H, W) in [0, 1]; None for agents without a decoder."""
    return agent.mask_probabilities(seen, actions) if agent.predicts_masks else None


@dataclass(frozen=True, eq=False)
class Look:
    """Attribution and masks of an agent for some observations. Only the mask depends on rho."""

    agent: Agent
    seen: Tensor  # (B, C, H, W) uint8
    actions: Tensor  # (B, A)
    attribution: Tensor  # (B, C, H, W)

    @cached_property
    def predicted(self) -> Tensor | None:
        """The predicted mask, (B, C, H, W) in [0, 1]; None for agents without a decoder."""
        return predict(self.agent, self.seen, self.actions)

    @cached_property
    def restored(self) -> Tensor | None:
        """What the networks get in place of the observations, (B, C, H, W) uint8; None if they get these."""
        with torch.no_grad():
            found = self.agent.restored(self.seen)
        return None if found is None else found.round().clamp(0, 255).to(torch.uint8)

    def mask(self, rho: float) -> Tensor:
        """The agent's mask, (B, C, H, W): boolean, or in [0, 1] for agents with soft masks, which ignore rho."""
        return self.agent.mask_of(self.attribution, rho)

    def images(self, rho: float) -> Images:
        """The newest frames, to draw."""
        return Images(
            observation=newest(self.seen).permute(0, 2, 3, 1).cpu().numpy(),
            attribution=newest(self.attribution).float().abs().amax(dim=1).nan_to_num().cpu().numpy(),
            mask=newest(self.mask(rho))[:, -1].cpu().numpy(),
            predicted=None if self.predicted is None else newest(self.predicted).mean(dim=1).cpu().numpy(),
            restored=None if self.restored is None else newest(self.restored).permute(0, 2, 3, 1).cpu().numpy(),
        )


def look_at(
    agent: Agent, seen: Tensor, actions: Tensor, method: str | Attribution, on_step: OnStep | None = None
) -> Look:
    """Attribute all observations together."""
    return Look(agent, seen, actions, attribute(agent, seen, actions, method, on_step))


def looks(agent: Agent, seen: Tensor, actions: Tensor, method: str, on_step: OnStep | None = None) -> Iterator[Look]:
    """Attribute observations in parts of at most `AT_ONCE`; `on_step` reports hundredths of an observation."""
    count = len(seen)
    for start in range(0, count, AT_ONCE):
        part = slice(start, start + AT_ONCE)
        size = min(AT_ONCE, count - start)

        def say(done: int, total: int, start: int = start, size: int = size) -> None:
            if on_step is not None:
                on_step(100 * start + 100 * size * done // total, 100 * count)

        yield look_at(agent, seen[part], actions[part], method, say)
        say(1, 1)


def newest(stack: Tensor) -> Tensor:
    """The newest frame of stacks (B, 3 * frames, H, W): (B, 3, H, W)."""
    return stack[:, -3:]


@dataclass(frozen=True)
class Images:
    """The newest frame of some observations with attribution and masks, as arrays to draw."""

    observation: np.ndarray  # (B, H, W, 3) uint8
    attribution: np.ndarray  # (B, H, W), the largest magnitude over RGB
    mask: np.ndarray  # (B, H, W) bool, or in [0, 1]
    predicted: np.ndarray | None  # (B, H, W) in [0, 1], or None without a decoder
    restored: np.ndarray | None = None  # (B, H, W, 3) uint8, or None where the agent sees the observation itself

    @classmethod
    def join(cls, parts: Iterable[Images]) -> Images:
        """Consecutive parts as one."""
        parts = list(parts)
        joined: dict[str, Any] = {}
        for one in fields(cls):
            found = [array for part in parts if (array := getattr(part, one.name)) is not None]
            joined[one.name] = np.concatenate(found) if found else None
        return cls(**joined)

    @property
    def soft(self) -> bool:
        """Whether the mask is a soft one."""
        return self.mask.dtype != np.bool_

    @property
    def masked(self) -> np.ndarray:
        """The observation with pixels outside the mask in black, (B, H, W, 3) uint8."""
        return (self.observation * self.mask[..., None]).round().astype(np.uint8)

    @property
    def scale(self) -> float:
        """The attribution that gets the brightest colour."""
        high = float(np.percentile(self.attribution, PERCENTILE))
        return high or float(self.attribution.max()) or 1.0
