"""Plain convolutions that the fused encoder is compared with."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def cosine(a: Tensor, b: Tensor) -> float:
    return torch.cosine_similarity(a.flatten().double(), b.flatten().double(), dim=0).item()


def shaken(module: nn.Module, by: float = 0.02) -> nn.Module:
    """Weights as after some training: initial ones are full of zeros."""
    torch.manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(by * torch.randn_like(parameter))
    return module


def convolve(x: Tensor, convs: nn.ModuleList, guided: bool = False) -> list[Tensor]:
    """The encoder layer by layer, activations and weights rounded as the kernel rounds them: an independent oracle."""
    levels = [x.float()]
    for i, conv in enumerate(convs):
        weight = conv.weight.detach().bfloat16().float()
        out = nn.functional.conv2d(levels[-1], weight, None, conv.stride)
        out = (out / 255 if i == 0 else out) + conv.bias.detach()[:, None, None]
        levels.append((out.relu() if i + 1 < len(convs) else out).bfloat16().float())
    return levels


def carry_back(
    levels: list[Tensor], convs: nn.ModuleList, gradient: Tensor, guided: bool = False
) -> tuple[Tensor, list[Tensor]]:
    """The gradients of the pictures and of all weights and biases, by hand, rounded as the kernels round them."""
    flowing, of_parameters = gradient.float(), []
    for i in reversed(range(len(convs))):
        weight = convs[i].weight.detach().bfloat16().float()
        scaled = levels[i] / 255 if i == 0 else levels[i]
        of_weight = nn.grad.conv2d_weight(scaled, weight.shape, flowing, convs[i].stride)
        of_parameters = [of_weight, flowing.sum((0, 2, 3)), *of_parameters]
        flowing = nn.grad.conv2d_input(levels[i].shape, weight, flowing, convs[i].stride)
        if i > 0:
            flowing = flowing * (levels[i] > 0)
            flowing = (flowing.relu() if guided else flowing).bfloat16().float()
    return flowing / 255, of_parameters
