"""Validation of what users pass to environments."""

from __future__ import annotations

from numbers import Integral
from typing import Any, SupportsInt

import numpy as np
from gymnasium import spaces

from sgqn.errors import InvalidValueError


def check_seed(seed: SupportsInt) -> int:
    return check_count("seed", seed)


def check_count(name: str, value: SupportsInt) -> int:
    if not isinstance(value, Integral) or isinstance(value, bool) or value < 0:
        raise InvalidValueError(f"{name} must be a non-negative integer, not {value!r}")
    return int(value)


def check_sizes(image_size: int, frame_stack: int) -> None:
    if not 8 <= image_size <= 1024:
        raise InvalidValueError(f"image_size must be between 8 and 1024, not {image_size!r}")
    if frame_stack < 1:
        raise InvalidValueError(f"frame_stack must be at least 1, not {frame_stack!r}")


def check_action(action: Any, space: spaces.Space[Any]) -> np.ndarray:
    """`action` in the shape that `space` asks for: float64 for a Box, int64 for discrete actions, one or a batch."""
    if hasattr(action, "detach"):
        action = action.detach().cpu()
    discrete = isinstance(space, spaces.Discrete | spaces.MultiDiscrete)
    array = np.asarray(action) if discrete else np.asarray(action, dtype=np.float64)
    if array.shape != space.shape:
        raise InvalidValueError(f"the action has shape {array.shape}; this environment takes {space.shape}")
    if not discrete:
        if not np.isfinite(array).all():
            raise InvalidValueError(f"the action holds NaN or infinity: {array.tolist()}")
        return array
    count = int(space.n if isinstance(space, spaces.Discrete) else space.nvec.flat[0])  # type: ignore[attr-defined]
    if array.dtype.kind not in "iu" or not ((array >= 0) & (array < count)).all():
        raise InvalidValueError(f"a discrete action is an integer from 0 to {count - 1}, not {array.tolist()}")
    return array.astype(np.int64)
