"""Work captured in CUDA graphs and replayed: any steps that are tensors in, tensors out.

A captured update has the addresses of everything it touches, so whatever moves a buffer (loading a checkpoint) must
`reset` what was captured. On the CPU, and where a capture fails, the same steps simply run.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from sgqn.fast.paths import Path
from sgqn.fast.streams import AHEAD, MAIN_PRIORITY, aside

logger = logging.getLogger(__name__)

Phase = TypeVar("Phase", bound=Hashable)
Input = TypeVar("Input")
Work = Callable[[], None]

WARMUP = 3
"""Eager runs before a capture: they create the optimisers' state and let cuBLAS and cuDNN settle."""


class Tally:
    """Means of metrics: sums on the device, counts on the host, read only when somebody wants to know."""

    def __init__(self) -> None:
        self._sums: dict[str, Tensor] = {}
        self._counts: Counter[str] = Counter()

    def add(self, metrics: dict[str, Tensor]) -> tuple[str, ...]:
        """Add to the sums, in place and on the device. Returns the names, which `count` wants once it has happened."""
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
        """Begin anew, in place: captured graphs have the sums' addresses."""
        for total in self._sums.values():
            total.zero_()
        self._counts.clear()

    def state_dict(self) -> dict[str, Any]:
        counts = {name: count for name, count in self._counts.items() if count}
        return {"sums": {name: self._sums[name].clone() for name in counts}, "counts": counts}

    def load_state_dict(self, state: dict[str, Any], device: torch.device) -> None:
        self.clear()
        for name, total in state["sums"].items():
            self._sums.setdefault(name, torch.zeros((), device=device)).copy_(total)
        self._counts.update(state["counts"])


class Recorder:
    """Runs work as it comes and captures none of it: what the CPU can do."""

    working = False
    """Whether `capture` is worth a try."""

    def eagerly(self, work: Work) -> None:
        work()

    def capture(self, work: Work) -> Work | None:
        """What replays `work`, which has not run yet; None where it cannot be captured."""
        del work
        return None

    def reset(self) -> None:
        """All that was captured has been dropped."""


class GraphRecorder(Recorder):
    """Captures work in CUDA graphs that share one pool of memory. After a failure, it captures nothing any more.

    `generators` are all sources of randomness on the device that the work draws from.
    """

    def __init__(self, device: torch.device, generators: Sequence[torch.Generator]):
        self.working = True
        self._device, self._generators = device, list(generators)
        self._stream: torch.cuda.Stream | None = None
        self._pool: Any = None

    def eagerly(self, work: Work) -> None:
        """Run `work` on the stream that captures, so that all it leaves behind belongs there."""
        stream, caller = self._side(), torch.cuda.current_stream(self._device)
        stream.wait_stream(caller)
        with torch.cuda.stream(stream):
            work()
        caller.wait_stream(stream)

    def capture(self, work: Work) -> Work | None:
        states = [generator.get_state() for generator in self._generators]
        try:
            return self._capture(work)
        except RuntimeError as error:
            self.working = False
            self._recover(states)
            logger.warning("updates run eagerly: they could not be captured (%s)", _reason(error))
            return None

    def reset(self) -> None:
        self._pool = None  # one that has lost its graphs takes no new ones

    def _side(self) -> torch.cuda.Stream:
        if self._stream is None:
            self._stream = torch.cuda.Stream(self._device, priority=MAIN_PRIORITY)
        return self._stream

    def _capture(self, work: Work) -> Work:
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        for generator in self._generators:
            graph.register_generator_state(generator)
        with torch.cuda.device(self._device):
            caller = torch.cuda.current_stream()
            # "thread_local": threads that prepare pictures or talk to simulators may go on meanwhile.
            scope = torch.cuda.graph(graph, pool=self._pool, stream=self._side(), capture_error_mode="thread_local")
            try:
                with scope:
                    work()
            finally:
                torch.cuda.set_stream(caller)  # which torch forgets where a capture fails
            caller.wait_stream(self._side())  # where torch has just reset the generators' places in the graph
        return graph.replay

    def _recover(self, states: list[Tensor]) -> None:
        """Leave the allocator and the generators as they were before a capture that failed."""
        index = torch.cuda.current_device() if self._device.index is None else self._device.index
        with suppress(RuntimeError):  # after some failures torch has done it
            torch._C._cuda_endAllocateToPool(index, self._pool)
        torch.cuda.synchronize(self._device)
        default = torch.cuda.default_generators[index]  # torch captures it too
        for generator, state in [*zip(self._generators, states, strict=True), (default, default.get_state())]:
            fresh = torch.Generator(self._device)  # the old one may wait for ever for its capture to end
            fresh.set_state(state)
            generator.graphsafe_set_state(fresh)


def recorder_for(path: Path, generators: Sequence[torch.Generator]) -> Recorder:
    return Recorder() if path.name == "eager" else GraphRecorder(path.device, generators)


def _reason(error: BaseException) -> str:
    """What went wrong first, in one line."""
    while error.__context__ is not None:
        error = error.__context__
    return " ".join(str(error).split())[:200] or type(error).__name__


class Updates(Generic[Phase, Input]):
    """Runs `step(prepare(phase), phase) -> metrics` for phases in a row; on a GPU captured in CUDA graphs and replayed.

    The first `warmup` runs of every phase are eager. `cycle` is a sequence of phases that comes again and again: it
    becomes one graph, in which one step's input is prepared while another runs; phases outside of it have one each.
    `tally` has the metrics.
    """

    def __init__(
        self,
        prepare: Callable[[Phase], Input],
        step: Callable[[Input, Phase], dict[str, Tensor]],
        generators: Sequence[torch.Generator],
        path: Path,
        cycle: Sequence[Phase] = (),
        warmup: int = WARMUP,
        recorder: Recorder | None = None,
    ):
        self.tally = Tally()
        self._prepare, self._step, self._path, self._cycle = prepare, step, path, tuple(cycle)
        self._warmup = max(1, warmup)  # the tally's sums must be there before a capture
        self._recorder = recorder or recorder_for(path, generators)
        self._runs: Counter[Phase] = Counter()
        self._graphs: dict[tuple[Phase, ...], tuple[Work, list[tuple[str, ...]]]] = {}

    def run(self, phases: Sequence[Phase]) -> None:
        """One update per phase, in this order. On a GPU it returns before they are done."""
        done = 0
        while done < len(phases):
            block = tuple(phases[done : done + len(self._cycle)])
            if block != self._cycle or not self._replay(block):
                block = (phases[done],)
                if not self._replay(block):
                    self._run(phases[done])
            done += len(block)

    def reset(self) -> None:
        """Forget what was captured: buffers have moved."""
        self._graphs.clear()
        self._runs.clear()
        self._recorder.reset()

    def _replay(self, block: tuple[Phase, ...]) -> bool:
        """Replay the graph of these phases, captured now if it is time; False where that cannot be."""
        if not block or not self._recorder.working or min(self._runs[phase] for phase in block) < self._warmup:
            return False
        if block not in self._graphs and not self._capture(block):
            return False
        replay, counted = self._graphs[block]
        replay()
        for names in counted:
            self.tally.count(names)
        return True

    def _capture(self, block: tuple[Phase, ...]) -> bool:
        counted: list[tuple[str, ...]] = []

        def work() -> None:
            with self._path.active():
                counted[:] = self._update(block)

        replay = self._recorder.capture(work)
        if replay is None:
            self._graphs.clear()
            return False
        self._graphs[block] = replay, counted
        return True

    def _run(self, phase: Phase) -> None:
        self._runs[phase] += 1

        def work() -> None:
            with self._path.active():
                for names in self._update((phase,)):
                    self.tally.count(names)

        self._recorder.eagerly(work)

    def _update(self, phases: tuple[Phase, ...]) -> list[tuple[str, ...]]:
        counted, ready = [], self._prepare(phases[0])
        for phase, following in zip(phases, (*phases[1:], None), strict=True):
            given = ready
            with aside(self._path.device, AHEAD) as join:
                if following is not None:
                    ready = self._prepare(following)
            counted.append(self.tally.add(self._step(given, phase)))
            join()
        return counted


class Policy:
    """`act(obs) -> actions`, on a GPU captured once for each shape of observations.

    The actions are overwritten by the next call: copy what has to last.
    """

    def __init__(
        self,
        act: Callable[[Tensor], Tensor],
        generators: Sequence[torch.Generator],
        path: Path,
        warmup: int = WARMUP,
        recorder: Recorder | None = None,
    ):
        self._act, self._path, self._warmup = act, path, max(1, warmup)
        self._recorder = recorder or recorder_for(path, generators)
        self._runs: Counter[torch.Size] = Counter()
        self._actions: dict[torch.Size, Tensor] = {}
        self._graphs: dict[torch.Size, tuple[Work, Tensor]] = {}  # with the observations' place

    def __call__(self, obs: Tensor) -> Tensor:
        shape = obs.shape
        warm = self._runs[shape] >= self._warmup
        if self._recorder.working and warm and (shape in self._graphs or self._capture(obs)):
            replay, given = self._graphs[shape]
            given.copy_(obs)
            replay()
        else:
            self._runs[shape] += 1
            self._recorder.eagerly(lambda: self._actions.update({shape: self._run(obs)}))
        return self._actions[shape]

    def reset(self) -> None:
        """Forget what was captured: buffers have moved."""
        self._graphs.clear()
        self._runs.clear()
        self._recorder.reset()

    def _capture(self, obs: Tensor) -> bool:
        # Not in the graphs' memory, where the replay of another graph may write.
        given, actions = torch.empty_like(obs), torch.empty_like(self._actions[obs.shape])

        def work() -> None:
            actions.copy_(self._run(given))

        replay = self._recorder.capture(work)
        if replay is None:
            return False
        self._graphs[obs.shape], self._actions[obs.shape] = (replay, given), actions
        return True

    def _run(self, obs: Tensor) -> Tensor:
        with self._path.active():
            return self._act(obs)


class Stopwatch:
    """The share of the time that passes between updates: collecting, and waiting for it.

    On a GPU it is the GPU's time, by events that are read when somebody asks: environments that step while the
    updates run cost nothing.
    """

    def __init__(self, device: torch.device, keep: int = 100):
        self._on_gpu = device.type == "cuda"
        self._laps: deque[tuple[Any, Any, Any]] = deque(maxlen=keep)  # updates ended, began, ended
        self._ended: Any = None
        self._began: Any = None

    def begin(self) -> None:
        """Updates begin."""
        self._began = self._mark()

    def end(self) -> None:
        """Updates have been handed over."""
        now = self._mark()
        if self._ended is not None:
            self._laps.append((self._ended, self._began, now))
        self._ended = now

    def skip(self) -> None:
        """What has passed since the updates was no collecting: an evaluation, a checkpoint."""
        self._ended = None

    def read(self) -> float | None:
        """The share in the newest laps since the last reading, None without any; waits for the device."""
        laps = list(self._laps)
        self._laps.clear()
        if not laps:
            return None
        if self._on_gpu:
            laps[-1][-1].synchronize()
        between = sum(self._seconds(ended, began) for ended, began, _ in laps)
        whole = sum(self._seconds(before, after) for before, _, after in laps)
        return between / whole if whole > 0 else 0.0

    def _mark(self) -> Any:
        if not self._on_gpu:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def _seconds(self, start: Any, stop: Any) -> float:
        return start.elapsed_time(stop) / 1000 if self._on_gpu else stop - start
