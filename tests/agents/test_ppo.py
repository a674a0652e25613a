"""PPO against torch.distributions and the formulas; alone and inside SGQN."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.distributions import Categorical, Normal

import sgqn
from sgqn import run_folder, training
from sgqn.agents import Phase, Spec, build_agent, make_settings
from sgqn.agents.ppo import PPO, PPOSettings, clipped_policy_loss
from sgqn.attribution import guided_backprop, quantile_mask
from sgqn.augmentations import random_conv
from sgqn.config import TrainConfig, preset, settings_for
from sgqn.envs.families import _families
from sgqn.losses import consistency_loss
from sgqn.rollout import RolloutBatch
from tests.helpers import same_weights, stopped_and_resumed

SMALL: dict[str, Any] = {"encoder_layers": 2, "encoder_filters": 8, "embedding_dim": 16, "hidden_dim": 32}


def agent_of(discrete: bool, **settings: Any) -> PPO:
    spec = Spec(3, channels=3, image_size=24, render_size=24, discrete=discrete)
    agent = build_agent("ppo", spec, PPOSettings(**{**SMALL, "batch_size": 8, **settings}), seed=0)
    with torch.no_grad():
        for parameter in agent.parameters():
            parameter.add_(0.05 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    return agent


def batch_of(agent: PPO, seed: int = 0, count: int = 8) -> RolloutBatch:
    drawn = torch.Generator().manual_seed(seed)
    obs = torch.randint(0, 256, (count, 3, 24, 24), dtype=torch.uint8, generator=drawn)
    action = torch.randint(3, (count,), generator=drawn)
    if not agent.spec.discrete:
        action = torch.randn(count, 3, generator=drawn)
    numbers = torch.randn(3, count, generator=drawn)
    return RolloutBatch(obs, action, numbers[0] / 10 - 1, numbers[1], numbers[2])


@pytest.mark.parametrize("discrete", [True, False])
def test_probabilities_and_entropies_are_torchs(discrete: bool) -> None:
    agent = agent_of(discrete)
    batch = batch_of(agent)
    embedding = agent.embed(agent.encode(batch.obs))
    log_prob, entropy = agent.log_prob(embedding, batch.action)
    outputs = agent.actor(embedding)
    if discrete:
        oracle: Any = Categorical(logits=outputs)
        expected, uncertain = oracle.log_prob(batch.action), oracle.entropy()
    else:
        oracle = Normal(outputs, agent.log_std.exp().expand_as(outputs))
        expected, uncertain = oracle.log_prob(batch.action).sum(1), oracle.entropy().sum(1)
    torch.testing.assert_close(log_prob, expected)
    torch.testing.assert_close(entropy, uncertain)
    judged, value = agent.judge(batch.obs, batch.action)
    torch.testing.assert_close(judged, expected.detach())
    torch.testing.assert_close(value, agent.value(batch.obs, batch.action).detach())


def test_the_clipped_objective_by_hand() -> None:
    ratio, advantage = torch.tensor([0.5, 1.0, 1.5, 2.0]), torch.tensor([-1.0, 1.0, 1.0, -1.0])
    normalized = advantage / advantage.std()  # their mean is 0
    terms = [-0.8, 1.0, 1.2, -2.0]  # clipped where that is worse, at 0.2
    expected = -sum(t * float(normalized[1]) for t in terms) / 4
    found = clipped_policy_loss(ratio.log(), torch.zeros(4), advantage, 0.2)
    assert float(found) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("discrete", [True, False])
def test_the_first_update_follows_the_policy_gradient(discrete: bool) -> None:
    """Where old and new policy are the same, the objective's gradient is that of -E[A log pi]."""
    agent = agent_of(discrete, entropy_weight=0.0, value_weight=0.0)
    batch = batch_of(agent)
    batch = batch._replace(log_prob=agent.judge(batch.obs, batch.action)[0])
    values = agent.values(agent.encode(batch.obs), batch.action)
    found = torch.autograd.grad(sum(agent.critic_losses(batch, values).values()), list(agent.actor.parameters()))
    log_prob, _ = agent.log_prob(agent.embed(agent.encode(batch.obs)), batch.action)
    advantage = (batch.advantage - batch.advantage.mean()) / batch.advantage.std()
    expected = torch.autograd.grad(-(advantage * log_prob).mean(), list(agent.actor.parameters()))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-4)


def test_gradients_are_clipped_to_the_norm() -> None:
    agent = agent_of(True, max_grad_norm=1e-3)
    metrics = agent.update(batch_of(agent))
    assert float(metrics["gradient_norm"]) > 1e-3
    total = torch.stack([p.grad.norm() for p in agent.parameters() if p.grad is not None]).norm()
    assert float(total) <= 1e-3 * 1.001


@pytest.mark.parametrize("discrete", [True, False])
def test_it_learns_which_action_pays(discrete: bool) -> None:
    """A bandit with two images: the paid action depends on the image."""
    agent = agent_of(discrete, batch_size=64, learning_rate=3e-3)
    drawn = torch.Generator().manual_seed(0)

    def play(count: int, deterministic: bool) -> tuple[Tensor, Tensor, Tensor]:
        bright = torch.rand(count, generator=drawn) < 0.5
        obs = torch.zeros(count, 3, 24, 24, dtype=torch.uint8)
        obs[bright, :, :12] = 200
        with torch.no_grad():
            action = agent.policy(obs, deterministic)
        paid = (action == bright.long()) if discrete else (action[:, 0] > 0.3) == bright
        return obs, action, paid.float()

    before = play(200, True)[2].mean()
    for _ in range(40):
        obs, action, reward = play(64, False)
        log_prob, value = agent.judge(obs, action)
        for _ in range(4):
            agent.update(RolloutBatch(obs, action, log_prob, reward - value, reward))
    assert play(200, True)[2].mean() > max(0.9, float(before))


@pytest.fixture
def push(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.envs import example_families  # registers its families: only for this test

    monkeypatch.setitem(_families, "push", example_families.Push())


def config_of(agent: str, task: str, **changes: Any) -> TrainConfig:
    values = {**SMALL, "decoder_filters": (4, 4), "batch_size": 8, "rollout_steps": 6, "epochs": 2}
    tiny = replace(preset("tiny", task, agent), settings=settings_for(agent, task, **values), image_size=24)
    options = {"steps": 60, "num_envs": 2, "log_every": 10, "evaluate_every": 0, "images_every": 20}
    return replace(tiny, **{**options, "checkpoint_every": 20, "overlay_images": 16, "renderer": "warp", **changes})


@pytest.mark.usefixtures("push")
@pytest.mark.parametrize(
    ("agent", "task"), [("ppo", "push-right"), ("sgppo", "push-right"), ("sgppo", "cartpole-swingup")]
)
def test_runs_resume_bit_for_bit_and_play(
    agent: str, task: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(agent, task, **({} if task == "push-right" else {"action_repeat": 50}))
    whole = training.train(config, tmp_path / "whole", progress=False)
    assert same_weights(whole, stopped_and_resumed(config, tmp_path / "parts", monkeypatch))
    lines = list(run_folder.read_lines(whole / run_folder.METRICS))
    assert lines[-1]["updates"] == 4 * 2 * 1  # of four rollouts; the fifth is full when the run ends
    assert all(np.isfinite(line["loss/policy"]) for line in lines if "loss/policy" in line)
    loaded = sgqn.load_agent(whole)
    scores = sgqn.evaluate(loaded, task, episodes=2, renderer="warp", num_workers=0)
    assert scores.episodes == 2
    assert loaded.predicts_masks == (agent == "sgppo")


def test_sgqn_adds_its_losses_to_ppos_step_and_predicts_the_mask_of_the_value() -> None:
    """The parameters after a step are those of a plain step down PPO's losses and the consistency loss."""
    settings = make_settings(
        "sgppo", **SMALL, batch_size=8, mask_fill="zero", decoder_filters=(4, 4), max_grad_norm=1e9
    )
    spec = Spec(3, channels=3, image_size=24, render_size=24, discrete=True)
    agent, twin = (build_agent("sgppo", spec, settings, partial(random_conv), seed=0) for _ in range(2))
    batch = batch_of(agent.learner)
    metrics = agent.learn(batch, Phase(actor=False, targets=False, auxiliary=False))
    learner = twin.learner
    mask = quantile_mask(guided_backprop(twin.value, batch.obs, batch.action), settings.rho)
    values = learner.values(learner.encode(batch.obs), batch.action)
    masked = learner.values(learner.encode(batch.obs * mask), batch.action)
    losses = learner.critic_losses(batch, values)
    losses["consistency"] = settings.consistency_weight * consistency_loss(values, masked)
    torch.autograd.backward(list(losses.values()), inputs=list(learner.parameters()))
    learner.optimizers["critic"].step()
    for one, other in zip(agent.learner.parameters(), learner.parameters(), strict=True):
        torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-4)
    for name, loss in losses.items():
        assert float(metrics[f"loss/{name}"]) == pytest.approx(float(loss.detach()), rel=1e-4, abs=1e-8)
    assert "loss/mask" in agent.learn(batch, Phase())
    assert agent.predict_mask(batch.obs, batch.action).shape == batch.obs.shape


def test_attributions_explain_the_state_value() -> None:
    agent = agent_of(True)
    batch = batch_of(agent)
    other = batch.action.roll(1)
    assert torch.equal(agent.value(batch.obs, batch.action), agent.value(batch.obs, other))
    assert agent.learn(batch, Phase()).keys() == {"loss/policy", "loss/value", "loss/entropy", "gradient_norm"}


@pytest.mark.parametrize("target", ["value", "log_prob"])
def test_the_target_of_sgppos_attribution(target: str) -> None:
    settings = make_settings("sgppo", **SMALL, batch_size=8, decoder_filters=(4, 4), attribution_target=target)
    spec = Spec(3, channels=3, image_size=24, render_size=24, discrete=True)
    agent = build_agent("sgppo", spec, settings, random_conv, seed=0)
    obs, action = batch_of(agent.learner)[:2]
    log_prob, value = agent.learner.judge(obs, action)
    torch.testing.assert_close(agent.value(obs, action), value if target == "value" else log_prob)
    assert np.isfinite(float(agent.learn(batch_of(agent.learner), Phase())["loss/mask"]))
