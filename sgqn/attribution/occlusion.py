"""Occlusion (Zeiler and Fergus, 2014), by Captum."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sgqn.attribution.base import QFunction
from sgqn.attribution.common import OnStep, captum, check_images, check_natural, colours, inputs, one_value
from sgqn.attribution.registry import register_attribution
from sgqn.errors import InvalidValueError


def check_arguments(window: int, stride: int, batch_size: int) -> None:
    check_natural(window=window, stride=stride, batch_size=batch_size)
    if stride > window:
        raise InvalidValueError(f"a stride of {stride} pixels leaves gaps between windows of {window}")


@register_attribution("occlusion", needs_captum=True, check=check_arguments)
def occlusion(
    q: QFunction,
    obs: Tensor,
    action: Tensor,
    window: int = 8,
    stride: int = 4,
    fill: float = 0.0,
    per_frame: bool = False,
    batch_size: int = 256,
    on_step: OnStep | None = None,
) -> Tensor:
    """The decrease of the value, Q(s, a) - Q(s', a), when a square of s is hidden; the mean over a pixel's squares.

    A square of `window` pixels moves by `stride` and gets the value `fill` (0 to 255). It hides all channels at once,
    so the map is the same for all stacked frames; with `per_frame`, the three colours of one frame after another.
    A pass has at most `batch_size` images, or all observations if they are more.
    """
    check_images(obs)
    check_arguments(window, stride, batch_size)
    height, width = obs.shape[2:]
    if window > min(height, width):
        raise InvalidValueError(f"a window of {window} pixels does not fit images of {height}x{width}")
    together = colours(obs, per_frame)
    squares = math.prod(math.ceil((size - window) / stride) + 1 for size in (height, width))
    total, calls = squares * obs.shape[1] // together, 0
    at_once = max(1, batch_size // len(obs))
    values = one_value(q)

    def counted(obs: Tensor, action: Tensor) -> Tensor:
        nonlocal calls
        value = values(obs, action)
        if on_step is not None and calls:  # the first call is the whole image
            on_step(min(calls * at_once, total), total)
        calls += 1
        return value

    with torch.inference_mode(False), torch.no_grad():
        obs, action = inputs(obs, action)
        method = captum().Occlusion(counted)
        result: Tensor = method.attribute(
            obs.detach(),
            sliding_window_shapes=(together, window, window),
            strides=(together, stride, stride),
            baselines=fill,
            additional_forward_args=(action,),
            perturbations_per_eval=at_once,
        )
    return result.to(obs.dtype)
