"""Families from outside the package: discrete actions, other cameras, tasks that draw themselves, worker processes."""

from __future__ import annotations

from collections.abc import Iterator

import gymnasium
import numpy as np
import pytest
import torch

import sgqn
from sgqn.envs import families
from sgqn.envs.families import Family, all_shifts, all_tasks, check_shift, find_task
from tests.envs import load
from tests.envs.contract import check_no_shared_memory, check_specs, check_stacks, play


@pytest.fixture(autouse=True)
def example() -> Iterator[None]:
    from tests.envs import example_families

    before = dict(families._families)
    sgqn.register_family(example_families.Push())
    sgqn.register_family(example_families.Dots())
    yield
    for name in ("push", "dots"):
        del families._families[name]
    assert families._families == {name: one for name, one in before.items() if name not in ("push", "dots")}


def test_names_are_known_everywhere() -> None:
    assert all_tasks()[-1] == "push-right"
    assert all_shifts()[:5] == ("train", "color_easy", "color_hard", "video_easy", "video_hard")
    assert all_shifts()[-3:] == ("other", "video", "grey")
    assert find_task("dots:7").family.name == "dots"
    assert "sgqn/push-right-video-v0" in gymnasium.registry
    env = gymnasium.make("sgqn/push-right-video-v0", renderer="warp")
    assert env.action_space == gymnasium.spaces.Discrete(3)
    env.close()


@pytest.mark.parametrize(
    ("task", "shift", "part"),
    [
        ("push-right", "video_hard", "'video_hard': did you mean 'video'"),
        ("walker-walk", "other", "'other'"),
        ("push-rihgt", "train", "'push-right'"),
        ("dots:x", "train", "'dots:x'"),
    ],
)
def test_shifts_are_those_of_the_task(task: str, shift: str, part: str) -> None:
    with pytest.raises(sgqn.UnknownNameError, match=part):
        check_shift(task, shift)
    with pytest.raises(sgqn.UnknownNameError, match=part):
        sgqn.make(task, shift)


def test_the_first_shift_is_the_default() -> None:
    env = sgqn.make("dots:3")
    assert env.shift == check_shift("dots:3", None) == "train"
    env.close()


def test_returns_have_decimals_unless_they_are_large() -> None:
    assert find_task("walker-walk").return_text(912.6) == "913"
    assert find_task("robot-reach").return_text(-0.25) == "-0.2"


def test_families_that_clash_are_refused() -> None:
    class Other(Family):
        name = "push"

    class Greedy(Family):
        name = "greedy"
        tasks = ("walker-walk",)

    with pytest.raises(sgqn.InvalidValueError, match="'push' is already registered"):
        sgqn.register_family(Other())
    with pytest.raises(sgqn.InvalidValueError, match=r"'walker-walk'.*'suite'"):
        sgqn.register_family(Greedy())


@pytest.mark.parametrize("shift", ["train", "other", "video"])
def test_discrete_actions_keep_the_contract(shift: str, renderer: str) -> None:
    env = sgqn.make("push-right", shift, renderer=renderer, render_mode="rgb_array")
    first, again = play(env, seed=3), play(env, seed=3)
    check_specs(env, renderer, shift)
    check_stacks([obs for obs, _ in first])
    check_no_shared_memory([obs for obs, _ in first])
    assert all(np.array_equal(one[0], other[0]) for one, other in zip(first, again, strict=True))
    env.close()


@pytest.mark.parametrize(
    ("shift", "num_workers"),
    [
        ("other", 2),
        ("video", 0),
        *(
            pytest.param(*case, marks=pytest.mark.slow)
            for case in (("train", 0), ("train", 2), ("other", 0), ("video", 2))
        ),
    ],
)
def test_vector_rows_are_single_environments(shift: str, num_workers: int, renderer: str) -> None:
    envs = sgqn.make_vec("push-right", 3, shift, renderer=renderer, masks=True, num_workers=num_workers)
    assert (envs.action_dim, envs.discrete) == (3, True)
    actions = np.random.RandomState(0).randint(0, 3, (5, 3))
    observed = [envs.reset(seed=2)[0]]
    results = [envs.step(torch.from_numpy(action)) for action in actions[:3]]
    state = envs.state_dict()
    results += [envs.step(action) for action in actions[3:]]
    observed += [result[0] for result in results]
    envs.load_state_dict(state)
    for action, result in zip(actions[3:], results[3:], strict=True):
        again = envs.step(action)
        assert np.array_equal(again[0], result[0])
        assert np.array_equal(again[1], result[1])
    envs.close()
    single = sgqn.make("push-right", shift, renderer=renderer, masks=True)
    for world in range(3):
        obs, info = single.reset(seed=2, options={"episode": world})
        assert np.array_equal(observed[0][world], obs)
        assert 0.005 < info["mask"].mean() < 0.2
        for step, action in enumerate(actions[:, world]):
            obs, reward, *_, info = single.step(int(action))
            assert np.array_equal(observed[step + 1][world], obs)
            assert np.array_equal(results[step][4]["mask"][world], info["mask"])
            assert results[step][1][world] == reward
    single.close()


@pytest.mark.usefixtures("gl")
@pytest.mark.parametrize("shift", ["train", "other"])
def test_both_renderers_see_the_familys_camera_and_appearance(shift: str) -> None:
    frames = []
    for renderer in ("gl", "warp"):
        env = sgqn.make("push-right", shift, renderer=renderer, masks=True)
        obs, info = env.reset(seed=0)
        frames.append((obs[-3:].astype(int), info["mask"][-1]))
        env.close()
    (gl, gl_mask), (warp, warp_mask) = frames
    assert np.abs(gl - warp).mean() < 8
    assert (gl_mask & warp_mask).sum() / (gl_mask | warp_mask).sum() > 0.95
    red, green, _ = gl[:, gl_mask].mean(axis=1)
    assert (red > green) == (shift == "train")


def test_a_task_that_ends_itself_starts_anew() -> None:
    envs = sgqn.make_vec("push-right", 2, renderer="warp", num_workers=0, action_repeat=20)
    envs.reset(seed=0)
    ends = []
    for _ in range(2):
        _, _, terminated, truncated, info = envs.step(np.array([2, 1]))
        ends.append((terminated.tolist(), truncated.tolist()))
    assert [True, False] in [terminated for terminated, _ in ends]
    assert ends[1][1][1]
    assert info["episode_number"][1] == 3
    envs.close()


@pytest.mark.parametrize("action", [3, -1, 1.0, np.array([1]), True, None])
def test_bad_discrete_actions_are_refused(action: object) -> None:
    env = sgqn.make("push-right", renderer="warp")
    env.reset()
    with pytest.raises(sgqn.InvalidValueError, match="action"):
        env.step(action)
    env.close()


@pytest.mark.parametrize("num_workers", [0, 1])
def test_a_family_without_mujoco_draws_itself(num_workers: int) -> None:
    envs = sgqn.make_vec("dots:5", 2, "grey", num_workers=num_workers)
    assert envs.metadata["renderer"] == "own"
    obs, _ = envs.reset(seed=0)
    simulation = load("dots:5")
    for world in range(2):
        simulation.reset(world, seed=0)
        assert obs[world, :, 0, simulation.place * 84 // 5].tolist() == [255] * 9
    assert obs.min() == 128
    for step in range(6):
        obs, _, _, truncated, _ = envs.step(np.ones((2, 1)))
        assert truncated.all() == (step == 5)
    envs.close()
    with pytest.raises(sgqn.UnknownNameError, match="'gl': choose one of auto, own"):
        sgqn.make("dots:5", renderer="gl")
    env = sgqn.make("dots:5", masks=True)
    with pytest.raises(sgqn.SgqnError, match="masks"):
        env.reset()
    env.close()


def test_a_family_of_a_script_is_refused_by_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(type(find_task("dots:5").family), "__module__", "__main__")
    with pytest.raises(sgqn.InvalidValueError, match="num_workers=0"):
        sgqn.make_vec("dots:5", 2)
    sgqn.make_vec("dots:5", 2, num_workers=0).close()
