"""What every environment of every family keeps to."""

from __future__ import annotations

from itertools import pairwise

import gymnasium
import numpy as np
import pytest

import sgqn
from sgqn.envs.env import PixelEnv


def check_specs(env: PixelEnv, renderer: str, shift: str) -> None:
    space, family, task = env.observation_space, env.task.family, env.task.name
    assert (space.shape, space.dtype) == ((3 * env.task.defaults.frame_stack, 84, 84), np.uint8)
    if isinstance(env.action_space, gymnasium.spaces.Box):
        assert (env.action_space.low == -1).all()
        assert (env.action_space.high == 1).all()
    assert env.metadata["renderer"] == renderer
    found = family.shift(task, shift)
    assert env.metadata["backgrounds"] == ("generated" if found.video else found.source)
    if family.name == "suite":
        assert env.metadata["backgrounds"] == ("none" if shift == "train" else "generated")


def play(env: PixelEnv, seed: int) -> list[tuple[np.ndarray, float]]:
    """A whole episode, of few agent steps at this action repeat."""
    env.action_space.seed(0)
    obs, info = env.reset(seed=seed)
    steps = [(obs, 0.0)]
    assert info["episode_number"] == 0
    over = False
    while not over:
        obs, reward, terminated, truncated, info = env.step(env.action_space.sample())
        steps.append((obs, reward))
        over = terminated or truncated
    assert truncated == (len(steps) == env.task.episode_steps + 1)
    assert truncated or env.task.family.name != "suite"
    assert isinstance(info.get("success", False), bool)
    with pytest.raises(sgqn.SgqnError, match="reset"):
        env.step(env.action_space.sample())
    assert np.array_equal(env.render(), obs[-3:].transpose(1, 2, 0))
    return steps


def check_stacks(observations: list[np.ndarray]) -> None:
    """An observation holds the last frames; the first one many times the same."""
    for start in range(3, len(observations[0]), 3):
        assert np.array_equal(observations[0][:3], observations[0][start : start + 3])
    for before, after in pairwise(observations):
        assert np.array_equal(before[3:], after[:-3])


def check_no_shared_memory(observations: list[np.ndarray]) -> None:
    for i, one in enumerate(observations):
        for other in observations[i + 1 :]:
            assert not np.shares_memory(one, other)
