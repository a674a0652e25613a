"""Attribution methods M(Q, s, a), one per file, all of type `Attribution`, and masks of their maps."""

from __future__ import annotations

from sgqn.attribution.base import Attribution, QFunction, differentiable, gradient_of
from sgqn.attribution.gradient import gradient
from sgqn.attribution.guided_backprop import (
    guided,
    guided_backprop,
    guided_gradient_of,
    is_guided,
    switchable_relu,
)
from sgqn.attribution.mask import Mask, fill, quantile_mask, soft_mask
from sgqn.errors import UnknownNameError

METHODS: dict[str, Attribution] = {
    "gradient": gradient,
    "guided_backprop": guided_backprop,
}


def get(name: str) -> Attribution:
    """The attribution method of that name."""
    if name not in METHODS:
        raise UnknownNameError("attribution method", name, METHODS)
    return METHODS[name]


__all__ = [
    "METHODS",
    "Attribution",
    "Mask",
    "QFunction",
    "differentiable",
    "fill",
    "get",
    "gradient",
    "gradient_of",
    "guided",
    "guided_backprop",
    "guided_gradient_of",
    "is_guided",
    "quantile_mask",
    "soft_mask",
    "switchable_relu",
]
