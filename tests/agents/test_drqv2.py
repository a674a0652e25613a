"""DrQ-v2 beside a second implementation with plain functions, its noise, and SGQN around it."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sgqn.agents import Phase
from sgqn.agents.schedule import LinearSchedule
from tests.agents.plain import Weights, linear, three_layers
from tests.agents.small import CRITIC_ONLY, SIZE, VALUES, batch_for, small, snapshot

BATCH, ACTIONS = VALUES["batch_size"], 2


def encode(w: Weights, obs: Tensor) -> Tensor:
    x = obs.double() / 255
    for layer in range(VALUES["encoder_layers"]):
        name = f"critic.encoder.convs.{layer}"
        x = F.conv2d(x.clamp(min=0) if layer else x, w[f"{name}.weight"], w[f"{name}.bias"], stride=1 if layer else 2)
    return x.flatten(1)


def embed(w: Weights, part: str, features: Tensor) -> Tensor:
    x = linear(w, f"{part}.projection.linear", features)
    x = (x - x.mean(1, keepdim=True)) / (x.var(1, unbiased=False, keepdim=True) + 1e-5).sqrt()
    return torch.tanh(x * w[f"{part}.projection.norm.weight"] + w[f"{part}.projection.norm.bias"])


def values(w: Weights, part: str, features: Tensor, action: Tensor) -> list[Tensor]:
    joined = torch.cat([embed(w, part, features), action], dim=1)
    return [three_layers(w, f"{part}.heads.{name}", joined)[:, 0] for name in ("q1", "q2")]


def actor(w: Weights, features: Tensor) -> Tensor:
    return torch.tanh(three_layers(w, "actor.head.layers", embed(w, "actor", features)))


def with_noise(agent: Any, *noise: Tensor) -> None:
    """The next draws, again and again."""
    coming = itertools.cycle(noise)
    agent.noise = lambda like: next(coming)


def test_a_whole_update_by_hand() -> None:
    """Losses, gradients where each optimizer gets them, targets; noise within and beyond the clip."""
    agent = small("drqv2", double=True, first_noise=0.8, last_noise=0.2, noise_steps=10, tau=0.2, update_every=1)
    agent.exploration.count.fill_(4)
    drawn = torch.Generator().manual_seed(1)
    noise = [torch.randn(BATCH, ACTIONS, generator=drawn).double() for _ in range(2)]
    assert all((one * 0.5).abs().max() > 0.3 > (one * 0.5).abs().min() for one in noise)
    with_noise(agent, *noise)
    batch = batch_for(agent)
    batch = batch._replace(reward=batch.reward.double(), action=batch.action.double())
    batch = batch._replace(discount=batch.discount.double() ** 3)
    before: dict[str, Weights] = {}
    given: dict[str, Weights] = {}
    names = {id(parameter): name for name, parameter in agent.named_parameters()}

    def watch(name: str) -> Any:
        def step(optimizer: torch.optim.Optimizer, *_: object) -> None:
            own = [p for group in optimizer.param_groups for p in group["params"]]
            given[name] = {names[id(p)]: p.grad.clone() for p in own if p.grad is not None}
            before[name] = {key: value.clone() for key, value in agent.state_dict().items()}

        return step

    for name, optimizer in agent.optimizers.items():
        optimizer.register_step_pre_hook(watch(name))
    metrics = agent.learn(batch, Phase())

    def check(optimizer: str, w: Weights, loss: Tensor) -> None:
        keys = list(given[optimizer])
        for key, expected in zip(keys, torch.autograd.grad(loss, [w[key] for key in keys]), strict=True):
            torch.testing.assert_close(given[optimizer][key], expected, rtol=1e-5, atol=1e-9, msg=f"{optimizer}, {key}")

    def trained(weights: Weights) -> Weights:
        return {key: value.clone().requires_grad_(value.is_floating_point()) for key, value in weights.items()}

    start = trained(before["critic"])
    assert {name.split(".")[0] for name in given["critic"]} == {"critic"}
    assert {name.split(".")[0] for name in given["actor"]} == {"actor"}
    with torch.no_grad():  # the target network sees the online features
        features = encode(start, batch.next_obs)
        chosen = (actor(start, features) + (noise[0] * (0.8 - 0.6 * 4 / 10)).clamp(-0.3, 0.3)).clamp(-1, 1)
        target = batch.reward + batch.discount * torch.minimum(*values(start, "target", features, chosen))
    assert target[1] == batch.reward[1]  # a terminal state
    features = encode(start, batch.obs)
    critic = sum(((q - target) ** 2).mean() for q in values(start, "critic", features, batch.action))
    assert isinstance(critic, Tensor)
    check("critic", start, critic)
    torch.testing.assert_close(metrics["loss/critic"], critic.detach(), rtol=1e-6, atol=0)

    # The actor's step: the features that the critic step started from, the heads that it left, one update later.
    w, features = trained(before["actor"]), features.detach()
    mean = actor(w, features)
    free = mean + (noise[1] * (0.8 - 0.6 * 5 / 10)).clamp(-0.3, 0.3)
    bounded = free + (free.clamp(-1, 1) - free).detach()
    of_action = values(w, "critic", features, bounded)
    check("actor", w, -torch.minimum(*of_action).mean())
    torch.testing.assert_close(metrics["loss/actor"], -torch.minimum(*of_action).mean().detach(), rtol=1e-6, atol=0)
    torch.testing.assert_close(metrics["value"], torch.stack(of_action).mean().detach(), rtol=1e-6, atol=0)
    assert metrics["noise"] == pytest.approx(0.5)

    now = agent.state_dict()
    for key, value in before["critic"].items():
        if key.startswith("target."):
            follows = now["critic." + key.removeprefix("target.")]
            torch.testing.assert_close(now[key], 0.8 * value + 0.2 * follows, msg=key)
    assert not any(key.startswith("target.encoder") for key in now)


def test_gradients_of_actions_that_saturate_pass() -> None:
    agent = small("drqv2")
    action = torch.tensor([[0.95, -0.95]], requires_grad=True)
    with_noise(agent, torch.tensor([[5.0, 5.0]]))
    noisy = agent.noisy(action, 0.3)
    torch.testing.assert_close(noisy.detach(), torch.tensor([[1.0, -0.65]]))
    assert torch.autograd.grad(noisy.sum(), action)[0].tolist() == [[1.0, 1.0]]


@pytest.mark.parametrize("name", ["drqv2", "sgdrqv2"])
def test_the_noise_falls_with_updates_and_acting_sees_it(name: str) -> None:
    agent = small(name, first_noise=0.8, last_noise=0.2, noise_steps=8, update_every=2)
    learner = getattr(agent, "learner", agent)
    obs = batch_for(agent).obs
    found = []
    for update in range(7):
        mean = agent.act(obs)
        state = agent.generator.get_state()
        drawn = torch.randn(mean.shape, generator=torch.Generator().set_state(state))
        expected = (mean + (0.8 - 0.15 * min(update, 4)) * drawn).clamp(-1, 1)  # without the clip of the losses
        torch.testing.assert_close(agent.act(obs, deterministic=False), expected)
        assert torch.equal(agent.act(obs), mean)
        assert learner.exploration.count == update
        phase = Phase() if update % 2 else CRITIC_ONLY
        found.append(agent.update(batch_for(agent, update, phase), phase).get("noise"))
    assert [float(noise) for noise in found if noise is not None] == pytest.approx([0.5, 0.2, 0.2])


def test_a_schedule_is_linear_and_stays_at_its_end() -> None:
    schedule = LinearSchedule(1.0, 0.1, 9)
    seen = []
    for _ in range(12):
        seen.append(float(schedule()))
        schedule.advance()
    assert seen == pytest.approx([1 - 0.1 * step for step in range(9)] + [0.1] * 3, abs=1e-6)
    assert schedule.state_dict().keys() == {"count"}
    restored = LinearSchedule(1.0, 0.1, 9)
    restored.load_state_dict(schedule.state_dict())
    assert restored.count.dtype == torch.int64
    assert torch.equal(restored(), schedule())


def test_it_asks_for_returns_of_three_steps_also_within_sgqn() -> None:
    for name in ("drqv2", "sgdrqv2"):
        agent = small(name)
        assert (agent.n_steps, agent.discount, *agent.intervals[:2]) == (3, 0.99, 1, 1)
    assert small("sgqn").n_steps == 1


def test_the_update_sees_shifted_images() -> None:
    agent, still = small("drqv2"), small("drqv2", shift_pad=0)
    batch = batch_for(agent)
    prepared = agent.prepare(batch)
    assert not torch.equal(prepared.obs, batch.obs)
    assert torch.equal(still.prepare(batch).obs, batch.obs)
    left, top = SIZE // 2 - 8, SIZE // 2 - 8
    middle = prepared.obs[0, :, top : top + 16, left : left + 16]
    moved = [
        batch.obs[0, :, top + y : top + y + 16, left + x : left + x + 16] for y in range(-4, 5) for x in range(-4, 5)
    ]
    assert any(torch.equal(middle, one) for one in moved)


def test_sgqn_adds_to_the_critic_loss_of_drqv2_and_does_not_change_it() -> None:
    """With no weight on the consistency, the wrapped learner takes the step that it takes alone."""
    alone, wrapped = small("drqv2"), small("sgdrqv2", consistency_weight=0.0)
    wrapped.learner.load_state_dict(alone.state_dict())
    batch = batch_for(alone)
    noise = torch.randn(BATCH, ACTIONS, generator=torch.Generator().manual_seed(3))
    with_noise(alone, noise)
    with_noise(wrapped.learner, noise)
    left, right = (agent.update(batch, CRITIC_ONLY) for agent in (alone, wrapped))
    torch.testing.assert_close(left["loss/critic"], right["loss/critic"])
    for key, value in snapshot(alone).items():
        torch.testing.assert_close(value, wrapped.learner.state_dict()[key], rtol=1e-4, atol=1e-6, msg=key)
