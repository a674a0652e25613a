from __future__ import annotations

import gymnasium
import pytest

import sgqn
from sgqn.envs.suite import suite
from sgqn.envs.tasks import PAPER_TASKS, SHIFTS, TASKS, find_task


def test_tasks_are_all_of_the_suite() -> None:
    assert set(TASKS) == {f"{domain}-{task}" for domain, task in suite().ALL_TASKS}
    assert len(TASKS) == len(set(TASKS))


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
    names = {f"sgqn/{task}-{shift}-v0" for task in TASKS for shift in SHIFTS}
    assert names <= set(gymnasium.registry)


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
