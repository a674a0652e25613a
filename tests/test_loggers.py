"""Loggers by name. Those of W&B and MLflow are tested where these are installed: `pip install 'sgqn[wandb,mlflow]'`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import sgqn
from sgqn.cli import main
from sgqn.loggers import LOGGERS, RUNS
from tests.helpers import MICRO, fails

FOLDER = Path("cartpole-swingup") / "sgqn" / "0"


def train_and_resume(out: Path, logger: str) -> list[str]:
    """A run that is trained longer; returns what the service called it in both parts."""
    assert main(["train", *MICRO, "--steps", "40", "--out", str(out), "--logger", logger]) == 0
    first = json.loads((out / FOLDER / RUNS).read_text())[logger]
    assert main(["train", "--resume", str(out / FOLDER), "--steps", "60", "--quiet", "--logger", logger]) == 0
    return [first, json.loads((out / FOLDER / RUNS).read_text())[logger]]


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_missing_package_is_one_line_before_training(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    said = fails(capsys, "train", *MICRO, "--out", str(tmp_path), "--logger", name)
    assert f"pip install 'sgqn[{name}]'" in said
    assert not list(tmp_path.iterdir())


def test_a_logger_of_ones_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(LOGGERS, "_things", dict(LOGGERS))
    monkeypatch.setattr(LOGGERS, "_origins", {name: LOGGERS.origin(name) for name in LOGGERS})
    logged: list[int] = []

    @sgqn.register_logger("mine")
    class Mine(sgqn.Callback):
        def on_log(self, step: int, values: dict[str, float]) -> None:
            logged.append(step)

    assert "did you mean 'mine'" in fails(capsys, "train", "--logger", "mines")
    assert main(["train", *MICRO, "--steps", "40", "--out", str(tmp_path), "--logger", "mine"]) == 0
    assert logged == [10, 20, 30, 40]


def test_weights_and_biases_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("wandb")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    first, second = train_and_resume(tmp_path, "wandb")
    assert first == second
    written = sorted((tmp_path / FOLDER).glob(f"wandb/offline-run-*/run-{first}.wandb"))
    assert written
    content = b"".join(path.read_bytes() for path in written)
    for text in (b"loss/critic", b"evaluation/train", b"cartpole-swingup/sgqn/0", b"embedding_dim"):
        assert text in content


def test_mlflow_in_a_local_database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mlflow = pytest.importorskip("mlflow")
    pytest.importorskip("sqlalchemy")
    pytest.importorskip("alembic")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    first, second = train_and_resume(tmp_path / "runs", "mlflow")
    assert first == second
    client = mlflow.MlflowClient()
    run = client.get_run(first)
    assert (run.info.run_name, run.info.status) == ("cartpole-swingup/sgqn/0", "FINISHED")
    assert run.data.params["embedding_dim"] == "8"
    assert [metric.step for metric in client.get_metric_history(first, "loss/critic")] == [30, 40, 50, 60]
    assert [metric.step for metric in client.get_metric_history(first, "evaluation/train")] == [30, 60]


def test_mlflow_that_cannot_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "nowhere://")
    said = fails(capsys, "train", *MICRO, "--out", str(tmp_path), "--logger", "mlflow")
    assert "MLflow cannot log to nowhere://" in said
    assert not list(tmp_path.iterdir())
