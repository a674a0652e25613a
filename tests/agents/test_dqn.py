"""DQN by hand: double and dueling targets, exploration, and SGQN around it."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sgqn.agents import Phase
from sgqn.networks import DuelingHead
from tests.agents.plain import Weights, linear, three_layers
from tests.agents.small import ACTIONS, CRITIC_ONLY, VALUES, batch_for, gradients, small, snapshot

BATCH = VALUES["batch_size"]


def values(w: Weights, part: str, obs: Tensor) -> Tensor:
    """Q(s, .), (B, A), with plain functions."""
    x = obs.double() / 255
    for layer in range(VALUES["encoder_layers"]):
        name = f"{part}.encoder.convs.{layer}"
        x = F.conv2d(x.clamp(min=0) if layer else x, w[f"{name}.weight"], w[f"{name}.bias"], stride=1 if layer else 2)
    x = linear(w, f"{part}.projection.linear", x.flatten(1))
    norm = f"{part}.projection.norm"
    x = torch.tanh(F.layer_norm(x, x.shape[1:], w[f"{norm}.weight"], w[f"{norm}.bias"]))
    value, advantage = (three_layers(w, f"{part}.head.{name}", x) for name in ("value", "advantage"))
    return value + advantage - advantage.sum(1, keepdim=True) / ACTIONS


def test_loss_gradient_and_targets_by_hand() -> None:
    agent = small("dqn", double=True, tau=0.2)
    with torch.no_grad():  # so that online and target networks prefer different actions somewhere
        for parameter in agent.target.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(5)))
    batch = batch_for(agent)
    batch = batch._replace(reward=batch.reward.double(), discount=batch.discount.double() ** 3)
    before = {key: value.clone() for key, value in agent.state_dict().items()}
    w = {key: value.clone().requires_grad_(value.is_floating_point()) for key, value in before.items()}
    rows = torch.arange(BATCH)
    with torch.no_grad():
        online, target = (values(w, part, batch.next_obs) for part in ("critic", "target"))
        assert not torch.equal(online.argmax(1), target.argmax(1))
        expected = batch.reward + batch.discount * target[rows, online.argmax(1)]
    assert expected[1] == batch.reward[1]  # a terminal state
    loss = ((values(w, "critic", batch.obs)[rows, batch.action] - expected) ** 2).mean()
    names = [name for name, _ in agent.critic.named_parameters()]
    by_hand = torch.autograd.grad(loss, [w[f"critic.{name}"] for name in names])
    metrics = agent.learn(batch, Phase())
    torch.testing.assert_close(metrics["loss/critic"], loss.detach(), rtol=1e-6, atol=0)
    given = gradients(agent.critic)
    for name, gradient in zip(names, by_hand, strict=True):
        torch.testing.assert_close(given[name], gradient, rtol=1e-5, atol=1e-9, msg=name)
    now = agent.state_dict()
    for key in (key for key in now if key.startswith("target.")):
        follows = now[key.replace("target.", "critic.", 1)]
        torch.testing.assert_close(now[key], 0.8 * before[key] + 0.2 * follows, msg=key)


def test_advantages_have_no_mean() -> None:
    head = DuelingHead(5, 8, 16)
    embedding = torch.randn(7, 8)
    with torch.no_grad():
        head.advantage[4].bias.add_(torch.arange(5.0))
        torch.testing.assert_close(head(embedding).mean(1), head.value(embedding)[:, 0])
        assert head(embedding).argmax(1).tolist() == head.advantage(embedding).argmax(1).tolist()
        with torch.autocast("cpu", torch.bfloat16):
            torch.testing.assert_close(head(embedding.bfloat16()), head(embedding.bfloat16().float()))
            assert head(embedding.bfloat16()).dtype == torch.float32


@pytest.mark.parametrize("name", ["dqn", "sgdqn"])
def test_epsilon_falls_with_updates_and_acting_sees_it(name: str) -> None:
    agent = small(name, first_epsilon=1.0, last_epsilon=0.1, epsilon_steps=3)
    obs = batch_for(agent).obs[:1].expand(1000, -1, -1, -1)
    best = agent.act(obs)
    assert len(best.unique()) == 1
    for update, epsilon in enumerate([1.0, 0.7, 0.4, 0.1, 0.1]):
        best = agent.act(obs)
        drawn = torch.Generator().set_state(agent.generator.get_state())
        explores = torch.rand(1000, generator=drawn) < epsilon
        other = torch.randint(ACTIONS, (1000,), generator=drawn)
        acted = agent.act(obs, deterministic=False)
        assert torch.equal(acted, torch.where(explores, other, best))
        assert (acted != best).float().mean() == pytest.approx(epsilon / 2, abs=0.05)
        metrics = agent.update(batch_for(agent, update, CRITIC_ONLY), CRITIC_ONLY)
        assert metrics["epsilon"] == pytest.approx([0.7, 0.4, 0.1, 0.1, 0.1][update], abs=1e-6)


def test_sgqn_adds_to_the_critic_loss_of_dqn_and_does_not_change_it() -> None:
    """With no weight on the consistency, the wrapped learner takes the step that it takes alone."""
    alone, wrapped = small("dqn"), small("sgdqn", consistency_weight=0.0)
    assert (alone.n_steps, wrapped.n_steps) == (3, 3)
    wrapped.learner.load_state_dict(alone.state_dict())
    batch = batch_for(alone)
    left, right = (agent.update(batch, CRITIC_ONLY) for agent in (alone, wrapped))
    torch.testing.assert_close(left["loss/critic"], right["loss/critic"])
    for key, value in snapshot(alone).items():
        torch.testing.assert_close(value, wrapped.learner.state_dict()[key], rtol=1e-4, atol=1e-6, msg=key)
