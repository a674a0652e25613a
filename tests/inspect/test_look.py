"""Attribution, mask and prediction, against each written out; and every use of them for an agent of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from sgqn import agents, attribution
from sgqn.agents import AGENTS, Agent, AgentEntry, Spec
from sgqn.agents.base import adam
from sgqn.augmentations import center_crop
from sgqn.cli import main
from sgqn.demo import demo
from sgqn.export import compare
from sgqn.inspect import Images, Subject, attribute, look_at, looks, predict
from sgqn.inspect.look import AT_ONCE
from sgqn.logs import Logs
from sgqn.replay import Batch
from sgqn.saliency import measure
from sgqn.watch.looker import Looker
from sgqn.watch.player import Actor, Player
from sgqn.watch.session import Session, Settings
from tests.agents.small import batch_for, small
from tests.helpers import TASK, tiny_config, untrained_run


def observations(count: int, subject: Subject) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(count)
    obs = torch.randint(0, 256, (count, 9, 24, 24), dtype=torch.uint8, generator=generator)
    return obs, torch.rand(count, subject.agent.spec.action_dim, generator=generator) * 2 - 1


def test_a_look_is_what_the_agent_says(subjects: dict[str, Subject]) -> None:
    agent = subjects["sgqn"].agent
    obs, actions = observations(3, subjects["sgqn"])
    look = look_at(agent, obs, actions, "gradient")
    heat = attribution.gradient(agent.value, obs, actions)
    assert torch.equal(look.attribution, heat)
    assert torch.equal(look.mask(0.9), attribution.quantile_mask(heat, 0.9))
    assert look.predicted is not None
    assert torch.equal(look.predicted, agent.predict_mask(obs, actions))
    assert not look.predicted.requires_grad
    images = look.images(0.9)
    assert np.array_equal(images.observation, obs[:, -3:].permute(0, 2, 3, 1).numpy())
    assert np.array_equal(images.attribution, heat[:, -3:].abs().amax(dim=1).numpy())
    assert np.array_equal(images.mask, look.mask(0.9)[:, -1].numpy())
    assert np.allclose(images.predicted, look.predicted[:, -3:].mean(dim=1))
    assert np.array_equal(images.masked, images.observation * images.mask[..., None])
    assert not images.soft


def test_a_soft_mask_is_the_one_that_the_agent_learned_with(subjects: dict[str, Subject]) -> None:
    obs, actions = observations(2, subjects["soft"])
    look = look_at(subjects["soft"].agent, obs, actions, "guided_backprop")
    assert torch.equal(look.mask(0.9), attribution.soft_mask(look.attribution))
    images = look.images(0.9)
    assert images.soft
    assert images.masked.dtype == np.uint8
    assert np.array_equal(images.masked, (images.observation * images.mask[..., None]).round())


def test_an_agent_without_a_decoder_predicts_nothing(subjects: dict[str, Subject]) -> None:
    obs, actions = observations(2, subjects["sac"])
    assert predict(subjects["sac"].agent, obs, actions) is None
    assert look_at(subjects["sac"].agent, obs, actions, "gradient").images(0.9).predicted is None


@pytest.mark.parametrize("method", ["gradient", "occlusion"])
def test_parts_are_the_whole(subjects: dict[str, Subject], method: str) -> None:
    agent = subjects["sgqn"].agent
    obs, actions = observations(AT_ONCE + 3, subjects["sgqn"])
    reports: list[tuple[int, int]] = []
    parts = list(looks(agent, obs, actions, method, lambda *report: reports.append(report)))
    assert [len(part.seen) for part in parts] == [AT_ONCE, 3]
    joined = Images.join(part.images(0.8) for part in parts)
    whole = look_at(agent, obs, actions, method).images(0.8)
    assert np.array_equal(joined.observation, whole.observation)
    assert np.allclose(joined.attribution, whole.attribution, rtol=1e-4, atol=1e-8)
    assert joined.predicted is not None
    done = [report[0] for report in reports]
    assert done == sorted(done)
    assert reports[-1] == (100 * len(obs), 100 * len(obs))
    assert (len(done) > 4) == (method == "occlusion")


@pytest.mark.parametrize("method", attribution.METHODS)
def test_every_method_works_and_slow_ones_report(subjects: dict[str, Subject], method: str) -> None:
    obs, actions = observations(2, subjects["soda"])
    calls: list[tuple[int, int]] = []
    maps = attribute(subjects["soda"].agent, obs, actions, method, lambda *call: calls.append(call), batch_size=8)
    assert maps.shape == obs.shape
    assert maps.abs().sum() > 0
    if method in ("occlusion", "rise"):
        assert calls[-1][0] == calls[-1][1]


def test_the_brightest_colour_of_an_empty_map() -> None:
    observation = np.zeros((1, 20, 20, 3), dtype=np.uint8)
    empty = np.zeros((1, 20, 20))
    one = empty.copy()
    one[0, 3, 3] = 2.0  # fewer than one pixel in two hundred: the percentile is 0
    for heat, scale in ((empty, 1.0), (one, 2.0)):
        assert Images(observation, heat, heat > 0, None).scale == scale


# An agent that has only what every agent must have


class Minimal(Agent):
    """A linear policy; no critic, no decoder, no settings of its own."""

    def __init__(self, spec: Spec):
        super().__init__(spec, 4)
        self.head = nn.Linear(spec.channels * spec.image_size**2, spec.action_dim)

    def make_optimizers(self) -> None:
        self.optimizers["actor"] = adam(self.parameters(), 1e-3)

    def learn(self, batch: Batch, phase: Any = None) -> dict[str, Tensor]:
        return {}

    def policy(self, obs: Tensor, deterministic: bool) -> Tensor:
        return self.head(center_crop(obs, self.spec.image_size).flatten(1) / 255).tanh()


@pytest.fixture
def minimal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a run of such an agent, which also crops."""
    entry = AgentEntry(lambda spec, settings, _: Minimal(spec), agents.Settings, crops=True)
    monkeypatch.setitem(AGENTS._things, "minimal", entry)
    monkeypatch.setitem(AGENTS._origins, "minimal", "sgqn.tests")
    return untrained_run(tmp_path / "run", tiny_config("minimal"))


def test_explain_of_a_minimal_agent(minimal: Path, tmp_path: Path) -> None:
    for name in ("a.png", "a.mp4"):
        assert main(["explain", str(minimal), "--frames", "2", "--out", str(tmp_path / name)]) == 0
        assert (tmp_path / name).stat().st_size > 1000


def test_saliency_of_a_minimal_agent(minimal: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--shift", "train", "--episodes", "1", "--every", "10")
    assert main(["saliency", str(minimal), *options]) == 0
    assert "IoU ceiling" in capsys.readouterr().out
    agent = Subject.load(minimal).agent
    found = measure(agent, TASK, episodes=1, every=10, num_workers=0)
    assert found.rho == 0.98
    assert 0 <= found.means["mass_share"] <= 1
    assert not any(name.startswith("agreement") for name in found.means)


def test_demo_of_a_minimal_agent(minimal: Path, tmp_path: Path) -> None:
    shown = demo(minimal, tmp_path / "demo", steps=2)
    assert shown.page.is_file()
    assert shown.scenes[0].images.predicted is None


def test_watch_of_a_minimal_agent(minimal: Path) -> None:
    subject = Subject.load(minimal)
    session = Session(Settings("train", subject.method, subject.rho, speed=100.0), TASK)
    looker = Looker(session)
    player = Player(session, [Actor(minimal, subject, session, looker)])
    looker.start()
    seen: dict[str, Any] = {}

    def stop_when_seen(name: str, value: Any, only_for: Any = None) -> None:
        seen[name] = value
        if seen.get("look"):
            session.stop()

    session.publish = stop_when_seen  # type: ignore[method-assign]
    session._last_asked = float("inf")  # somebody is watching
    player.run()
    looker.join(20)
    assert "error" not in seen["look"]
    assert seen["frame"]["predicted"] is None
    assert seen["frame"]["value"] is not None


def test_export_check_of_a_minimal_agent(minimal: Path) -> None:
    subject = Subject.load(minimal)
    check = compare(subject, subject.agent)
    assert check["mean"] < 1e-6
    assert check["masks"] == 1


# TensorBoard images


class Board:
    def add_image(self, name: str, sheet: Tensor, step: int) -> None:
        self.sheet = sheet


def logged(agent: Agent, batch: Batch) -> Tensor:
    logs = Logs.__new__(Logs)
    logs._board = Board()
    logs.images(1, agent, batch.obs)
    return logs._board.sheet


def test_tensorboard_shows_the_mask_that_the_agent_trains_with() -> None:
    agent = small("sgqn")
    batch = batch_for(agent)
    sheet = logged(agent, batch)
    size, count = agent.spec.image_size, len(batch.obs)
    assert sheet.shape == (3, 3 * size, count * size)
    frames = batch.obs[:, -3:].float() / 255
    action = agent.act(batch.obs)
    mask = agent.saliency(batch._replace(action=action))[:, -3:]
    for i in range(count):
        column = sheet[:, :, i * size : (i + 1) * size]
        assert torch.equal(column[:, :size], frames[i])
        assert torch.equal(column[:, size : 2 * size], frames[i] * mask[i])
        assert torch.allclose(column[:, 2 * size :], agent.predict_mask(batch.obs, action)[i, -3:])


@pytest.mark.parametrize(("name", "rows"), [("sac", 1), ("rad", 1), ("sac_consistency", 2), ("sac_selfsup", 3)])
def test_tensorboard_shows_what_an_agent_has(name: str, rows: int) -> None:
    agent = small(name)
    batch = batch_for(agent)
    size = agent.spec.image_size
    assert logged(agent, batch).shape == (3, rows * size, len(batch.obs) * size)


def test_tensorboard_of_a_minimal_agent() -> None:
    agent = Minimal(Spec(2, image_size=24, render_size=28))
    batch = Batch(
        *(
            torch.zeros(4, 9, 28, 28, dtype=torch.uint8) if name in ("obs", "next_obs") else torch.zeros(4, 2)
            for name in Batch._fields
        )
    )
    assert logged(agent, batch).shape == (3, 24, 4 * 24)
