"""SmoothGrad (Smilkov et al., 2017)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from sgqn.attribution.base import QFunction
from sgqn.attribution.common import check_natural, inputs, random, repeat
from sgqn.attribution.gradient import gradient
from sgqn.attribution.registry import register_attribution
from sgqn.errors import InvalidValueError


def check_arguments(noise: float, samples: int, batch_size: int) -> None:
    check_natural(samples=samples, batch_size=batch_size)
    if not 0 <= noise < math.inf:
        raise InvalidValueError(f"noise must be zero or positive, not {noise!r}")


@register_attribution("smoothgrad", check=check_arguments)
def smoothgrad(
    q: QFunction,
    obs: Tensor,
    action: Tensor,
    noise: float = 0.1,
    samples: int = 32,
    batch_size: int = 256,
    generator: torch.Generator | None = None,
) -> Tensor:
    """The mean gradient at `samples` noisy copies of the observation; the noise's standard deviation is noise * 255.

    Without a generator, the same noise at each call. A pass has at most `batch_size` images, or all observations if
    they are more. It is Captum's NoiseTunnel to the bit, which takes no generator.
    """
    check_arguments(noise, samples, batch_size)
    generator = random(generator)
    with torch.inference_mode(False):
        obs, action = inputs(obs, action)
        obs = obs.detach()
        total = torch.zeros_like(obs)
        at_once = max(1, batch_size // len(obs))
        for done in range(0, samples, at_once):
            count = min(at_once, samples - done)
            # One draw a sample, so that the numbers do not depend on the batch size.
            draws = [
                torch.randn(obs.shape, generator=generator, device=generator.device, dtype=obs.dtype)
                for _ in range(count)
            ]
            noisy = obs + 255 * noise * torch.stack(draws).to(obs.device)
            maps = gradient(q, noisy.flatten(0, 1), repeat(action, count))
            total += maps.unflatten(0, (count, -1)).sum(dim=0)
        return total / samples
