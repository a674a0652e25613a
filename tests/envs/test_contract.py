"""What every task, shift and renderer must keep to."""

from __future__ import annotations

import re
import warnings

import gymnasium
import numpy as np
import pytest
from _pytest.mark import ParameterSet
from gymnasium.utils.env_checker import check_env

import sgqn
from sgqn.envs.families import all_tasks, families, find_task
from sgqn.envs.families.suite import suite
from sgqn.envs.opengl import gl_error
from sgqn.envs.simulation import MujocoSimulation
from sgqn.envs.warp import unsupported
from sgqn.results.paper import TASKS as PAPER_TASKS
from tests.envs import load, skip_if_missing
from tests.envs.contract import check_no_shared_memory, check_specs, check_stacks, play

REPRESENTATIVE = {"suite": PAPER_TASKS}
"""Tasks to go through in full; of families that are not named here, all of them."""
FEW = (("train", "warp"), ("color_hard", "gl"), ("video_hard", "warp"))
"""Shifts and renderers to try with every task."""
FIRST = {*PAPER_TASKS, *{task.split("-")[0]: task for task in reversed(all_tasks())}.values()}
"""The paper's tasks and one of every other model: the tasks of a model look alike."""


def case(task: str, shift: str, renderer: str) -> ParameterSet:
    """Of the suite, slow are those that differ from others in one of the three only."""
    fast = task not in PAPER_TASKS or task == "cartpole-swingup" or (shift, renderer) in FEW
    return pytest.param(task, shift, renderer, marks=() if fast else pytest.mark.slow)


CASES = [
    case(task, shift, renderer)
    for family in families()
    for task in REPRESENTATIVE.get(family.name, family.tasks)
    for shift in family.shifts(task)
    for renderer in family.renderers(task)
]


@pytest.mark.parametrize(("task", "shift", "renderer"), CASES)
def test_environment_keeps_the_contract(task: str, shift: str, renderer: str) -> None:
    if renderer == "gl" and gl_error() is not None:
        pytest.skip("no OpenGL context on this machine")
    skip_if_missing(task)
    repeat = max(1, find_task(task).defaults.control_steps // 8)
    env = sgqn.make(task, shift=shift, seed=3, renderer=renderer, action_repeat=repeat, render_mode="rgb_array")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # remarks about pixel observations
        check_env(env, skip_render_check=True)
    check_specs(env, renderer, shift)
    first = play(env, seed=3)
    again = play(env, seed=3)
    for (obs, reward), (obs_again, reward_again) in zip(first, again, strict=True):
        assert np.array_equal(obs, obs_again)
        assert reward == reward_again
    check_stacks([obs for obs, _ in first])
    check_no_shared_memory([obs for obs, _ in first])
    other = env.reset()[0]  # the next episode of the seed
    assert not np.array_equal(other, first[0][0])
    env.close()


@pytest.mark.parametrize("task", PAPER_TASKS)
@pytest.mark.parametrize("shift", ["train", "color_hard", "video_hard"])
def test_rewards_and_states_are_dm_controls_own(task: str, shift: str) -> None:
    """A whole episode at the paper's action repeat against dm_control stepped by hand."""
    chosen = find_task(task)
    simulation = load(task, shift)
    simulation.reset(episode=5, seed=11)
    oracle = suite().load(*task.split("-"))
    oracle.task.random.seed(np.random.SeedSequence([11, 5]).generate_state(4))
    oracle.reset()
    random = np.random.RandomState(1)
    for step in range(chosen.episode_steps):
        action = random.uniform(-1, 1, simulation.action_dim)
        expected = 0.0
        for _ in range(chosen.action_repeat):
            timestep = oracle.step(action)
            expected += timestep.reward
        reward, terminated, truncated = simulation.step(action)
        assert reward == expected
        assert not terminated
        assert truncated == timestep.last() == (step == chosen.episode_steps - 1)
        assert np.array_equal(simulation.data.qpos, oracle.physics.data.qpos)
        assert np.array_equal(simulation.data.qvel, oracle.physics.data.qvel)


def test_a_task_that_ends_itself_terminates(monkeypatch: pytest.MonkeyPatch) -> None:
    simulation = load("lqr-lqr_2_1")
    simulation.reset(0)
    monkeypatch.setattr(simulation.env.task, "get_termination", lambda physics: 0.0)
    assert simulation.step(np.zeros(simulation.action_dim))[1:] == (True, False)


@pytest.mark.parametrize(
    "task", [pytest.param(task, marks=() if task in FIRST else pytest.mark.slow) for task in all_tasks()]
)
def test_every_task_runs(task: str, renderer: str) -> None:
    if renderer not in find_task(task).family.renderers(task):
        pytest.skip(f"{task} is not drawn by {renderer}")
    simulation = load(task)
    missing = unsupported(simulation.model)
    stack = simulation.task.defaults.frame_stack
    simulation.close()
    if renderer == "warp" and missing:
        with pytest.raises(sgqn.SgqnError, match="renderer='gl'"):
            sgqn.make(task, renderer="warp")
        return
    env = sgqn.make(task, renderer=renderer, masks=True, action_repeat=10)
    obs, info = env.reset(seed=0)
    assert obs.std() > 5
    assert info["mask"].shape == (stack, 84, 84)
    out_of_view = task in ("lqr-lqr_2_1", "dog-fetch")  # camera 0 does not show the body at first
    assert info["mask"].mean() < 0.9
    assert out_of_view or info["mask"].mean() > 0.0005
    obs_after, reward, _, _, _ = env.step(env.action_space.sample() * 0 + 1)
    assert np.isfinite(reward)
    assert out_of_view or not np.array_equal(obs, obs_after)
    env.close()


@pytest.mark.parametrize(
    ("action", "part"),
    [
        (np.zeros(5), r"\(5,\).*\(6,\)"),
        (np.zeros((6, 1)), r"\(6, 1\)"),
        (0.5, r"\(\)"),
        (np.array([0, 0, np.nan, 0, 0, 0]), "NaN"),
        (np.array([0, 0, np.inf, 0, 0, 0]), "infinity"),
    ],
)
def test_bad_actions_are_refused(action: object, part: str) -> None:
    env = sgqn.make("walker-walk", renderer="warp")
    env.reset()
    with pytest.raises(sgqn.InvalidValueError, match=part):
        env.step(action)
    env.close()


def test_actions_outside_the_bounds_are_clipped() -> None:
    env = sgqn.make("cartpole-swingup", renderer="warp")
    env.reset(seed=0)
    clipped = env.step(np.array([7.0]))[0]
    env.reset(seed=0)
    assert np.array_equal(env.step(np.array([1.0]))[0], clipped)
    env.close()


def test_episode_k_does_not_depend_on_what_ran_before() -> None:
    env = sgqn.make("cartpole-swingup", shift="color_hard", renderer="warp", seed=2)
    in_order = [env.reset()[0] for _ in range(3)]
    jumped, info = env.reset(seed=2, options={"episode": 2})
    assert info["episode_number"] == 2
    assert np.array_equal(jumped, in_order[2])
    assert np.array_equal(env.reset(seed=2)[0], in_order[0])
    for wrong in (-1, True, 1.0, "1"):
        with pytest.raises(sgqn.InvalidValueError, match=f"not {wrong!r}"):
            env.reset(options={"episode": wrong})
    env.close()


@pytest.mark.parametrize("seed", ["a", "0", 1.0, -1, True, None, [1], np.int64(-2)])
def test_seeds_that_are_none_are_refused(seed: object) -> None:
    quoted = re.escape(f"seed must be a non-negative integer, not {seed!r}")
    with pytest.raises(sgqn.InvalidValueError, match=quoted):
        sgqn.make("cartpole-swingup", renderer="warp", seed=seed)  # type: ignore[arg-type]
    with pytest.raises(sgqn.InvalidValueError, match=quoted):
        sgqn.make_vec("cartpole-swingup", 2, renderer="warp", num_workers=0, seed=seed)  # type: ignore[arg-type]


def test_a_reset_that_is_refused_changes_nothing() -> None:
    env = sgqn.make("cartpole-swingup", renderer="warp", seed=np.int64(3))
    envs = sgqn.make_vec("cartpole-swingup", 2, renderer="warp", num_workers=0, seed=3)
    for one in (env, envs):
        before, _ = one.reset()
        for seed in ("a", 1.5, -1):
            with pytest.raises(sgqn.InvalidValueError, match=re.escape(f"not {seed!r}")):
                one.reset(seed=seed)
        with pytest.raises(sgqn.UnknownNameError, match="unknown option of reset 'epsiode': did you mean 'episode'"):
            one.reset(seed=4, options={"epsiode": 7})
        again, info = one.reset(options={"episode": 0})
        assert np.array_equal(again, before)
        assert np.array_equal(info["episode_number"], 0 if one is env else [0, 1])
        one.close()


def test_gymnasiums_wrappers_find_info_free_for_them() -> None:
    env = gymnasium.wrappers.RecordEpisodeStatistics(sgqn.make("cartpole-swingup", renderer="warp", action_repeat=250))
    envs = gymnasium.wrappers.vector.RecordEpisodeStatistics(
        sgqn.make_vec("cartpole-swingup", 2, renderer="warp", num_workers=0, action_repeat=250)
    )
    for one in (env, envs):
        one.reset()
        rewards, over, info = [], False, {}
        while not over:
            _, reward, _, truncated, info = one.step(one.action_space.sample())
            rewards.append(reward)
            over = bool(np.all(truncated))
        assert len(rewards) == 4
        assert np.all(info["episode"]["l"] == 4)
        assert info["episode"]["r"] == pytest.approx(np.sum(rewards, axis=0), abs=1e-4)
        one.close()


def test_gymnasium_makes_them_by_name() -> None:
    env = gymnasium.make("sgqn/cartpole-swingup-video_hard-v0", renderer="warp", seed=1)
    obs, _ = env.reset()
    assert obs.shape == (9, 84, 84)
    assert env.unwrapped.shift == "video_hard"
    env.close()


def test_no_two_tasks_need_a_new_look_within_an_episode_set() -> None:
    """The Warp renderer reads colours, materials and the camera once: no task may change them at reset."""
    for task in all_tasks():
        if find_task(task).family.missing():
            continue
        simulation = load(task)
        if not isinstance(simulation, MujocoSimulation) or unsupported(simulation.model):
            continue
        simulation.reset(0)
        model = simulation.model
        names = ("geom_rgba", "mat_rgba", "site_rgba", "geom_matid", "cam_fovy", "light_diffuse", "tex_data")
        before = {name: getattr(model, name).copy() for name in names}
        for episode in range(1, 4):
            simulation.reset(episode)
            for name in names:
                assert np.array_equal(before[name], getattr(model, name)), (task, name)
        simulation.close()
