"""One run, one writer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from sgqn import run_folder, training
from sgqn.config import preset
from sgqn.errors import BusyError, InvalidValueError

HOLD = """
import sys, time
from pathlib import Path
from sgqn import run_folder
with run_folder.hold(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


def test_of_simultaneous_holders_exactly_one_wins(tmp_path: Path) -> None:
    """Flock is a property of the open file, so threads compete like processes."""
    contenders = 6
    for number in range(40):
        run, winners = tmp_path / str(number) / "run", []
        ready, tried = threading.Barrier(contenders), threading.Barrier(contenders)

        def contend(run: Path = run, winners: list = winners, ready=ready, tried=tried) -> None:
            ready.wait()
            try:
                with run_folder.hold(run):
                    winners.append(1)
                    tried.wait()
            except BusyError:
                tried.wait()

        threads = [threading.Thread(target=contend) for _ in range(contenders)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(winners) == 1


def test_taking_turns_loses_no_lock(tmp_path: Path) -> None:
    """Folders and lock files come and go with their holders; there are never two."""
    run, inside, failures = tmp_path / "a" / "b", [], []

    def take_turns() -> None:
        for _ in range(200):
            try:
                with run_folder.hold(run):
                    inside.append(1)
                    if len(inside) > 1:
                        failures.append("two holders")
                    inside.pop()
            except BusyError:
                pass
            except Exception as error:
                failures.append(repr(error))

    threads = [threading.Thread(target=take_turns) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


def test_a_folder_that_stays_empty_is_removed(tmp_path: Path) -> None:
    with run_folder.hold(tmp_path / "a" / "b"):
        assert (tmp_path / "a" / "b" / run_folder.LOCK).exists()
    assert not list(tmp_path.iterdir())
    with run_folder.hold(tmp_path / "a" / "b"):
        (tmp_path / "a" / "b" / "kept").touch()
    assert [path.name for path in (tmp_path / "a" / "b").iterdir()] == ["kept"]


def test_a_killed_process_holds_nothing(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with subprocess.Popen([sys.executable, "-c", HOLD, str(run)], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "held\n"
        with pytest.raises(BusyError, match=f"process {other.pid} on "), run_folder.hold(run):
            pass
        other.send_signal(signal.SIGKILL)
        other.wait()
    with run_folder.hold(run):
        assert str(os.getpid()) in (run / run_folder.LOCK).read_text()


def test_a_run_that_is_training_is_neither_resumed_nor_started(tmp_path: Path) -> None:
    config = preset("tiny", "cartpole-swingup")
    folder = run_folder.folder_of(config, tmp_path)
    folder.mkdir(parents=True)
    run_folder.write_config(folder, config)
    with run_folder.hold(folder):
        for call in (lambda: training.resume(folder, progress=False), lambda: training.train(config, tmp_path, False)):
            with pytest.raises(BusyError, match="is being trained by process"):
                call()
    with pytest.raises(InvalidValueError, match="holds a run already"):
        training.train(config, tmp_path, False)
    assert not (folder / run_folder.LOCK).exists()
