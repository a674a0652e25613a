"""Helpers of attribution methods: inputs, values of shape (B,), checks, and Captum if it is installed."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import TypeAlias

import torch
from torch import Tensor

from sgqn.attribution.base import QFunction, check_tensor, differentiable
from sgqn.errors import InvalidValueError, SgqnError

OnStep: TypeAlias = Callable[[int, int], object]
"""on_step(done, total), called after each forward pass; the last call has done == total."""


def captum() -> ModuleType:
    """`captum.attr`, imported on first use."""
    try:
        import captum.attr
    except ImportError as error:
        raise SgqnError(
            "this attribution method needs Captum: pip install 'sgqn[explain]', or captum itself"
        ) from error
    return captum.attr  # type: ignore[no-any-return, unused-ignore]


def inputs(obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    """The observation as floats that require gradients, and the action; to be called outside of inference mode."""
    check_tensor("action", action)
    return differentiable(obs), action.clone() if action.is_inference() else action.detach()


def one_value(q: QFunction) -> QFunction:
    """q with values of shape (B,); other shapes raise an error."""

    def values(obs: Tensor, action: Tensor) -> Tensor:
        value = q(obs, action)
        batch = len(obs)
        if value.shape not in ((batch,), (batch, 1)):
            raise InvalidValueError(
                f"q must return one value per observation, ({batch},) or ({batch}, 1), not {tuple(value.shape)}"
            )
        return value.reshape(batch)

    return values


def repeat(x: Tensor, times: int) -> Tensor:
    """The batch repeated `times` times: (times * B, ...)."""
    return x.expand(times, *x.shape).flatten(0, 1)


def random(generator: torch.Generator | None) -> torch.Generator:
    """The caller's generator, or one that gives the same numbers in each call, on every device."""
    return torch.Generator().manual_seed(0) if generator is None else generator


def check_natural(**numbers: int) -> None:
    for name, value in numbers.items():
        if not isinstance(value, int) or value < 1:
            raise InvalidValueError(f"{name} must be a positive integer, not {value!r}")


def check_images(obs: Tensor) -> None:
    if obs.ndim != 4:
        raise InvalidValueError(f"observations are (B, C, H, W), not {tuple(obs.shape)}")


def colours(obs: Tensor, per_frame: bool) -> int:
    """Number of channels that are hidden together: the three of a frame, or all."""
    channels = obs.shape[1]
    if per_frame and channels % 3:
        raise InvalidValueError(f"per_frame: {channels} channels do not divide into frames of three colours")
    return 3 if per_frame else channels
