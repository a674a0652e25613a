"""Runs an agent's actions and updates for the trainer: with plain code or, on a GPU, on the fast path.

Only `choose_backend` imports `sgqn.fast`.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from torch import Tensor

from sgqn.agents.base import Agent, Phase
from sgqn.device import check_device
from sgqn.errors import InvalidValueError, UnknownNameError
from sgqn.reading import mapping, number
from sgqn.replay import Batch

PathName = Literal["auto", "eager", "captured", "cudnn", "kernels"]
PrecisionName = Literal["auto", "bf16", "fp32"]

Prepare = Callable[[Phase], Batch]
"""prepare(phase): the prepared batch of an update of that phase; tensors only."""


@dataclass(frozen=True)
class Backend:
    """The computation path of a device, and why it is not a faster one. This one runs plain code."""

    device: torch.device
    device_name: str
    name: str = "eager"
    precision: str = "fp32"
    note: str = ""

    def describe(self) -> str:
        """One line, such as "NVIDIA H200: bf16, captured updates, fused kernels"."""
        return f"{self.device_name}: {self.precision}, eager updates"

    def to_dict(self) -> dict[str, str]:
        """The record of the machine in a run's configuration."""
        return {"device": self.device_name, "path": self.name, "precision": self.precision, "note": self.note}

    def runner(
        self, agent: Agent, prepare: Prepare, generators: Sequence[torch.Generator], cycle: Sequence[Phase]
    ) -> Runner:
        """`generators` are all that actions and updates draw from on the device; `cycle` are phases that repeat."""
        del generators, cycle
        return Runner(agent, prepare, self.precision)


def choose_backend(device: str | torch.device = "auto", path: str = "auto", precision: str = "auto") -> Backend:
    """The fastest supported path of a device for the given options; unsupported options are an error."""
    for kind, name, names in (("path", path, get_args(PathName)), ("precision", precision, get_args(PrecisionName))):
        if name not in names:
            raise UnknownNameError(kind, name, names)
    on = check_device(device)
    if on.type == "cuda":
        from sgqn import fast

        return fast.choose_backend(on, path, precision)
    if path not in ("auto", "eager"):
        raise InvalidValueError(f"path {path!r} needs a CUDA device, this is the CPU: use --path eager or auto")
    return Backend(on, "CPU", precision="bf16" if precision == "bf16" else "fp32")


class Runner:
    """Acts and updates with plain code. `metrics` holds the means of the updates' metrics."""

    def __init__(self, agent: Agent, prepare: Prepare, precision: str = "fp32"):
        self.agent, self.prepare, self.precision = agent, prepare, precision
        self.metrics = Means()
        self.stopwatch = Stopwatch()

    def act(self, obs: Tensor) -> Tensor:
        """Actions drawn from the policy. The next call may overwrite them."""
        return self.agent.act(obs, deterministic=False)

    def update(self, phases: Sequence[Phase]) -> None:
        """One update per phase, in this order."""
        self.stopwatch.start()
        for phase in phases:
            batch = self.prepare(phase)
            with torch.autocast(self.agent.device.type, torch.bfloat16, enabled=self.precision == "bf16"):
                metrics = self.agent.learn(batch, phase)
            self.metrics.count(self.metrics.add(metrics))
        self.stopwatch.stop()

    def advance(self, actions: Tensor, send: Callable[[np.ndarray], None], phases: Sequence[Phase]) -> None:
        """Send the actions to the environments, and run the updates while they step."""
        send(actions.numpy())
        if phases:
            self.update(phases)

    def reset(self) -> None:
        """Call it after weights or buffers have been replaced, as by loading a checkpoint."""


class Means:
    """Means of metrics: sums on the device, counts on the host, read only on request."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._counts: Counter[str] = Counter()

    def add(self, metrics: dict[str, Tensor]) -> tuple[str, ...]:
        """Add to the sums, in place and on the device. Returns the names, which `count` takes once it has happened."""
        values = [value.detach().float() for value in metrics.values()]
        for name, value in zip(metrics, values, strict=True):
            if name not in self._sums:
                self._sums[name] = torch.zeros_like(value)
        if values:
            torch._foreach_add_([self._sums[name] for name in metrics], values)  # one kernel
        return tuple(metrics)

    def count(self, names: tuple[str, ...], times: int = 1) -> None:
        for name in names:
            self._counts[name] += times

    def read(self) -> dict[str, float]:
        """The means since the last reading. Waits for the device."""
        names = [name for name in self._sums if self._counts[name]]
        if not names:
            return {}
        totals = torch.stack([self._sums[name] for name in names]).tolist()
        means = {name: total / self._counts[name] for name, total in zip(names, totals, strict=True)}
        self.clear()
        return means

    def clear(self) -> None:
        """Reset in place: captured graphs have the sums' addresses."""
        for total in self._sums.values():
            total.zero_()
        self._counts.clear()

    def state_dict(self) -> dict[str, Any]:
        counts = {name: count for name, count in self._counts.items() if count}
        return {"sums": {name: self._sums[name].clone() for name in counts}, "counts": counts}

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        names = mapping(state["sums"], "sums").keys()
        for count in mapping(state["counts"], "counts", list(names)).values():
            number(count, "a count")
        for total in state["sums"].values():
            if not isinstance(total, Tensor) or total.shape or not total.is_floating_point():
                raise ValueError("the sums of metrics are not numbers")
        self.clear()
        for name, total in state["sums"].items():
            self._sums.setdefault(name, torch.zeros((), device=device)).copy_(total)
        self._counts.update(state["counts"])


class Stopwatch:
    """The share of the time that passes between updates: collecting, and waiting for it."""

    def __init__(self, keep: int = 100):
        self._laps: deque[tuple[Any, Any, Any]] = deque(maxlen=keep)  # updates stopped, started, stopped
        self._stopped: Any = None
        self._started: Any = None

    def start(self) -> None:
        """Updates start."""
        self._started = self.now()

    def stop(self) -> None:
        """Updates have been made, or handed to the device."""
        now = self.now()
        if self._stopped is not None:
            self._laps.append((self._stopped, self._started, now))
        self._stopped = now

    def skip(self) -> None:
        """Do not count the time since the last updates: an evaluation or a checkpoint, not collecting."""
        self._stopped = None

    def read(self) -> float | None:
        """The share in the latest laps since the last reading, None without any; waits for the device."""
        laps = list(self._laps)
        self._laps.clear()
        if not laps:
            return None
        self.settle(laps[-1][-1])
        between = sum(self.seconds(before, started) for before, started, _ in laps)
        whole = sum(self.seconds(before, after) for before, _, after in laps)
        return between / whole if whole > 0 else 0.0

    def now(self) -> Any:
        return time.perf_counter()

    def seconds(self, start: Any, stop: Any) -> float:
        return stop - start

    def settle(self, last: Any) -> None:
        """Wait until the last mark has passed."""
