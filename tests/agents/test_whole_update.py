"""One whole SGQN update at the paper's sizes beside a second implementation: tensors by name and plain functions, no
module or loss of the package. Gradients are compared where each optimiser gets them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sgqn.agents import Phase, Spec, build_agent
from sgqn.agents.sgqn import SGQN, SGQNSettings
from sgqn.replay import Batch
from tests.agents.plain import Relu, Weights, linear, three_layers

BATCH, ACTIONS, FILL = 3, 6, 77.0
CRITIC, TARGET, ACTOR = "learner.critic.", "learner.target.", "learner.actor."


class _GuidedRelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return gradient.clamp(min=0) * (x > 0)


def encode(w: Weights, part: str, obs: Tensor, relu: Relu = F.relu) -> Tensor:
    x = obs / 255
    for layer in range(11):
        name = f"{part}encoder.convs.{layer}"
        x = F.conv2d(relu(x) if layer else x, w[f"{name}.weight"], w[f"{name}.bias"], stride=1 if layer else 2)
    return x.flatten(1)


def embed(w: Weights, part: str, features: Tensor) -> Tensor:
    x = linear(w, f"{part}projection.linear", features)
    norm = f"{part}projection.norm"
    return torch.tanh(F.layer_norm(x, (100,), w[f"{norm}.weight"], w[f"{norm}.bias"]))


def values(w: Weights, part: str, embedding: Tensor, action: Tensor, relu: Relu = F.relu) -> list[Tensor]:
    joined = torch.cat([embedding, action], dim=1)
    return [three_layers(w, f"{part}heads.{name}", joined, relu)[:, 0] for name in ("q1", "q2")]


def policy(w: Weights, features: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
    """Action and log-probability; the logarithm without the guard against saturation that the benchmark's code has."""
    mu, raw = three_layers(w, f"{ACTOR}head.layers", embed(w, ACTOR, features)).chunk(2, dim=1)
    log_std = -10 + 0.5 * 12 * (torch.tanh(raw) + 1)
    action = torch.tanh(mu + noise * log_std.exp())
    log_prob = (-0.5 * noise.square() - log_std - 0.5 * math.log(2 * math.pi)).sum(dim=1)
    return action, log_prob - torch.log(1 - action.square()).sum(dim=1)


def attribution_mask(w: Weights, obs: Tensor, action: Tensor) -> Tensor:
    leaf, relu = obs.clone().requires_grad_(), _GuidedRelu.apply
    q1, _ = values(w, CRITIC, embed(w, CRITIC, encode(w, CRITIC, leaf, relu)), action, relu)
    (gradient,) = torch.autograd.grad(q1.sum(), leaf)
    strength = gradient.abs().view(len(obs), 3, 3, -1).amax(dim=2)  # of each frame
    kept = strength >= torch.quantile(strength, 0.95, dim=2, keepdim=True)
    return kept[:, :, None].expand(-1, -1, 3, -1).reshape(obs.shape)


def decode(w: Weights, embedding: Tensor, action: Tensor) -> Tensor:
    x = F.relu(linear(w, "decoder.linear", torch.cat([embedding, action], dim=1))).view(-1, 32, 21, 21)
    for name in ("conv1", "conv2"):
        x = F.conv2d(x, w[f"decoder.{name}.weight"], w[f"decoder.{name}.bias"], padding=1)
        x = F.relu(F.interpolate(x, scale_factor=2))
    return F.conv2d(x, w["decoder.conv3.weight"], w["decoder.conv3.bias"], padding=1)


def blurred(obs: Tensor, generator: object) -> Tensor:
    """Some augmentation without randomness."""
    return 0.5 * obs.double() + 0.5 * obs.double().roll(3, dims=3)


def test_losses_gradients_and_targets_of_a_whole_update() -> None:
    agent = build_agent("sgqn", Spec(ACTIONS), SGQNSettings(batch_size=BATCH), blurred, seed=0).double()
    assert isinstance(agent, SGQN)
    drawn = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in agent.parameters():
            parameter.add_(0.01 * torch.randn(parameter.shape, generator=drawn))
    noise = [torch.randn(BATCH, ACTIONS, generator=drawn).double() for _ in range(2)]
    coming = iter(noise)
    agent.learner.noise = lambda like: next(coming)
    agent.fill_value = lambda obs: torch.tensor(FILL)
    spots = torch.rand(2, BATCH, 9, 20, 20, generator=drawn)
    obs, next_obs = ((255 * F.interpolate(one, size=(84, 84), mode="bilinear")).byte() for one in spots)
    action = (2 * torch.rand(BATCH, ACTIONS, generator=drawn) - 1).double()
    reward, discount = torch.rand(BATCH, generator=drawn).double(), torch.full((BATCH,), 0.99).double()

    before: dict[str, Weights] = {"critic": {}, "actor": {}, "auxiliary": {}, "temperature": {}}
    given: dict[str, Weights] = {}
    names = {id(parameter): name for name, parameter in agent.named_parameters()}

    def watch(name: str) -> Callable[..., None]:
        def step(optimizer: torch.optim.Optimizer, *_: object) -> None:
            own = [p for group in optimizer.param_groups for p in group["params"]]
            given[name] = {names[id(p)]: p.grad.clone() for p in own if p.grad is not None}
            before[name] = {key: value.clone() for key, value in agent.state_dict().items()}

        return step

    for name, optimizer in agent.optimizers.items():
        optimizer.register_step_pre_hook(watch(name))
    metrics = agent.learn(Batch(obs, action, reward, discount, next_obs), Phase())
    obs, next_obs = obs.double(), next_obs.double()

    def check(optimizer: str, w: Weights, loss: Tensor) -> None:
        keys = list(given[optimizer])
        for key, expected in zip(keys, torch.autograd.grad(loss, [w[key] for key in keys]), strict=True):
            torch.testing.assert_close(given[optimizer][key], expected, rtol=1e-5, atol=1e-9, msg=f"{optimizer}, {key}")

    def trained(weights: Weights) -> Weights:
        return {key: value.clone().requires_grad_() for key, value in weights.items()}

    # L_Q + 0.5 L_C
    start = trained(before["critic"])
    alpha = start["learner.log_alpha"].detach().exp()
    with torch.no_grad():
        next_action, log_prob = policy(start, encode(start, CRITIC, next_obs), noise[0])
        next_values = values(start, TARGET, embed(start, TARGET, encode(start, TARGET, next_obs)), next_action)
        target = reward + discount * (torch.minimum(*next_values) - alpha * log_prob)
    mask = attribution_mask(start, obs, action)
    masked = torch.where(mask, obs, torch.tensor(FILL).double())
    of_obs, of_masked = (
        values(start, CRITIC, embed(start, CRITIC, encode(start, CRITIC, x)), action) for x in (obs, masked)
    )
    critic = sum(F.mse_loss(q, target) for q in of_obs)
    consistency = 0.5 * sum(F.mse_loss(q, other) for q, other in zip(of_obs, of_masked, strict=True))
    check("critic", start, critic + consistency)
    torch.testing.assert_close(metrics["loss/critic"], critic.detach(), rtol=1e-5, atol=0)
    torch.testing.assert_close(metrics["loss/consistency"], consistency.detach(), rtol=1e-5, atol=0)

    # L_pi and L_alpha, by the new critic
    w = trained(before["actor"])
    with torch.no_grad():
        features = encode(w, CRITIC, obs)
        embedding = embed(w, CRITIC, features)
    chosen, log_prob = policy(w, features, noise[1])
    check("actor", w, (alpha * log_prob - torch.minimum(*values(w, CRITIC, embedding, chosen))).mean())
    expected = alpha * (-log_prob.detach() + ACTIONS).mean()
    torch.testing.assert_close(given["temperature"]["learner.log_alpha"], expected, rtol=1e-5, atol=0)

    # L_SL, with the mask of the new critic
    w = trained(before["auxiliary"])
    logits = decode(w, embed(w, CRITIC, encode(w, CRITIC, blurred(obs, None))), action)
    mask = attribution_mask(w, obs, action)
    check("auxiliary", w, F.binary_cross_entropy_with_logits(logits, mask.double()))

    # The targets follow the critic as it was before the auxiliary step.
    for key, now in agent.state_dict().items():
        if key.startswith(TARGET):
            tau = 0.01 if "heads" in key else 0.05
            follows = before["auxiliary"][CRITIC + key.removeprefix(TARGET)]
            torch.testing.assert_close(now, (1 - tau) * before["critic"][key] + tau * follows)
