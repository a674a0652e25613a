"""Validation of what users pass to environments."""

from __future__ import annotations

from numbers import Integral
from typing import Any, SupportsInt

import numpy as np
from gymnasium import spaces

from sgqn.errors import InvalidValueError

MAX_RENDERED = 4096
"""Largest width and height of rendered images."""
MAX_SEED = 2**32 - 1
"""Largest seed: the benchmark draws starts and colours with NumPy's RandomState, which takes no larger one."""


def check_seed(seed: SupportsInt) -> int:
    if check_count("seed", seed) > MAX_SEED:
        raise InvalidValueError(f"seed must be at most {MAX_SEED}, not {seed!r}")
    return int(seed)


def check_count(name: str, value: SupportsInt) -> int:
    if not isinstance(value, Integral) or isinstance(value, bool) or value < 0:
        raise InvalidValueError(f"{name} must be a non-negative integer, not {value!r}")
    return int(value)


def check_sizes(image_size: int, frame_stack: int) -> None:
    if not 8 <= image_size <= 1024:
        raise InvalidValueError(f"image_size must be between 8 and 1024, not {image_size!r}")
    if frame_stack < 1:
        raise InvalidValueError(f"frame_stack must be at least 1, not {frame_stack!r}")


def check_render_mode(mode: str | None) -> str | None:
    if mode not in (None, "rgb_array"):
        raise InvalidValueError(f"render_mode must be None or 'rgb_array', not {mode!r}")
    return mode


def check_view(
    render_mode: str | None,
    width: int | None,
    height: int | None,
    camera_id: int | None,
    camera_name: str | None,
    default_size: int,
) -> tuple[tuple[int, int], int | str | None] | None:
    """Size (height, width) and camera of `render`; None, the newest frame, if neither is given."""
    if width is height is camera_id is camera_name is None:
        return None
    if render_mode is None:
        raise InvalidValueError("width, height and camera are options of render(): add render_mode='rgb_array'")
    if camera_id is not None and camera_name is not None:
        raise InvalidValueError(f"choose one of camera_id={camera_id!r} and camera_name={camera_name!r}")
    given = {"height": height, "width": width}
    for name, value in given.items():
        if value is not None and not (isinstance(value, Integral) and 8 <= value <= MAX_RENDERED):
            raise InvalidValueError(f"{name} must be an integer between 8 and {MAX_RENDERED}, not {value!r}")
    size = next((value for value in given.values() if value is not None), default_size)  # of the side that is not given
    rows, columns = (size if value is None else int(value) for value in given.values())
    return (rows, columns), camera_id if camera_name is None else camera_name


def check_action(action: Any, space: spaces.Space[Any]) -> np.ndarray:
    """`action` in the shape of `space`: float64 for a Box, int64 for discrete actions, one or a batch."""
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
