"""Runs of a sweep as processes of this machine, a few at a time."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO

from sgqn.envs.warp import num_cores
from sgqn.errors import InvalidValueError
from sgqn.sweep.plan import Planned
from sgqn.sweep.storage import Folder, Storage
from sgqn.sweep.work import Ended, Report, job_of, last_report

COMMAND = (sys.executable, "-m", "sgqn.sweep.work")
_ROUNDING = 1e-6


@dataclass
class _Process:
    run: Planned
    device: int
    share: float
    process: subprocess.Popen[str]
    errors: IO[str]


class LocalPool:
    """Processes on the devices of this machine. A device named twice takes two runs at a time."""

    def __init__(self, storage: Storage, devices: Sequence[str] = ()):
        self.storage = storage
        self.devices = check_devices(devices) if devices else default_devices()
        self._free = [1.0] * len(self.devices)
        self._waiting: list[Planned] = []
        self._running: dict[str, _Process] = {}

    def submit(self, run: Planned) -> None:
        self._waiting.append(run)
        self._start()

    def poll(self, seconds: float) -> list[tuple[str, Ended]]:
        """The runs that have ended, by name; waits for one for so long at most."""
        until = time.monotonic() + seconds
        while True:
            ended = [
                (name, self._end(name)) for name, one in list(self._running.items()) if one.process.poll() is not None
            ]
            self._start()
            if ended or time.monotonic() >= until:
                return ended
            time.sleep(0.05)

    def reports(self) -> dict[str, tuple[Report, str]]:
        """Of running runs: how far they are, and the device they run on."""
        return {name: (self._report(name), self.devices[one.device]) for name, one in self._running.items()}

    def stop(self) -> list[str]:
        """Ask all runs to save and stop; returns those that had not started."""
        waiting, self._waiting = [run.name for run in self._waiting], []
        for one in self._running.values():
            one.process.terminate()
        return waiting

    def close(self) -> None:
        """End what is still running, without saving."""
        for one in self._running.values():
            one.process.send_signal(signal.SIGKILL)
            one.process.wait()
            one.errors.close()
        self._running.clear()

    def _start(self) -> None:
        """Start what fits on the devices, in order: a large run is not overtaken for ever by small ones."""
        while self._waiting:
            run = self._waiting[0]
            places = [(device, self._share(run, device)) for device in range(len(self.devices))]
            fitting = [(device, share) for device, share in places if share <= self._free[device] + _ROUNDING]
            if not fitting:
                return
            device, share = max(fitting, key=lambda place: self._free[place[0]])
            self._running[run.name] = self._spawn(self._waiting.pop(0), device, share)
            self._free[device] -= share

    def _share(self, run: Planned, device: int) -> float:
        return 1.0 if self.devices[device] == "cpu" else run.resources.gpus or 1.0

    def _spawn(self, run: Planned, device: int, share: float) -> _Process:
        name = self.devices[device]
        visible = {} if name == "cuda" else {"CUDA_VISIBLE_DEVICES": "" if name == "cpu" else name.partition(":")[2]}
        errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 (closed when the process ends)
        process = subprocess.Popen(
            COMMAND,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            env={**os.environ, **visible},
            start_new_session=True,  # Ctrl-C reaches this process alone, which then asks the others to stop
        )
        assert process.stdin is not None
        job = job_of(run, self.storage.where)
        if len(self.devices) > 1:  # share the cores
            job["cpus"] = job["cpus"] or max(1, num_cores() // len(self.devices))
        process.stdin.write(json.dumps(job) + "\n")
        process.stdin.flush()  # and stays open: its end tells the worker that nobody waits for it any more
        return _Process(run, device, share, process, errors)

    def _end(self, name: str) -> Ended:
        one = self._running.pop(name)
        self._free[one.device] += one.share
        assert one.process.stdin is not None
        assert one.process.stdout is not None
        said = one.process.stdout.read().splitlines()
        one.process.stdin.close()
        one.process.stdout.close()
        with one.errors as errors:
            errors.seek(0)
            complaints = errors.read().strip().splitlines()
        code = one.process.returncode
        if code == 0 and said:
            return Ended(**json.loads(said[-1]))
        if code < 0:
            return Ended("lost", f"its process was ended by {signal.Signals(-code).name}")
        return Ended("failed", complaints[-1] if complaints else f"its process ended with code {code}")

    def _report(self, name: str) -> Report:
        if isinstance(self.storage, Folder):
            return last_report(self.storage.path / name)
        return Report()  # its metrics are in the worker's own folder until they are uploaded


def default_devices() -> list[str]:
    """Every GPU of this machine, or its CPU."""
    import torch

    return [f"cuda:{index}" for index in range(torch.cuda.device_count())] or ["cpu"]


def check_devices(devices: Sequence[str]) -> list[str]:
    """Names of devices as given on a command line."""
    for device in devices:
        kind, _, index = device.partition(":")
        if kind not in ("cpu", "cuda") or (kind == "cpu" and index) or (":" in device and not index.isdecimal()):
            raise InvalidValueError(f"unknown device {device!r}: use cpu, cuda or cuda:0")
    known = default_devices()
    missing = [device for device in devices if device != "cpu" and device not in (*known, "cuda")]
    if missing or ("cuda" in devices and known == ["cpu"]):
        raise InvalidValueError(
            f"device {(missing or ['cuda'])[0]!r} was asked for, but this machine has {', '.join(known)}"
        )
    return list(devices)
