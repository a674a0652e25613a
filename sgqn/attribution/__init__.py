"""Attribution methods M(Q, s, a), one per file, all of type `Attribution`, and masks of their maps.

Every registered method is an attribute: `sgqn.attribution.guided_backprop(q, obs, action)`.
"""

from __future__ import annotations

from typing import Any

from sgqn.attribution.base import Attribution, QFunction, differentiable, gradient_of
from sgqn.attribution.common import OnStep, captum
from sgqn.attribution.guided_backprop import guided, guided_gradient_of, is_guided, relu_rule, switchable_relu
from sgqn.attribution.mask import Mask, contrast_mask, fill, quantile_mask, share, sign_agreement, soft_mask
from sgqn.attribution.registry import METHODS, Method, available, check, find_method, get, register_attribution
from sgqn.registry import import_submodules

__all__ = [
    "METHODS",
    "Attribution",
    "Mask",
    "Method",
    "OnStep",
    "QFunction",
    "available",
    "captum",
    "check",
    "contrast_mask",
    "differentiable",
    "fill",
    "find_method",
    "get",
    "gradient_of",
    "guided",
    "guided_gradient_of",
    "is_guided",
    "quantile_mask",
    "register_attribution",
    "relu_rule",
    "share",
    "sign_agreement",
    "soft_mask",
    "switchable_relu",
]

import_submodules(__name__)
globals().update({name: method.function for name, method in METHODS.registered().items()})  # not the modules


def __getattr__(name: str) -> Any:
    if not name.startswith("_") and name in METHODS:
        return METHODS[name].function
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
