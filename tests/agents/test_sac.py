"""SAC against a second one, written out in plain torch on a dictionary of weights."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sgqn.agents import Phase
from sgqn.agents.sac import SACSettings
from sgqn.errors import InvalidValueError
from tests.agents.small import ACTIONS, CRITIC_ONLY, SETTINGS, batch_for, same, small, snapshot

ENCODER_TAU, HEADS_TAU = 0.05, 0.01


class PlainSAC:
    """The update as the papers write it: forward passes by hand, Adam by hand, one parameter at a time."""

    def __init__(self, weights: dict[str, Tensor], seed: int):
        self.w = {name: value.double().clone() for name, value in weights.items()}
        self.generator = torch.Generator().manual_seed(seed)
        self.moments: dict[tuple[str, str], tuple[Tensor, Tensor, int]] = {}

    def features(self, critic: str, obs: Tensor) -> Tensor:
        x = obs.double() / 255
        for layer in range(SETTINGS.encoder_layers):
            prefix = f"{critic}.encoder.convs.{layer}"
            x = x.clamp(min=0) if layer else x
            x = F.conv2d(x, self.w[f"{prefix}.weight"], self.w[f"{prefix}.bias"], stride=1 if layer else 2)
        return x.reshape(len(obs), -1)

    def project(self, prefix: str, x: Tensor) -> Tensor:
        x = x @ self.w[f"{prefix}.projection.linear.weight"].T + self.w[f"{prefix}.projection.linear.bias"]
        x = (x - x.mean(1, keepdim=True)) / (x.var(1, unbiased=False, keepdim=True) + 1e-5).sqrt()
        return torch.tanh(x * self.w[f"{prefix}.projection.norm.weight"] + self.w[f"{prefix}.projection.norm.bias"])

    def mlp(self, prefix: str, x: Tensor) -> Tensor:
        for layer in (0, 2, 4):
            x = x.clamp(min=0) if layer else x
            x = x @ self.w[f"{prefix}.{layer}.weight"].T + self.w[f"{prefix}.{layer}.bias"]
        return x

    def q(self, critic: str, features: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        x = torch.cat([self.project(critic, features), action.double()], 1)
        return self.mlp(f"{critic}.heads.q1", x)[:, 0], self.mlp(f"{critic}.heads.q2", x)[:, 0]

    def policy(self, features: Tensor) -> tuple[Tensor, Tensor]:
        mu, log_std = self.mlp("actor.head.layers", self.project("actor", features)).chunk(2, 1)
        std = (-10 + 6 * (torch.tanh(log_std) + 1)).exp()
        u = mu + std * torch.randn(mu.shape, generator=self.generator)
        log_normal = -((u - mu) ** 2) / (2 * std**2) - std.log() - 0.5 * math.log(2 * math.pi)
        return torch.tanh(u), (log_normal - (1 - torch.tanh(u) ** 2).log()).sum(1)

    def losses(self, obs, action, reward, discount, next_obs):
        with torch.no_grad():
            next_action, next_log_pi = self.policy(self.features("critic", next_obs))
            q1, q2 = self.q("target", self.features("target", next_obs), next_action)
            y = reward.double() + discount.double() * (
                torch.where(q1 < q2, q1, q2) - self.w["log_alpha"].exp() * next_log_pi
            )
        q1, q2 = self.q("critic", self.features("critic", obs), action)
        return y, ((q1 - y) ** 2).mean() + ((q2 - y) ** 2).mean()

    def actor_losses(self, obs):
        features = self.features("critic", obs).detach()
        action, log_pi = self.policy(features)
        q1, q2 = self.q("critic", features, action)
        alpha = self.w["log_alpha"].exp()
        actor = (alpha.detach() * log_pi - torch.where(q1 < q2, q1, q2)).mean()
        return actor, (alpha * (-log_pi.detach() + ACTIONS)).mean()

    def names(self, prefix: str) -> list[str]:
        return [name for name in self.w if name.startswith(prefix)]

    def adam(self, optimizer: str, prefix: str, loss: Tensor, rate: float, beta: float = 0.9) -> None:
        names = self.names(prefix)
        for name, g in zip(names, torch.autograd.grad(loss, [self.w[n] for n in names]), strict=True):
            m, v, t = self.moments.get((optimizer, name), (torch.zeros_like(g), torch.zeros_like(g), 0))
            m, v, t = beta * m + (1 - beta) * g, 0.999 * v + 0.001 * g**2, t + 1
            self.moments[optimizer, name] = m, v, t
            step = rate * (m / (1 - beta**t)) / ((v / (1 - 0.999**t)).sqrt() + 1e-8)
            self.w[name] = (self.w[name] - step).detach()

    def require(self, prefix: str) -> None:
        for name in self.names(prefix):
            self.w[name].requires_grad_()

    def update(self, batch, phase: Phase) -> dict[str, Tensor]:
        self.require("critic.")
        _, critic = self.losses(*batch)
        self.adam("critic", "critic.", critic, rate=1e-3)
        metrics = {"loss/critic": critic}
        if phase.actor:
            self.require("actor.")
            self.require("log_alpha")
            actor, temperature = self.actor_losses(batch.obs)
            self.adam("actor", "actor.", actor, rate=1e-3)
            self.adam("temperature", "log_alpha", temperature, rate=1e-4, beta=0.5)
            metrics |= {"loss/actor": actor, "loss/temperature": temperature}
        if phase.targets:
            for name in self.names("target."):
                tau = HEADS_TAU if ".heads." in name else ENCODER_TAU
                online = self.w[name.replace("target.", "critic.", 1)]
                self.w[name] = ((1 - tau) * self.w[name] + tau * online).detach()
        return metrics


def test_td_target_and_critic_loss_by_hand():
    agent = small("sac", double=True)
    batch = batch_for(agent)
    plain = PlainSAC(snapshot(agent), seed=0)
    y, loss = plain.losses(*batch)
    torch.testing.assert_close(agent.td_target(batch), y, rtol=1e-7, atol=1e-7)
    agent.generator.manual_seed(0)
    values = agent.values(agent.encode(batch.obs), batch.action)
    torch.testing.assert_close(agent.critic_losses(batch, values)["critic"], loss, rtol=1e-7, atol=1e-7)
    # A terminal state is worth its reward alone.
    assert batch.discount[1] == 0
    np.testing.assert_allclose(y[1], batch.reward[1], rtol=1e-6)
    assert (y - batch.reward)[0].abs() > 1e-3


def test_actor_and_temperature_loss_by_hand():
    agent = small("sac", double=True)
    batch = batch_for(agent)
    plain = PlainSAC(snapshot(agent), seed=0)
    actor, temperature = plain.actor_losses(batch.obs)
    metrics = agent.actor_step(agent.actor_features(batch.obs))
    torch.testing.assert_close(metrics["loss/actor"], actor, rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(metrics["loss/temperature"], temperature, rtol=1e-8, atol=1e-8)


def test_updates_equal_an_independent_sac():
    """Weights after Adam's steps, over a schedule with every phase on and off."""
    agent = small("sac", double=True)
    plain = PlainSAC(snapshot(agent), seed=0)
    for step, phase in enumerate([Phase(), CRITIC_ONLY, Phase(targets=False), Phase(actor=False)]):
        batch = batch_for(agent, seed=step)
        theirs, ours = plain.update(batch, phase), agent.update(batch, phase)
        for name, value in theirs.items():
            torch.testing.assert_close(ours[name], value.detach(), rtol=1e-6, atol=1e-8, msg=f"{name} at {step}")
    start = snapshot(small("sac", double=True))
    for name, value in agent.state_dict().items():
        torch.testing.assert_close(value, plain.w[name].detach(), rtol=1e-6, atol=1e-8, msg=name)
        assert not torch.equal(value, start[name]), f"{name} never moved"


@pytest.mark.parametrize("name", ["sac", "svea", "sgqn"])
def test_targets_move_by_exactly_tau_and_only_when_told(name):
    agent = small(name)
    learner = agent if name != "sgqn" else agent.learner
    before = snapshot(learner.target)
    agent.update(batch_for(agent), Phase(targets=False))
    assert same(snapshot(learner.target), before)
    # The targets move after the critic's step and before the auxiliary one.
    agent.update(batch_for(agent), Phase(auxiliary=False))
    online = snapshot(learner.critic)
    for key, value in learner.target.state_dict().items():
        tau = HEADS_TAU if key.startswith("heads") else ENCODER_TAU
        torch.testing.assert_close(value, before[key] + tau * (online[key] - before[key]), rtol=1e-6, atol=1e-7)


def test_the_actor_leaves_the_convolutions_alone_unless_asked():
    for trains in (False, True):
        agent = small("sac", actor_trains_encoder=trains)
        batch = batch_for(agent)
        critic = snapshot(agent.critic)
        agent.actor_step(agent.actor_features(batch.obs))
        moved = {
            key.split(".")[0] for key, value in agent.critic.state_dict().items() if not torch.equal(value, critic[key])
        }
        assert moved == ({"encoder"} if trains else set())


def test_temperature_stays_above_its_lower_bound():
    """It may rise again at once: the bound does not only hide a temperature that has fallen further."""
    agent = small("sac", perturb=False, initial_temperature=0.5, lowest_temperature=0.4, temperature_learning_rate=0.1)
    batch = batch_for(agent)
    found = [float(agent.update(batch)["temperature"]) for _ in range(8)]
    assert min(found) == found[-1] == pytest.approx(0.4)
    agent.target_entropy = 100.0
    assert [float(agent.update(batch)["temperature"]) for _ in range(12)][-1] > 0.41
    with pytest.raises(InvalidValueError, match=r"at most initial_temperature \(0\.1\), not 0\.2"):
        SACSettings(lowest_temperature=0.2)


def test_temperature_falls_while_entropy_exceeds_the_target():
    agent = small("sac", perturb=False, initial_temperature=0.5)
    agent.target_entropy = -1e3
    metrics = agent.update(batch_for(agent))
    assert metrics["temperature"] < 0.5
    assert metrics["entropy"] > agent.target_entropy
    agent.target_entropy = 1e3
    before = agent.alpha.item()
    agent.update(batch_for(agent))
    agent.update(batch_for(agent))
    assert agent.alpha.item() > before


def test_learning_rates_of_projections_and_their_warmup():
    """The first step of Adam moves each weight by its learning rate, if its gradient is not tiny."""
    moved = {}
    for warmup, rate in ((0, 1.0), (10, 1.0), (10, 0.25)):
        agent = small("sgqn", learning_rate=1e-3, learning_rate_warmup=warmup, projection_rate=rate)
        before = snapshot(agent.learner)
        agent.update(batch_for(agent), Phase(auxiliary=False))
        for part in ("critic", "actor"):
            for name in ("projection.linear.weight", "projection.norm.weight"):
                now = agent.learner.get_submodule(part).state_dict()[name]
                moved[warmup, rate, f"{part}.{name}"] = (now - before[f"{part}.{name}"]).abs().max().item()
    for (warmup, rate, name), most in moved.items():
        expected = 1e-3 * (0.1 if warmup else 1) * (rate if "linear" in name else 1)
        assert most == pytest.approx(expected, rel=0.02), (warmup, rate, name)
