"""The attribution decoder as one operator: cuDNN's convolutions on small maps, one pass each for what is between."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sgqn.fast import compiler, switch
from sgqn.fast.autograd import (
    Later,
    conv,
    conv_backward,
    half_matmul,
    linear_relu,
    matmul,
    placeholders,
    wanted,
)
from sgqn.fast.heads import join
from sgqn.fast.weights import Converted, Copies, form_of, padded
from sgqn.networks import AttributionDecoder
from sgqn.replaceable import replace

Shape = tuple[int, int, int]
CHANNELS = (3, 6, 9)
"""Numbers of output channels, three a frame, that the kernels are compiled for."""


def fits(embedding: Tensor, base: Shape, convs: tuple[nn.Conv2d, ...]) -> bool:
    filters = [base[0], *(conv.out_channels for conv in convs[:2])]
    by_eights = all(number % 8 == 0 and 256 % (number // 2) == 0 for number in filters)  # the kernels' shares
    return switch.takes(embedding) and by_eights and convs[2].out_channels in CHANNELS


def decode(linear: nn.Linear, convs: tuple[nn.Conv2d, ...], base: Shape, embedding: Tensor, action: Tensor) -> Tensor:
    """Logits (B, channels, H, W), bf16, as `AttributionDecoder` defines them."""
    form = form_of(linear, _Linear, lambda: _Linear(linear, base))
    parameters: list[Any] = [p for layer in (linear, *convs) for p in (layer.weight, layer.bias)]
    small = form_of(convs[0], _Convs, lambda: _Convs(convs))
    later = Later()
    given = (embedding.float(), action.float(), form, small, later)
    logits: Tensor = _Decode.apply(*given, *later.gate(parameters))
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


class _Convs(Converted):
    """The convolutions' weights in bf16, channels last. Those after upsampling are 2x2 convolutions of the small map,
    with a filter for each of four pixels; the last has filters of zeros up to a multiple of 8."""

    def __init__(self, convs: tuple[nn.Conv2d, ...]):
        super().__init__([conv.weight for conv in convs])
        filters = [len(weight) for weight in self.sources]
        self.outputs = [filters[0], 4 * filters[1], padded(4 * filters[2])]
        self.weights = [self._like(layer) for layer in range(3)]

    def convert(self) -> None:
        self._launch("decoder_weights", self.weights, self.sources)

    def gradients(self, small: Sequence[Tensor]) -> list[Tensor]:
        """The gradients of the weights from those of the small convolutions."""
        large = [torch.empty_like(source) for source in self.sources]
        held = [self._like(layer).copy_(given) if not _packed(given) else given for layer, given in enumerate(small)]
        self._launch("decoder_weight_gradients", held, large)
        return large

    def _like(self, layer: int) -> Tensor:
        side, channels, device = (2 if layer else 3), self.sources[layer].shape[1], self.sources[layer].device
        memory = torch.empty(self.outputs[layer], side, side, channels, dtype=torch.bfloat16, device=device)
        return memory.permute(0, 3, 1, 2)

    def _launch(self, kernel: str, small: Sequence[Tensor], large: Sequence[Tensor]) -> None:
        shapes = [source.shape for source in self.sources]
        addresses = [[tensor.data_ptr() for tensor in tensors] for tensors in (self.sources, small, large)]
        rows = [[shape[0] for shape in shapes], [shape[1] for shape in shapes], self.outputs, *addresses]
        table = np.array(rows, dtype=np.int64).tobytes()  # struct DecoderLayers
        compiler.module("pointwise", small[0].device).launch(kernel, (66, 3), 256, 0, table)


def _packed(weight: Tensor) -> bool:
    return weight.dtype == torch.bfloat16 and weight.is_contiguous(memory_format=torch.channels_last)


class _Decode(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, embedding: Tensor, action: Tensor, form: _Linear, small: _Convs, later: Later, *parameters: Tensor
    ) -> Tensor:
        weight1, bias1, weight2, bias2, weight3, bias3 = parameters[2:]
        count, device = len(embedding), embedding.device
        channels, size, _ = form.base
        kernels = compiler.module("pointwise", device)
        joined = join(kernels, embedding.contiguous(), action.contiguous(), form.weight.shape[1])
        x0 = linear_relu(joined, form.weight, form.bias).view(count, size, size, channels).permute(0, 3, 1, 2)
        w1, w2, w3 = small.weights
        x1 = conv(x0, w1, padding=1)
        kernels.launch("bias_relu", 1056, 256, 0, x1, bias1, count * size * size, len(weight1), 1)
        x2 = _channels_last(count, len(weight2), 2 * size, device)
        kernels.launch("upsample_forward", 2112, 256, 0, conv(x1, w2, padding=1), bias2, x2, count, size, len(weight2))
        logits = torch.empty(count, len(weight3), 4 * size, 4 * size, dtype=torch.bfloat16, device=device)
        arguments = (conv(x2, w3, padding=1), bias3, logits, count, 2 * size, len(weight3), len(w3))
        kernels.launch("logits_forward", 2112, 256, 0, *arguments)
        ctx.save_for_backward(joined, x0, x1, x2)
        ctx.form, ctx.small, ctx.versions = form, small, (form.versions(), small.versions())
        ctx.widths = embedding.shape[1], action.shape[1]
        ctx.later, ctx.shapes = later, [p.shape for p in parameters]
        return logits

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        joined, x0, x1, x2 = ctx.saved_tensors
        w1, w2, w3 = ctx.small.weights
        for_embedding, for_action, *for_parameters = wanted(ctx)
        form: _Linear = ctx.form
        form.check(ctx.versions[0])
        ctx.small.check(ctx.versions[1])
        count, device, filters = len(gradient), gradient.device, gradient.shape[1]
        channels, size, _ = form.base
        kernels = compiler.module("pointwise", device)
        gradient = gradient.to(torch.bfloat16).contiguous()
        sums = torch.zeros(len(form.bias) + x1.shape[1] + x2.shape[1] + filters, device=device)
        d_bias0, d_bias1, d_bias2, d_bias3 = sums.split([len(form.bias), x1.shape[1], x2.shape[1], filters])
        d3 = _channels_last(count, len(w3), 2 * size + 1, device)
        kernels.launch(f"logits_backward_{filters}", 1056, 256, filters * 4, gradient, d3, d_bias3, count, 2 * size)
        d_x2, _ = conv_backward(d3, x2, w3, padding=1, of_x=True, of_weight=False)
        d2 = _channels_last(count, len(w2), size + 1, device)
        arguments: tuple[Any, ...] = (d_x2, x2, d2, d_bias2, count, size, x2.shape[1])
        kernels.launch("upsample_backward", 1056, 256, x2.shape[1] * 4, *arguments)
        d1, _ = conv_backward(d2, x1, w2, padding=1, of_x=True, of_weight=False)
        rows, width = count * size * size, x1.shape[1]
        kernels.launch("gate_sums", 528, 256, width * 4, d1, x1, d_bias1, rows, width, 0)
        d0, _ = conv_backward(d1, x0, w1, padding=1, of_x=True, of_weight=False)
        width = len(form.bias)
        arguments = (d0, x0, d0, d_bias0, count, 1, width, width, 0)
        kernels.launch("relu_backward", (-(-width // 128), 16), 128, 0, *arguments)
        flat = d0.permute(0, 2, 3, 1).reshape(count, width)
        of_embedding = of_action = None
        if for_embedding or for_action:
            d_joined, (wide, narrow) = half_matmul(flat, form.weight), ctx.widths
            of_embedding = d_joined[:, :wide].float() if for_embedding else None
            of_action = d_joined[:, wide : wide + narrow].float() if for_action else None
        if not any(for_parameters):
            return of_embedding, of_action, *([None] * (3 + len(ctx.shapes)))

        def of_parameters() -> tuple[Tensor, ...]:
            d_weight = matmul(flat.t(), joined).view(size * size, channels, -1)[..., : form.inputs]
            of_weight = d_weight.transpose(0, 1).reshape(width, form.inputs)
            of_bias = d_bias0.view(size * size, channels).t().reshape(width)
            layers = ((d1, x0, w1), (d2, x1, w2), (d3, x2, w3))
            given = [conv_backward(d, x, w, padding=1, of_x=False, of_weight=True)[1] for d, x, w in layers]
            d_w1, d_w2, d_w3 = ctx.small.gradients(given)
            return of_weight, of_bias, d_w1, d_bias1, d_w2, d_bias2, d_w3, d_bias3

        ctx.later.put(of_parameters, (flat, joined, x0, x1, x2, d1, d2, d3, sums))
        return of_embedding, of_action, None, None, None, *placeholders(ctx.shapes, device)


def _channels_last(count: int, channels: int, size: int, device: torch.device) -> Tensor:
    memory = torch.empty(count, size, size, channels, dtype=torch.bfloat16, device=device)
    return memory.permute(0, 3, 1, 2)


def _convs_of(net: AttributionDecoder) -> tuple[nn.Conv2d, ...]:
    return net.conv1, net.conv2, net.conv3


@replace(
    AttributionDecoder.forward, fits=lambda net, embedding, action: fits(embedding, net.base_shape, _convs_of(net))
)
def _decoder(net: AttributionDecoder, embedding: Tensor, action: Tensor) -> Tensor:
    return decode(net.linear, _convs_of(net), net.base_shape, embedding, action)
