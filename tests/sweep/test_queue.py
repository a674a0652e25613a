"""Scheduling, retries and failures, with pools and workers that only pretend to train."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest

from sgqn import checkpoint, run_folder
from sgqn.errors import Interrupted, InvalidValueError, SgqnError
from sgqn.sweep import local, queue, sweep
from sgqn.sweep.local import LocalPool
from sgqn.sweep.plan import Planned
from sgqn.sweep.storage import Folder
from sgqn.sweep.work import Ended, Report
from tests.helpers import fails
from tests.sweep.sweeps import quick

PRETENDER = """
import json, os, signal, sys, time
job = json.loads(sys.stdin.readline())
start = time.time()
time.sleep(0.3)
with open(os.path.join(job["where"], "log"), "a") as log:
    line = {"seed": job["config"]["seed"], "device": os.environ.get("CUDA_VISIBLE_DEVICES"), "cpus": job["cpus"]}
    log.write(json.dumps({**line, "start": start, "end": time.time()}) + chr(10))
print(json.dumps({"state": "complete", "message": ""}))
"""


class FakePool:
    """Ends runs as a script says: for each name, the states of its attempts."""

    def __init__(self, script: dict[str, list[Ended]]):
        self.script, self.pending = script, []
        self.submitted: list[str] = []

    def submit(self, run: Planned) -> None:
        self.submitted.append(run.name)
        self.pending.append(run.name)

    def poll(self, seconds: float) -> list[tuple[str, Ended]]:
        ended = [(name, self.script[name].pop(0)) for name in self.pending]
        self.pending = []
        return ended

    def reports(self) -> dict[str, tuple[Report, str]]:
        return {}

    def stop(self) -> list[str]:
        return []

    def close(self) -> None:
        self.closed = True


def _work(script: dict[int, list[Ended]], tmp_path: Path) -> tuple[FakePool, list[queue.Entry]]:
    plan, storage = quick(seed=list(script)), Folder(tmp_path)
    names = {run.config.seed: run.name for run in plan}
    pool, entries = FakePool({names[seed]: ends for seed, ends in script.items()}), queue.survey(plan, storage)
    try:
        queue.work_through(entries, pool, storage, live=False)
    finally:
        assert pool.closed
    return pool, entries


def test_a_lost_run_is_started_again(tmp_path: Path) -> None:
    pool, entries = _work({0: [Ended("lost"), Ended("lost"), Ended("complete")], 1: [Ended("complete")]}, tmp_path)
    assert [entry.state for entry in entries] == ["complete", "complete"]
    assert len(pool.submitted) == 4


def test_a_run_that_somebody_else_stopped_is_started_again(tmp_path: Path) -> None:
    pool, entries = _work({0: [Ended("stopped"), Ended("complete")]}, tmp_path)
    assert entries[0].state == "complete"
    assert len(pool.submitted) == 2


def test_a_failed_run_does_not_stop_the_others(tmp_path: Path) -> None:
    with pytest.raises(SgqnError, match=r"1 of 3 runs failed: cartpole-swingup/sac/1: loss/critic is nan"):
        _work({0: [Ended("complete")], 1: [Ended("failed", "loss/critic is nan")], 2: [Ended("complete")]}, tmp_path)


def test_a_run_that_is_lost_again_and_again_is_given_up(tmp_path: Path) -> None:
    with pytest.raises(SgqnError, match="lost 4 times in a row after step 0: node died"):
        _work({0: [Ended("lost", "node died")] * 9, 1: [Ended("complete")]}, tmp_path)


def test_a_run_that_makes_progress_is_never_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = iter(range(10, 200, 10))
    found = Folder.progress
    monkeypatch.setattr(Folder, "progress", lambda self, run: found(self, run)._replace(step=next(steps)))
    pool, entries = _work({0: [Ended("lost")] * 4 + [Ended("complete")]}, tmp_path)
    assert entries[0].state == "complete"
    assert len(pool.submitted) == 5


def _pretend(monkeypatch: pytest.MonkeyPatch, devices: list[str]) -> None:
    monkeypatch.setattr(local, "COMMAND", (sys.executable, "-c", PRETENDER))
    monkeypatch.setattr(local, "default_devices", lambda: devices)


def _log(folder: Path) -> list[dict]:
    return [json.loads(line) for line in (folder / "log").read_text().splitlines()]


def _most_at_once(log: list[dict]) -> int:
    return max(sum(other["start"] <= one["start"] < other["end"] for other in log) for one in log)


@pytest.mark.parametrize(
    ("devices", "gpus", "at_once"),
    [(["cuda:0", "cuda:1"], None, 2), (["cuda:0"], None, 1), (["cuda:0", "cuda:1"], 0.5, 4), (["cuda:0"], 0.3, 3)],
)
def test_devices_take_as_many_runs_as_their_share_allows(
    devices: list[str], gpus: float | None, at_once: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _pretend(monkeypatch, devices)
    resources = {"cpus": 1} if gpus is None else {"cpus": 1, "gpus": gpus}
    sweep(quick(seed=[0, 1, 2, 3, 4, 5], resources=resources), tmp_path, live=False)
    log = _log(tmp_path)
    assert {line["seed"] for line in log} == set(range(6))
    assert {line["device"] for line in log} == {device.partition(":")[2] for device in devices}
    assert _most_at_once(log) <= at_once
    for device in devices:
        there = [line for line in log if line["device"] == device.partition(":")[2]]
        assert _most_at_once(there) <= at_once // len(devices)


def test_seeds_are_trained_on_the_devices_of_the_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from sgqn.cli import main

    _pretend(monkeypatch, ["cuda:0", "cuda:1"])
    options = ["train", "--task", "cartpole-swingup", "--preset", "tiny", "--out", str(tmp_path), "--quiet"]
    assert main([*options, "--seeds", "0", "1", "2", "--devices", "cuda:0", "cuda:1"]) == 0
    assert {(line["seed"], line["device"]) for line in _log(tmp_path)} >= {(0, "0"), (1, "1")}
    assert capsys.readouterr().out.count("done: ") == 3
    assert "machine has cuda:0, cuda:1" in fails(capsys, *options, "--seeds", "0", "1", "--devices", "cuda:7")
    assert "--devices needs --seeds" in fails(capsys, *options, "--devices", "cpu")


def test_cores_are_shared_between_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _pretend(monkeypatch, ["cpu"])
    monkeypatch.setattr(local, "num_cores", lambda: 8)
    sweep(quick(seed=[0, 1], resources={}), tmp_path, devices=["cpu", "cpu"], live=False)
    assert {line["cpus"] for line in _log(tmp_path)} == {4}


def test_a_worker_that_fails_to_start_is_a_failed_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local, "COMMAND", (sys.executable, "-c", "raise SystemExit('no such module')"))
    with pytest.raises(SgqnError, match="no such module"):
        sweep(quick(), tmp_path, live=False)


@pytest.mark.parametrize("device", ["gpu", "cuda:x", "cpu:0", "cuda:", ""])
def test_unknown_devices_are_refused(device: str) -> None:
    with pytest.raises(InvalidValueError, match="device"):
        LocalPool(Folder(Path()), [device])


def test_ctrl_c_stops_and_the_same_command_continues(tmp_path: Path) -> None:
    """Real workers: the first signal lets them save."""
    plan = quick(seed=[0, 1], steps=4000, checkpoint_every=1000)
    first = tmp_path / plan[0].name

    def interrupt() -> None:
        while not (first / run_folder.METRICS).exists():
            time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(Interrupted, match="the same command continues") as stop:
        sweep(plan, tmp_path, live=False)
    assert stop.value.code == 130
    assert checkpoint.list_checkpoints(first)
    assert not (tmp_path / plan[1].name).exists()
    assert queue.survey(plan, Folder(tmp_path))[0].step > 0
