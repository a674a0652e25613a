"""The toy task: its rules, and that it is a task like others."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

import sgqn
from sgqn.envs.families import find_task
from sgqn.envs.toy import BALLS, HEIGHT, PADDLE, SIZE, Catch
from tests.envs.contract import check_no_shared_memory, check_stacks, play

CATCH = "gym:sgqn/Catch-v0"


def expert(env: Catch) -> int:
    """Stay under the ball."""
    gap = env.x - (env.paddle + PADDLE // 2)
    return 1 if abs(gap) <= 8 else 2 if gap > 0 else 0


@pytest.mark.parametrize("skilled", [True, False])
def test_balls_are_caught_or_missed(skilled: bool) -> None:
    env = Catch()
    returns, successes, lengths = [], [], []
    for seed in range(20):
        env.reset(seed=seed)
        rewards, over, info = [], False, {}
        while not over:
            _, reward, over, _, info = env.step(expert(env) if skilled else 1)
            rewards.append(reward)
        returns.append(sum(rewards))
        successes.append(info["is_success"])
        lengths.append(len(rewards))
    assert set(lengths) == {BALLS * 7}
    assert np.mean(returns) == BALLS if skilled else np.mean(returns) < 0
    assert all(successes) == skilled


def test_it_keeps_gymnasiums_contract() -> None:
    check_env(gymnasium.make("sgqn/Catch-v0", render_mode="rgb_array").unwrapped)


@pytest.mark.parametrize("shift", ["train", "color_jitter", "random_conv", "video_hard"])
def test_it_is_a_task_like_others(shift: str) -> None:
    assert find_task(CATCH).episode_steps == 100
    env = sgqn.make(CATCH, shift, masks=True, render_mode="rgb_array")
    first, again = play(env, seed=3), play(env, seed=3)
    assert all(np.array_equal(one[0], other[0]) for one, other in zip(first, again, strict=True))
    check_stacks([obs for obs, _ in first])
    check_no_shared_memory([obs for obs, _ in first])
    assert not np.array_equal(env.reset()[0], first[0][0])
    mask = env.reset()[1]["mask"][-1]
    assert mask[SIZE - HEIGHT :].sum() == PADDLE * HEIGHT
    assert mask.sum() > PADDLE * HEIGHT + 60
    env.close()


def test_workers_know_it() -> None:
    envs = sgqn.make_vec(CATCH, 2, "video_hard", num_workers=2)
    obs, info = envs.reset(seed=1)
    assert (envs.action_dim, envs.discrete) == (3, True)
    assert info["success"].tolist() == [False, False]
    assert not np.array_equal(obs[0], envs.step(np.array([0, 2]))[0][0])
    envs.close()
