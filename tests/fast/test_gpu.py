"""The fused kernels on the GPU that they are written for, at the paper's sizes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sgqn import attribution
from sgqn.agents import AGENTS, Agent, Phase, Spec, build_agent
from sgqn.augmentations import random_conv
from sgqn.fast import encoder, switch
from sgqn.fast.backend import FastBackend
from sgqn.networks import Encoder
from sgqn.replay import Batch
from sgqn.rollout import RolloutBatch
from sgqn.runner import choose_backend
from tests.agents.small import settings_of
from tests.fast.oracles import carry_back, convolve, cosine, shaken

BATCH, ACTIONS = 16, 6
hopper = torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not hopper, reason="needs a GPU of compute capability 9.0")]


@pytest.fixture(autouse=True)
def whole_float32() -> Iterator[None]:
    """Plain products in float32, not in TF32."""
    places = (torch.backends.cudnn, torch.backends.cuda.matmul)
    before = [place.allow_tf32 for place in places]
    for place in places:
        place.allow_tf32 = False
    yield
    for place, value in zip(places, before, strict=True):
        place.allow_tf32 = value


def smooth(count: int, channels: int, size: int, spots: int, seed: int) -> Tensor:
    """In [0, 1], with large spots, as images have them."""
    drawn = torch.Generator().manual_seed(seed)
    noise = torch.rand(count, channels, spots, spots, generator=drawn)
    return F.interpolate(noise, size=(size, size), mode="bilinear").cuda()


def images(count: int, size: int, seed: int, channels: int = 9) -> Tensor:
    return (255 * smooth(count, channels, size, 12, seed)).byte()


def update(name: str, path: FastBackend, channels: int) -> dict[str, Tensor]:
    """The losses of a new agent's first update."""
    discrete = not AGENTS[name].takes(discrete=False)
    spec = Spec(ACTIONS, channels, render_size=100 if AGENTS[name].crops else 84, discrete=discrete)
    settings = settings_of(name, batch_size=BATCH, soda_batch_size=BATCH)
    agent: Agent = build_agent(name, spec, settings, random_conv, seed=0, device="cuda")
    shaken(agent, 0.01)
    drawn, count = torch.Generator().manual_seed(0), agent.sample_size(Phase())
    action, reward = 2 * torch.rand(count, ACTIONS, generator=drawn) - 1, torch.rand(count, generator=drawn)
    if discrete:
        action = torch.arange(count) % ACTIONS
    obs, next_obs = (images(count, spec.render_size, seed, channels) for seed in (0, 1))
    batch: Batch | RolloutBatch
    if AGENTS[name].experience is None:
        batch = Batch(obs, action.cuda(), reward.cuda(), torch.full((count,), 0.99).cuda(), next_obs)
    else:
        with torch.no_grad():
            log_prob, _ = getattr(agent, "learner", agent).judge(obs, action.cuda())
        batch = RolloutBatch(obs, action.cuda(), log_prob, reward.cuda() - 0.5, reward.cuda())
    with path.active():
        metrics = agent.update(batch, Phase())
    return {key: value.float() for key, value in metrics.items() if key.startswith("loss/")}


@pytest.mark.parametrize("channels", [3, 9])
@pytest.mark.parametrize("name", sorted(AGENTS))
def test_an_update_by_kernels_has_the_plain_ones_losses(name: str, channels: int) -> None:
    plain = update(name, choose_backend("cuda", "eager", "fp32"), channels)
    fused = update(name, choose_backend("cuda", "kernels"), channels)
    assert plain
    assert fused.keys() == plain.keys()
    for key, value in plain.items():
        torch.testing.assert_close(fused[key], value, rtol=0.1, atol=0.02, msg=lambda text, key=key: f"{key}: {text}")


@pytest.mark.parametrize(("batch", "channels"), [(BATCH, 9), (128, 9), (128, 6), (128, 3)])
@pytest.mark.parametrize("guided", [False, True])
def test_the_fused_encoder_is_the_rounded_oracle(batch: int, channels: int, guided: bool) -> None:
    """Features and gradients beside plain convolutions that round to bf16 at the same places: far closer to those than
    to single precision, from which bf16 is away by up to a hundredth of a cosine."""
    net, obs = shaken(Encoder(channels).cuda()), images(batch, 84, 0, channels)
    towards = (2 * smooth(batch, 32, 21, 5, 1) - 1).bfloat16()
    x = attribution.differentiable(obs)
    with switch.kernels(), attribution.switchable_relu():
        assert encoder.fits(net.convs, obs)
        features = net(x)
    with attribution.guided() if guided else nullcontext():
        (of_x,) = torch.autograd.grad(features, x, towards, retain_graph=True)
    levels = convolve(obs, net.convs)
    expected_of_x, expected = carry_back(levels, net.convs, towards, guided)
    assert cosine(features, levels[-1]) > 0.99999
    assert cosine(of_x, expected_of_x) > 0.9995
    if not guided:
        for own, of_parameter in zip(
            torch.autograd.grad(features, list(net.parameters()), towards), expected, strict=True
        ):
            assert cosine(own, of_parameter) > 0.9998
