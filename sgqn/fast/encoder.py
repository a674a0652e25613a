"""The encoder as one operator: forward, gradients of images (plain and guided) and of weights.

Two of them: the paper's encoder fused into one kernel, for Hopper; and any encoder by cuDNN, layer after layer, with
bias, ReLU and their gradients in one pass each.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import pairwise
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sgqn.attribution.guided_backprop import relu_rule
from sgqn.fast import compiler, switch
from sgqn.fast.autograd import Uses, conv, conv_backward, wanted
from sgqn.fast.weights import Converted, form_of
from sgqn.networks import Encoder
from sgqn.replaceable import replace

LAYERS, CHANNELS, SIZE, FILTERS = 11, 9, 84, 32
"""Of the fused encoder; observations and weights of fewer channels get channels of zeros."""
LEVELS = [41 - 2 * level for level in range(LAYERS)]
"""Side lengths of the feature maps after each convolution."""
PIXELS = sum(size * size for size in LEVELS[:-1])
PACKED = 3072 + 2 * 92160 + 5120
FIRST_WEIGHTS, OTHER_WEIGHTS, BIASES = 81 * FILTERS, 10 * 9 * FILTERS * FILTERS, LAYERS * FILTERS
_KINDS = {torch.uint8: 0, torch.float32: 1, torch.bfloat16: 2}


def fits(convs: nn.ModuleList, obs: Tensor) -> bool:
    """Whether the fused encoder supports these convolutions and observations."""
    if not (switch.encoder_enabled() and supported(obs.device)):
        return False
    shapes = [conv.weight.shape for conv in convs if isinstance(conv, nn.Conv2d) and conv.bias is not None]
    channels = obs.shape[1]
    expected = [(FILTERS, channels, 3, 3)] + [(FILTERS, FILTERS, 3, 3)] * (LAYERS - 1)
    return (
        channels <= CHANNELS
        and obs.shape[2:] == (SIZE, SIZE)
        and shapes == expected
        and next(convs.parameters()).dtype == torch.float32
    )


def supported(device: torch.device) -> bool:
    return device.type == "cuda" and _capability(device) == (9, 0)


def encode(convs: nn.ModuleList, obs: Tensor, guided: Callable[[], bool]) -> Tensor:
    """Features (B, 32, 21, 21), bf16, of observations in [0, 255], which are rounded to integers. `guided` is called in
    each backward pass and returns whether ReLUs pass only positive gradients.
    """
    return _encode(convs, obs, obs, guided)


def encode_traced(convs: nn.ModuleList, obs: Tensor, guided: Callable[[], bool], trains: bool) -> tuple[Tensor, Tensor]:
    """A leaf that represents the observations, with their gradient but not their values; and the features.

    Without `trains`, less is kept, and the weights get no gradient.
    """
    leaf = _zero(obs.device).expand(obs.shape).requires_grad_()
    return leaf, _encode(convs, leaf, obs, guided, trains)


def _encode(convs: nn.ModuleList, leaf: Tensor, obs: Tensor, guided: Callable[[], bool], trains: bool = True) -> Tensor:
    packed = form_of(convs, Packed, lambda: Packed(convs))
    obs = obs.detach() if obs.dtype in _KINDS else obs.detach().float()
    obs = F.pad(obs, (0, 0, 0, 0, 0, CHANNELS - packed.channels)) if packed.channels < CHANNELS else obs
    parameters = packed.sources if trains else [source.detach() for source in packed.sources]
    features: Tensor = _Encode.apply(leaf, obs.contiguous(), guided, packed, *parameters)
    return features


@cache
def _zero(device: torch.device) -> Tensor:
    with torch.inference_mode(False):
        return torch.zeros((), device=device)


class Packed(Converted):
    """The weights as tensor cores read them, for both directions; see encoder.cu."""

    def __init__(self, convs: nn.ModuleList):
        parameters: list[Any] = [*(conv.weight for conv in convs), *(conv.bias for conv in convs)]
        super().__init__(parameters)
        device = self.sources[0].device
        self.weights = torch.zeros(PACKED, dtype=torch.bfloat16, device=device)
        self.biases = torch.zeros(LAYERS, FILTERS, device=device)
        self.uses: Uses[Tensor] = Uses()
        self.channels = self.sources[0].shape[1]
        self._first: Tensor | None = None  # the first weights with all channels
        if self.channels < CHANNELS:
            self._first = torch.zeros(FILTERS, CHANNELS, 3, 3, device=device)
        self._addresses: Tensor | None = None
        self._of: tuple[int, ...] = ()

    @torch.no_grad()
    def convert(self) -> None:
        if self._addresses is None or self._of != self.addresses():
            self._of = self.addresses()
            first = self._of[0] if self._first is None else self._first.data_ptr()
            self._addresses = torch.tensor([first, *self._of[1:]], dtype=torch.int64).to(self.weights.device)
        if self._first is not None:
            self._first[:, : self.channels].copy_(self.sources[0])
        table = self._addresses
        kernels = compiler.module("encoder", self.weights.device)
        kernels.launch("encoder_pack", 132, 256, 0, table, table[LAYERS:], self.weights, self.biases)


class _Encode(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, leaf: Tensor, obs: Tensor, guided: Callable[[], bool], packed: Packed, *parameters: Tensor
    ) -> Tensor:
        count, device = len(obs), obs.device
        features = torch.empty(count, FILTERS, LEVELS[-1], LEVELS[-1], dtype=torch.bfloat16, device=device)
        images = levels = gates = None
        if any(ctx.needs_input_grad):
            gates = torch.empty(count * PIXELS * 4, dtype=torch.uint8, device=device)
        if any(ctx.needs_input_grad[4:]):
            images = torch.empty(count * CHANNELS * SIZE * SIZE, dtype=torch.uint8, device=device)
            levels = torch.empty(count * PIXELS * FILTERS, dtype=torch.bfloat16, device=device)
            packed.uses.note(ctx)
        arguments = (obs, _KINDS[obs.dtype], packed.weights, packed.biases, features, images, levels, gates, count)
        compiler.module("encoder", device).launch("encoder_forward", count, 512, 224000, *arguments)
        ctx.save_for_backward(images, levels, gates)
        ctx.guided, ctx.packed, ctx.versions, ctx.kind = guided, packed, packed.versions(), leaf.dtype
        return features

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        images, levels, gates = ctx.saved_tensors
        for_obs, _, *for_parameters = wanted(ctx)
        for_weights = any(for_parameters)
        ctx.packed.check(ctx.versions)
        count, device, packed = len(gradient), gradient.device, ctx.packed.weights
        gradient = gradient.to(torch.bfloat16).contiguous()
        kernels = compiler.module("encoder", device)
        size = (LEVELS[0] ** 2 + (PIXELS if for_weights else 0)) * count * FILTERS
        flowing = torch.empty(size, dtype=torch.bfloat16, device=device)  # the gradients of the levels
        arguments = (gradient, gates, packed, flowing, count, int(ctx.guided()), int(for_weights))
        kernels.launch("encoder_backward", count, 512, 226560, *arguments)
        of_obs: Tensor | None = None
        of_parameters: list[Any] = [None] * (2 * LAYERS)
        if for_obs:
            of_obs = torch.empty(count, CHANNELS, SIZE, SIZE, device=device)
            kernels.launch("encoder_pixels", (count, 3), 256, 51200, flowing, packed, of_obs)
            of_obs = of_obs[:, : ctx.packed.channels].to(ctx.kind)
        if for_weights:
            size = OTHER_WEIGHTS + FIRST_WEIGHTS + BIASES
            sums, _, last = ctx.packed.uses.take_turn(lambda: torch.zeros(size, device=device))
            _add_weight_gradients(kernels, images, levels, flowing, count, sums)
            ctx.packed.uses.end_turn(device)
            of_parameters = _weight_gradients(kernels, sums, ctx.packed.channels) if last else of_parameters
        return of_obs, None, None, None, *of_parameters


def _add_weight_gradients(
    kernels: compiler.Module, images: Tensor, levels: Tensor, flowing: Tensor, count: int, sums: Tensor
) -> None:
    """Add to sums: of the layers but the first, of the first, of the biases."""
    first, biases = sums[OTHER_WEIGHTS:], sums[OTHER_WEIGHTS + FIRST_WEIGHTS :]
    blocks = 2 * processors(flowing.device)
    items, starts = work_items(count, blocks, flowing.device)
    kernels.launch(
        "encoder_weights", blocks, 192, 112768, levels, flowing, items, starts, sums, biases[FILTERS:], count
    )
    blocks = min(blocks, 2 * count)
    kernels.launch("encoder_first_weights", blocks, 192, 90112, images, flowing, first, biases, count)


def _weight_gradients(kernels: compiler.Module, sums: Tensor, channels: int) -> list[Tensor]:
    """The gradients of all weights, then of all biases, in their own layouts."""
    unpacked = torch.empty(FIRST_WEIGHTS + OTHER_WEIGHTS, device=sums.device)
    kernels.launch("encoder_unpack", 132, 256, 0, sums, unpacked)
    weights = [unpacked[:FIRST_WEIGHTS].view(FILTERS, CHANNELS, 3, 3)[:, :channels]]
    weights += unpacked[FIRST_WEIGHTS:].view(LAYERS - 1, FILTERS, FILTERS, 3, 3).unbind()
    return [*weights, *sums[OTHER_WEIGHTS + FIRST_WEIGHTS :].view(LAYERS, FILTERS).unbind()]


# ---- by cuDNN


def fits_layers(convs: nn.ModuleList, obs: Tensor) -> bool:
    filters = [conv.out_channels for conv in convs if isinstance(conv, nn.Conv2d)]
    return switch.takes(obs) and all(number % 8 == 0 and 2048 % number == 0 for number in filters)


def encode_by_layers(convs: nn.ModuleList, obs: Tensor, guided: Callable[[], bool]) -> Tensor:
    """Features (B, filters, H, W), bf16, channels last."""
    form = form_of(convs, Halves, lambda: Halves(convs))
    features: Tensor = _EncodeByLayers.apply(obs, guided, form, *form.sources)
    return features


class Halves(Converted):
    """The weights in bf16, channels last; the first with channels of zeros up to 16, as cuDNN likes them."""

    def __init__(self, convs: nn.ModuleList):
        weights: list[Any] = [conv.weight for conv in convs]
        self.biases: list[Any] = [conv.bias for conv in convs]
        super().__init__([*weights, *self.biases])
        self.strides = [conv.stride for conv in convs]
        self.channels = weights[0].shape[1]
        wide = -(-self.channels // 16) * 16
        shapes = [(len(w), 3, 3, wide if i == 0 else w.shape[1]) for i, w in enumerate(weights)]
        first = self.sources[0]
        self.buffers = [torch.zeros(s, dtype=torch.bfloat16, device=first.device) for s in shapes]
        self.weights = [buffer.permute(0, 3, 1, 2) for buffer in self.buffers]
        self.uses: Uses[list[Tensor]] = Uses()

    @torch.no_grad()
    def convert(self) -> None:
        count = len(self.weights)
        targets = [self.weights[0][:, : self.channels], *self.weights[1:]]
        sources = [self.sources[0] / 255, *self.sources[1:count]]
        torch._foreach_copy_(targets, sources)


class _EncodeByLayers(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, obs: Tensor, guided: Callable[[], bool], form: Halves, *parameters: Tensor) -> Tensor:
        kernels, count = compiler.module("pointwise", obs.device), len(form.weights)
        more = form.weights[0].shape[1] - obs.shape[1]
        x = F.pad(obs, (0, 0, 0, 0, 0, more)).to(torch.bfloat16, memory_format=torch.channels_last)
        levels = [x]
        for i, (weight, bias, stride) in enumerate(zip(form.weights, form.biases, form.strides, strict=True)):
            x = conv(x, weight, stride)
            rows, width, rectify = x.numel() // x.shape[1], x.shape[1], int(i + 1 < count)
            kernels.launch("bias_relu", 1056, 256, 0, x, bias, rows, width, rectify)
            levels.append(x)
        if any(ctx.needs_input_grad):
            ctx.save_for_backward(*levels[:-1])
        if any(ctx.needs_input_grad[3:]):
            form.uses.note(ctx)
        ctx.guided, ctx.form, ctx.versions, ctx.kind = guided, form, form.versions(), (obs.dtype, obs.shape[1])
        return x

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        levels, form = ctx.saved_tensors, ctx.form
        for_obs, *for_parameters = wanted(ctx)
        for_weights, count = any(for_parameters), len(levels)
        form.check(ctx.versions)
        kernels, guided = compiler.module("pointwise", gradient.device), int(ctx.guided())
        x = gradient.to(torch.bfloat16).contiguous(memory_format=torch.channels_last)
        of_weights: list[Tensor] = []
        sums = torch.zeros(count, x.shape[1], device=x.device) if for_weights else None
        for i in reversed(range(count)):
            above = levels[i + 1] if i + 1 < count else None  # what came out of this layer's ReLU
            if above is not None or sums is not None:
                _through_relu(kernels, x, above, None if sums is None else sums[i], guided)
            needed = {"of_x": i > 0 or for_obs, "of_weight": for_weights}
            x, of_weight = conv_backward(x, levels[i], form.weights[i], form.strides[i], **needed)
            if of_weight is not None:
                of_weights.insert(0, of_weight)
        of_obs = x[:, : ctx.kind[1]].to(ctx.kind[0]) if for_obs else None
        if sums is None:
            return of_obs, None, None, *([None] * (2 * count))
        total, first, last = form.uses.take_turn(lambda: [*of_weights, sums])
        if not first:
            torch._foreach_add_(total, [*of_weights, sums])
        form.uses.end_turn(sums.device)
        if not last:
            return of_obs, None, None, *([None] * (2 * count))
        first_weight = total[0][:, : form.channels].float() / 255
        return of_obs, None, None, first_weight, *(w.float() for w in total[1:count]), *total[count].unbind()


def _through_relu(kernels: compiler.Module, x: Tensor, above: Tensor | None, sums: Tensor | None, guided: int) -> None:
    """The gradient `x` back through a ReLU, in place; adds up the bias's."""
    channels = x.shape[1]
    rows = x.numel() // channels
    kernels.launch("gate_sums", 1056, 256, channels * 4, x, above, sums, rows, channels, guided)


# ---- the fused weight gradient's work


def strips(level: int) -> list[tuple[int, int]]:
    """(first row, rows) of the strips in which a layer's weight gradient is computed: as few as fit shared memory."""
    size, rows = LEVELS[level], LEVELS[level + 1]
    for number in range(1, rows + 1):
        most = -(-rows // number)
        if 4 * (most + 2) * size + 34 + 4 * (-(-most * size // 16) * 16) <= 3520:
            cuts = [rows * i // number for i in range(number + 1)]
            return [(a, b - a) for a, b in pairwise(cuts)]
    raise AssertionError("one row fits always")


@cache
def work_items(count: int, blocks: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """(layer, image, first row, rows) of all work items, and where each block starts: shares of similar cost."""
    levels = range(LAYERS - 1)
    items = [(level, i, *strip) for level in levels for i in range(count) for strip in strips(level)]
    cost = np.array([-(-rows * LEVELS[level] // 16) + 5 for level, _, _, rows in items])  # products, and loading
    ends = np.concatenate([[0], np.cumsum(cost)])
    starts = np.searchsorted(ends, ends[-1] * np.arange(blocks + 1) / blocks)
    starts[-1] = len(items)
    return torch.tensor(items, dtype=torch.int32).to(device), torch.tensor(starts, dtype=torch.int32).to(device)


@cache
def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)


@cache
def processors(device: torch.device) -> int:
    return torch.cuda.get_device_properties(device).multi_processor_count


# ---- what they replace


@replace(Encoder.forward, fits=lambda net, obs: fits(net.convs, obs))
def _forward(net: Encoder, obs: Tensor) -> Tensor:
    return encode(net.convs, obs, relu_rule())


@replace(Encoder.forward, fits=lambda net, obs: fits_layers(net.convs, obs))
def _forward_by_layers(net: Encoder, obs: Tensor) -> Tensor:
    return encode_by_layers(net.convs, obs, relu_rule())


@replace(Encoder.traced, fits=lambda net, obs, trains=True: fits(net.convs, obs))
def _traced(net: Encoder, obs: Tensor, trains: bool = True) -> tuple[Tensor, Tensor]:
    return encode_traced(net.convs, obs, relu_rule(), trains)
