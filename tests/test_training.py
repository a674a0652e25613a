"""The loop on runs that take seconds: every agent, repeatability, stopping and going on, divergence."""

from __future__ import annotations

import errno
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import sgqn
from sgqn import checkpoint, run_folder, training
from sgqn.agents import AGENTS, Phase
from sgqn.agents.sgqn import SGQN
from sgqn.cli import main
from sgqn.config import TrainConfig, preset
from sgqn.errors import SgqnError
from sgqn.replay import Batch, Replay
from tests.helpers import MICRO, fails, write_clip

ON_GPU = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")]
TIMES = ("seconds", "steps_per_second", training.COLLECTION)
PARTS_OF_OTHERS = ("drq", "drqv2", "sac", "sac_consistency", "sac_selfsup", "soda", "svea")
"""Agents that train like another one, without some of its losses."""


def micro(out: Path, *extra: str) -> Path:
    """Train a run of seconds from the command line; returns its folder."""
    assert main(["train", *MICRO, "--out", str(out), *extra]) == 0
    return next(out.glob("*/*/*"))


def outcome(folder: Path) -> tuple[dict[str, torch.Tensor], list[dict], list[dict]]:
    """What two equal runs must share: final weights, metrics and evaluations, without times."""
    loaded = checkpoint.load(checkpoint.find(folder))
    metrics = [
        {key: value for key, value in line.items() if key not in TIMES}
        for line in run_folder.read_lines(folder / run_folder.METRICS)
    ]
    return loaded.weights, metrics, list(run_folder.read_lines(folder / run_folder.EVALUATIONS))


def assert_same(one: Path, other: Path) -> None:
    weights, metrics, evaluations = outcome(one)
    weights_other, metrics_other, evaluations_other = outcome(other)
    assert weights.keys() == weights_other.keys()
    for name in weights:
        assert torch.equal(weights[name], weights_other[name]), name
    assert metrics == metrics_other
    assert evaluations == evaluations_other


@pytest.mark.parametrize(
    "agent",
    [
        pytest.param(name, marks=pytest.mark.slow if name in PARTS_OF_OTHERS else ())
        for name, entry in AGENTS.items()
        if entry.takes(discrete=False) and entry.experience is None and not entry.copies
    ],
)
def test_every_agent_trains_from_the_command_line(agent: str, tmp_path: Path) -> None:
    folder = micro(tmp_path, "--agent", agent)
    assert folder == tmp_path / "cartpole-swingup" / agent / "0"
    metrics = list(run_folder.read_lines(folder / run_folder.METRICS))
    assert [line["step"] for line in metrics] == list(range(10, 70, 10))
    every = getattr(run_folder.read_config(folder).settings, "update_every", 1)
    assert metrics[-1]["updates"] == 58 // every  # those of the last iteration's steps are not due yet
    assert all(np.isfinite(line["loss/critic"]) for line in metrics if line["updates"])
    assert [path.name for path in checkpoint.list_checkpoints(folder)] == ["step_000000040", "step_000000060"]
    assert list(folder.glob("events.out.tfevents*"))
    config = json.loads((folder / run_folder.CONFIG).read_text())
    assert config["versions"]["mujoco"].startswith("3.17")
    overlaid = {"overlay_images": "generated"} if AGENTS[agent].augments else {}
    assert config["machine"] == {"device": "CPU", "path": "eager", "precision": "fp32", "note": "", **overlaid}
    assert all(0 < line[training.COLLECTION] < 1 for line in metrics[2:])

    loaded = sgqn.load_agent(folder)
    size = loaded.spec.render_size
    assert size == (28 if AGENTS[agent].crops else 24)
    obs = np.zeros((9, size, size), dtype=np.uint8)
    assert loaded.act(obs).shape == (1,)
    if loaded.predicts_masks:
        assert loaded.predict_mask(obs, loaded.act(obs)).shape == obs.shape
    else:
        with pytest.raises(sgqn.SgqnError, match="decoder"):
            loaded.predict_mask(obs, loaded.act(obs))
    scores = sgqn.evaluate(loaded, "cartpole-swingup", episodes=2, renderer="warp", num_workers=0, action_repeat=50)
    assert scores.episodes == 2
    again = sgqn.evaluate(loaded, "cartpole-swingup", episodes=2, renderer="warp", num_workers=0, action_repeat=50)
    assert again == scores


def test_a_trained_agent_is_restored_from_the_command_line(tmp_path: Path) -> None:
    """Its own weights stay; a killed run resumes bit for bit."""
    trained = micro(tmp_path / "trained")
    restored = ("--agent", "sgqn_restored", "--start-from", str(trained), "--views", "1")
    folder = micro(tmp_path / "whole", *restored)
    metrics = list(run_folder.read_lines(folder / run_folder.METRICS))
    assert metrics[-1]["updates"] == 58
    assert all(np.isfinite(line["loss/restoration"]) for line in metrics if line["updates"])
    before, after = sgqn.load_agent(trained).state_dict(), sgqn.load_agent(folder).state_dict()
    assert {name.split(".")[0] for name in after.keys() - before.keys()} == {"restorer"}
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())

    interrupted = micro(tmp_path / "parts", *restored, "--steps", "40")
    shutil.rmtree(trained)  # a checkpoint has all that is needed
    assert main(["train", "--resume", str(interrupted), "--steps", "60", "--quiet"]) == 0
    assert_same(folder, interrupted)

    exported = tmp_path / "exported"
    assert main(["export", str(folder), "--out", str(exported)]) == 0
    obs = np.zeros((9, 24, 24), dtype=np.uint8)
    np.testing.assert_allclose(sgqn.load_agent(exported).act(obs), sgqn.load_agent(folder).act(obs), atol=0.01)


def test_training_starts_from_a_trained_agent(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained = micro(tmp_path / "trained", "--agent", "sac", "--evaluate-every", "0")
    again = micro(tmp_path / "again", "--agent", "sac", "--start-from", str(trained), "--learning-rate", "1e-12")
    one, two = (sgqn.load_agent(folder).critic.state_dict() for folder in (trained, again))
    assert all(torch.allclose(value, two[name], atol=1e-6) for name, value in one.items())
    assert json.loads((again / run_folder.CONFIG).read_text())["start_from"] == str(trained)
    capsys.readouterr()
    wider = ("--agent", "sac", "--start-from", str(trained), "--hidden-dim", "32", "--out", str(tmp_path / "wider"))
    said = fails(capsys, "train", *MICRO, *wider)
    assert "do not fit: critic.heads.q1.0.weight is (16, 9) there and (32, 9) here" in said
    assert not (tmp_path / "wider").exists()


def test_bf16_on_a_cpu_computes_nearly_the_same(tmp_path: Path) -> None:
    """Updates multiply in bfloat16; weights and what is measured stay in single precision."""
    options = ("--agent", "sac", "--evaluate-every", "0")
    single, half = (micro(tmp_path / name, *options, "--precision", name) for name in ("fp32", "bf16"))
    assert json.loads((half / run_folder.CONFIG).read_text())["machine"]["precision"] == "bf16"
    weights, other = outcome(single)[0], outcome(half)[0]
    assert {value.dtype for value in other.values()} == {torch.float32}
    assert not all(torch.equal(value, other[name]) for name, value in weights.items())
    first, same = (next(line for line in outcome(folder)[1] if line["updates"]) for folder in (single, half))
    assert same["loss/critic"] == pytest.approx(first["loss/critic"], rel=0.1)


def test_a_start_that_fails_leaves_nothing_behind(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Warp cannot draw the dog; the next try must not find a run."""
    for _ in range(2):
        assert "use renderer='gl'" in fails(capsys, "train", *MICRO, "--task", "dog-run", "--out", str(tmp_path))
    deep = ["--agent", "sac", "--encoder-layers", "40", "--out", str(tmp_path / "new" / "runs")]
    assert "an encoder of 40 layers does not fit" in fails(capsys, "train", *MICRO, *deep)
    assert not list(tmp_path.iterdir())


def test_an_agent_with_other_actions_than_the_task_leaves_nothing_behind(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = fails(capsys, "train", *MICRO, "--agent", "dqn", "--out", str(tmp_path))
    assert "agent 'dqn' has discrete actions only, not actions of 1 numbers: use one of drq, " in said
    assert not list(tmp_path.iterdir())


def test_a_seed_of_numpy_is_a_seed(tmp_path: Path) -> None:
    run_folder.write_config(tmp_path, TrainConfig(seed=np.int64(3)))
    assert run_folder.read_config(tmp_path).seed == 3


def test_a_seed_repeats_bit_for_bit(tmp_path: Path) -> None:
    one, two, other = (micro(tmp_path / str(i), "--seed", str(i // 2)) for i in range(3))
    assert_same(one, two)
    assert not torch.equal(*(outcome(run_)[0]["learner.log_alpha"] for run_ in (one, other)))


@pytest.mark.parametrize(
    "options",
    [
        ["sgqn"],
        pytest.param(["svea_soda"], marks=pytest.mark.slow),
        pytest.param(
            ["sgdrqv2", "--update-every", "1", "--attribution", "smoothgrad:samples=2"], marks=pytest.mark.slow
        ),
    ],
    ids=lambda options: options[0],
)
def test_a_stopped_run_goes_on_as_if_it_had_not(
    options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stop at several moments, also amid the updates that the warm-up put off, and resume each time."""
    whole = micro(tmp_path / "whole", "--agent", *options)
    moments = iter([7, 23, 41, None])

    original = training.Trainer._phases

    def phases(self: training.Trainer, count: int) -> list[Phase]:
        before, asked = self.updates, original(self, count)
        if before < (self.stop_at or 0) <= self.updates:  # type: ignore[attr-defined]
            self._stop = signal.SIGTERM
        return asked

    monkeypatch.setattr(training.Trainer, "_phases", phases)
    monkeypatch.setattr(training.Trainer, "stop_at", next(moments), raising=False)
    code = main(["train", *MICRO, "--agent", *options, "--out", str(tmp_path / "parts")])
    folder = next((tmp_path / "parts").glob("*/*/*"))
    for moment in moments:
        assert code == 128 + signal.SIGTERM
        monkeypatch.setattr(training.Trainer, "stop_at", moment)
        code = main(["train", "--resume", str(folder), "--quiet"])
    assert code == 0
    assert_same(whole, folder)


def test_a_run_without_its_replay_resumes_and_learns_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = training.Trainer._iterate

    def iterate(self: training.Trainer) -> None:
        original(self)
        if self.step == 40:
            self._stop = signal.SIGINT

    monkeypatch.setattr(training.Trainer, "_iterate", iterate)
    assert main(["train", *MICRO, "--no-save-replay", "--out", str(tmp_path)]) == 130
    monkeypatch.setattr(training.Trainer, "_iterate", original)
    folder = next(tmp_path.glob("*/*/*"))
    assert not (folder / run_folder.REPLAY).exists()
    assert main(["train", "--resume", str(folder), "--quiet"]) == 0
    assert list(run_folder.read_lines(folder / run_folder.METRICS))[-1]["step"] == 60


def test_a_resumed_run_makes_one_replay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU one may take half of the memory."""
    folder = micro(tmp_path, "--steps", "40")
    made: list[int] = []
    original = Replay.__init__

    def init(self: Replay, capacity: int, *args: Any, **options: Any) -> None:
        made.append(capacity)
        original(self, capacity, *args, **options)

    monkeypatch.setattr(Replay, "__init__", init)
    assert main(["train", "--resume", str(folder), "--steps", "60", "--quiet"]) == 0
    assert made == [50]


# ---- training longer


@pytest.mark.parametrize("agent", ["sgqn", pytest.param("soda", marks=pytest.mark.slow)])
def test_a_run_that_is_trained_longer_is_the_longer_run(agent: str, tmp_path: Path) -> None:
    """The replay grows with the run, from 32 to 40 and 50 transitions, then forgets the oldest."""
    whole = micro(tmp_path / "whole", "--agent", agent)
    folder = micro(tmp_path / "parts", "--agent", agent, "--steps", "31")
    assert Replay.load(folder / run_folder.REPLAY, checkpoint.find(folder).name).capacity == 32
    assert main(["train", "--resume", str(folder), "--steps", "40", "--quiet"]) == 0
    assert checkpoint.find(folder).name == "step_000000040"
    assert main(["train", f"--resume={folder}", "--steps=60", "--quiet"]) == 0
    assert_same(whole, folder)
    assert run_folder.read_config(folder) == run_folder.read_config(whole)
    assert checkpoint.load(checkpoint.find(folder)).metadata == checkpoint.load(checkpoint.find(whole)).metadata


def test_a_new_end_is_kept_for_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = training.Trainer._iterate

    def iterate(self: training.Trainer) -> None:
        original(self)
        if self.step == 46:
            self._stop = signal.SIGTERM

    folder = micro(tmp_path / "parts", "--steps", "40")
    with monkeypatch.context() as patch:
        patch.setattr(training.Trainer, "_iterate", iterate)
        assert main(["train", "--resume", str(folder), "--steps", "60", "--quiet"]) == 128 + signal.SIGTERM
    assert main(["train", "--resume", str(folder), "--quiet"]) == 0
    assert_same(micro(tmp_path / "whole"), folder)


def test_an_end_that_does_not_lie_ahead_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = micro(tmp_path, "--steps", "31")  # two environments: 32 steps are made
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    for steps in ("32", "5"):
        assert main(["train", "--resume", str(folder), "--steps", steps, "--quiet"]) == 2
        assert f"steps must be above 32, the last step of this run, not {steps}\n" in capsys.readouterr().err
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_a_damaged_run_keeps_its_end(tmp_path: Path) -> None:
    folder = micro(tmp_path, "--steps", "32")
    (checkpoint.find(folder) / "weights.safetensors").write_bytes(b"")
    assert main(["train", "--resume", str(folder), "--steps", "60", "--quiet"]) == 2
    assert run_folder.read_config(folder).steps == 32


def test_a_run_without_its_replay_trained_longer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = micro(tmp_path, "--no-save-replay", "--steps", "40")
    assert main(["train", "--resume", str(folder), "--steps", "60", "--quiet"]) == 2
    assert "steps must be above 60, not 60, or nothing is learned: its replay was not kept" in capsys.readouterr().err
    assert run_folder.read_config(folder).steps == 40
    assert main(["train", "--resume", str(folder), "--steps", "70", "--quiet"]) == 0
    assert "learning continues at step 60" in capsys.readouterr().err
    updates = {line["step"]: line["updates"] for line in run_folder.read_lines(folder / run_folder.METRICS)}
    assert [updates[step] for step in (40, 50, 60, 70)] == [38, 38, 38, 66]


def test_sigterm_saves_and_says_how_to_go_on(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "sgqn.cli", "train", *MICRO, "--steps", "100000", "--out", str(tmp_path)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
    metrics = tmp_path / "cartpole-swingup" / "sgqn" / "0" / run_folder.METRICS
    deadline = time.monotonic() + 120
    while not metrics.exists() or metrics.stat().st_size < 1000:
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.1)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 128 + signal.SIGTERM
    assert f"--resume {metrics.parent}" in errors
    assert "Traceback" not in errors
    assert checkpoint.newest_good(metrics.parent) is not None


# ---- evaluations that fail or are interrupted


EVALUATES = ["--agent", "sac", "--checkpoint-every", "30", "--evaluate-shifts", "train", "color_hard"]
"""Evaluations at steps 30 and 60, each after a checkpoint."""


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return micro(tmp_path_factory.mktemp("evaluated"), *EVALUATES)


def test_a_run_killed_before_or_amid_an_evaluation_makes_it_when_resumed(
    evaluated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    original, alive = training.evaluate, iter([False, True, False, True, False, True, True])

    def evaluate(*args: Any, **options: Any) -> Any:
        if not next(alive):
            raise KeyboardInterrupt
        return original(*args, **options)

    queue = ["train", *MICRO, *EVALUATES, "--seeds", "0", "--out", str(tmp_path)]
    monkeypatch.setattr(training, "evaluate", evaluate)
    for step in (30, 30, 60):  # before the first evaluation, after one of its shifts, before the last evaluation
        assert main(queue) == 130
        folder = next(tmp_path.glob("*/*/*"))
        assert checkpoint.find(folder).name == checkpoint.name(step)
    assert main(queue) == 0
    assert_same(evaluated, folder)


def test_a_damaged_clip_is_named_before_a_run_starts(
    store: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    clip = write_clip(store / "dmcgb" / "video_hard" / "video3.mp4")
    clip.write_bytes(clip.read_bytes()[:-100])
    options = [*MICRO, "--evaluate-shifts", "train", "video_hard", "--out", str(tmp_path / "runs")]
    message = fails(capsys, "train", *options)
    assert f"error: {clip} is " in message
    assert "leave its shift out of --evaluate-shifts" in message
    assert not (tmp_path / "runs").exists()


def test_an_evaluation_that_fails_does_not_end_training(
    evaluated: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    original = training.evaluate

    def evaluate(agent: Any, task: str, shift: str, *args: Any, **options: Any) -> Any:
        if shift == "color_hard":
            raise sgqn.DataError("bad.mp4 is damaged")
        return original(agent, task, shift, *args, **options)

    with monkeypatch.context() as patch:
        patch.setattr(training, "evaluate", evaluate)
        folder = micro(tmp_path, *EVALUATES)
    assert [line for line in capsys.readouterr().err.splitlines() if line.startswith("warning: step")] == [
        f"warning: step {step}: no evaluation in color_hard, training continues: bad.mp4 is damaged"
        for step in (30, 60)
    ]
    weights, metrics, evaluations = outcome(folder)
    assert all(torch.equal(weights[name], value) for name, value in outcome(evaluated)[0].items())
    assert metrics == outcome(evaluated)[1]
    assert [line["shift"] for line in evaluations] == ["train", "train"]
    assert main(["train", "--resume", str(folder), "--quiet"]) == 0  # the clip was replaced
    assert outcome(folder)[2][-1] == outcome(evaluated)[2][-1]


# ---- damage


@pytest.fixture
def run(evaluated: Path, tmp_path: Path) -> Path:
    """A complete run with checkpoints at steps 30 and 60."""
    return shutil.copytree(evaluated, tmp_path / "run")


def test_a_run_goes_back_to_the_checkpoint_that_is_offered(
    evaluated: Path, run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (checkpoint.find(run) / checkpoint.WEIGHTS).write_bytes(b"")
    message = fails(capsys, "train", "--resume", str(run), "--quiet")
    back = message.split("use ")[1].split(" instead")[0]
    assert back == str(run / "checkpoints" / "step_000000030")
    original = training.Trainer._iterate

    def iterate(self: training.Trainer) -> None:
        original(self)
        assert len(checkpoint.list_checkpoints(run)) == 2  # nothing is removed before the next checkpoint
        if self.step == 40:
            self._stop = signal.SIGTERM

    with monkeypatch.context() as patch:
        patch.setattr(training.Trainer, "_iterate", iterate)
        assert main(["train", "--resume", back, "--quiet"]) == 128 + signal.SIGTERM
    assert "removed once the next checkpoint is written: step_000000060" in capsys.readouterr().err
    assert [checkpoint.step_of(path) for path in checkpoint.list_checkpoints(run)] == [30, 40]
    assert main(["train", "--resume", str(run), "--quiet"]) == 0
    assert_same(evaluated, run)


def test_a_run_killed_after_going_back_goes_back_again(
    evaluated: Path, run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The newer checkpoint is good, but another one was chosen: the choice holds until the next checkpoint."""
    back = run / "checkpoints" / "step_000000030"
    original, steps = training.Trainer._iterate, []

    def iterate(self: training.Trainer) -> None:
        steps.append(self.step)
        if self.step == 40:
            raise KeyboardInterrupt  # as a kill: nothing is saved
        original(self)

    with monkeypatch.context() as patch:
        patch.setattr(training.Trainer, "_iterate", iterate)
        for path in (back, run):
            assert main(["train", "--resume", str(path), "--quiet"]) == 130
            assert steps[0] == 30
            assert [checkpoint.step_of(one) for one in checkpoint.list_checkpoints(run)] == [30, 60]
            steps.clear()
    assert not training._complete(run_folder.read_config(run), run)
    assert main(["train", "--resume", str(run), "--quiet"]) == 0
    assert_same(evaluated, run)
    assert not (run / run_folder.BACK).exists()


def test_the_newest_checkpoint_can_be_chosen_after_going_back(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def iterate(self: training.Trainer) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(training.Trainer, "_iterate", iterate)
    assert main(["train", "--resume", str(run / "checkpoints" / "step_000000030"), "--quiet"]) == 130
    assert training.newest_step(run) == 30
    assert main(["train", "--resume", str(run / "checkpoints" / "step_000000060"), "--quiet"]) == 0
    assert training.newest_step(run) == 60


def test_a_damaged_replay_is_no_dead_end(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    replay, resume = run / run_folder.REPLAY, ("train", "--resume", str(run), "--quiet")
    (replay / "step_000000060.replay.json").write_text("{")
    message = fails(capsys, *resume)
    assert "step_000000060.replay.json" in message
    assert f"`sgqn train --resume {run / 'checkpoints' / 'step_000000030'}`" in message
    for chunk in replay.glob("frames-*"):
        chunk.write_bytes(chunk.read_bytes()[:-1])
    message = fails(capsys, *resume)
    assert "sgqn train" not in message
    assert f"remove {replay} to continue with an empty replay buffer" in message
    shutil.rmtree(replay)
    assert main([*resume, "--steps", "90"]) == 0
    assert "has been removed: it is filled again, and learning continues at step 80" in capsys.readouterr().err
    assert replay.is_dir()


def test_damaged_lines_of_a_log_do_not_block_a_resume(
    evaluated: Path, run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in (run_folder.METRICS, run_folder.EVALUATIONS):
        path = run / name
        path.write_bytes(b'{"step": 3\xff}\n{"step": null}\n' + path.read_bytes() + b'{"step": 4')
    assert main(["train", "--resume", str(run), "--quiet"]) == 0
    warnings = capsys.readouterr().err.splitlines()
    assert f"warning: {run / run_folder.METRICS}: 2 damaged lines removed" in warnings
    assert f"warning: {run / run_folder.EVALUATIONS}: 2 damaged lines removed" in warnings
    assert_same(evaluated, run)


def test_a_configuration_that_was_edited_is_refused(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = run / run_folder.CONFIG
    values = json.loads(path.read_text())
    values["settings"]["batch_size"], values["seed"] = 9, 4
    path.write_text(json.dumps({**values, "steps": 90}))
    message = fails(capsys, "train", "--resume", str(run), "--quiet")
    assert f"{path} does not fit {run / 'checkpoints' / 'step_000000060'}" in message
    assert "(seed is 4 there, 0 in the checkpoint; batch_size is 9 there, 8 in the checkpoint)" in message


def test_a_failure_of_the_environment_is_not_reported_as_a_bad_configuration(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def make_vec(*args: Any, **options: Any) -> None:
        raise RuntimeError("a bug of the simulator")

    monkeypatch.setattr(training, "make_vec", make_vec)
    with pytest.raises(RuntimeError, match="a bug of the simulator"):
        training.resume(run, steps=90)


@pytest.mark.parametrize(
    "error",
    [sgqn.WorkerError("the worker was killed by signal 9"), OSError(errno.ENOSPC, "No space left on device", "a file")],
    ids=["worker", "disk"],
)
def test_what_is_not_the_runs_fault_says_how_to_continue(
    error: Exception, run: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def iterate(self: training.Trainer) -> None:
        raise error

    monkeypatch.setattr(training.Trainer, "_iterate", iterate)
    message = fails(capsys, "train", "--resume", str(run), "--steps", "90", "--quiet")
    assert "signal 9" in message or "No space left" in message
    assert message.endswith(f"continue with `sgqn train --resume {run}`")


# ---- divergence


def test_weights_that_are_not_finite_are_not_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    original, saved, name = training.Trainer.save, itertools.count(), "log_alpha"

    def save(self: training.Trainer) -> None:
        if next(saved) == 2:
            self.agent.state_dict()[name].fill_(float("nan"))
        original(self)

    with monkeypatch.context() as patch:
        patch.setattr(training.Trainer, "save", save)
        message = fails(capsys, "train", *MICRO, "--agent", "sac", "--evaluate-every", "0", "--out", str(tmp_path))
    folder = next(tmp_path.glob("*/*/*"))
    names = ["step_000000020", "step_000000040"]
    assert [path.name for path in checkpoint.list_checkpoints(folder)] == names
    assert f"{name} has weights that are NaN or infinite at step 60" in message
    assert f"the last good checkpoint is {folder / 'checkpoints' / names[1]}" in message

    loaded = checkpoint.load(checkpoint.find(folder))
    loaded.weights[name].fill_(float("nan"))  # as earlier versions wrote it
    checkpoint.save(folder, 50, weights=loaded.weights, state=loaded.state, metadata=loaded.metadata)
    assert checkpoint.newest_good(folder).name == names[1]
    message = fails(capsys, "train", "--resume", str(folder), "--quiet")
    assert "NaN" in message
    assert names[1] in message


def test_divergence_stops_with_a_diagnosis(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    original, updates = SGQN.learn, itertools.count(1)

    def learn(self: SGQN, batch: Batch, phase: Phase) -> dict[str, torch.Tensor]:
        metrics = original(self, batch, phase)
        return metrics if next(updates) < 44 else {**metrics, "loss/critic": torch.tensor(float("nan"))}

    monkeypatch.setattr(SGQN, "learn", learn)
    assert main(["train", *MICRO, "--out", str(tmp_path)]) == 2
    message = capsys.readouterr().err
    assert "loss/critic is nan" in message
    assert "step_000000040" in message
    folder = next(tmp_path.glob("*/*/*"))
    assert checkpoint.newest_good(folder).name == "step_000000040"


def test_a_damaged_checkpoint_is_refused_and_the_one_before_offered(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = micro(tmp_path)
    newest = checkpoint.find(folder)
    weights = newest / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-10])
    for command in (["train", "--resume", str(folder), "--quiet"], ["evaluate", str(folder), "--episodes", "1"]):
        assert main(command) == 2
        message = capsys.readouterr().err
        assert "weights.safetensors" in message
        assert "step_000000040" in message


@pytest.mark.parametrize(
    ("arguments", "part"),
    [
        (["--task", "walker-wlk"], "walker-walk"),
        (["--agent", "sgqnn"], "'sgqn'"),
        (["--steps", "0"], "steps"),
        (["--steps", "20"], "steps must be above 20, not 20, or nothing is learned: no updates are made for 20 steps"),
        (["--steps", "24", "--num-envs", "16"], "steps must be above 32, not 24"),
        (["--steps", "5", "--seeds", "0", "1"], "steps must be above 20, not 5"),
        (["--seed", "-1"], "seed must be a non-negative integer, not -1"),
        (["--seed", str(2**64)], f"seed must be at most {2**32 - 1}, not {2**64}"),
        (["--seed", str(2**32)], f"not {2**32}"),
        (["--device", "cpu:99"], "device 'cpu:99' was asked for, but this machine has cpu"),
        (["--device", "cuda:-1"], "cuda:-1"),
        (["--images-every", "-1"], "images_every must be at least 0, not -1"),
        (["--evaluate-every", "-1"], "evaluate_every must be at least 0, not -1"),
        (["--agent", "drq", "--shift-pad", "24"], "shift_pad must be below image_size, which is 24, not 24"),
        (["--rho", "1.5"], "rho"),
        (["--evaluate-shifts", "video"], "video_easy"),
        (["--device", "tpu"], "tpu"),
        (["--resume", "nowhere"], "cannot be changed"),
        (["--steps", "many"], "many"),
        (["--attribution", "magic"], "magic"),
        (["--attribution", "smothgrad:samples=4"], "did you mean 'smoothgrad'"),
        (["--attribution", "smoothgrad:sample=4"], "'sample=4' is not an argument of 'smoothgrad'; its arguments: "),
        (["--attribution=smoothgrad:samples=0"], "samples must be a positive integer, not 0"),
        (["--path", "kernels"], "--path eager"),
        (["--path", "captured"], "--path eager"),
        (["--path", "magic"], "magic"),
        (
            ["--agent", "sgqn_restored"],
            "agent 'sgqn_restored' copies a trained agent: name that one with --start-from",
        ),
        (["--start-from", "nowhere"], "nowhere"),
        (["--seeds"], "--seeds 0 1 2"),
        (["--seeds", "0", "1", "0"], "[0, 1, 0]"),
        (["--seeds", "0", "-1"], "-1"),
        (["--seeds", "0", "1", "--seed", "2"], "--seeds cannot be combined with --seed:"),
        (["--seeds", "0", "--resume", "somewhere"], "--seeds cannot be combined with --resume:"),
    ],
)
def test_bad_options_give_one_line(
    arguments: list[str], part: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["train", *MICRO, "--out", str(tmp_path), *arguments]) == 2
    error = capsys.readouterr().err.strip()
    assert error.startswith("error: ")
    assert "\n" not in error
    assert part in error
    assert not list(tmp_path.iterdir())


def test_a_run_is_not_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = micro(tmp_path)
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert main(["train", *MICRO, "--out", str(tmp_path)]) == 2
    assert f"--resume {folder}" in capsys.readouterr().err
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_config_survives_json() -> None:
    for name in ("paper", "tiny"):
        config = preset(name, "ball_in_cup-catch")
        assert TrainConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config
        assert config.settings.rho == 0.98
    assert preset("paper", "walker-walk").settings.rho == 0.95
    with pytest.raises(sgqn.DataError, match="bogus"):
        TrainConfig.from_dict({**preset("tiny", "walker-walk").to_dict(), "bogus": 1})
    chosen = replace(config, path="captured", precision="fp32")
    assert TrainConfig.from_dict(json.loads(json.dumps(chosen.to_dict()))) == chosen
    noisy = replace(config, settings=replace(config.settings, attribution="smoothgrad:samples=4"))
    assert TrainConfig.from_dict(json.loads(json.dumps(noisy.to_dict()))) == noisy
    assert noisy.plugins == ()
    for field in ("path", "precision"):
        with pytest.raises(sgqn.UnknownNameError, match="magic"):
            replace(config, **{field: "magic"})


def test_configurations_from_before_the_paths_are_read(tmp_path: Path) -> None:
    config = preset("tiny", "walker-walk")
    run_folder.write_config(tmp_path, config, {"path": "eager"})
    assert run_folder.read_config(tmp_path) == config
    values = json.loads((tmp_path / run_folder.CONFIG).read_text())
    for name in ("path", "precision", "machine"):
        del values[name]
    (tmp_path / run_folder.CONFIG).write_text(json.dumps(values))
    assert run_folder.read_config(tmp_path) == config


def test_the_path_in_use_is_said_and_written_anew_on_resume(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    loud = [argument for argument in MICRO if argument != "--quiet"]
    assert main(["train", *loud, "--steps", "22", "--out", str(tmp_path)]) == 0
    assert capsys.readouterr().err.count("CPU: fp32, eager updates") == 1
    folder = next(tmp_path.glob("*/*/*"))
    run_folder.write_config(folder, run_folder.read_config(folder), {"device": "another"})
    assert main(["train", "--resume", str(folder), "--quiet"]) == 0
    assert "eager" not in capsys.readouterr().err
    assert json.loads((folder / run_folder.CONFIG).read_text())["machine"]["device"] == "CPU"


# ---- queues of seeds


def test_a_queue_goes_on_where_it_was_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    original = training.Trainer._phases

    def phases(self: training.Trainer, count: int) -> list[Phase]:
        asked = original(self, count)
        if self.config.seed == 1 and self.updates >= 23:
            self._stop = signal.SIGTERM
        return asked

    command = ["train", *(a for a in MICRO if a != "--quiet"), "--out", str(tmp_path / "queue"), "--seeds", "0", "1"]
    with monkeypatch.context() as patch:
        patch.setattr(training.Trainer, "_phases", phases)
        assert main(command) == 128 + signal.SIGTERM
    shown = capsys.readouterr().err
    assert "run 1 of 2: seed 0\n" in shown
    assert "run 2 of 2: seed 1\n" in shown
    assert "same command" in shown
    assert "Traceback" not in shown

    assert main(command) == 0
    shown = capsys.readouterr()
    assert "run 1 of 2: seed 0 is complete\n" in shown.err
    assert "run 2 of 2: seed 1 continues\n" in shown.err
    folder = tmp_path / "queue" / "cartpole-swingup" / "sgqn"
    assert shown.out == f"done: {folder / '0'}\ndone: {folder / '1'}\n"
    assert_same(folder / "1", micro(tmp_path / "alone", "--seed", "1"))

    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert main(command) == 0
    assert main([*command, "--rho", "0.9", "--steps", "80"]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert "steps is 60, not 80" in error
    assert "rho is 0.98, not 0.9" in error
    assert "seed" not in error.replace("seeds", "")
    assert "--resume" not in error
    assert main([*command, "--steps", "80"]) == 2
    assert f"`sgqn train --resume {folder / '0'} --steps 80`" in capsys.readouterr().err
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_a_run_that_diverges_does_not_stop_the_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    original = SGQN.learn

    def learn(self: SGQN, batch: Batch, phase: Phase) -> dict[str, torch.Tensor]:
        metrics = original(self, batch, phase)
        first = self.generator.initial_seed() == 0
        return {**metrics, "loss/critic": torch.tensor(float("nan"))} if first else metrics

    monkeypatch.setattr(SGQN, "learn", learn)
    assert main(["train", *MICRO, "--steps", "30", "--out", str(tmp_path), "--seeds", "0", "1"]) == 2
    error = capsys.readouterr().err.splitlines()[-1]
    assert "1 of 2 runs diverged; seed 0: loss/critic is nan" in error
    assert checkpoint.find(tmp_path / "cartpole-swingup" / "sgqn" / "1").name == "step_000000030"


def test_a_learning_rate_that_is_far_too_high_is_reported_as_divergence_of_every_seed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shape = ["--agent", "sac", "--learning-rate", "1e30", "--log-every", "1000", "--warmup-steps", "22"]
    message = fails(
        capsys, "train", *MICRO, *shape, "--evaluate-every", "0", "--out", str(tmp_path), "--seeds", "0", "1"
    )
    assert message.startswith("error: 2 of 2 runs diverged; seed 0: loss/critic is ")
    assert "; seed 1: loss/critic is " in message
    assert "and actions are NaN at step 22 after" in message
    for seed in ("0", "1"):
        folder = tmp_path / "cartpole-swingup" / "sac" / seed
        assert f"the last good checkpoint is {folder / 'checkpoints' / 'step_000000020'}" in message


@pytest.mark.slow
@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_a_queue_survives_signals_at_any_time(tmp_path: Path) -> None:
    """SIGTERM and SIGKILL in turn until the queue is done; then every run is as if it had been left alone."""
    shape = [*MICRO, "--agent", "sac", "--steps", "200"]
    command = [sys.executable, "-m", "sgqn.cli", "train", *shape, "--seeds", "0", "1", "--out", str(tmp_path / "queue")]
    code, stops = None, 0
    for patience in (*range(8, 40, 4), 600):
        process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True)
        try:
            code = process.wait(timeout=patience)
            break
        except subprocess.TimeoutExpired:
            stops += 1
            process.send_signal(signal.SIGTERM if stops % 2 else signal.SIGKILL)
            _, errors = process.communicate(timeout=120)
            assert process.returncode in (128 + signal.SIGTERM, -signal.SIGTERM, -signal.SIGKILL), errors
            assert "Traceback" not in errors
    assert code == 0
    assert stops > 0
    for seed in ("0", "1"):
        alone = tmp_path / f"alone{seed}"
        assert main(["train", *shape, "--seed", seed, "--out", str(alone)]) == 0
        assert_same(*(out / "cartpole-swingup" / "sac" / seed for out in (tmp_path / "queue", alone)))


# ---- on a GPU


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("path", ["eager", "captured", "kernels"])
def test_a_run_on_a_gpu_stops_and_goes_on(path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    original = training.Trainer._phases

    def phases(self: training.Trainer, count: int) -> list[Phase]:
        asked = original(self, count)
        if self.updates == 30:
            self._stop = signal.SIGTERM
        return asked

    command = ["train", *MICRO, "--device", "cuda", "--path", path, "--out", str(tmp_path)]
    with monkeypatch.context() as patch:
        patch.setattr(training.Trainer, "_phases", phases)
        assert main(command) == 128 + signal.SIGTERM
    folder = next(tmp_path.glob("*/*/*"))
    assert main(["train", "--resume", str(folder), "--quiet"]) == 0
    metrics = list(run_folder.read_lines(folder / run_folder.METRICS))
    assert [line["step"] for line in metrics] == list(range(10, 70, 10))
    assert metrics[-1]["updates"] == 58
    assert all(np.isfinite(line["loss/critic"]) for line in metrics if line["updates"])
    assert json.loads((folder / run_folder.CONFIG).read_text())["machine"]["path"] == path


@pytest.mark.parametrize("device", ["cpu", pytest.param("cuda", marks=ON_GPU)])
def test_the_replay_holds_what_happened(device: str, tmp_path: Path) -> None:
    """Played again from the stored actions, the environments show and pay what the run has stored, over borders of
    episodes too: no frame, action or reward has slipped, whatever runs beside."""
    config = replace(
        preset("tiny", "walker-walk"), steps=120, warmup_steps=24, num_envs=4, action_repeat=100, device=device
    )
    config = replace(config, evaluate_every=0, images_every=0, checkpoint_every=1000, save_replay=False)
    trainer = training.Trainer(config, tmp_path, progress=False)
    trainer.run()
    replay, options = (
        trainer.experience.replay,
        {"renderer": "warp", "action_repeat": 100, "image_size": config.image_size},
    )
    assert len(replay) == 120
    envs = sgqn.make_vec("walker-walk", 4, frame_stack=config.frame_stack, device=device, **options)
    obs, _ = envs.reset(seed=config.seed)
    borders = 0
    for row in range(30):
        stored = [part.cpu() for part in replay.gather(torch.arange(4 * row, 4 * row + 4, device=device))]
        seen, action, reward, _, seen_next = stored
        following, paid, _, over, info = envs.step(action.numpy())
        borders += int(over.any())
        for own, true in ((seen, obs), (seen_next, info["final_obs"] if over.any() else following)):
            difference = (own.float() - true.cpu().float()).abs().mean()
            assert difference == 0 if device == "cpu" else difference < 0.05, row
        np.testing.assert_allclose(reward.numpy(), paid, rtol=1e-6)
        obs = following.clone()
    envs.close()
    assert borders == 3


def test_pictures_do_not_disturb_the_run(tmp_path: Path) -> None:
    """Looking (images, evaluations) must not change what is learned."""
    looking = micro(tmp_path / "a")
    not_looking = micro(tmp_path / "b", "--images-every", "0", "--evaluate-every", "0")
    weights, other = outcome(looking)[0], outcome(not_looking)[0]
    assert all(torch.equal(weights[name], other[name]) for name in weights)


@pytest.mark.skipif(os.name != "posix", reason="signals")
def test_killed_before_the_first_checkpoint(tmp_path: Path) -> None:
    folder = tmp_path / "cartpole-swingup" / "sgqn" / "0"
    whole = micro(tmp_path / "whole")
    folder.mkdir(parents=True)
    run_folder.write_config(folder, run_folder.read_config(whole))
    (folder / run_folder.METRICS).write_text('{"step": 10, "upd')
    assert main(["train", "--resume", str(folder), "--quiet"]) == 0
    assert_same(whole, folder)


@pytest.mark.parametrize("text", ["[]", "3", "{", '{"task": "walker-walk"}', "null"])
def test_a_damaged_configuration_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / run_folder.CONFIG).write_text(text)
    with pytest.raises(SgqnError, match=r"config\.json is damaged"):
        run_folder.read_config(tmp_path)
