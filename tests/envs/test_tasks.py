from __future__ import annotations

import subprocess
import sys

import gymnasium
import pytest

import sgqn
from sgqn.config import preset
from sgqn.envs.families import all_tasks, check_renderer, check_shift, families, find_task
from sgqn.envs.families.suite import Suite, suite
from sgqn.results.paper import TASKS as PAPER_TASKS


def test_tasks_are_all_of_the_suite() -> None:
    assert set(Suite.tasks) == {f"{domain}-{task}" for domain, task in suite().ALL_TASKS}
    assert len(Suite.tasks) == len(set(Suite.tasks))


def test_paper_tasks_have_the_papers_action_repeat() -> None:
    repeats = {name: find_task(name).action_repeat for name in PAPER_TASKS}
    assert repeats == {
        "walker-walk": 4,
        "walker-stand": 4,
        "ball_in_cup-catch": 4,
        "cartpole-swingup": 8,
        "finger-spin": 2,
    }
    assert [find_task(name).episode_steps for name in PAPER_TASKS] == [250, 250, 250, 125, 500]
    assert find_task("finger-spin", action_repeat=3).episode_steps == 334


def test_every_task_and_shift_is_registered() -> None:
    for task in all_tasks():
        for shift in find_task(task).family.shifts(task):
            assert f"sgqn/{task}-{shift}-v0" in gymnasium.registry


def test_every_family_declares_what_it_has() -> None:
    for family in families():
        for task in family.tasks:
            found, shifts = find_task(task), family.shifts(task)
            assert found.family is family
            assert set(found.defaults.evaluate_shifts) <= set(shifts)
            assert 1 <= found.episode_steps <= found.defaults.control_steps
            for shift in shifts:
                assert check_shift(task, shift) == family.shift(task, shift).name
                assert "\n" not in family.describe(task, shift)
            for renderer in (*family.renderers(task), "auto"):
                assert check_renderer(task, renderer) == renderer


def test_the_suites_defaults_are_the_benchmarks() -> None:
    defaults = {name: find_task(name).defaults for name in PAPER_TASKS}
    assert {name: one.rho for name, one in defaults.items() if one.rho != 0.95} == {
        "ball_in_cup-catch": 0.98,
        "cartpole-swingup": 0.98,
    }
    assert {(one.control_steps, one.frame_stack, one.camera, one.returns) for one in defaults.values()} == {
        (1000, 3, 0, (0.0, 1000.0))
    }
    assert {one.evaluate_shifts for one in defaults.values()} == {("train", "video_easy", "video_hard")}


def test_a_tasks_own_hyperparameters_are_those_of_the_agents_that_have_them() -> None:
    for agent in ("sgqn", "svea", "sac"):
        assert preset("paper", "finger-spin", agent).settings.temperature_learning_rate == 1e-3
        assert preset("paper", "walker-walk", agent).settings.temperature_learning_rate == 1e-4
    assert not hasattr(preset("paper", "finger-spin", "drqv2").settings, "temperature_learning_rate")


def test_importing_and_listing_is_light() -> None:
    code = (
        "import sgqn, sys; from sgqn.envs.families import all_tasks; all_tasks(); "
        "print([name for name in ('mujoco', 'torch', 'dm_control') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert result.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("kwargs", "parts"),
    [
        ({"task": "walker-wlak"}, ["'walker-wlak'", "'walker-walk'"]),
        ({"task": "walker"}, ["'walker'", "walker-"]),
        ({"task": "zzz"}, ["'zzz'", "acrobot-swingup"]),
        ({"task": "walker-walk", "shift": "video_hrad"}, ["'video_hrad'", "'video_hard'"]),
        ({"task": "walker-walk", "renderer": "opengl"}, ["'opengl'", "'gl'"]),
        ({"task": "walker-walk", "action_repeat": 0}, ["action_repeat", "0"]),
        ({"task": "walker-walk", "image_size": 2}, ["image_size", "2"]),
        ({"task": "walker-walk", "frame_stack": 0}, ["frame_stack", "0"]),
        ({"task": "walker-walk", "render_mode": "human"}, ["render_mode", "'human'"]),
    ],
)
def test_bad_arguments_are_named(kwargs: dict, parts: list[str]) -> None:
    with pytest.raises(sgqn.SgqnError) as error:
        sgqn.make(**kwargs)
    for part in parts:
        assert part in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("kwargs", "part"),
    [
        ({"num_envs": 0}, "num_envs"),
        ({"num_envs": 1, "device": "tpu"}, "tpu"),
        ({"num_envs": 1, "device": "meta"}, "meta"),
    ],
)
def test_bad_vector_arguments_are_named(kwargs: dict, part: str) -> None:
    with pytest.raises(sgqn.SgqnError, match=part):
        sgqn.make_vec("walker-walk", **kwargs)
