"""Layers as functions of weights by name, without the package's modules."""

from __future__ import annotations

from collections.abc import Callable

import torch.nn.functional as F
from torch import Tensor

Weights = dict[str, Tensor]
Relu = Callable[[Tensor], Tensor]


def linear(w: Weights, name: str, x: Tensor) -> Tensor:
    return F.linear(x, w[f"{name}.weight"], w[f"{name}.bias"])


def three_layers(w: Weights, name: str, x: Tensor, relu: Relu = F.relu) -> Tensor:
    for layer in (0, 2):
        x = relu(linear(w, f"{name}.{layer}", x))
    return linear(w, f"{name}.4", x)
