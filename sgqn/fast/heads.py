"""Projection, perceptrons and the squashed Gaussian as fused operators: products in bf16, the rest in float32."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sgqn.attribution.guided_backprop import relu_rule
from sgqn.fast import compiler, switch
from sgqn.fast.autograd import Later, Uses, half_matmul, linear_relu, matmul, over_uses, placeholders, wanted
from sgqn.fast.weights import Copies, form_of, padded
from sgqn.networks import DeterministicHead, PolicyHead, PolicyOutput, Projection, QHeads
from sgqn.replaceable import replace

Rule = Callable[[], bool]


# ---- tanh(norm(linear(features)))


def fits_projection(linear: nn.Linear, features: Tensor) -> bool:
    return switch.takes(features) and linear.in_features % 8 == 0 and linear.out_features <= 256


def project(linear: nn.Linear, norm: nn.LayerNorm, features: Tensor) -> Tensor:
    """The embedding (B, D), float32."""
    form = form_of(linear, _Projection, lambda: _Projection(linear))
    features = features.flatten(1).to(torch.bfloat16)
    parameters = (linear.weight, linear.bias, norm.weight, norm.bias)
    later = Later(form.uses)
    embedding: Tensor = _Project.apply(features, form, norm.eps, later, *later.gate(parameters))
    return embedding


class _Projection(Copies):
    """The weight with rows of zeros up to a multiple of 8."""

    def __init__(self, linear: nn.Linear):
        rows, columns = linear.weight.shape
        self.weight = linear.weight.new_zeros(padded(rows), columns, dtype=torch.bfloat16)
        super().__init__([(linear.weight, self.weight[:rows])])
        self.uses: Uses[tuple[Tensor, list[tuple[Tensor, Tensor]]]] = Uses()


class _Project(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, features: Tensor, form: _Projection, epsilon: float, later: Later, *parameters: Tensor
    ) -> Tensor:
        weight, bias, gamma, beta = parameters
        rows, columns = len(features), len(weight)
        kernels = compiler.module("pointwise", features.device)
        x = matmul(features, form.weight.t())
        out, normalised, scale = x.new_empty(rows, columns), None, None
        if any(ctx.needs_input_grad):
            normalised, scale = torch.empty_like(out), x.new_empty(rows)
        arguments = (x, bias, gamma, beta, out, normalised, scale, rows, columns, x.shape[1], epsilon)
        kernels.launch("norm_tanh_forward", -(-rows // 8), 256, 0, *arguments)
        ctx.save_for_backward(features, gamma, out, normalised, scale)
        ctx.form, ctx.versions = form, form.versions()
        ctx.later, ctx.shapes = later, [p.shape for p in parameters]
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        features, gamma, out, normalised, scale = ctx.saved_tensors
        for_features, *for_parameters = wanted(ctx)
        ctx.form.check(ctx.versions)
        (rows, columns), device, weight = out.shape, out.device, ctx.form.weight
        flowing = torch.empty(rows, len(weight), dtype=torch.bfloat16, device=device)
        sums = torch.zeros(3, columns, device=device) if any(for_parameters) else None  # of bias, gamma and beta
        kernels = compiler.module("pointwise", device)
        arguments = (gradient.contiguous(), out, normalised, scale, gamma, flowing, sums, rows, columns, len(weight))
        kernels.launch("norm_tanh_backward", 16, 256, 3 * 256 * 4, *arguments)
        of_features = half_matmul(flowing, weight) if for_features else None
        if sums is None:
            return of_features, *([None] * 7)

        def of_parameters() -> Sequence[Tensor | None]:
            (total, factors), first, last = ctx.form.uses.take_turn(lambda: (sums, []))
            if not first:
                total.add_(sums)
            factors.append((flowing, features))
            if not last:
                return [None] * 4
            left, right = over_uses(factors)
            return [matmul(left.t(), right)[:columns], *total.unbind()]

        ctx.later.put(of_parameters, (flowing, features, sums))
        return of_features, None, None, None, *placeholders(ctx.shapes, device)


# ---- linear, ReLU, linear, ReLU, linear: one network, or several of a shape side by side


def fits_mlp(x: Tensor, networks: Sequence[nn.Sequential]) -> bool:
    if not switch.takes(x):
        return False
    hidden = networks[0][0].out_features
    return isinstance(hidden, int) and hidden % 128 == 0


def values(networks: Sequence[nn.Sequential], embedding: Tensor, action: Tensor, guided: Rule) -> tuple[Tensor, ...]:
    """The values (B,) of networks with one output each; `guided` as in the encoder."""
    form = form_of(networks[0], _Stacked, lambda: _Stacked(networks))
    later = Later(form.uses)
    return _Values.apply(embedding.float(), action.float(), guided, form, later, *later.gate(form.sources))


def perceptron(network: nn.Sequential, x: Tensor, guided: Rule) -> Tensor:
    """The network's outputs (B, D), float32."""
    form = form_of(network, _Stacked, lambda: _Stacked([network]))
    out: Tensor = _Perceptron.apply(x.float(), guided, form, *form.sources)
    return out


class _Stacked(Copies):
    """The weights of E networks of one shape; `sources` are all of the first network's, then the second's, ..."""

    def __init__(self, networks: Sequence[nn.Sequential]):
        number, first, last = len(networks), networks[0][0], networks[0][4]
        assert isinstance(first, nn.Linear)
        assert isinstance(last, nn.Linear)
        hidden, inputs, outputs = first.out_features, first.in_features, last.out_features
        new = first.weight.new_zeros
        self.hidden, self.inputs, self.outputs, self.number = hidden, inputs, outputs, number
        self.weight1 = new(number * hidden, padded(inputs, 16), dtype=torch.bfloat16)
        self.bias1 = new(number * hidden, dtype=torch.bfloat16)
        self.weight2 = new(number, hidden, hidden, dtype=torch.bfloat16)
        self.bias2_half = new(number * hidden, dtype=torch.bfloat16)
        self.bias2 = new(number, hidden)
        self.last_half = new(padded(outputs, 16), hidden, dtype=torch.bfloat16)
        self.last = new(number, outputs, hidden)
        self.last_bias = new(number, outputs)
        pairs: list[tuple[Tensor, Tensor]] = []
        for i, network in enumerate(networks):
            layers = [layer for layer in network if isinstance(layer, nn.Linear)]
            part = slice(i * hidden, (i + 1) * hidden)
            (w1, b1), (w2, b2), (w3, b3) = ((layer.weight, layer.bias) for layer in layers)
            pairs += [(w1, self.weight1[part, :inputs]), (b1, self.bias1[part]), (w2, self.weight2[i])]
            if outputs == 1:
                pairs += [(b2, self.bias2[i]), (w3, self.last[i]), (b3, self.last_bias[i])]
            else:
                pairs += [(b2, self.bias2_half[part]), (w3, self.last_half[:outputs]), (b3, self.last_bias[i])]
        super().__init__(pairs)
        self.uses: Uses[tuple[Tensor, list[tuple[Tensor, ...]]]] = Uses()


class _Values(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, embedding: Tensor, action: Tensor, guided: Rule, form: _Stacked, later: Later, *parameters: Tensor
    ) -> tuple[Tensor, ...]:
        rows, number, hidden, device = len(embedding), form.number, form.hidden, embedding.device
        kernels = compiler.module("pointwise", device)
        joined = join(kernels, embedding.contiguous(), action.contiguous(), form.weight1.shape[1])
        hidden1 = linear_relu(joined, form.weight1, form.bias1)  # (B, E * H)
        by_network = hidden1.view(rows, number, hidden).transpose(0, 1)
        hidden2 = half_matmul(by_network, form.weight2.transpose(1, 2))  # (E, B, H)
        out = torch.empty(number, rows, device=device)
        arguments = (hidden2, form.bias2, form.last, form.last_bias, out, rows, number, hidden)
        kernels.launch("value_forward", -(-rows * number // 8), 256, 0, *arguments)
        ctx.save_for_backward(joined, hidden1, hidden2)
        ctx.set_materialize_grads(False)
        ctx.guided, ctx.form, ctx.versions = guided, form, form.versions()
        ctx.widths = embedding.shape[1], action.shape[1]
        ctx.later, ctx.shapes = later, [p.shape for p in parameters]
        return out.unbind()

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
        joined, hidden1, hidden2 = ctx.saved_tensors
        for_embedding, for_action, *for_parameters = wanted(ctx)
        form: _Stacked = ctx.form
        form.check(ctx.versions)
        asked = [i for i, gradient in enumerate(gradients) if gradient is not None]
        trained = any(for_parameters)
        if not asked and not trained:
            return (None,) * (5 + 6 * form.number)
        guided = int(ctx.guided())
        # One network's value alone, as in attribution, or all of them.
        alone = len(asked) == 1 and not trained
        part = slice(asked[0], asked[0] + 1) if alone else slice(0, form.number)
        number, (rows, hidden, device) = part.stop - part.start, (len(joined), form.hidden, joined.device)
        flowing = torch.stack([_or_zeros(gradients[i], rows, device) for i in range(part.start, part.stop)])
        weight1 = form.weight1[part.start * hidden : part.stop * hidden]
        hidden1 = hidden1[:, part.start * hidden : part.stop * hidden]
        hidden2, weight2, last_weight = hidden2[part], form.weight2[part], form.last[part]
        small = torch.zeros(3 * number * hidden + number, device=device) if trained else None
        d_last, d_bias2, d_bias1, d_last_bias = _small_parts(small, number * hidden)
        kernels = compiler.module("pointwise", device)
        grid = (number * hidden // 128, 16)
        d_hidden2 = torch.empty_like(hidden2)
        arguments: tuple[Any, ...]
        arguments = (hidden2, last_weight, flowing, d_hidden2, d_last, d_bias2, d_last_bias, rows, hidden, guided)
        kernels.launch("value_backward", grid, 128, 0, *arguments)
        d_products = half_matmul(d_hidden2, weight2)
        d_hidden1 = torch.empty(rows, number * hidden, dtype=torch.bfloat16, device=device)
        arguments = (d_products, hidden1, d_hidden1, d_bias1, rows, number, hidden, hidden1.stride(0), guided)
        kernels.launch("relu_backward", grid, 128, 0, *arguments)
        of_embedding = of_action = None
        if for_embedding or for_action:
            d_joined, (wide, narrow) = half_matmul(d_hidden1, weight1), ctx.widths
            of_embedding = d_joined[:, :wide].float() if for_embedding else None
            of_action = d_joined[:, wide : wide + narrow].float() if for_action else None
        if small is None:
            return of_embedding, of_action, *([None] * (3 + 6 * form.number))

        def of_parameters() -> Sequence[Tensor | None]:
            (total, factors), first, last = form.uses.take_turn(lambda: (small, []))
            if not first:
                total.add_(small)
            factors.append((d_hidden1, joined, d_hidden2.transpose(0, 1), hidden1.view(rows, number, hidden)))
            if not last:
                return [None] * (6 * number)
            left1, right1, left2, right2 = over_uses(factors)
            of_weight1 = matmul(left1.t(), right1)
            of_weight2 = matmul(left2.permute(1, 2, 0), right2.transpose(0, 1))
            d_last, d_bias2, d_bias1, d_last_bias = _small_parts(total, number * hidden)
            gradients: list[Tensor | None] = []
            for i in range(number):
                own = slice(i * hidden, (i + 1) * hidden)
                gradients += (of_weight1[own, : form.inputs], d_bias1[own], of_weight2[i])
                gradients += (d_bias2[own], d_last[own].view(1, hidden), d_last_bias[i : i + 1])
            return gradients

        ctx.later.put(of_parameters, (d_hidden1, d_hidden2, hidden1, joined, small))
        return of_embedding, of_action, None, None, None, *placeholders(ctx.shapes, device)


def _small_parts(small: Tensor | None, width: int) -> Any:
    """The gradients of the last weights, the second biases, the first biases and the last biases."""
    return (None,) * 4 if small is None else small.split([width, width, width, len(small) - 3 * width])


class _Perceptron(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, guided: Rule, form: _Stacked, *parameters: Tensor) -> Tensor:
        kernels = compiler.module("pointwise", x.device)
        joined = join(kernels, x.contiguous(), None, form.weight1.shape[1])
        hidden1 = linear_relu(joined, form.weight1, form.bias1)
        hidden2 = linear_relu(hidden1, form.weight2[0], form.bias2_half)
        out = matmul(hidden2, form.last_half.t())[:, : form.outputs] + form.last_bias
        ctx.save_for_backward(joined, hidden1, hidden2)
        ctx.guided, ctx.form, ctx.versions = guided, form, form.versions()
        return out

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        joined, hidden1, hidden2 = ctx.saved_tensors
        for_x, *for_parameters = wanted(ctx)
        form: _Stacked = ctx.form
        form.check(ctx.versions)
        rows, hidden, device, guided = len(joined), form.hidden, joined.device, int(ctx.guided())
        kernels = compiler.module("pointwise", device)
        trained = any(for_parameters)
        d_out = join(kernels, gradient.contiguous(), None, len(form.last_half))
        sums = torch.zeros(2, hidden, device=device) if trained else (None, None)
        d_hidden2, d_hidden1 = torch.empty_like(hidden2), torch.empty_like(hidden1)
        for products, before, after, d_bias in (
            (half_matmul(d_out, form.last_half), hidden2, d_hidden2, sums[1]),
            (None, hidden1, d_hidden1, sums[0]),
        ):
            if products is None:
                products = half_matmul(d_hidden2, form.weight2[0])  # noqa: PLW2901
            arguments = (products, before, after, d_bias, rows, 1, hidden, hidden, guided)
            kernels.launch("relu_backward", (hidden // 128, 16), 128, 0, *arguments)
        of_x = half_matmul(d_hidden1, form.weight1)[:, : form.inputs].float() if for_x else None
        if not trained:
            return of_x, *([None] * 8)
        of_weight1 = matmul(d_hidden1.t(), joined)[:, : form.inputs]
        of_weight2 = matmul(d_hidden2.t(), hidden1)
        of_last = matmul(d_out.t(), hidden2)[: form.outputs]
        return of_x, None, None, of_weight1, sums[0], of_weight2, sums[1], of_last, gradient.sum(dim=0)


def join(kernels: compiler.Module, a: Tensor, b: Tensor | None, width: int) -> Tensor:
    """bf16 [a | b | zeros], (B, width)."""
    out = torch.empty(len(a), width, dtype=torch.bfloat16, device=a.device)
    narrow = 0 if b is None else b.shape[1]
    kernels.launch("join", min(264, -(-out.numel() // 256)), 256, 0, a, b, out, len(a), a.shape[1], narrow, width)
    return out


def _or_zeros(gradient: Tensor | None, rows: int, device: torch.device) -> Tensor:
    return torch.zeros(rows, device=device) if gradient is None else gradient


# ---- the policy's distribution


def gaussian(raw: Tensor, noise: Tensor, bounds: tuple[float, float]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """tanh(mu), action, log pi(action), log sigma from raw (B, 2 A), as `PolicyHead` defines them."""
    return _Gaussian.apply(raw.float().contiguous(), noise.contiguous(), bounds)


class _Gaussian(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, raw: Tensor, noise: Tensor, bounds: tuple[float, float]) -> tuple[Tensor, ...]:
        rows, size = noise.shape
        mean, action, log_std = (torch.empty_like(noise) for _ in range(3))
        log_prob = noise.new_empty(rows)
        arguments = (raw, noise, mean, action, log_prob, log_std, rows, size, float(bounds[0]), float(bounds[1]))
        compiler.module("pointwise", raw.device).launch("gaussian_forward", -(-rows // 32), 32, 0, *arguments)
        ctx.save_for_backward(raw, noise, action)
        ctx.mark_non_differentiable(mean, log_std)
        ctx.set_materialize_grads(False)
        ctx.bounds = bounds
        return mean, action, log_prob, log_std

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Any, ...]:
        raw, noise, action = ctx.saved_tensors
        _, d_action, d_log_prob, _ = (None if g is None else g.contiguous() for g in gradients)
        of_raw, (rows, size) = torch.empty_like(raw), noise.shape
        arguments = (raw, noise, action, d_action, d_log_prob, of_raw, rows, size, *map(float, ctx.bounds))
        grid = -(-rows * size // 128)
        compiler.module("pointwise", raw.device).launch("gaussian_backward", grid, 128, 0, *arguments)
        return of_raw, None, None


# ---- what they replace


@replace(Projection.forward, fits=lambda net, features: fits_projection(net.linear, features))
def _projection(net: Projection, features: Tensor) -> Tensor:
    return project(net.linear, net.norm, features)


@replace(QHeads.forward, fits=lambda net, embedding, action: fits_mlp(embedding, (net.q1, net.q2)))
def _q_heads(net: QHeads, embedding: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
    q1, q2 = values((net.q1, net.q2), embedding, action, relu_rule())
    return q1, q2


@replace(PolicyHead.forward, fits=lambda net, embedding, noise: fits_mlp(embedding, (net.layers,)))
def _policy_head(net: PolicyHead, embedding: Tensor, noise: Tensor) -> PolicyOutput:
    raw = perceptron(net.layers, embedding, relu_rule())
    return PolicyOutput(*gaussian(raw, noise, net.log_std_bounds))


def _fits_deterministic_head(net: DeterministicHead, embedding: Tensor) -> bool:
    """A single output has its weights in another form, that of a value."""
    last = net.layers[-1]
    return isinstance(last, nn.Linear) and last.out_features > 1 and fits_mlp(embedding, (net.layers,))


@replace(DeterministicHead.forward, fits=_fits_deterministic_head)
def _deterministic_head(net: DeterministicHead, embedding: Tensor) -> Tensor:
    return torch.tanh(perceptron(net.layers, embedding, relu_rule()))
