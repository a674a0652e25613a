"""The attribution decoder as one operator: cuDNN's convolutions on small maps, one pass each for what is between."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sgqn.fast import compiler, switch
from sgqn.fast.autograd import half_matmul, linear_relu, matmul, wanted
from sgqn.fast.heads import join
from sgqn.fast.weights import Copies, form_of, padded

Shape = tuple[int, int, int]


def fits(embedding: Tensor, base: Shape, convs: tuple[nn.Conv2d, ...]) -> bool:
    filters = [base[0], *(conv.out_channels for conv in convs[:2])]
    return (
        switch.takes(embedding) and all(256 % (number // 2) == 0 for number in filters) and convs[2].out_channels == 9
    )


def decode(linear: nn.Linear, convs: tuple[nn.Conv2d, ...], base: Shape, embedding: Tensor, action: Tensor) -> Tensor:
    """Logits (B, channels, H, W), bf16, as `AttributionDecoder` defines them."""
    form = form_of(linear, _Linear, lambda: _Linear(linear, base))
    parameters = (linear.weight, linear.bias, *(p for conv in convs for p in (conv.weight, conv.bias)))
    logits: Tensor = _Decode.apply(embedding.float(), action.float(), form, *parameters)
    return logits


class _Linear(Copies):
    """The first layer with its outputs in the order of pixels, then channels."""

    def __init__(self, linear: nn.Linear, base: Shape):
        rows, columns = linear.weight.shape
        self.base, self.inputs = base, columns
        self.weight = linear.weight.new_zeros(rows, padded(columns, 16), dtype=torch.bfloat16)
        self.bias = linear.weight.new_zeros(rows, dtype=torch.bfloat16)
        pixels = base[1] * base[2]
        pairs = [(linear.weight, self.weight[:, :columns]), (linear.bias, self.bias)]
        super().__init__(pairs, groups={0: pixels, 1: pixels})


_ALONG = ((1, 0, 0), (0, 1, 1)), ((1, 1, 0), (0, 0, 1))
"""[parity][tap of two][tap of three]: which of three taps on the large map meet which of two small pixels."""


def shared_taps(device: torch.device) -> Tensor:
    """(4 parities, 4 taps, 9 taps)."""
    if device not in _taps:
        with torch.inference_mode(False):
            along = torch.tensor(_ALONG, dtype=torch.float32)
            taps = torch.einsum("pak,qbl->pqabkl", along, along)
            _taps[device] = taps.reshape(4, 4, 9).to(device)
    return _taps[device]


_taps: dict[torch.device, Tensor] = {}


def small_weight(weight: Tensor, outputs: int | None = None) -> Tensor:
    """The 2x2 convolution for a 3x3 one after upsampling: (4 filters, channels, 2, 2), bf16, channels last.

    `outputs` adds filters of zeros up to that number.
    """
    filters, channels = weight.shape[:2]
    small = torch.einsum("ptk,fck->pftc", shared_taps(weight.device), weight.flatten(2)).reshape(-1, 2, 2, channels)
    if outputs is not None:
        small = F.pad(small, (0, 0, 0, 0, 0, 0, 0, outputs - 4 * filters))
    return small.to(torch.bfloat16).permute(0, 3, 1, 2)


def large_gradient(small: Tensor, filters: int) -> Tensor:
    """The gradient of the 3x3 convolution from that of its 2x2 one."""
    channels = small.shape[1]
    small = small[: 4 * filters].permute(0, 2, 3, 1).float().reshape(4, filters, 4, channels)
    return torch.einsum("ptk,pftc->fck", shared_taps(small.device), small).unflatten(2, (3, 3))


class _Decode(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, embedding: Tensor, action: Tensor, form: _Linear, *parameters: Tensor) -> Tensor:
        weight1, bias1, weight2, bias2, weight3, bias3 = parameters[2:]
        count, device = len(embedding), embedding.device
        channels, size, _ = form.base
        kernels = compiler.module("pointwise", device)
        joined = join(kernels, embedding.contiguous(), action.contiguous(), form.weight.shape[1])
        x0 = linear_relu(joined, form.weight, form.bias).view(count, size, size, channels).permute(0, 3, 1, 2)
        w1 = weight1.to(torch.bfloat16).contiguous(memory_format=torch.channels_last)
        w2, w3 = small_weight(weight2), small_weight(weight3, padded(4 * len(weight3)))
        x1 = _conv(x0, w1)
        kernels.launch("bias_relu", 1056, 256, 0, x1, bias1, count * size * size, len(weight1), 1)
        x2 = _channels_last(count, len(weight2), 2 * size, device)
        kernels.launch("upsample_forward", 2112, 256, 0, _conv(x1, w2), bias2, x2, count, size, len(weight2))
        logits = torch.empty(count, len(weight3), 4 * size, 4 * size, dtype=torch.bfloat16, device=device)
        arguments = (_conv(x2, w3), bias3, logits, count, 2 * size, len(weight3), len(w3))
        kernels.launch("logits_forward", 2112, 256, 0, *arguments)
        ctx.save_for_backward(joined, x0, x1, x2, w1, w2, w3)
        ctx.form, ctx.versions, ctx.widths = form, form.versions(), (embedding.shape[1], action.shape[1])
        return logits

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        joined, x0, x1, x2, w1, w2, w3 = ctx.saved_tensors
        for_embedding, for_action, *_ = wanted(ctx)
        form: _Linear = ctx.form
        form.check(ctx.versions)
        count, device, filters = len(gradient), gradient.device, gradient.shape[1]
        channels, size, _ = form.base
        kernels = compiler.module("pointwise", device)
        gradient = gradient.to(torch.bfloat16).contiguous()
        sums = torch.zeros(len(form.bias) + x1.shape[1] + x2.shape[1] + filters, device=device)
        d_bias0, d_bias1, d_bias2, d_bias3 = sums.split([len(form.bias), x1.shape[1], x2.shape[1], filters])
        d3 = _channels_last(count, len(w3), 2 * size + 1, device)
        kernels.launch("logits_backward_9", 1056, 256, filters * 4, gradient, d3, d_bias3, count, 2 * size)
        d2, d_w3 = _conv_backward(d3, x2, w3)
        windows = _channels_last(count, len(w2), size + 1, device)
        arguments: tuple[Any, ...] = (d2, x2, windows, d_bias2, count, size, x2.shape[1])
        kernels.launch("upsample_backward", 1056, 256, x2.shape[1] * 4, *arguments)
        d1, d_w2 = _conv_backward(windows, x1, w2)
        rows, width = count * size * size, x1.shape[1]
        kernels.launch("gate_sums", 528, 256, width * 4, d1, x1, d_bias1, rows, width, 0)
        d0, d_w1 = _conv_backward(d1, x0, w1)
        width = len(form.bias)
        arguments = (d0, x0, d0, d_bias0, count, 1, width, width, 0)
        kernels.launch("relu_backward", (-(-width // 128), 16), 128, 0, *arguments)
        flat = d0.permute(0, 2, 3, 1).reshape(count, width)
        of_embedding = of_action = None
        if for_embedding or for_action:
            d_joined, (wide, narrow) = half_matmul(flat, form.weight), ctx.widths
            of_embedding = d_joined[:, :wide].float() if for_embedding else None
            of_action = d_joined[:, wide : wide + narrow].float() if for_action else None
        d_weight = matmul(flat.t(), joined).view(size * size, channels, -1)[..., : form.inputs]
        of_linear = d_weight.transpose(0, 1).reshape(width, form.inputs)
        of_bias = d_bias0.view(size * size, channels).t().reshape(width)
        of_convs = (
            d_w1.float(),
            d_bias1,
            large_gradient(d_w2, x2.shape[1]),
            d_bias2,
            large_gradient(d_w3, filters),
            d_bias3,
        )
        return of_embedding, of_action, None, of_linear, of_bias, *of_convs


def _channels_last(count: int, channels: int, size: int, device: torch.device) -> Tensor:
    memory = torch.empty(count, size, size, channels, dtype=torch.bfloat16, device=device)
    return memory.permute(0, 3, 1, 2)


def _conv(x: Tensor, weight: Tensor) -> Tensor:
    if x.is_cuda:
        out = F.conv2d(x, weight, padding=1)
    else:
        out = F.conv2d(x.float(), weight.float(), padding=1).bfloat16()
    return out.contiguous(memory_format=torch.channels_last)


def _conv_backward(gradient: Tensor, x: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Gradients of a convolution's input, channels last, and weight."""
    given = (gradient, x, weight) if x.is_cuda else (gradient.float(), x.float(), weight.float())
    shape: Any = (None, [1, 1], [1, 1], [1, 1], False, [0, 0], 1, [True, True, False])
    of_x, of_weight, _ = torch.ops.aten.convolution_backward(*given, *shape)
    return of_x.to(torch.bfloat16).contiguous(memory_format=torch.channels_last), of_weight
