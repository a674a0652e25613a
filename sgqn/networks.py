"""The paper's networks. Sizes are constructor arguments whose defaults are the paper's.

observation -> Encoder -> Projection -> QHeads             (together: Critic)
                                     or DuelingHead        (together: DiscreteCritic)
                       |             -> AttributionDecoder
                       -> Projection -> PolicyHead         (together: Actor)
                                     or DeterministicHead  (together: DeterministicActor)
observation -> Restorer -> observation of the training scene
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable
from functools import cache, partial
from typing import NamedTuple, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sgqn.attribution.base import differentiable
from sgqn.errors import InvalidValueError
from sgqn.replaceable import replaceable

Module = TypeVar("Module", bound=nn.Module)


def init_weights(module: nn.Module, generator: torch.Generator | None = None) -> None:
    """Orthogonal linear layers and delta-orthogonal convolutions, in place; biases are zero.

    Delta-orthogonal: the centre tap is orthogonal, scaled for ReLU, and every other tap is zero, so that
    signals keep their size through eleven layers. Draws from torch's default generator if none is given.
    """
    for layer in module.modules():
        if isinstance(layer, nn.Linear):
            nn.init.orthogonal_(layer.weight, generator=generator)
        elif isinstance(layer, nn.Conv2d):
            height, width = layer.kernel_size
            centre = layer.weight.detach()[:, :, height // 2, width // 2]
            nn.init.zeros_(layer.weight)
            nn.init.orthogonal_(centre, gain=nn.init.calculate_gain("relu"), generator=generator)
        else:
            continue
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)


def init_uniform(module: nn.Module, generator: torch.Generator | None = None) -> None:
    """Weights and biases uniform within 1/sqrt(fan-in), in place: PyTorch's rule, but with a generator."""
    for layer in module.modules():
        if isinstance(layer, nn.Linear | nn.Conv2d):
            bound = 1 / math.sqrt(layer.weight[0].numel())
            nn.init.uniform_(layer.weight, -bound, bound, generator=generator)
            if layer.bias is not None:
                nn.init.uniform_(layer.bias, -bound, bound, generator=generator)


class Encoder(nn.Module):
    """f_theta: eleven 3x3 convolutions without padding, the first with stride 2, ReLU between them.

    Takes observations in [0, 255], uint8 or float, (B, C, H, W); returns feature maps (B, *out_shape).
    """

    pixels_per_feature = 2
    """Distance between neighbouring features in pixels; the feature map is centred in the image."""

    def __init__(self, in_channels: int = 9, num_layers: int = 11, num_filters: int = 32, image_size: int = 84) -> None:
        super().__init__()
        out_size = (image_size - 3) // 2 + 1 - 2 * (num_layers - 1)
        if num_layers < 1 or out_size < 1:
            raise InvalidValueError(f"an encoder of {num_layers} layers does not fit images of size {image_size}")
        self.out_shape = (num_filters, out_size, out_size)
        self.convs = nn.ModuleList([nn.Conv2d(in_channels, num_filters, 3, stride=2)])
        self.convs.extend(nn.Conv2d(num_filters, num_filters, 3) for _ in range(num_layers - 1))
        init_weights(self)

    @replaceable
    def forward(self, obs: Tensor) -> Tensor:
        first, *others = self.convs
        assert isinstance(first, nn.Conv2d)
        images = obs.to(self.dtype, memory_format=fast_format(obs))
        features = F.conv2d(images, first.weight / 255, first.bias, first.stride)  # that is conv(images / 255)
        for conv in others:
            features = conv(F.relu(features, inplace=True))
        return features

    @replaceable
    def traced(self, obs: Tensor, trains: bool = True) -> tuple[Tensor, Tensor]:
        """A leaf to differentiate the features by, and the features. The leaf represents the observations but need not
        have their values. Without `trains`, the weights may have no gradient."""
        leaf = differentiable(obs)
        return leaf, self(leaf)

    @property
    def dtype(self) -> torch.dtype:
        return next(self.parameters()).dtype


def fast_format(x: Tensor) -> torch.memory_format:
    """The fastest memory layout for convolutions: channels last on a CPU, where it saves reordering, and for bf16 on
    tensor cores."""
    plain = x.is_cuda and not torch.is_autocast_enabled("cuda")
    return torch.preserve_format if plain else torch.channels_last


class Projection(nn.Module):
    """Feature maps to a bounded embedding: linear, layer norm, tanh. Critic and actor have one each."""

    def __init__(self, in_features: int, out_features: int = 100) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, out_features)
        self.norm = nn.LayerNorm(out_features)
        init_weights(self)

    @replaceable
    def forward(self, features: Tensor) -> Tensor:
        return torch.tanh(self.norm(tamed(self.linear(features.flatten(1)))))


def tamed(x: Tensor, dim: int = 1) -> Tensor:
    """Rows of huge numbers scaled by 2^-50, which a layer norm does not see, all others as they are. `dim` is what the
    norm runs over, if not a row.

    A norm's input may have any scale, so the weights before it grow as long as they are trained. On walker-walk the
    projection's had a deviation of 3e9 after 50,000 updates and 9e17 after 500,000: its squares come near the end of
    float32.
    """
    huge = 2.0**50
    return x * torch.where(x.detach().abs().amax(dim=dim, keepdim=True) > huge, 1 / huge, 1.0)


def mlp(in_features: int, hidden_dim: int, out_features: int) -> nn.Sequential:
    """Three linear layers with ReLU between them."""
    return nn.Sequential(
        nn.Linear(in_features, hidden_dim),
        nn.ReLU(),
        nn.Linear(hidden_dim, hidden_dim),
        nn.ReLU(),
        nn.Linear(hidden_dim, out_features),
    )


class QHeads(nn.Module):
    """Double Q: two independent value functions of (embedding, action)."""

    def __init__(self, action_dim: int, embedding_dim: int = 100, hidden_dim: int = 1024) -> None:
        super().__init__()
        self.q1 = mlp(embedding_dim + action_dim, hidden_dim, 1)
        self.q2 = mlp(embedding_dim + action_dim, hidden_dim, 1)
        init_weights(self)

    @replaceable
    def forward(self, embedding: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        """Both values, each (B,)."""
        joined = torch.cat([embedding, action], dim=1)
        return self.q1(joined).squeeze(1), self.q2(joined).squeeze(1)


class Critic(nn.Module):
    """Q_theta of f_theta: encoder, projection and double Q heads, each usable on its own."""

    def __init__(self, encoder: Encoder, action_dim: int, embedding_dim: int = 100, hidden_dim: int = 1024) -> None:
        super().__init__()
        self.encoder = encoder
        self.projection = Projection(math.prod(encoder.out_shape), embedding_dim)
        self.heads = QHeads(action_dim, embedding_dim, hidden_dim)

    def embed(self, obs: Tensor) -> Tensor:
        """The embedding (B, embedding_dim) that the Q heads and the attribution decoder share."""
        return self.projection(self.encoder(obs))

    def forward(self, obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        return self.heads(self.embed(obs), action)


class DuelingHead(nn.Module):
    """Q(s, a) of every discrete action as V(s) + A(s, a) - mean A(s, .), given an embedding."""

    def __init__(self, num_actions: int, embedding_dim: int = 100, hidden_dim: int = 1024) -> None:
        super().__init__()
        self.value = mlp(embedding_dim, hidden_dim, 1)
        self.advantage = mlp(embedding_dim, hidden_dim, num_actions)
        init_weights(self)

    def forward(self, embedding: Tensor) -> Tensor:
        """Values (B, num_actions)."""
        with torch.autocast(embedding.device.type, enabled=False):  # bf16 has three digits: too few to compare values
            embedding = embedding.to(next(self.parameters()).dtype)
            advantage = self.advantage(embedding)
            return self.value(embedding) + advantage - advantage.mean(dim=1, keepdim=True)


class DiscreteCritic(nn.Module):
    """Q_theta of f_theta for discrete actions: encoder, projection and dueling head, each usable on its own."""

    def __init__(self, encoder: Encoder, num_actions: int, embedding_dim: int = 100, hidden_dim: int = 1024) -> None:
        super().__init__()
        self.encoder = encoder
        self.projection = Projection(math.prod(encoder.out_shape), embedding_dim)
        self.head = DuelingHead(num_actions, embedding_dim, hidden_dim)

    def forward(self, obs: Tensor) -> Tensor:
        """Values (B, num_actions)."""
        return self.head(self.projection(self.encoder(obs)))


class PolicyOutput(NamedTuple):
    """A policy's distribution over actions for a batch of observations, and an action drawn from it."""

    mean: Tensor  # (B, A): tanh(mu), the deterministic action
    action: Tensor  # (B, A): tanh(mu + sigma * noise)
    log_prob: Tensor  # (B,): log pi(action | s)
    log_std: Tensor  # (B, A)


class PolicyHead(nn.Module):
    """A squashed Gaussian over actions, given an embedding. log sigma is bounded by a rescaled tanh."""

    def __init__(
        self,
        action_dim: int,
        embedding_dim: int = 100,
        hidden_dim: int = 1024,
        log_std_bounds: tuple[float, float] = (-10.0, 2.0),
    ) -> None:
        super().__init__()
        self.layers = mlp(embedding_dim, hidden_dim, 2 * action_dim)
        self.log_std_bounds = log_std_bounds
        init_weights(self)

    @replaceable
    def forward(self, embedding: Tensor, noise: Tensor) -> PolicyOutput:
        """`noise` is standard normal, (B, A): the caller's, so that the same inputs give the same action."""
        mu, raw_log_std = self.layers(embedding).chunk(2, dim=1)
        low, high = self.log_std_bounds
        log_std = low + 0.5 * (high - low) * (torch.tanh(raw_log_std) + 1)
        pre_tanh = mu + log_std.exp() * noise
        log_normal = -0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)
        log_prob = (log_normal - log_tanh_derivative(pre_tanh)).sum(dim=1)
        return PolicyOutput(torch.tanh(mu), torch.tanh(pre_tanh), log_prob, log_std)

    def mean_action(self, embedding: Tensor) -> Tensor:
        """The deterministic action tanh(mu), (B, A)."""
        return torch.tanh(self.layers(embedding).chunk(2, dim=1)[0])


def log_tanh_derivative(x: Tensor) -> Tensor:
    """log(1 - tanh(x)^2), in a form that stays finite and exact where tanh saturates."""
    return 2 * (math.log(2) - x - F.softplus(-2 * x))


class Actor(nn.Module):
    """pi_theta: its own projection and a policy head, on the critic's feature maps.

    It has no convolutions: the critic's losses train them, so features are detached by default.
    """

    def __init__(
        self,
        feature_shape: tuple[int, int, int],
        action_dim: int,
        embedding_dim: int = 100,
        hidden_dim: int = 1024,
        log_std_bounds: tuple[float, float] = (-10.0, 2.0),
    ) -> None:
        super().__init__()
        self.projection = Projection(math.prod(feature_shape), embedding_dim)
        self.head = PolicyHead(action_dim, embedding_dim, hidden_dim, log_std_bounds)

    def forward(self, features: Tensor, noise: Tensor, *, detach_encoder: bool = True) -> PolicyOutput:
        if detach_encoder:
            features = features.detach()
        return self.head(self.projection(features), noise)

    def mean_action(self, features: Tensor) -> Tensor:
        """The deterministic action tanh(mu), (B, A)."""
        return self.head.mean_action(self.projection(features))


class DeterministicActor(nn.Module):
    """mu_theta: one action in [-1, 1] per observation. Like `Actor`, it has a projection but no convolutions."""

    def __init__(
        self, feature_shape: tuple[int, int, int], action_dim: int, embedding_dim: int = 50, hidden_dim: int = 1024
    ) -> None:
        super().__init__()
        self.projection = Projection(math.prod(feature_shape), embedding_dim)
        self.head = DeterministicHead(action_dim, embedding_dim, hidden_dim)

    def forward(self, features: Tensor) -> Tensor:
        """Actions (B, A)."""
        return self.head(self.projection(features))


class DeterministicHead(nn.Module):
    """An action, given an embedding."""

    def __init__(self, action_dim: int, embedding_dim: int = 50, hidden_dim: int = 1024) -> None:
        super().__init__()
        self.layers = mlp(embedding_dim, hidden_dim, action_dim)
        init_weights(self)

    @replaceable
    def forward(self, embedding: Tensor) -> Tensor:
        return torch.tanh(self.layers(embedding))


class AttributionDecoder(nn.Module):
    """M_theta: predicts the attribution mask from the critic's embedding and the action.

    Returns logits like the observation, (B, channels, image_size, image_size). The first convolution has the
    authors' 128 filters (the paper says 64); initialised by PyTorch's default.
    """

    def __init__(
        self,
        action_dim: int,
        channels: int = 9,
        embedding_dim: int = 100,
        image_size: int = 84,
        base_filters: int = 32,
        filters: tuple[int, int] = (128, 64),
    ) -> None:
        super().__init__()
        if image_size % 4:
            raise InvalidValueError(f"the decoder upsamples twice: image_size {image_size} is not a multiple of 4")
        self.base_shape = (base_filters, image_size // 4, image_size // 4)
        self.linear = nn.Linear(embedding_dim + action_dim, math.prod(self.base_shape))
        self.conv1 = nn.Conv2d(base_filters, filters[0], 3, padding=1)
        self.conv2 = nn.Conv2d(filters[0], filters[1], 3, padding=1)
        self.conv3 = nn.Conv2d(filters[1], channels, 3, padding=1)
        init_uniform(self)

    @replaceable
    def forward(self, embedding: Tensor, action: Tensor) -> Tensor:
        x = self.linear(torch.cat([embedding, action], dim=1))
        x = F.relu(x, inplace=True).unflatten(1, self.base_shape)
        x = self.conv1(x.to(memory_format=fast_format(x)))
        # ReLU and nearest upsampling commute; on the small map ReLU costs a quarter.
        x = upsampled_conv(F.relu(x, inplace=True), self.conv2)
        return upsampled_conv(F.relu(x, inplace=True), self.conv3)


def upsampled_conv(x: Tensor, conv: nn.Conv2d) -> Tensor:
    """conv(F.interpolate(x, scale_factor=2)) for a padded 3x3 convolution, without the large map.

    Of the nine taps, those that meet the same small pixel are summed beforehand: what remains is a transposed
    convolution of 4x4 taps and stride 2, four taps a pixel.
    """
    taps = _shared_taps(conv.weight.device, conv.weight.dtype)
    weight = (conv.weight.flatten(2) @ taps).unflatten(2, (4, 4)).transpose(0, 1)
    return F.conv_transpose2d(x, weight, conv.bias, stride=2, padding=1)


@cache
def _shared_taps(device: torch.device, dtype: torch.dtype) -> Tensor:
    """(9, 16): which of a 3x3 kernel's taps, mirrored, add up to each of the 4x4 taps."""
    with torch.inference_mode(False):
        along = torch.tensor([[0, 0, 1, 1], [0, 1, 1, 0], [1, 1, 0, 0]])
        return torch.kron(along, along).to(device, dtype)


class Restorer(nn.Module):
    """Repaints observations as the training scene: g c(s) + (1 - g) p, with a gate g for each pixel and frame, paint p,
    and a change c of all colours.

    A U-Net at a half, a quarter and an eighth of the image size. Takes observations in [0, 255], uint8 or float, and
    returns floats. With a canvas, the paint starts from an image that is learned as well: convolutions alone hardly
    know where in the image a pixel is, and much of a scene is always at the same place.
    """

    def __init__(
        self,
        channels: int = 9,
        filters: tuple[int, int, int] = (16, 32, 64),
        image_size: int = 84,
        canvas: bool = False,
    ) -> None:
        super().__init__()
        if image_size % 2 or channels % 3:
            raise InvalidValueError(
                f"the restorer needs RGB frames of an even size, not {channels} channels of size {image_size}"
            )
        self.frames = channels // 3
        half, quarter, eighth = filters
        conv = partial(nn.Conv2d, kernel_size=3, padding=1)
        self.halves = nn.ModuleList([conv(4 * channels, half)])
        self.quarters = nn.ModuleList([conv(half, quarter, stride=2), conv(quarter, quarter)])
        self.eighths = nn.ModuleList([conv(quarter, eighth, stride=2), conv(eighth, eighth), conv(eighth, eighth)])
        self.upper_quarters = nn.ModuleList([conv(eighth + quarter, quarter)])
        self.upper_halves = nn.ModuleList([conv(quarter + half, half), conv(half, half)])
        self.output = conv(half, 4 * (self.frames + channels))
        self.colors = nn.Linear(eighth, 12)
        self.canvas = nn.Parameter(torch.zeros(3, image_size, image_size)) if canvas else None
        """Logits of its colours."""
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
                assert layer.bias is not None
                nn.init.zeros_(layer.bias)
        with torch.no_grad():  # at first, colours stay, and gate and paint are even
            self.output.weight.mul_(0.1)
            self.colors.weight.zero_()

    def forward(self, obs: Tensor) -> Tensor:
        return self.gated(obs)[0]

    def gated(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """The restored observations, and the logits of g, (B, frames, H, W)."""
        images = obs.to(self.output.weight.dtype, memory_format=fast_format(obs)) / 255
        half = _relus(F.pixel_unshuffle(images, 2), self.halves)
        quarter = _relus(half, self.quarters)
        x = _relus(quarter, self.eighths)
        colors = self.colors(x.mean(dim=(2, 3))).to(images.dtype)
        x = _relus(_joined(x, quarter), self.upper_quarters)
        x = _relus(_joined(x, half), self.upper_halves)
        found = F.pixel_shuffle(self.output(x), 2).to(images.dtype)
        logits, paint = found[:, : self.frames] + 1, found[:, self.frames :]  # at first, most of s
        if self.canvas is not None:
            paint = paint + self.canvas.repeat(self.frames, 1, 1)
        gate = torch.sigmoid(logits).repeat_interleave(3, dim=1)
        restored = 255 * torch.lerp(torch.sigmoid(paint), self._recolored(images, colors), gate)
        return restored, logits

    def _recolored(self, images: Tensor, change: Tensor) -> Tensor:
        """Every pixel's colours (r, g, b, 1) multiplied by the identity plus a change (B, 12)."""
        matrix = change.view(-1, 3, 4) + torch.eye(3, 4, dtype=images.dtype, device=images.device)
        frames = images.unflatten(1, (self.frames, 3))
        mixed = torch.einsum("bij,bkjhw->bkihw", matrix[:, :, :3], frames) + matrix[:, None, :, 3, None, None]
        return mixed.flatten(1, 2)


def _relus(x: Tensor, convs: Iterable[nn.Module]) -> Tensor:
    for conv in convs:
        x = F.relu(conv(x))
    return x


def _joined(x: Tensor, skipped: Tensor) -> Tensor:
    return torch.cat([F.interpolate(x, size=skipped.shape[-2:]), skipped], dim=1)


class SodaMLP(nn.Module):
    """SODA's projector and its predictor: linear, batch norm, ReLU, linear. Flattens feature maps."""

    def __init__(self, in_features: int = 100, hidden_dim: int = 100, out_features: int = 100) -> None:
        super().__init__()
        self.hidden = nn.Linear(in_features, hidden_dim)
        self.norm = nn.BatchNorm1d(hidden_dim)
        self.out = nn.Linear(hidden_dim, out_features)
        init_weights(self)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(F.relu(self.norm(tamed(self.hidden(x.flatten(1)), dim=0))))


def frozen_copy(module: Module) -> Module:
    """A target network: a copy without shared memory and without gradients."""
    return copy.deepcopy(module).requires_grad_(False)


@replaceable
@torch.no_grad()
def ema_update(target: nn.Module, source: nn.Module, tau: float) -> None:
    """target <- target + tau (source - target), every parameter in place. Buffers (batch norm's) stay."""
    torch._foreach_lerp_(list(target.parameters()), list(source.parameters()), tau)


def ema_update_critic(target: Critic, source: Critic, encoder_tau: float = 0.05, heads_tau: float = 0.01) -> None:
    """Update a target critic: the encoder with its projection, as in the benchmark, and the Q heads."""
    ema_update(target.encoder, source.encoder, encoder_tau)
    ema_update(target.projection, source.projection, encoder_tau)
    ema_update(target.heads, source.heads, heads_tau)
