"""Integrated gradients (Sundararajan et al., 2017), by Captum."""

from __future__ import annotations

import torch
from torch import Tensor

from sgqn.attribution.base import QFunction
from sgqn.attribution.common import captum, check_natural, inputs, one_value
from sgqn.attribution.registry import register_attribution
from sgqn.errors import InvalidValueError


def check_arguments(steps: int, batch_size: int) -> None:
    check_natural(steps=steps, batch_size=batch_size)


@register_attribution("integrated_gradients", needs_captum=True, check=check_arguments)
def integrated_gradients(
    q: QFunction,
    obs: Tensor,
    action: Tensor,
    baseline: Tensor | float = 0.0,
    steps: int = 50,
    batch_size: int = 256,
) -> Tensor:
    """(s - b) times the mean gradient on the way from the baseline b (black) to s, by Gauss-Legendre's rule.

    Sums to Q(s, a) - Q(b, a), more accurately with more `steps`. `baseline` is in units of the observation: a number,
    an image, or one for each observation. A pass has at most `batch_size` images, or all observations if they are more.
    """
    check_arguments(steps, batch_size)
    with torch.inference_mode(False), torch.enable_grad():
        obs, action = inputs(obs, action)
        start = torch.as_tensor(baseline).to(obs)
        try:
            start = start.expand_as(obs)
        except RuntimeError as error:
            raise InvalidValueError(
                f"a baseline for observations {tuple(obs.shape)} cannot be {tuple(start.shape)}"
            ) from error
        result: Tensor = (
            captum()
            .IntegratedGradients(one_value(q))
            .attribute(
                obs,
                baselines=start.clone(),
                additional_forward_args=(action,),
                n_steps=steps,
                internal_batch_size=max(batch_size, len(obs)),
            )
        )
    return result.detach()
