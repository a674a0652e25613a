"""Attribution methods M(Q, s, a), one per file, all of type `Attribution`, and masks of their maps."""

from __future__ import annotations

from sgqn.attribution.base import Attribution, QFunction, differentiable, gradient_of
from sgqn.attribution.common import OnStep, captum
from sgqn.attribution.grad_cam import grad_cam
from sgqn.attribution.gradient import gradient
from sgqn.attribution.guided_backprop import (
    guided,
    guided_backprop,
    guided_gradient_of,
    is_guided,
    relu_rule,
    switchable_relu,
)
from sgqn.attribution.guided_grad_cam import guided_grad_cam
from sgqn.attribution.integrated_gradients import integrated_gradients
from sgqn.attribution.mask import Mask, fill, quantile_mask, share, sign_agreement, soft_mask
from sgqn.attribution.occlusion import occlusion
from sgqn.attribution.rise import rise
from sgqn.attribution.smoothgrad import smoothgrad
from sgqn.errors import SgqnError, UnknownNameError

METHODS: dict[str, Attribution] = {
    "gradient": gradient,
    "guided_backprop": guided_backprop,
    "grad_cam": grad_cam,
    "guided_grad_cam": guided_grad_cam,
    "integrated_gradients": integrated_gradients,
    "smoothgrad": smoothgrad,
    "occlusion": occlusion,
    "rise": rise,
}

OF_CAPTUM = ("grad_cam", "guided_grad_cam", "integrated_gradients", "occlusion")


def get(name: str) -> Attribution:
    """The attribution method of that name."""
    if name not in METHODS:
        raise UnknownNameError("attribution method", name, METHODS)
    return METHODS[name]


def check(name: str) -> None:
    """Whether there is a method of that name and what it needs: before minutes of work, not after them."""
    get(name)
    if name in OF_CAPTUM:
        captum()


def available() -> list[str]:
    """The names of the methods that can run here: without Captum, not those that are made of it."""
    try:
        captum()
    except SgqnError:
        return [name for name in METHODS if name not in OF_CAPTUM]
    return list(METHODS)


__all__ = [
    "METHODS",
    "OF_CAPTUM",
    "Attribution",
    "Mask",
    "OnStep",
    "QFunction",
    "available",
    "check",
    "differentiable",
    "fill",
    "get",
    "grad_cam",
    "gradient",
    "gradient_of",
    "guided",
    "guided_backprop",
    "guided_grad_cam",
    "guided_gradient_of",
    "integrated_gradients",
    "is_guided",
    "occlusion",
    "quantile_mask",
    "relu_rule",
    "rise",
    "share",
    "sign_agreement",
    "smoothgrad",
    "soft_mask",
    "switchable_relu",
]
