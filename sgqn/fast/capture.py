"""Work captured in CUDA graphs and replayed: any steps that are tensors in, tensors out.

A captured update has the addresses of everything it touches, so whatever moves a buffer (loading a checkpoint) must
`reset` what was captured. If a capture fails, the steps run eagerly.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from sgqn.agents.base import Agent
from sgqn.agents.base import Phase as AgentPhase
from sgqn.fast.backend import FastBackend
from sgqn.fast.streams import AHEAD, MAIN_PRIORITY, aside
from sgqn.runner import Means, Prepare, Runner, Stopwatch

logger = logging.getLogger(__name__)

Phase = TypeVar("Phase", bound=Hashable)
Input = TypeVar("Input")
Work = Callable[[], None]

WARMUP = 3
"""Eager runs before a capture: they create the optimisers' state and let cuBLAS and cuDNN settle."""


class Recorder:
    """Runs work eagerly without capturing it: for CPUs."""

    working = False
    """Whether `capture` is worth a try."""

    def eagerly(self, work: Work) -> None:
        work()

    def capture(self, work: Work) -> Work | None:
        """A function that replays `work`, which has not run yet; None if it cannot be captured."""
        del work
        return None

    def reset(self) -> None:
        """All that was captured has been dropped."""


class GraphRecorder(Recorder):
    """Captures work in CUDA graphs that share one pool of memory. After a failure, nothing is captured any more.

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
            # "thread_local": threads that prepare images or talk to simulators may continue.
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


def recorder_for(path: FastBackend, generators: Sequence[torch.Generator]) -> Recorder:
    return Recorder() if path.name == "eager" else GraphRecorder(path.device, generators)


def _reason(error: BaseException) -> str:
    """The first error, in one line."""
    while error.__context__ is not None:
        error = error.__context__
    return " ".join(str(error).split())[:200] or type(error).__name__


class Updates(Generic[Phase, Input]):
    """Runs `step(prepare(phase), phase) -> metrics` for phases in a row; on a GPU captured in CUDA graphs and replayed.

    The first `warmup` runs of every phase are eager. `cycle` is a sequence of phases that comes again and again: it
    becomes one graph, in which one step's input is prepared while another runs; phases outside of it have one each.
    `metrics` has their means.
    """

    def __init__(
        self,
        prepare: Callable[[Phase], Input],
        step: Callable[[Input, Phase], dict[str, Tensor]],
        generators: Sequence[torch.Generator],
        path: FastBackend,
        cycle: Sequence[Phase] = (),
        warmup: int = WARMUP,
        recorder: Recorder | None = None,
    ):
        self.metrics = Means()
        self._prepare, self._step, self._path, self._cycle = prepare, step, path, tuple(cycle)
        self._warmup = max(1, warmup)  # the metrics' sums must be there before a capture
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
            self.metrics.count(names)
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
                    self.metrics.count(names)

        self._recorder.eagerly(work)

    def _update(self, phases: tuple[Phase, ...]) -> list[tuple[str, ...]]:
        counted, ready = [], self._prepare(phases[0])
        for phase, following in zip(phases, (*phases[1:], None), strict=True):
            given = ready
            with aside(self._path.device, AHEAD) as join:
                if following is not None:
                    ready = self._prepare(following)
            counted.append(self.metrics.add(self._step(given, phase)))
            join()
        return counted


class CapturedPolicy:
    """`act(obs) -> actions`, on a GPU captured once for each shape of observations.

    The actions are overwritten by the next call: copy what has to last.
    """

    def __init__(
        self,
        act: Callable[[Tensor], Tensor],
        generators: Sequence[torch.Generator],
        path: FastBackend,
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


class EventStopwatch(Stopwatch):
    """Measures GPU time with events that are read on request. Environment steps that overlap with updates do not
    count."""

    def now(self) -> Any:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def seconds(self, start: Any, stop: Any) -> float:
        return float(start.elapsed_time(stop)) / 1000

    def settle(self, last: Any) -> None:
        last.synchronize()


class FastRunner(Runner):
    """Acts and updates on a GPU, captured where the backend captures."""

    def __init__(
        self,
        backend: FastBackend,
        agent: Agent,
        prepare: Prepare,
        generators: Sequence[torch.Generator],
        cycle: Sequence[AgentPhase],
    ):
        super().__init__(agent, prepare)
        recorder = recorder_for(backend, generators)
        self._updates = Updates(prepare, agent.learn, generators, backend, cycle, recorder=recorder)
        self._policy = CapturedPolicy(self._draw, generators, backend, recorder=recorder)
        self._device = backend.device
        self._host_actions = torch.empty(0)
        self.metrics, self.stopwatch = self._updates.metrics, EventStopwatch()

    def act(self, obs: Tensor) -> Tensor:
        return self._policy(obs)

    def update(self, phases: Sequence[AgentPhase]) -> None:
        """One update per phase, in this order. It returns before they are done."""
        self.stopwatch.start()
        self._updates.run(phases)
        self.stopwatch.stop()

    def advance(self, actions: Tensor, send: Callable[[Any], None], phases: Sequence[AgentPhase]) -> None:
        """The updates are queued before the host waits for the actions, so that the GPU has no gap."""
        if (self._host_actions.shape, self._host_actions.dtype) != (actions.shape, actions.dtype):
            self._host_actions = torch.empty(actions.shape, dtype=actions.dtype, pin_memory=True)
        self._host_actions.copy_(actions, non_blocking=True)
        ready = torch.cuda.current_stream(self._device).record_event()
        if phases:
            self.update(phases)
        ready.synchronize()
        send(self._host_actions.numpy())

    def reset(self) -> None:
        self._updates.reset()
        self._policy.reset()

    def _draw(self, obs: Tensor) -> Tensor:
        actions = self.agent.act(obs, deterministic=False)
        return actions.float() if actions.is_floating_point() else actions
