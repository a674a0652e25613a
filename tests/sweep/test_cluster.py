"""Sweeps on a real Ray cluster on this machine: drivers, workers and nodes die, no run is lost."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import ModuleType

import pytest

from sgqn import checkpoint
from sgqn.sweep import sweep
from tests.sweep.sweeps import QUICK, quick

pytest.importorskip("ray")
SCRIPT = Path(__file__).parents[2] / "benchmarks" / "sweep.py"
pytestmark = [pytest.mark.slow, pytest.mark.skipif(not SCRIPT.exists(), reason="installed without the repository")]
LONGER = {"seed": [0, 1, 2], "steps": 600, "checkpoint_every": 50}


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    spec = importlib.util.spec_from_file_location("sweep_benchmark", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_killed_worker_is_replaced(tmp_path: Path, benchmark: ModuleType) -> None:
    """The larger version, with a node that dies too, is benchmarks/sweep.py."""
    plan, out, killed = quick(**{**LONGER, "seed": [0, 1]}), tmp_path / "ray", []

    def kill() -> None:
        killed.append(benchmark.training_process(plan, out))
        os.kill(killed[0], signal.SIGKILL)

    thread = threading.Thread(target=kill)
    thread.start()
    sweep(plan, out, ray="local", live=False)
    thread.join()
    assert killed
    sweep(plan, tmp_path / "local", live=False)
    for run in plan:
        assert benchmark.left_by(out / run.name) == benchmark.left_by(tmp_path / "local" / run.name)


def test_a_lost_driver_is_replaced_by_the_same_command(tmp_path: Path, benchmark: ModuleType) -> None:
    plan, out, file = quick(**LONGER), tmp_path / "ray", tmp_path / "sweep.toml"
    values = {**QUICK, **LONGER}
    resources = values.pop("resources")
    file.write_text("\n".join(f"{name} = {value!r}" for name, value in values.items()))
    file.write_text(f"{file.read_text()}\n[resources]\ncpus = {resources['cpus']}\n")
    with benchmark.cluster_of(2) as cluster:
        command = [sys.executable, "-c", "import sys; from sgqn.cli import main; sys.exit(main())"]
        command += ["sweep", str(file), "--out", str(out), "--ray", cluster.address]
        with subprocess.Popen(command, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as driver:
            benchmark.training_process(plan, out)
            driver.kill()
        sweep(plan, out, ray=cluster.address, live=False)
    sweep(plan, tmp_path / "local", live=False)
    for run in plan:
        assert benchmark.left_by(out / run.name) == benchmark.left_by(tmp_path / "local" / run.name)


def test_runs_at_a_url_survive_a_killed_worker(tmp_path: Path, benchmark: ModuleType) -> None:
    """Each attempt has a local copy of its own; a lease on the storage keeps them apart."""
    plan, stored, killed = quick(**{**LONGER, "seed": [0, 1]}), tmp_path / "ray", []

    def kill() -> None:
        while not checkpoint.list_checkpoints(stored / plan[0].name):
            time.sleep(0.05)
        for pid in [int(name) for name in os.listdir("/proc") if name.isdecimal()]:
            with contextlib.suppress(OSError):
                if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::" + plan[0].name.encode()):
                    os.kill(pid, signal.SIGKILL)
                    killed.append(pid)

    with benchmark.cluster_of(2) as cluster:
        threading.Thread(target=kill, daemon=True).start()
        sweep(plan, f"file://{stored}", ray=cluster.address, live=False)
    assert killed
    sweep(plan, tmp_path / "local", live=False)
    for run in plan:
        assert benchmark.left_by(stored / run.name) == benchmark.left_by(tmp_path / "local" / run.name)
