"""Collecting and learning apart: discrete actions, and a learner that is on policy."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import sgqn
from sgqn import run_folder, training
from sgqn.agents import AGENTS, Agent, AgentEntry, Phase, Spec
from sgqn.agents.base import Metrics, adam
from sgqn.agents.drq import DrQSettings
from sgqn.agents.sgqn import SGQN, SGQNSettings
from sgqn.config import TrainConfig, preset, settings_for
from sgqn.envs.families import _families
from sgqn.replay import Batch
from tests.agents.discrete import TinyDQN
from tests.envs import example_families
from tests.helpers import same_weights, stopped_and_resumed

TASK = "push-right"
SMALL: dict[str, Any] = {"encoder_layers": 2, "encoder_filters": 4, "embedding_dim": 8, "batch_size": 8}


@pytest.fixture(autouse=True)
def _registered(monkeypatch: pytest.MonkeyPatch) -> None:
    """A family with discrete actions, and two agents for it."""
    monkeypatch.setitem(_families, "push", example_families.Push())
    agents = {
        "discrete": AgentEntry(lambda spec, s, augmentation: SGQN(TinyDQN(spec, s), s, augmentation), SGQNSettings),
        "on_policy": AgentEntry(lambda spec, s, _: Reinforce(spec), DrQSettings, augments=False, experience=Rollouts),
    }
    for name, entry in agents.items():
        monkeypatch.setitem(AGENTS._things, name, entry)
        monkeypatch.setitem(AGENTS._origins, name, "sgqn.tests")


def config_of(agent: str, **changes: Any) -> TrainConfig:
    values = {**SMALL, "decoder_filters": (4, 4)}
    tiny = replace(preset("tiny", TASK, agent), settings=settings_for(agent, TASK, **values), image_size=24)
    options = {"steps": 60, "warmup_steps": 16, "num_envs": 2, "log_every": 10, "evaluate_every": 0, "images_every": 20}
    return replace(tiny, **{**options, "checkpoint_every": 20, "overlay_images": 16, "renderer": "warp", **changes})


@pytest.mark.parametrize("agent", ["discrete", "dqn", "sgdqn"])
def test_discrete_actions_train_resume_and_evaluate(
    agent: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(agent)
    whole = training.train(config, tmp_path / "whole", progress=False)
    assert same_weights(whole, stopped_and_resumed(config, tmp_path / "parts", monkeypatch))
    lines = list(run_folder.read_lines(whole / run_folder.METRICS))
    loss = "loss/critic" if agent == "dqn" else "loss/mask"
    assert all(np.isfinite(line[loss]) for line in lines if line["updates"])
    loaded = sgqn.load_agent(whole)
    assert loaded.spec == Spec(3, 6, 24, 24, discrete=True)
    scores = sgqn.evaluate(loaded, TASK, shift="other", episodes=2, renderer="warp", num_workers=0)
    assert scores.episodes == 2
    with pytest.raises(sgqn.InvalidValueError, match="one of 3 discrete actions: cartpole-swingup takes actions of 1"):
        sgqn.evaluate(loaded, "cartpole-swingup", episodes=1, renderer="warp", num_workers=0)
    left, right = (
        sgqn.evaluate(lambda obs, push=push: np.full(len(obs), push), TASK, episodes=2, renderer="warp", frame_stack=2)
        for push in (0, 2)
    )
    assert left.mean < right.mean


def test_the_replay_samples_as_many_steps_as_the_agent_asks_for(tmp_path: Path) -> None:
    config = config_of("sgdqn", settings=settings_for("sgdqn", TASK, **SMALL, decoder_filters=(4, 4), n_steps=4))
    trainer = training.Trainer(config, tmp_path, progress=False)
    try:
        obs, _ = trainer.envs.reset(seed=0)
        trainer.experience.start(obs)
        for step in range(5):
            action = torch.full((2,), step % 3)
            trainer.experience.add(action, np.array([1.0, 2.0]), obs, np.zeros(2, bool), np.zeros(2, bool), None)
    finally:
        trainer.close()
    replay = trainer.experience.replay
    assert replay.n_steps == 4
    batch = replay.gather(torch.tensor([0, 1, 6]))
    whole = 1 + 0.99 + 0.99**2 + 0.99**3
    torch.testing.assert_close(batch.reward, torch.tensor([whole, 2 * whole, 1 + 0.99]))
    torch.testing.assert_close(batch.discount, torch.tensor([0.99**4, 0.99**4, 0.99**2]))
    assert batch.action.tolist() == [0, 0, 0]


@pytest.mark.parametrize(("num_envs", "update_every"), [(2, 4), (2, 3), (6, 4)])
def test_an_update_every_few_steps(
    num_envs: int, update_every: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {**SMALL, "decoder_filters": (4, 4), "update_every": update_every, "epsilon_steps": 40}
    config = config_of("sgdqn", num_envs=num_envs, settings=settings_for("sgdqn", TASK, **values))
    whole = training.train(config, tmp_path / "whole", progress=False)
    lines = list(run_folder.read_lines(whole / run_folder.METRICS))
    for line in lines:  # those of the last iteration run while the environments make the next step
        late = line["step"] // update_every - line["updates"] if line["step"] >= config.warmup_steps else 0
        assert 0 <= late <= -(-num_envs // update_every)
    assert lines[-1]["epsilon"] == pytest.approx(0.05, abs=0.01)  # after 40 agent steps, however many updates they are
    assert same_weights(whole, stopped_and_resumed(config, tmp_path / "parts", monkeypatch))


@pytest.mark.parametrize("agent", ["sac", "drqv2"])
def test_a_task_with_discrete_actions_refuses_agents_without_and_nothing_is_written(agent: str, tmp_path: Path) -> None:
    expected = f"agent '{agent}' has continuous actions only, not one of 3 discrete actions: use one of discrete, dqn, "
    with pytest.raises(sgqn.InvalidValueError, match=expected):
        training.train(config_of(agent), tmp_path, progress=False)
    assert not list(tmp_path.iterdir())


class Reinforce(Agent):
    """A linear policy that follows the gradient of reward times log-probability."""

    def __init__(self, spec: Spec):
        super().__init__(spec, batch_size=6)
        self.head = nn.Linear(spec.channels * spec.image_size**2, spec.action_dim)

    def make_optimizers(self) -> None:
        self.optimizers["policy"] = adam(self.parameters(), 1e-3)

    def learn(self, batch: Batch, phase: Phase = Phase()) -> Metrics:  # noqa: B008
        log_pi = self.logits(batch.obs).log_softmax(1).gather(1, batch.action[:, None])[:, 0]
        loss = -(batch.reward * log_pi).mean()
        self.optimizers["policy"].zero_grad()
        loss.backward()
        self.optimizers["policy"].step()
        return {"loss/policy": loss.detach()}

    def policy(self, obs: Tensor, deterministic: bool) -> Tensor:
        logits = self.logits(obs)
        if deterministic:
            return logits.argmax(1)
        return torch.multinomial(logits.softmax(1), 1, generator=self.generator)[:, 0]

    def logits(self, obs: Tensor) -> Tensor:
        return self.head(obs.flatten(1).float() / 255)


class Rollouts:
    """Six steps of every environment by the current policy, then two updates on them; then new ones."""

    overlaps = False
    LENGTH, UPDATES = 6, 2

    def __init__(self, config: TrainConfig, agent: Agent, device: torch.device):
        self.agent = agent
        self.generators: dict[str, torch.Generator] = {}
        self.updates = 0
        self.rows: list[tuple[Tensor, Tensor, Tensor]] = []
        self.obs = torch.empty(0)

    def start(self, obs: Tensor) -> None:
        self.obs = obs.clone()

    def add(self, actions: Tensor, rewards: Any, next_obs: Any, *flags: Any) -> None:
        reset_obs = flags[-1]
        if len(self.rows) == self.LENGTH:
            self.rows = []
        self.rows.append((self.obs, actions.clone(), torch.as_tensor(rewards, dtype=torch.float32)))
        self.obs = (next_obs if reset_obs is None else reset_obs).clone()

    def explores(self, step: int) -> bool:
        return False

    def due(self, step: int) -> int:
        made = step // (2 * self.LENGTH) * self.UPDATES
        return made - self.updates

    def sample(self, phase: Phase) -> Batch:
        obs, action, reward = (torch.cat(part) for part in zip(*self.rows, strict=True))
        return Batch(obs, action, reward, torch.ones_like(reward), obs)

    def state_dict(self) -> dict[str, Any]:
        return {"updates": self.updates, "rows": [list(row) for row in self.rows]}

    def save(self, folder: Path, tag: str) -> None:
        pass

    def prune(self, folder: Path, tags: list[str]) -> None:
        pass

    def load(self, folder: Path, tag: str, state: dict[str, Any], step: int, obs: Tensor) -> None:
        self.updates, self.rows = state["updates"], [tuple(row) for row in state["rows"]]
        self.obs = obs.clone()


@pytest.fixture
def weights_when_acting(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, float]]:
    """How many updates had been made, and a weight, whenever the policy acted."""
    seen: list[tuple[int, float]] = []
    original = training.Trainer._iterate

    def iterate(self: training.Trainer) -> None:
        seen.append((self.updates, float(self.agent.head.weight.detach().sum())))
        original(self)

    monkeypatch.setattr(training.Trainer, "_iterate", iterate)
    return seen


def test_an_on_policy_learner_acts_with_the_weights_of_its_last_update(
    tmp_path: Path, weights_when_acting: list[tuple[int, float]]
) -> None:
    folder = training.train(config_of("on_policy"), tmp_path, progress=False)
    counts = [updates for updates, _ in weights_when_acting]
    assert counts == [2 * (step // 6) for step in range(30)]  # updates come before the next action, all of them
    changes = len({weight for _, weight in weights_when_acting})
    assert changes == 5
    lines = list(run_folder.read_lines(folder / run_folder.METRICS))
    assert lines[-1]["updates"] == 8
    assert json.loads((folder / run_folder.CONFIG).read_text())["agent"] == "on_policy"


def test_an_on_policy_run_resumes_bit_for_bit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = config_of("on_policy")
    whole = training.train(config, tmp_path / "whole", progress=False)
    assert same_weights(whole, stopped_and_resumed(config, tmp_path / "parts", monkeypatch))
