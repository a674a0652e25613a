"""Runs of a sweep as tasks of a Ray cluster."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sgqn.errors import InvalidValueError, SgqnError
from sgqn.sweep.plan import Planned
from sgqn.sweep.storage import Storage
from sgqn.sweep.work import Ended, Report, job_of, last_report, work

REPORT_SECONDS = 1.0
ORPHANED = 10.0
"""Seconds without an answer from the driver after which a run saves and stops."""
CONNECT_SECONDS = 5.0

logger = logging.getLogger(__name__)


class Board:
    """Where running runs report, and learn whether they should stop. One actor, on the driver's machine."""

    def __init__(self) -> None:
        self.reports: dict[str, tuple[Report, str, float]] = {}
        self.stopping = False

    def report(self, name: str, report: Report, node: str) -> bool:
        """Take a run's report; answers whether it should stop."""
        self.reports[name] = (report, node, time.monotonic())
        return self.stopping

    def read(self) -> dict[str, tuple[Report, str]]:
        """The reports of runs that are alive."""
        now = time.monotonic()
        return {name: (report, node) for name, (report, node, at) in self.reports.items() if now - at < ORPHANED}

    def stop(self) -> None:
        self.stopping = True


def task(name: str, job: dict[str, Any], board: Any) -> Ended:
    """What a worker of the cluster does."""

    @contextlib.contextmanager
    def watch(folder: Path) -> Iterator[None]:
        ended = threading.Event()
        threading.Thread(target=_report, args=(name, folder, board, ended), daemon=True).start()
        try:
            yield
        finally:
            ended.set()

    return work(job, watch)


def _report(name: str, folder: Path, board: Any, ended: threading.Event) -> None:
    """Report until the run has ended. If the driver says so, or is gone, the run saves and stops."""
    import ray

    answered = time.monotonic()
    while not ended.is_set():
        stop = False
        try:
            stop = ray.get(board.report.remote(name, last_report(folder), socket.gethostname()), timeout=ORPHANED)
            answered = time.monotonic()
        except Exception:  # of Ray, which has many: the board is being restarted, or is gone
            stop = time.monotonic() - answered > ORPHANED
        if stop and not ended.is_set():
            os.kill(os.getpid(), signal.SIGTERM)
            return
        ended.wait(REPORT_SECONDS)


class RayPool:
    """A Ray cluster. `address` is `auto` for the one that this machine belongs to, `local` to start one here, or the
    address of its head."""

    def __init__(self, storage: Storage, address: str):
        ray = _import_ray()
        self.ray, self.storage = ray, storage
        _connect(ray, address)
        affinity = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
        here = affinity(ray.get_runtime_context().get_node_id(), soft=True)
        board = ray.remote(Board).options(num_cpus=0, max_restarts=-1, scheduling_strategy=here)
        self.board = board.remote()
        self.task = ray.remote(max_retries=0, max_calls=1)(task)  # a fresh process for each run
        self._runs: dict[Any, str] = {}  # by the reference of its result

    def submit(self, run: Planned) -> None:
        gpus = run.resources.gpus
        if gpus is None:
            gpus = 1.0 if run.config.device != "cpu" and self.ray.cluster_resources().get("GPU") else 0.0
        cpus = run.resources.cpus or 1
        self._check_fits(cpus, gpus)
        job = {**job_of(run, self.storage.where), "cpus": cpus}
        reference = self.task.options(num_cpus=cpus, num_gpus=gpus, name=run.name).remote(run.name, job, self.board)
        self._runs[reference] = run.name

    def poll(self, seconds: float) -> list[tuple[str, Ended]]:
        """The runs that have ended, by name; waits for one for so long at most."""
        ready, _ = self.ray.wait(list(self._runs), num_returns=1, timeout=seconds) if self._runs else ([], [])
        return [(self._runs.pop(reference), self._outcome(reference)) for reference in ready]

    def _outcome(self, reference: Any) -> Ended:
        errors = self.ray.exceptions
        try:
            ended: Ended = self.ray.get(reference)
            return ended
        except errors.TaskCancelledError:
            return Ended("stopped")
        except errors.RayTaskError as error:
            return Ended("failed", str(error).strip().splitlines()[-1])
        except errors.RayError as error:  # its process or machine died
            return Ended("lost", str(error).strip().splitlines()[0])

    def reports(self) -> dict[str, tuple[Report, str]]:
        """Of running runs: how far they are, and the machine they run on."""
        try:
            found: dict[str, tuple[Report, str]] = self.ray.get(self.board.read.remote(), timeout=ORPHANED)
        except Exception:  # being restarted
            return {}
        running = set(self._runs.values())
        return {name: entry for name, entry in found.items() if name in running}

    def stop(self) -> list[str]:
        """Ask all runs to save and stop; returns those that had not started."""
        self.ray.get(self.board.stop.remote())
        started = self.reports()
        waiting = {reference: name for reference, name in self._runs.items() if name not in started}
        for reference in waiting:
            self.ray.cancel(reference)
            del self._runs[reference]
        return list(waiting.values())

    def close(self) -> None:
        """End what is still running, and leave the cluster."""
        self.ray.shutdown()

    def _check_fits(self, cpus: int, gpus: float) -> None:
        nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        if not any(node.get("CPU", 0) >= cpus and node.get("GPU", 0) >= gpus for node in nodes):
            logger.warning("no machine of the cluster has %d CPUs and %g GPUs: the run waits for one", cpus, gpus)


def _import_ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
        import ray.exceptions
        import ray.util.scheduling_strategies
    except ImportError:
        raise SgqnError("sweeps on a Ray cluster need Ray: pip install 'sgqn[sweep]'") from None
    return ray


def _connect(ray: Any, address: str) -> None:
    quiet = {"log_to_driver": False, "logging_level": logging.ERROR, "configure_logging": True}
    if address == "local":
        ray.init(address="local", include_dashboard=False, **quiet)
        return
    if address != "auto":
        _check_reachable(address)
    try:
        ray.init(address=address, **quiet)
    except (ConnectionError, RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        how = (
            "start one with `ray start --head`, or use --ray local"
            if address == "auto"
            else "is `ray start` running there?"
        )
        raise InvalidValueError(f"no Ray cluster at {address!r} ({reason}): {how}") from error


def _check_reachable(address: str) -> None:
    """Ray itself would try for a long time, and end the process."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not host or not port.isdecimal():
        raise InvalidValueError(f"unknown Ray address {address!r}: use auto, local or HOST:PORT")
    try:
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise InvalidValueError(
            f"no Ray cluster at {address!r} ({error}): is `ray start --head` running there?"
        ) from error
