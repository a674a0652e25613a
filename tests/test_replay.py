"""The replay against a naive list of full stacks: borders, wrap-around, sampling, saving."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sgqn.errors import DataError, InvalidValueError
from sgqn.replay import MANIFEST, Batch, Replay, prune

SHAPE = (3, 2, 2)


def stacked(frames: list[np.ndarray], stack: int) -> np.ndarray:
    """The last `stack` frames of an episode, the first one repeated where there are fewer."""
    padded = [frames[0]] * (stack - 1) + frames
    return np.concatenate(padded[-stack:])


@dataclass
class World:
    """N toy environments with unique frames, and the naive buffer: every transition as full stacks."""

    num_envs: int
    stack: int
    seed: int
    discount: float = 0.9
    discrete: bool = False
    frame_count: int = 0
    written: int = 0  # frames that a buffer storing each once has written
    history: list[tuple] = field(default_factory=list)
    needs: list[int] = field(default_factory=list)  # per row: its oldest frame, in the order of writing
    ends: list[bool] = field(default_factory=list)  # per transition: whether it is the last of its episode

    def __post_init__(self) -> None:
        self.rng = np.random.default_rng(self.seed)
        self.episodes: list[list[np.ndarray]] = [[] for _ in range(self.num_envs)]
        self.order: list[list[int]] = [[] for _ in range(self.num_envs)]

    def frame(self) -> np.ndarray:
        self.frame_count += 1
        value = self.frame_count
        digits = [value % 256, value // 256 % 256, value // 65536]
        return np.array(digits, dtype=np.uint8)[:, None, None].repeat(2, axis=1).repeat(2, axis=2)

    def _wrote(self, env: int) -> None:
        self.order[env].append(self.written)
        self.written += 1

    def observe(self) -> np.ndarray:
        return np.stack([stacked(frames, self.stack) for frames in self.episodes])

    def start(self, replay: Replay) -> None:
        self.ends[-self.num_envs :] = [True] * len(self.ends[-self.num_envs :])
        for env in range(self.num_envs):
            self.episodes[env], self.order[env] = [self.frame()], []
            self._wrote(env)
        replay.start(torch.from_numpy(self.observe()))

    def step(self, replay: Replay, done: list[bool], terminated: list[bool]) -> None:
        """`done` ends an episode, by a terminal state where `terminated`, else by the time limit."""
        n = self.num_envs
        obs = self.observe()
        if self.discrete:
            action = self.rng.integers(0, 5, n)
        else:
            action = self.rng.normal(size=(n, 2)).astype(np.float32)
        reward = self.rng.normal(size=n).astype(np.float32)
        ended, limit = np.array(done) & np.array(terminated), np.array(done) & ~np.array(terminated)
        oldest = []
        for env in range(n):
            self.episodes[env].append(self.frame())
            self._wrote(env)
            oldest.append(self.order[env][max(0, len(self.order[env]) - self.stack - 1)])
        self.needs.append(min(oldest))
        next_obs = self.observe()
        for env in range(n):
            discount = np.float32(0 if ended[env] else self.discount)
            self.history.append((obs[env], action[env], reward[env], discount, next_obs[env]))
        self.ends += done
        reset_obs = np.full_like(next_obs, 255)  # rows of running episodes must not be read
        for env in np.flatnonzero(done).tolist():
            self.episodes[env], self.order[env] = [self.frame()], []
            self._wrote(env)
            reset_obs[env] = stacked(self.episodes[env], self.stack)
        replay.add(
            torch.from_numpy(action),
            torch.from_numpy(reward),
            torch.from_numpy(next_obs),
            ended,
            limit,
            torch.from_numpy(reset_obs) if any(done) else None,
        )

    def newest(self, replay: Replay) -> list[tuple]:
        """What must be in the replay: the newest `capacity` transitions whose frames fit into its ring."""
        rows = replay.capacity // self.num_envs
        first = max(0, len(self.needs) - rows)
        frames = replay._frames.shape[0]
        while first < len(self.needs) and self.needs[first] < self.written - frames:
            first += 1
        return self.history[first * self.num_envs :]


def spanning(world: World, replay: Replay, n: int) -> list[tuple]:
    """What must be in a replay of n-step returns: each stored transition, followed step by step through its episode."""
    found = []
    for index in range(len(world.history) - len(world.newest(replay)), len(world.history)):
        steps = [index]
        while len(steps) < n and not world.ends[steps[-1]] and steps[-1] + world.num_envs < len(world.history):
            steps.append(steps[-1] + world.num_envs)
        obs, action, *_, next_obs = *world.history[index][:2], world.history[steps[-1]][4]
        rewards = [float(world.history[step][2]) for step in steps]
        reward = sum(world.discount**power * one for power, one in enumerate(rewards))
        terminated = world.history[steps[-1]][3] == 0
        found.append((obs, action, reward, 0.0 if terminated else world.discount ** len(steps), next_obs))
    return found


def assert_spans(batch: Batch, expected: list[tuple]) -> None:
    obs, action, reward, discount, next_obs = zip(*expected, strict=True)
    for got, wanted in ((batch.obs, obs), (batch.action, action), (batch.next_obs, next_obs)):
        np.testing.assert_array_equal(got.numpy(), np.stack(wanted))
    for got, wanted in ((batch.reward, reward), (batch.discount, discount)):
        assert got.dtype == torch.float32
        np.testing.assert_allclose(got.numpy(), np.array(wanted), rtol=1e-5, atol=1e-6)


def make(world: World, capacity: int, **options: object) -> Replay:
    return Replay(
        capacity,
        world.num_envs,
        frame_shape=SHAPE,
        action_shape=() if world.discrete else (2,),
        action_dtype=torch.int64 if world.discrete else torch.float32,
        stack=world.stack,
        discount=world.discount,
        **options,  # type: ignore[arg-type]
    )


def everything(replay: Replay) -> Batch:
    """All stored transitions, oldest first."""
    offsets = torch.arange(len(replay))
    return replay.gather((replay._start + offsets) % replay.capacity)


def assert_equal(batch: Batch, expected: list[tuple]) -> None:
    assert len(batch.reward) == len(expected)
    for got, wanted in zip(batch, zip(*expected, strict=True), strict=True):
        np.testing.assert_array_equal(got.numpy(), np.stack(wanted))


def assert_same(a: Batch, b: Batch) -> None:
    assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


@st.composite
def scripts(draw: st.DrawFn) -> tuple[World, int, int, list[tuple[list[bool], list[bool]]]]:
    """An empty world, a capacity, the shortest episode the ring is made for, and who ends when."""
    num_envs = draw(st.integers(1, 4))
    stack = draw(st.integers(1, 4))
    world = World(num_envs, stack, draw(st.integers(0, 1000)), discrete=draw(st.booleans()))
    capacity = draw(st.integers(1, 30))
    shortest = draw(st.sampled_from([1, 3, 50]))
    flags = st.lists(st.booleans(), min_size=num_envs, max_size=num_envs)
    lengths = draw(st.integers(1, 8))
    together = draw(st.booleans())
    steps = []
    for index in range(draw(st.integers(1, 40))):
        done = [(index + 1) % lengths == 0] * num_envs if together else draw(flags)
        steps.append((done, draw(flags)))
    return world, capacity, shortest, steps


@settings(max_examples=60, deadline=None)
@given(scripts(), st.data())
def test_equals_a_naive_list_of_full_stacks(script: tuple, data: st.DataObject) -> None:
    world, capacity, shortest, steps = script
    replay = make(world, capacity, shortest_episode=shortest)
    world.start(replay)
    for index, (done, terminated) in enumerate(steps):
        world.step(replay, done, terminated)
        expected = world.newest(replay)
        assert len(replay) == len(expected)
        if shortest == 1:  # frames never run out
            assert len(expected) == min(len(world.history), replay.capacity)
        if index == len(steps) // 2 and data.draw(st.booleans(), label="restart midway"):
            world.start(replay)
            expected = world.newest(replay)
        if expected:
            assert_equal(everything(replay), expected)
    if len(replay):
        batch = replay.sample(64, torch.Generator().manual_seed(0))
        stored = {tuple(column.tobytes() for column in item) for item in world.newest(replay)}
        for index in range(64):
            item = tuple(column[index].numpy().tobytes() for column in batch)
            assert item in stored


@settings(max_examples=60, deadline=None)
@given(scripts(), st.integers(1, 6), st.data())
def test_returns_of_n_steps_follow_episodes_step_by_step(script: tuple, n: int, data: st.DataObject) -> None:
    """Also over terminations, time limits, a restart, the ring's end, saving and the newest rows."""
    world, capacity, shortest, steps = script
    replay = make(world, capacity, shortest_episode=shortest, n_steps=n)
    world.start(replay)
    restart = data.draw(st.booleans(), label="restart midway")
    for index, (done, terminated) in enumerate(steps):
        world.step(replay, done, terminated)
        if index == len(steps) // 2 and restart:
            world.start(replay)
        if len(replay):
            assert_spans(everything(replay), spanning(world, replay, n))
    resumed = make(world, capacity, shortest_episode=shortest, n_steps=n)
    resumed.load_state_dict(replay.state_dict())
    if len(replay):
        assert_same(everything(replay), everything(resumed))
        batch = replay.sample(16, torch.Generator().manual_seed(0))
        assert batch.obs.shape == batch.next_obs.shape == (16, 3 * world.stack, 2, 2)
        assert all(part.is_contiguous() for part in batch)


def test_one_step_reads_what_it_always_read() -> None:
    """n = 1 is the plain path, and the general one agrees with it bit for bit."""
    world, replay = filled()
    indices = replay.sample_indices(32, torch.Generator().manual_seed(0))
    assert_same(replay.gather(indices), replay._gather_steps(indices))
    assert_equal(everything(replay), world.newest(replay))


def test_n_steps_survive_saving_and_older_replays_have_one(tmp_path: Path) -> None:
    world = World(2, 3, seed=0)
    replay = make(world, 30, n_steps=3)
    world.start(replay)
    run(world, replay, 25, length=4)
    replay.save(tmp_path)
    loaded = Replay.load(tmp_path)
    assert loaded.n_steps == 3
    assert_same(everything(replay), everything(loaded))
    grown = Replay.load(tmp_path, capacity=100)
    assert_spans(everything(grown), spanning(world, replay, 3))
    older = replay.state_dict()
    del older["config"]["n_steps"]
    with pytest.raises(InvalidValueError, match="n_steps"):
        replay.load_state_dict(older)
    single = make(world, 30)
    single.load_state_dict(older)
    assert_equal(everything(single), world.newest(single))


@settings(max_examples=60, deadline=None)
@given(scripts(), st.integers(0, 39))
def test_state_dict_resumes_bit_for_bit(script: tuple, at: int) -> None:
    world, capacity, shortest, steps = script
    replay = make(world, capacity, shortest_episode=shortest)
    resumed = replay
    world.start(replay)
    for index, (done, terminated) in enumerate(steps):
        if index == min(at, len(steps) - 1):
            resumed = make(world, capacity, shortest_episode=shortest)
            resumed.load_state_dict(replay.state_dict())
        if resumed is replay:
            world.step(replay, done, terminated)
        else:
            twins = Twins(replay, resumed)
            world.step(twins, done, terminated)
        if len(replay):
            assert_same(everything(replay), everything(resumed))
            seeds = (torch.Generator().manual_seed(index) for _ in range(2))
            assert_same(replay.sample(8, next(seeds)), resumed.sample(8, next(seeds)))


@dataclass
class Twins:
    """Two replays that get the same calls."""

    a: Replay
    b: Replay

    def start(self, *args: object) -> None:
        self.a.start(*args)  # type: ignore[arg-type]
        self.b.start(*args)  # type: ignore[arg-type]

    def add(self, *args: object) -> None:
        self.a.add(*args)  # type: ignore[arg-type]
        self.b.add(*args)  # type: ignore[arg-type]


def filled(steps: int = 100, capacity: int = 60, num_envs: int = 3, length: int = 7) -> tuple[World, Replay]:
    world = World(num_envs, 3, seed=0)
    replay = make(world, capacity)
    world.start(replay)
    run(world, replay, steps, length)
    return world, replay


def run(world: World, replay: Replay, steps: int, length: int = 7) -> None:
    for index in range(steps):
        world.step(replay, [(index + env) % length == 0 for env in range(world.num_envs)], [False] * world.num_envs)


def test_an_episode_of_t_transitions_stores_t_plus_1_frames() -> None:
    world = World(2, 3, seed=0)
    replay = make(world, 100)
    world.start(replay)
    for index in range(10):
        world.step(replay, [index == 9] * 2, [False] * 2)
    assert replay._frame_count == 2 * (10 + 1) + 2  # and the first frames of the next episodes


@pytest.mark.parametrize("length", [1, 2, 5, 40])
@pytest.mark.parametrize(("num_envs", "capacity", "stack"), [(1, 100, 3), (3, 50, 3), (4, 81, 1), (5, 5, 4)])
def test_holds_its_capacity_for_the_episodes_it_is_made_for(
    length: int, num_envs: int, capacity: int, stack: int
) -> None:
    world = World(num_envs, stack, seed=0)
    replay = make(world, capacity, shortest_episode=length)
    world.start(replay)
    assert capacity <= replay.capacity < capacity + num_envs
    for index in range(4 * capacity // num_envs + 10):
        world.step(replay, [(index + env) % length == 0 for env in range(num_envs)], [False] * num_envs)
        assert len(replay) == min(len(world.history), replay.capacity)


def test_truncation_bootstraps_and_termination_does_not() -> None:
    world = World(2, 3, seed=0)
    replay = make(world, 10)
    world.start(replay)
    world.step(replay, [True, True], [True, False])
    assert everything(replay).discount.tolist() == [0.0, np.float32(0.9)]


def test_sampling_is_uniform_over_all_stored_transitions_and_nothing_else() -> None:
    world, replay = filled()
    stored = {item[0].tobytes() + item[2].tobytes(): index for index, item in enumerate(world.newest(replay))}
    assert len(stored) == len(replay)
    generator = torch.Generator().manual_seed(1)
    counts = np.zeros(len(replay))
    draws = 400 * len(replay)
    indices = replay.sample_indices(draws, generator)
    places, number = indices.unique(return_counts=True)
    batch = replay.gather(places)
    for obs, reward, count in zip(batch.obs, batch.reward, number, strict=True):
        counts[stored[obs.numpy().tobytes() + reward.numpy().tobytes()]] += int(count)
    assert (counts > 0).all()
    chi_square = ((counts - 400) ** 2 / 400).sum()
    freedom = len(replay) - 1
    assert abs(chi_square - freedom) < 5 * (2 * freedom) ** 0.5


def test_same_generator_state_gives_the_same_batch_whatever_the_global_seed() -> None:
    _, replay = filled()
    batches = []
    for seed in (0, 1):
        torch.manual_seed(seed)
        batches.append(replay.sample(16, torch.Generator().manual_seed(3)))
    assert_same(*batches)


def test_batch_has_its_own_memory() -> None:
    world, replay = filled()
    batch = replay.sample(32, torch.Generator().manual_seed(0))
    for tensor in batch:
        tensor.zero_()
    assert_equal(everything(replay), world.newest(replay))
    obs = replay.sample(4, torch.Generator().manual_seed(0)).obs
    assert obs.is_contiguous()
    assert (obs.dtype, obs.shape) == (torch.uint8, (4, 9, 2, 2))


def test_window_lives_in_tensors_that_never_move() -> None:
    """A captured graph reads these addresses for ever."""
    world, replay = filled(steps=3)
    addresses = [t.data_ptr() for t in (replay._start, replay._size, replay._slots, replay._frames)]
    run(world, replay, 50)
    assert addresses == [t.data_ptr() for t in (replay._start, replay._size, replay._slots, replay._frames)]
    assert int(replay._size) == len(replay)


def test_accepts_numpy_and_single_frames() -> None:
    replay = Replay(10, 2, frame_shape=SHAPE, action_dtype=torch.int64)
    replay.start(np.zeros((2, 9, 2, 2), dtype=np.uint8))
    one = np.ones((2, 3, 2, 2), dtype=np.uint8)
    replay.add(np.array([1, 2]), np.array([0.5, 1.5]), one, [False, False], [False, False])
    batch = everything(replay)
    assert batch.action.tolist() == [1, 2]
    assert batch.next_obs.sum(dim=(1, 2, 3)).tolist() == [12, 12]


def test_all_ended_without_reset_waits_for_start() -> None:
    _, replay = filled(steps=2)
    obs = torch.zeros(3, 9, 2, 2, dtype=torch.uint8)
    step = (torch.zeros(3, 2), torch.zeros(3), obs, [False] * 3)
    with pytest.raises(InvalidValueError, match="some episodes ended"):
        replay.add(*step, [True, False, False])
    replay.add(*step, [True] * 3)
    with pytest.raises(InvalidValueError, match="start"):
        replay.add(*step, [False] * 3)
    replay.start(obs)
    replay.add(*step, [False] * 3)
    assert len(replay) == 12


def test_bad_input_is_named() -> None:
    replay = Replay(10, 2, frame_shape=SHAPE, action_shape=(2,))
    generator = torch.Generator()
    obs = torch.zeros(2, 9, 2, 2, dtype=torch.uint8)
    with pytest.raises(InvalidValueError, match="nothing to sample"):
        replay.sample(4, generator)
    with pytest.raises(InvalidValueError, match=r"obs must be torch.uint8 \(2, 9, 2, 2\), got torch.float32"):
        replay.start(obs.float())
    replay.start(obs)
    before = replay.state_dict()
    with pytest.raises(InvalidValueError, match="action"):
        replay.add(torch.zeros(2), torch.zeros(2), obs, [False] * 2, [False] * 2)
    with pytest.raises(InvalidValueError, match="reward"):
        replay.add(torch.zeros(2, 2), torch.zeros(3), obs, [False] * 2, [False] * 2)
    with pytest.raises(InvalidValueError, match="next_obs"):
        replay.add(torch.zeros(2, 2), torch.zeros(2), obs[:1], [False] * 2, [False] * 2)
    with pytest.raises(InvalidValueError, match="truncated"):
        replay.add(torch.zeros(2, 2), torch.zeros(2), obs, [False] * 2, [False])
    assert replay.state_dict().keys() == before.keys()
    assert replay._frame_count == before["frame_count"]  # a refused step leaves nothing behind
    for options in ({"capacity": 0}, {"num_envs": 0}, {"stack": 0}, {"n_steps": 0}, {"discount": 1.5}):
        with pytest.raises(InvalidValueError, match=next(iter(options))):
            Replay(**{"capacity": 10, "num_envs": 2, **options})  # type: ignore[arg-type]
    with pytest.raises(InvalidValueError, match="does not fit"):
        Replay(12, 2, frame_shape=SHAPE, action_shape=(2,)).load_state_dict(before)


@pytest.mark.slow
def test_memory_of_the_papers_replay() -> None:
    """500,000 transitions stay under 11 GB, 100,000 under 2.2 GB; nothing is resident before it is filled."""
    for capacity, limit in ((100_000, 2.2e9), (500_000, 11e9)):
        assert Replay(capacity, 16, action_shape=(6,)).nbytes <= limit
    program = (
        "import resource, torch\n"
        "from sgqn.replay import Replay\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "torch.use_deterministic_algorithms(True)\n"
        "replay = Replay(500_000, 16, action_shape=(6,))\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)\n"
    )
    grown = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert int(grown.stdout) < 100_000  # kilobytes


# Saving


def chunks(folder: Path, kind: str) -> Iterator[Path]:
    return iter(sorted(folder.glob(f"{kind}-*.bin")))


@pytest.mark.parametrize("compression", [0, 1])
def test_saved_and_loaded_replays_go_on_alike(tmp_path: Path, compression: int) -> None:
    world, replay = filled(steps=5)
    for round_ in range(6):
        replay.save(tmp_path, compression=compression)
        loaded = Replay.load(tmp_path)
        assert_same(everything(replay), everything(loaded))
        assert len(list(tmp_path.iterdir())) < 12  # what wrapped around is deleted
        if round_ % 2:
            loaded.save(tmp_path, compression=compression)  # a resumed run goes on in the same folder
        twins = Twins(replay, loaded)
        run(world, twins, 11)  # type: ignore[arg-type]
        assert_same(everything(replay), everything(loaded))
        assert_equal(everything(loaded), world.newest(loaded))
        if round_ % 2:
            replay = loaded


def test_a_replay_that_is_loaded_larger_goes_on_as_if_it_always_was(tmp_path: Path) -> None:
    world, small = filled(steps=20, capacity=60)
    world_too, large = filled(steps=20, capacity=90)
    small.save(tmp_path)
    grown = Replay.load(tmp_path, capacity=90)
    assert grown.config() == large.config()
    for _ in range(4):
        assert_same(*(one.sample(50, torch.Generator().manual_seed(1)) for one in (large, grown)))
        run(world, grown, 8)
        run(world_too, large, 8)
    assert len(grown) == 90
    grown.save(tmp_path)
    assert_same(everything(Replay.load(tmp_path, capacity=10)), everything(large))


def test_a_full_replay_loaded_larger_keeps_what_it_had(tmp_path: Path) -> None:
    world, replay = filled(steps=100, capacity=60)
    replay.save(tmp_path)
    grown = Replay.load(tmp_path, capacity=90)
    assert_same(everything(grown), everything(replay))
    run(world, grown, 5)
    assert len(grown) == 75
    run(world, grown, 20)
    assert_equal(everything(grown), world.newest(grown))


def test_an_empty_and_a_stopped_replay_can_be_saved(tmp_path: Path) -> None:
    replay = Replay(10, 2, frame_shape=SHAPE)
    replay.save(tmp_path)
    assert len(Replay.load(tmp_path)) == 0
    obs = torch.zeros(2, 9, 2, 2, dtype=torch.uint8)
    replay.start(obs)
    replay.save(tmp_path)
    loaded = Replay.load(tmp_path)
    loaded.add(torch.zeros(2), torch.zeros(2), obs, [False] * 2, [True] * 2)
    loaded.save(tmp_path)
    again = Replay.load(tmp_path)
    assert len(again) == 2
    with pytest.raises(InvalidValueError, match="start"):
        again.add(torch.zeros(2), torch.zeros(2), obs, [False] * 2, [False] * 2)


def test_a_save_writes_only_what_is_new(tmp_path: Path) -> None:
    world, replay = filled(steps=5, capacity=600)
    replay.save(tmp_path, compression=0)
    old = {path: path.stat().st_mtime_ns for path in chunks(tmp_path, "*")}
    count = replay._frame_count
    run(world, replay, 4)
    replay.save(tmp_path, compression=0)
    assert {path: path.stat().st_mtime_ns for path in old} == old
    new = [path for path in chunks(tmp_path, "frames") if path not in old]
    assert sum(path.stat().st_size for path in new) == (replay._frame_count - count) * 12
    replay.save(tmp_path / "elsewhere", compression=0)
    assert_same(everything(replay), everything(Replay.load(tmp_path / "elsewhere")))


def test_many_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sgqn.replay.CHUNK_BYTES", 12 * 5)
    _, replay = filled()
    replay.save(tmp_path)
    assert len(list(chunks(tmp_path, "frames"))) > 10
    assert_same(everything(replay), everything(Replay.load(tmp_path)))


def test_chunks_may_be_read_in_any_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest chunk of a wrapped replay begins with frames whose slots belong to newer ones by now."""

    class Backwards(ThreadPoolExecutor):
        def map(self, function: Any, items: Any) -> Any:  # type: ignore[override]
            return [function(item) for item in reversed(list(items))]

    monkeypatch.setattr("sgqn.replay.ThreadPoolExecutor", Backwards)
    world, replay = filled(steps=10)
    for _ in range(10):
        run(world, replay, 7)
        replay.save(tmp_path)
        assert_same(everything(replay), everything(Replay.load(tmp_path)))


def test_tags_share_chunks_and_prune_forgets(tmp_path: Path) -> None:
    world, replay = filled(steps=5)
    first = everything(replay)
    replay.save(tmp_path, tag="step_5")
    run(world, replay, 40)
    replay.save(tmp_path, tag="step_45")
    assert_same(everything(Replay.load(tmp_path, tag="step_5")), first)
    back = Replay.load(tmp_path, tag="step_5")  # the run goes another way from there
    run(World(3, 3, seed=9), back, 0)
    back.start(torch.full((3, 9, 2, 2), 77, dtype=torch.uint8))
    back.save(tmp_path, tag="other")
    assert_same(everything(Replay.load(tmp_path, tag="step_45")), everything(replay))
    (tmp_path / "notes.json").write_text("mine")
    prune(tmp_path, keep=["step_45"])
    assert [path.name for path in tmp_path.glob("*.json")] in (
        ["notes.json", f"step_45{MANIFEST}"],
        [f"step_45{MANIFEST}", "notes.json"],
    )
    assert_same(everything(Replay.load(tmp_path, tag="step_45")), everything(replay))
    with pytest.raises(DataError, match="step_5"):
        Replay.load(tmp_path, tag="step_5")
    with pytest.raises(InvalidValueError, match="tag"):
        replay.save(tmp_path, tag="../elsewhere")


def test_deleted_chunks_are_written_again(tmp_path: Path) -> None:
    _, replay = filled(steps=5)
    replay.save(tmp_path)
    next(chunks(tmp_path, "frames")).unlink()
    replay.save(tmp_path)
    assert_same(everything(replay), everything(Replay.load(tmp_path)))


@pytest.mark.parametrize("kind", ["frames", "transitions"])
@pytest.mark.parametrize("damage", ["truncated", "flipped", "missing", "longer"])
def test_damaged_chunks_are_refused_by_name(tmp_path: Path, kind: str, damage: str) -> None:
    _, replay = filled(steps=5)
    replay.save(tmp_path)
    path = next(chunks(tmp_path, kind))
    data = bytearray(path.read_bytes())
    if damage == "missing":
        path.unlink()
    elif damage == "flipped":
        data[len(data) // 2] ^= 1
        path.write_bytes(data)
    else:
        path.write_bytes(data[:-3] if damage == "truncated" else data + b"more")
    with pytest.raises(DataError, match=path.name):
        Replay.load(tmp_path)


def test_damaged_manifests_are_refused_by_name(tmp_path: Path) -> None:
    _, replay = filled(steps=5)
    replay.save(tmp_path)
    path = tmp_path / f"latest{MANIFEST}"
    good = path.read_text()
    altered = json.loads(good)
    altered["body"]["row_count"] += 1
    for text in (good[:-20], "[]", "", json.dumps(altered)):
        path.write_text(text)
        with pytest.raises(DataError, match=path.name):
            Replay.load(tmp_path)
    before = set(tmp_path.iterdir())
    prune(tmp_path)  # cannot know what belongs to it
    assert set(tmp_path.iterdir()) == before
    with pytest.raises(DataError, match="nothing"):
        Replay.load(tmp_path, tag="nothing")


def test_a_manifest_names_no_files_outside(tmp_path: Path) -> None:
    from sgqn.replay import _digest

    _, replay = filled(steps=5)
    replay.save(tmp_path)
    path = tmp_path / f"latest{MANIFEST}"
    body = json.loads(path.read_text())["body"]
    body["frames"][0]["file"] = "../secret"
    path.write_text(json.dumps({"sha256": _digest(body), "body": body}))
    with pytest.raises(DataError, match="named"):
        Replay.load(tmp_path)


def test_a_kill_between_any_two_file_operations_leaves_the_last_save(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import sgqn.replay as module

    class KillError(Exception):
        pass

    write_file = module.write_atomically
    for survive in range(4):
        folder = tmp_path / str(survive)
        world, replay = filled(steps=5)
        replay.save(folder)
        before = everything(replay)
        run(world, replay, 30)
        left = [survive]

        def dying(path: Path, data: bytes, left: list[int] = left) -> None:
            if not left[0]:
                path.with_name(path.name + ".tmp").write_bytes(data[: len(data) // 2])
                raise KillError
            left[0] -= 1
            write_file(path, data)

        monkeypatch.setattr(module, "write_atomically", dying)
        killed = survive < 3  # frames, transitions, manifest
        if killed:
            with pytest.raises(KillError):
                replay.save(folder)
        else:
            replay.save(folder)
        monkeypatch.setattr(module, "write_atomically", write_file)
        resumed = Replay.load(folder)
        assert_same(everything(resumed), before if killed else everything(replay))
        resumed.save(folder)
        assert not list(folder.glob("*.tmp"))
        assert_same(everything(Replay.load(folder)), everything(resumed))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_captured_sampling_stays_right_while_the_replay_grows() -> None:
    world = World(3, 3, seed=0)
    replay, plain = make(world, 60, device="cuda"), make(world, 60)
    twins = Twins(plain, replay)
    world.start(twins)  # type: ignore[arg-type]
    run(world, twins, 3)  # type: ignore[arg-type]
    generator = torch.Generator("cuda").manual_seed(0)
    replay.sample(256, generator)
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(generator)
    with torch.cuda.graph(graph):
        indices = replay.sample_indices(256, generator)
        batch = replay.gather(indices)
    for _ in range(20):
        torch.cuda.set_sync_debug_mode("error")
        run(world, twins, 7)  # type: ignore[arg-type]
        graph.replay()
        torch.cuda.set_sync_debug_mode("default")
        expected = plain.gather(indices.cpu())
        assert_same(Batch(*(tensor.cpu() for tensor in batch)), expected)
        offsets = (indices.cpu() - plain._start) % plain.capacity
        assert int(offsets.max()) < len(plain)
