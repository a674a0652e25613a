"""Captured work does what eager work does: the books on any machine, the graphs themselves on a GPU."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from sgqn import runner
from sgqn.agents import Agent, Phase, build_agent
from sgqn.augmentations import overlay
from sgqn.fast.backend import FastBackend
from sgqn.fast.capture import CapturedPolicy, EventStopwatch, GraphRecorder, Recorder, Updates, Work
from sgqn.replay import Batch, Replay
from sgqn.runner import Means, Stopwatch, choose_backend
from tests.agents.small import ACTIONS, CRITIC_ONLY, NAMES, OFF_POLICY, SIZE, VALUES, batch_for, settings_of, spec_for

CPU = torch.device("cpu")
EAGER = FastBackend(CPU, "CPU")
CAPTURED = FastBackend(CPU, "not a real GPU", "captured")


def same(phase: Any) -> Any:
    """Prepares nothing."""
    return phase


def on(step: Callable[[Any], dict[str, Tensor]]) -> Callable[[Any, Any], dict[str, Tensor]]:
    """A step that looks at its phase alone."""
    return lambda prepared, phase: step(phase)


class FakeRecorder(GraphRecorder):
    """Remembers the work and does it again at every replay. A capture executes nothing, as on a GPU; one that fails
    leaves the generators in disorder."""

    def __init__(self, generators=(), fails_at: int | None = None):
        super().__init__(CPU, generators)
        self.fails_at = fails_at
        self.captures = self.replays = self.eager_runs = self.resets = 0
        self.capturing = False

    def eagerly(self, work: Work) -> None:
        self.eager_runs += 1
        work()

    def reset(self) -> None:
        self.resets += 1

    def _capture(self, work: Work) -> Work:
        self.captures += 1
        states = [generator.get_state() for generator in self._generators]
        self.capturing = True
        try:
            work()
        finally:
            self.capturing = False
        if self.captures == self.fails_at:
            raise RuntimeError("operation not permitted\nwhen stream is capturing")
        self._recover(states)
        return lambda: self._replay(work)

    def _replay(self, work: Work) -> None:
        self.replays += 1
        work()

    def _recover(self, states: list[Tensor]) -> None:
        for generator, state in zip(self._generators, states, strict=True):
            generator.set_state(state)


class Learner:
    """Its step notes what was executed; metrics are the number of the execution, under names that tell the phase."""

    def __init__(self, fails_at: int | None = None):
        self.generator = torch.Generator().manual_seed(0)
        self.recorder = FakeRecorder([self.generator], fails_at)
        self.executed: list[int] = []
        self.noise: list[float] = []

    def step(self, phase: int) -> dict[str, Tensor]:
        drawn = torch.rand((), generator=self.generator)
        names = ["every", *(["odd"] if phase % 2 else [])]
        if self.recorder.capturing:
            return {name: torch.zeros(()) for name in names}
        self.executed.append(phase)
        self.noise.append(drawn.item())
        return {name: torch.tensor(float(len(self.executed))) for name in names}


# ---- updates


@given(
    runs=st.lists(st.lists(st.integers(0, 2), max_size=12), max_size=8),
    cycle=st.lists(st.integers(0, 2), max_size=3),
    warmup=st.integers(1, 3),
    fails_at=st.none() | st.integers(1, 3),
    interruptions=st.dictionaries(st.integers(0, 7), st.sampled_from(["read", "reset"])),
)
def test_whatever_is_run_is_executed_once_and_in_order(
    runs: list[list[int]], cycle: list[int], warmup: int, fails_at: int | None, interruptions: dict[int, str]
) -> None:
    learner = Learner(fails_at)
    updates = Updates(same, on(learner.step), (), CAPTURED, cycle, warmup, learner.recorder)
    asked: list[int] = []
    read_until = 0
    for number, phases in enumerate(runs):
        updates.run(phases)
        asked += phases
        assert learner.executed == asked
        if interruptions.get(number) == "reset":
            updates.reset()
        elif interruptions.get(number) == "read":
            assert updates.metrics.read() == oracle(asked, read_until)
            read_until = len(asked)
    assert updates.metrics.read() == oracle(asked, read_until)
    assert updates.metrics.read() == {}
    eager = Learner()
    Updates(same, on(eager.step), (), EAGER).run(asked)
    assert learner.noise == eager.noise
    recorder = learner.recorder
    assert recorder.working == (recorder.captures != fails_at)
    assert recorder.captures <= (fails_at or recorder.captures)


def oracle(asked: list[int], start: int) -> dict[str, float]:
    """Means of the metrics of the executions after the first `start`."""
    every = [float(number) for number in range(start + 1, len(asked) + 1)]
    odd = [float(number + 1) for number in range(start, len(asked)) if asked[number] % 2]
    return {name: sum(values) / len(values) for name, values in (("every", every), ("odd", odd)) if values}


@given(
    runs=st.lists(st.lists(st.integers(0, 2), max_size=12), max_size=6),
    cycle=st.lists(st.integers(0, 2), max_size=4),
    warmup=st.integers(1, 3),
)
def test_every_update_gets_what_was_prepared_for_it(runs: list[list[int]], cycle: list[int], warmup: int) -> None:
    recorder = FakeRecorder()
    prepared: list[int] = []
    stepped: list[int] = []

    def prepare(phase: int) -> tuple[int, int]:
        number = len(prepared)
        if not recorder.capturing:
            prepared.append(phase)
        return number, phase

    def step(ready: tuple[int, int], phase: int) -> dict[str, Tensor]:
        number, prepared_for = ready
        assert prepared_for == phase
        if not recorder.capturing:
            assert number == len(stepped)
            stepped.append(phase)
            assert len(prepared) - len(stepped) in (0, 1)  # one ahead at most
        return {}

    updates = Updates(prepare, step, (), CAPTURED, cycle, warmup, recorder)
    asked: list[int] = []
    for phases in runs:
        updates.run(phases)
        asked += phases
        assert prepared == stepped == asked  # nothing is prepared for a later run


def test_in_a_cycle_the_next_update_is_prepared_before_this_ones_step() -> None:
    recorder, order = FakeRecorder(), []

    def prepare(phase: str) -> str:
        order.append(f"prepare {phase}")
        return phase

    def step(ready: str, phase: str) -> dict[str, Tensor]:
        order.append(f"step {phase}")
        return {}

    updates = Updates(prepare, step, (), CAPTURED, "abc", 1, recorder)
    updates.run("abc")
    assert order == ["prepare a", "step a", "prepare b", "step b", "prepare c", "step c"]  # each on its own
    order.clear()
    updates.run("abc")
    assert (recorder.captures, recorder.replays) == (1, 1)
    assert order == 2 * ["prepare a", "prepare b", "step a", "prepare c", "step b", "step c"]  # captured, then replayed


@pytest.mark.parametrize("warmup", [1, 3])
def test_cycles_are_one_graph_and_the_rest_single_phases(warmup: int) -> None:
    learner = Learner()
    updates = Updates(same, on(learner.step), (), CAPTURED, cycle=(0, 1), warmup=warmup, recorder=learner.recorder)
    updates.run([0, 1] * warmup)
    recorder = learner.recorder
    assert (recorder.eager_runs, recorder.captures, recorder.replays) == (2 * warmup, 0, 0)
    updates.run([0, 1] * 8)
    assert (recorder.eager_runs, recorder.captures, recorder.replays) == (2 * warmup, 1, 8)
    updates.run([1] + [0, 1] * 7 + [0])  # in the middle of a cycle
    assert (recorder.eager_runs, recorder.captures, recorder.replays) == (2 * warmup, 3, 8 + 9)
    updates.run([2] * (warmup + 1))  # a phase of its own warms up alone
    assert (recorder.eager_runs, recorder.captures, recorder.replays) == (3 * warmup, 4, 8 + 9 + 1)
    updates.reset()
    assert recorder.resets == 1
    updates.run([0, 1] * (warmup + 1))
    assert (recorder.eager_runs, recorder.captures) == (5 * warmup, 5)


def test_a_failed_capture_is_said_once_and_changes_nothing(caplog: pytest.LogCaptureFixture) -> None:
    eager, failing = Learner(), Learner(fails_at=2)
    Updates(same, on(eager.step), (), EAGER).run([0, 1] * 10)
    updates = Updates(same, on(failing.step), (), CAPTURED, warmup=2, recorder=failing.recorder)
    for _ in range(5):
        updates.run([0, 1, 0, 1])
    assert [record.message for record in caplog.records] == [
        "updates run eagerly: they could not be captured (operation not permitted when stream is capturing)"
    ]
    assert failing.executed == eager.executed
    assert failing.noise == eager.noise
    assert failing.recorder.replays == 1  # of the graph before


def test_other_errors_are_not_swallowed() -> None:
    def broken(phase: int) -> dict[str, Tensor]:
        raise KeyError(phase)

    with pytest.raises(KeyError):
        Updates(same, on(broken), (), CAPTURED, recorder=FakeRecorder()).run([1])


def test_every_step_runs_in_the_mode_of_the_path() -> None:
    path = FastBackend(CPU, "", "captured", "bf16")
    modes = []

    def step(phase: int) -> dict[str, Tensor]:
        modes.append(torch.is_autocast_enabled("cpu"))
        return {}

    Updates(same, on(step), (), path, warmup=1, recorder=FakeRecorder()).run([0, 0])

    def act(obs: Tensor) -> Tensor:
        modes.append(torch.is_autocast_enabled("cpu"))
        return obs

    policy = CapturedPolicy(act, (), path, warmup=1, recorder=FakeRecorder())
    for _ in range(2):
        policy(torch.zeros(1))
    assert modes == [True] * 6  # one eager, one captured, one replayed each
    assert not torch.is_autocast_enabled("cpu")


# ---- the means


def test_the_means_reads_means_and_begins_anew_in_place() -> None:
    means = Means()
    assert means.read() == {}
    for value in (1.0, 2.0):
        means.count(means.add({"a": torch.tensor(value), "b": torch.tensor(10 * value, dtype=torch.bfloat16)}))
    means.count(means.add({"a": torch.tensor(6.0)}))
    sums = list(means._sums.values())
    assert means.read() == {"a": 3.0, "b": 15.0}
    assert means.read() == {}
    means.count(means.add({"a": torch.tensor(5.0)}), times=2)  # a replay counts without adding again
    assert means.read() == {"a": 2.5}
    assert all(kept is total for kept, total in zip(means._sums.values(), sums, strict=True))


@given(st.lists(st.floats(-1e6, 1e6, width=32), min_size=2, max_size=20), st.data())
def test_a_restored_means_goes_on_bit_for_bit(values: list[float], data: st.DataObject) -> None:
    split = data.draw(st.integers(0, len(values)))

    def fill(means: Means, part: list[float]) -> None:
        for value in part:
            means.count(means.add({"loss": torch.tensor(value)}))

    whole, first, second = Means(), Means(), Means()
    fill(whole, values)
    fill(first, values[:split])
    fill(second, [3.0])  # forgotten by loading
    second.load_state_dict(first.state_dict(), CPU)
    fill(second, values[split:])
    assert second.read() == whole.read()


# ---- the policy


def test_the_policy_acts_the_same_captured_and_not() -> None:
    def make(generator: torch.Generator, recorder: FakeRecorder | None) -> Callable[[Tensor], Tensor]:
        def act(obs: Tensor) -> Tensor:
            if recorder is not None and recorder.capturing:
                return torch.zeros(len(obs), 2)
            return obs.sum(dim=1, keepdim=True) + torch.rand(len(obs), 2, generator=generator)

        return act

    generators = [torch.Generator().manual_seed(0) for _ in range(2)]
    recorder = FakeRecorder([generators[1]])
    plain = CapturedPolicy(make(generators[0], None), (), EAGER)
    captured = CapturedPolicy(make(generators[1], recorder), (), CAPTURED, warmup=2, recorder=recorder)
    for i, rows in enumerate([3, 3, 3, 4, 3, 4, 4, 3]):
        obs = torch.full((rows, 5), float(i))
        assert torch.equal(captured(obs), plain(obs))
    assert (recorder.eager_runs, recorder.captures, recorder.replays) == (4, 2, 4)
    obs = torch.ones(3, 5)
    first = captured(obs)
    assert captured(obs) is first
    captured.reset()
    assert captured(obs) is not first
    assert recorder.eager_runs == 5


def test_a_policy_that_cannot_be_captured_acts_on(caplog: pytest.LogCaptureFixture) -> None:
    recorder = FakeRecorder(fails_at=1)
    policy = CapturedPolicy(lambda obs: obs + 1, (), CAPTURED, warmup=1, recorder=recorder)
    for i in range(4):
        assert policy(torch.tensor([i])).item() == i + 1
    assert len(caplog.records) == 1
    assert (recorder.captures, recorder.replays) == (1, 0)


# ---- the stopwatch


def test_the_stopwatch_tells_the_share_between_updates(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter([0.0, 4.0, 5.0, 9.0, 12.0, 16.0, 100.0, 101.0, 102.0, 103.0])
    monkeypatch.setattr(runner.time, "perf_counter", lambda: next(clock))
    watch = Stopwatch()
    assert watch.read() is None
    for _ in range(3):
        watch.start()
        watch.stop()
    assert watch.read() == (1 + 3) / (16 - 4)
    assert watch.read() is None
    watch.skip()
    watch.start()
    watch.stop()
    assert watch.read() is None  # what came before was skipped
    watch.start()
    watch.stop()
    assert watch.read() == 1 / 2


def test_the_stopwatch_keeps_the_newest_laps(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count()
    monkeypatch.setattr(runner.time, "perf_counter", lambda: next(clock))
    watch = Stopwatch(keep=5)
    for _ in range(20):
        watch.start()
        watch.stop()
    assert len(watch._laps) == 5
    assert watch.read() == 0.5


# ---- on a GPU


gpu = pytest.mark.gpu
needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
PHASES = (CRITIC_ONLY, Phase())


def agent_on_gpu(name: str, size: int = SIZE, **values: Any) -> Agent:
    pictures = torch.randint(256, (7, 3, size, size), dtype=torch.uint8, generator=torch.Generator().manual_seed(9))
    settings, augmentation = settings_of(name, **values or VALUES), partial(overlay, images=pictures.cuda())
    return build_agent(name, spec_for(name, size), settings, augmentation, device="cuda")


def replay_for(agent: Agent) -> Replay:
    size, rng, discrete = agent.spec.render_size, np.random.default_rng(0), agent.spec.discrete
    shape, dtype = ((), torch.int64) if discrete else ((ACTIONS,), torch.float32)
    replay = Replay(64, 2, (3, size, size), shape, dtype, device="cuda", n_steps=agent.n_steps)

    def obs() -> np.ndarray:
        return rng.integers(0, 256, (2, 9, size, size), dtype=np.uint8)

    replay.start(obs())
    for _ in range(20):
        actions = rng.integers(ACTIONS, size=2) if discrete else rng.uniform(-1, 1, (2, ACTIONS)).astype(np.float32)
        replay.add(actions, rng.uniform(size=2), obs(), [False, False], [False, False])
    return replay


def large(name: str, **settings: float) -> tuple[Agent, Callable[[Phase], Batch], tuple[torch.Generator, ...]]:
    """An agent of the paper's networks, what prepares its batches, and all that both draw from."""
    agent = agent_on_gpu(name, 84, batch_size=64, soda_batch_size=64, **settings)
    replay, sampler = replay_for(agent), torch.Generator("cuda").manual_seed(1)

    def sample(phase: Phase) -> Batch:
        return agent.prepare(replay.sample(agent.sample_size(phase), sampler))

    return agent, sample, (agent.generator, agent.preparer, sampler)


def learn(
    name: str, path: FastBackend, updates: int, **settings: str
) -> tuple[dict[str, Tensor], dict[str, float], list[Tensor], Updates]:
    agent = agent_on_gpu(name, **VALUES | settings)
    sampler = torch.Generator("cuda").manual_seed(1)
    sample: Callable[[Phase], Any]
    if name in OFF_POLICY:
        replay = replay_for(agent)
        sample = lambda phase: replay.sample(agent.sample_size(phase), sampler)  # noqa: E731
    else:
        rollout = type(made := batch_for(agent))(*(part.cuda() for part in made))
        sample = lambda phase: rollout  # noqa: E731

    def step(phase: Phase) -> dict[str, Tensor]:
        return agent.update(sample(phase), phase)

    work = Updates(same, on(step), (agent.generator, agent.preparer, sampler), path, PHASES, warmup=1)
    for _ in range(updates // 2):
        work.run(PHASES)
    return agent.state_dict(), work.metrics.read(), [agent.generator.get_state(), sampler.get_state()], work


@gpu
@needs_gpu
@pytest.mark.parametrize(
    ("name", "settings"),
    [
        *((name, {}) for name in NAMES),
        *(
            ("sgqn", {"attribution": method, "mask": mask})
            for method in ("gradient", "grad_cam", "guided_grad_cam", "smoothgrad:samples=2")
            for mask in ("quantile", "soft")
        ),
        ("sgqn", {"mask": "contrast"}),
    ],
)
def test_captured_updates_equal_eager_ones(
    name: str, settings: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    weights, means, states, _ = learn(name, choose_backend("cuda", "eager", "fp32"), 8, **settings)
    way = choose_backend("cuda", "captured", "fp32")
    captured, captured_means, captured_states, work = learn(name, way, 8, **settings)
    assert list(work._graphs) == [PHASES]
    for state, other in zip(states, captured_states, strict=True):
        assert torch.equal(state, other)
    assert means.keys() == captured_means.keys()
    for key, value in means.items():
        assert captured_means[key] == pytest.approx(value, rel=1e-2, abs=1e-3), key
    for key, value in weights.items():
        torch.testing.assert_close(
            captured[key], value, rtol=1e-3, atol=1e-3, msg=lambda text, key=key: f"{key}: {text}"
        )


def fingerprint(batch: Batch) -> Tensor:
    """Changes with any byte of the pictures, and with actions and rewards."""
    pictures = torch.cat([batch.obs.flatten(), batch.next_obs.flatten()]).long()
    places = torch.arange(len(pictures), device=pictures.device) % 65_521
    return (pictures * places).sum() % 1_000_003 + batch.action.double().sum() + batch.reward.double().sum()


@gpu
@needs_gpu
@pytest.mark.parametrize(("path", "precision"), [("captured", "fp32"), ("cudnn", "bf16"), ("kernels", "bf16")])
def test_batches_prepared_ahead_are_those_of_eager_updates_and_whole_to_the_end(path: str, precision: str) -> None:
    """Sixteen updates of the paper's size in one graph on several streams: nothing writes to a batch that is in use."""
    updates, every = 64, {}
    for name, way in (
        ("eager", choose_backend("cuda", "eager", "fp32")),
        ("captured", choose_backend("cuda", path, precision)),
    ):
        agent, sample, generators = large("sgqn")
        found = torch.zeros(updates, 2, dtype=torch.float64, device="cuda")
        number = torch.zeros(1, dtype=torch.int64, device="cuda")

        def step(batch: Batch, phase: Phase, agent=agent, found=found, number=number) -> dict[str, Tensor]:
            before = fingerprint(batch)
            metrics = agent.learn(batch, phase)
            found.index_copy_(0, number, torch.stack([before, fingerprint(batch)])[None])
            number.add_(1)
            return metrics

        work = Updates(sample, step, generators, way, PHASES * 8)
        for _ in range(updates // 16):
            work.run(PHASES * 8)
        assert bool(work._graphs) == (name == "captured")
        every[name] = found.cpu()
    assert torch.equal(every["captured"][:, 0], every["captured"][:, 1])
    assert torch.equal(every["captured"], every["eager"])
    assert len(every["eager"][:, 0].unique()) == updates


@gpu
@needs_gpu
@pytest.mark.parametrize("name", ["sac", "sgqn", "svea_soda"])
@pytest.mark.parametrize("path", ["cudnn", "kernels"])
def test_sixteen_fused_updates_in_one_graph_are_those_that_run_one_by_one(path: str, name: str) -> None:
    """Weights that are converted must be converted again in the middle of a graph, whoever has changed them. Nothing
    here is learned, so that nothing is chaotic: the critic grows, and its target follows."""
    found = []
    for recorder in (Recorder(), None):
        agent, sample, generators = large(name, critic_tau=0.5, encoder_tau=0.5)
        learner = getattr(agent, "learner", agent)

        @torch.no_grad()
        def step(batch: Batch, phase: Phase, learner: Any = learner) -> dict[str, Tensor]:
            for weight in learner.critic.parameters():
                weight.mul_(1.01)
            learner.target_step()
            return {"followed": learner.target(batch.obs, batch.action)[0].abs().mean()}

        work = Updates(sample, step, generators, choose_backend("cuda", path, "bf16"), PHASES * 8, recorder=recorder)
        work.run(PHASES * 3)
        work.metrics.read()
        work.run(PHASES * 8)
        found.append(work.metrics.read()["followed"])
        assert bool(work._graphs) == (recorder is None)
    eager, captured = found
    assert captured == pytest.approx(eager, rel=1e-4)


@gpu
@needs_gpu
def test_every_replay_draws_anew_and_is_counted() -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    drawn: list[float] = []

    def step(phase: int) -> dict[str, Tensor]:
        return {
            "noise": torch.rand((), generator=generator, device="cuda"),
            "phase": torch.full((), phase, device="cuda"),
        }

    updates = Updates(same, on(step), [generator], choose_backend("cuda", "captured", "fp32"), cycle=(1, 3))
    for _ in range(10):
        updates.run((1, 3))
        means = updates.metrics.read()
        assert means["phase"] == 2
        drawn.append(means["noise"])
    assert len(set(drawn)) == 10
    other = torch.Generator("cuda").manual_seed(0)
    pairs = [sum(torch.rand((), generator=other, device="cuda").item() for _ in range(2)) / 2 for _ in range(10)]
    assert drawn == pytest.approx(pairs)
    updates.run((1, 3) * 8)
    assert Counter(updates.metrics._counts) == {"noise": 16, "phase": 16}


@gpu
@needs_gpu
def test_a_step_that_waits_for_the_gpu_falls_back(caplog: pytest.LogCaptureFixture) -> None:
    generator = torch.Generator("cuda").manual_seed(0)
    total = torch.zeros((), device="cuda")

    def step(phase: int) -> dict[str, Tensor]:
        noise = torch.rand((), generator=generator, device="cuda")
        noise.item()
        total.add_(1)
        return {"noise": noise}

    updates = Updates(same, on(step), [generator], choose_backend("cuda", "captured", "fp32"), cycle=(0,))
    for _ in range(10):
        updates.run((0, 0))
    assert total.item() == 20
    assert len([r for r in caplog.records if "could not be captured" in r.message]) == 1
    other = torch.Generator("cuda").manual_seed(0)
    expected = [torch.rand((), generator=other, device="cuda").item() for _ in range(20)]
    assert updates.metrics.read()["noise"] == pytest.approx(sum(expected) / 20)
    assert torch.equal(generator.get_state(), other.get_state())
    assert torch.cuda.current_stream() == torch.cuda.default_stream()
    torch.rand(3, device="cuda")  # the default generator is fine too
    torch.cuda.empty_cache()


@gpu
@needs_gpu
def test_the_policy_on_a_gpu_acts_as_the_agent_does() -> None:
    agents = [agent_on_gpu("sgqn") for _ in range(2)]
    captured = CapturedPolicy(
        lambda obs: agents[0].act(obs, deterministic=False),
        [agents[0].generator],
        choose_backend("cuda", "captured", "fp32"),
    )
    for i in range(8):
        obs = torch.full((4, 9, SIZE, SIZE), i, dtype=torch.uint8, device="cuda")
        torch.testing.assert_close(captured(obs), agents[1].act(obs, deterministic=False), rtol=1e-3, atol=1e-4)
    assert captured._graphs


@gpu
@needs_gpu
def test_the_stopwatch_reads_the_gpus_clock() -> None:
    watch = EventStopwatch()
    work = torch.randn(2048, 2048, device="cuda")
    for _ in range(4):
        work @ work
        watch.start()
        for _ in range(3):
            work @ work
        watch.stop()
    share = watch.read()
    assert share is not None
    assert 0 < share < 1
