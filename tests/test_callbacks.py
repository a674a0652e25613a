"""Callbacks are told what the files say, change nothing, and can end a run that can be resumed."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

import sgqn
from sgqn import checkpoint, run_folder
from sgqn.errors import Interrupted
from tests.helpers import same_weights, tiny_config

CONFIG = tiny_config(
    steps=48,
    warmup_steps=16,
    num_envs=2,
    overlay_images=16,
    device="cpu",
    images_every=0,
    log_every=16,
    evaluate_every=24,
    evaluate_shifts=("train",),
    checkpoint_every=24,
)


class Recorder(sgqn.Callback):
    """Notes every call, and does `what` after step `at`."""

    def __init__(self, at: int = 0, what: Any = None) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.at, self.what = at, what

    def on_start(self, config: dict[str, Any], folder: Path, step: int) -> None:
        self.calls.append(("start", step, folder, config["task"], config["settings"]["batch_size"]))

    def on_step(self, step: int) -> None:
        self.calls.append(("step", step))
        if step == self.at:
            self.what(self)

    def on_log(self, step: int, values: dict[str, float]) -> None:
        self.calls.append(("log", step, values))

    def on_evaluation(self, step: int, values: dict[str, Any]) -> None:
        self.calls.append(("evaluation", step, values))

    def on_checkpoint(self, step: int, path: Path) -> None:
        self.calls.append(("checkpoint", step, path))

    def on_end(self, step: int, reason: str) -> None:
        self.calls.append(("end", step, reason))

    def of(self, kind: str) -> list[tuple[Any, ...]]:
        return [call[1:] for call in self.calls if call[0] == kind]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run without callbacks."""
    return sgqn.train(CONFIG, tmp_path_factory.mktemp("whole"), progress=False)


def test_what_callbacks_are_told(tmp_path: Path, whole: Path) -> None:
    told = Recorder()
    folder = sgqn.train(CONFIG, out=str(tmp_path), progress=False, callbacks=[told, sgqn.Callback()])
    assert told.calls[0] == ("start", 0, folder, "cartpole-swingup", 16)
    assert told.calls[-1] == ("end", 48, "complete")
    assert [step for (step,) in told.of("step")] == list(range(2, 50, 2))
    for kind, file in (("log", run_folder.METRICS), ("evaluation", run_folder.EVALUATIONS)):
        lines = list(run_folder.read_lines(folder / file))
        assert [values for _, values in told.of(kind)] == lines
        assert [step for step, _ in told.of(kind)] == [line["step"] for line in lines]
        assert lines
    assert [path for _, path in told.of("checkpoint")] == checkpoint.list_checkpoints(folder)
    assert same_weights(folder, whole)


def test_a_callback_stops_a_run_that_can_be_resumed(tmp_path: Path, whole: Path) -> None:
    told = Recorder(30, sgqn.Callback.stop)
    folder = sgqn.train(CONFIG, tmp_path, progress=False, callbacks=[told])
    assert told.calls[-2:] == [("checkpoint", 30, checkpoint.find(folder)), ("end", 30, "stopped")]
    told = Recorder()
    assert sgqn.resume(folder, progress=False, callbacks=[told]) == folder
    assert told.calls[0][:2] == ("start", 30)
    assert told.calls[-1] == ("end", 48, "complete")
    assert same_weights(folder, whole)


def test_callbacks_learn_how_a_run_ended(tmp_path: Path) -> None:
    def fail(_: Any) -> None:
        raise RuntimeError("a bug of the callback")

    told = Recorder(18, lambda _: os.kill(os.getpid(), signal.SIGTERM))
    with pytest.raises(Interrupted):
        sgqn.train(CONFIG, tmp_path / "signal", progress=False, callbacks=[told])
    assert told.calls[-1] == ("end", 18, "interrupted")
    told, failing = Recorder(), Recorder(18, fail)
    with pytest.raises(RuntimeError, match="a bug"):
        sgqn.train(CONFIG, tmp_path / "error", progress=False, callbacks=[told, failing])
    assert told.calls[-1] == failing.calls[-1] == ("end", 18, "failed")


def test_what_is_no_configuration() -> None:
    with pytest.raises(sgqn.InvalidValueError, match=r"sgqn.configure\(task='walker-walk'\), not 'cartpole-swingup'"):
        sgqn.train("cartpole-swingup")  # type: ignore[arg-type]
    assert sgqn.configure(task="cartpole-swingup", preset="tiny", steps=400, rho=0.8).settings.rho == 0.8
