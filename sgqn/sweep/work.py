"""One run of a sweep, in a process of its own: `python -m sgqn.sweep.work`, or a task of a Ray cluster."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal, NamedTuple

from sgqn import run_folder
from sgqn.config import TrainConfig
from sgqn.errors import BusyError, Interrupted, SgqnError, WorkerError
from sgqn.loggers import LOGGERS
from sgqn.sweep.plan import Planned, Resources
from sgqn.sweep.storage import open_storage

PATIENCE = 60.0
"""Seconds to wait for a process that still holds the run: one that is being killed, as a rule."""

State = Literal["complete", "failed", "stopped", "lost"]


class Ended(NamedTuple):
    """How an attempt at a run ended. `lost`: the process or machine died, another attempt may succeed."""

    state: State
    message: str = ""


class Report(NamedTuple):
    """How far a running run has come, by its newest line of metrics."""

    step: int = 0
    episode_return: float | None = None
    rate: float | None = None
    """Steps per second."""


def job_of(run: Planned, where: str) -> dict[str, Any]:
    """What a worker needs to know of a run, as JSON."""
    return {
        "config": run.config.to_dict(),
        "variant": run.variant,
        "cpus": run.resources.cpus,
        "where": where,
        "loggers": list(run.loggers),
    }


def work(job: dict[str, Any], watch: Callable[[Path], contextlib.AbstractContextManager[None]] | None = None) -> Ended:
    """Train one run to its end, from wherever it stands.

    `watch` is entered while the run trains, with its local folder.
    """
    try:
        if job["cpus"]:
            _limit_cpus(job["cpus"])
        from sgqn import training

        run = Planned(TrainConfig.from_dict(job["config"]), job["variant"], Resources(cpus=job["cpus"]))
        with _patiently(lambda: open_storage(job["where"]).open(run)) as space:
            folder = run_folder.folder_of(run.config, space.out)
            callbacks = (*space.callbacks, *(LOGGERS[name]() for name in job["loggers"]))
            with watch(folder) if watch else contextlib.nullcontext():
                _try_for(PATIENCE, lambda: training.advance(run.config, space.out, False, callbacks))
        return Ended("complete")
    except Interrupted as stop:
        return Ended("stopped", str(stop))
    except WorkerError as error:
        return Ended("lost", str(error))
    except (SgqnError, OSError, MemoryError) as error:
        return Ended("failed", " ".join(str(error).split()) or type(error).__name__)


def last_report(folder: Path) -> Report:
    """What the newest lines of a run's metrics say."""
    try:
        with open(folder / run_folder.METRICS, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - 65536))
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:
        return Report()
    step, rate, found = 0, None, None
    for line in reversed(lines):
        with contextlib.suppress(ValueError, TypeError, AttributeError):
            values = json.loads(line)
            if not step:
                step, rate = int(values["step"]), values.get("steps_per_second")
            if (found := values.get("episode/return")) is not None:
                break
    return Report(step, found, rate)


def _limit_cpus(count: int) -> None:
    """Use so many threads and simulator processes at most."""
    os.environ["SGQN_CPUS"] = str(count)
    import torch

    torch.set_num_threads(count)


@contextlib.contextmanager
def _patiently(make: Callable[[], contextlib.AbstractContextManager[Any]]) -> Iterator[Any]:
    """A context that is entered once nobody else holds the run."""
    with contextlib.ExitStack() as stack:
        yield _try_for(PATIENCE, lambda: stack.enter_context(make()))


def _try_for(seconds: float, call: Callable[[], Any]) -> Any:
    """Call again, for a while, as long as another process holds the run."""
    until = time.monotonic() + seconds
    while True:
        try:
            return call()
        except BusyError:
            if time.monotonic() >= until:
                raise
            time.sleep(0.5)


def _stop_with_parent() -> None:
    """Save and stop when the process that reads our output is gone: it holds the other end of standard input."""
    with contextlib.suppress(OSError, ValueError):
        sys.stdin.read()
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    """Read a job from the first line of standard input; write how it ended as the last line of standard output."""
    job = json.loads(sys.stdin.readline())
    threading.Thread(target=_stop_with_parent, daemon=True).start()
    with contextlib.redirect_stdout(sys.stderr):
        ended = work(job)
    print(json.dumps(ended._asdict()), flush=True)


if __name__ == "__main__":
    main()
