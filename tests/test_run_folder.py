"""One run, one writer."""

from __future__ import annotations

import fcntl
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
from tests.helpers import tiny_config

HOLD = """
import sys, time
from pathlib import Path
from sgqn import run_folder
with run_folder.hold(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(60)
"""


CONTEND = """
import os, sys
from pathlib import Path
from sgqn import run_folder
from sgqn.errors import BusyError

for number in range(60):
    start, result, end = os.pipe(), os.pipe(), os.pipe()
    for contender in range(3):
        if os.fork() == 0:
            os.close(start[1]), os.close(end[1])
            os.read(start[0], 1)  # returns when all contenders are here
            try:
                with run_folder.hold(Path(sys.argv[1]) / str(number) / "run"):
                    os.write(result[1], b"w")
                    os.read(end[0], 1)
            except BusyError as error:
                os.write(result[1], b"b" if f"process {os.getpid()} " not in str(error) else b"?")
            os._exit(0)
    os.close(start[1])
    tried = b"".join(os.read(result[0], 1) for _ in range(3))
    os.close(end[1])
    for _ in range(3):
        os.wait()
    for descriptor in (start[0], *result, end[0]):
        os.close(descriptor)
    assert sorted(tried) == sorted(b"wbb"), tried
"""


def test_of_simultaneous_processes_exactly_one_wins(tmp_path: Path) -> None:
    """60 of 60 times. In a process of its own, which forks the contenders."""
    subprocess.run([sys.executable, "-c", CONTEND, str(tmp_path)], check=True, timeout=300)
    assert not list(tmp_path.rglob(run_folder.LOCK))


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


def test_a_folder_that_vanishes_while_it_is_looked_at_has_no_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its last owner removes it between the question whether it is there and the look into it."""
    monkeypatch.setattr(Path, "is_dir", lambda path: True)
    monkeypatch.setattr(Path, "exists", lambda path: True)
    run_folder.check_links(tmp_path / "gone")


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


def test_a_process_that_has_just_got_the_lock_is_named_too(tmp_path: Path) -> None:
    lock = tmp_path / run_folder.LOCK
    with open(lock, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        late = threading.Timer(0.2, lock.write_text, ["process 7 on a-host"])
        late.start()
        with pytest.raises(BusyError, match="is being trained by process 7 on a-host: "), run_folder.hold(tmp_path):
            pass
        late.join()


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


def test_an_action_repeat_that_is_the_tasks_default_is_no_difference() -> None:
    unset, given = tiny_config(action_repeat=None), tiny_config(action_repeat=8)
    assert run_folder.changes(unset, given) == {}
    assert run_folder.differences(unset, given) == []
    assert run_folder.differences(unset, tiny_config(action_repeat=4)) == [
        "action_repeat is 8 there, 4 in the checkpoint"
    ]
