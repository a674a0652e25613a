"""The one loop over a single environment."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from sgqn.augmentations import center_crop
from sgqn.evaluation import evaluate
from sgqn.inspect import Subject, environment, play, steps
from sgqn.inspect.episode import roll

STEPS = 20


class Counter:
    """Observations count the steps; the reward is the action; episodes of three steps."""

    def __init__(self) -> None:
        self.resets: list[tuple[int | None, dict[str, int] | None]] = []
        self.time = 0

    def reset(self, seed: int | None = None, options: dict[str, int] | None = None) -> tuple[int, dict[str, Any]]:
        self.resets.append((seed, options))
        self.time = 0
        return 0, {"at": 0}

    def step(self, action: float) -> tuple[int, float, bool, bool, dict[str, Any]]:
        self.time += 1
        return self.time, action, False, self.time == 3, {"at": self.time}


def test_an_episode_from_its_first_observation_to_its_last() -> None:
    env = Counter()
    found = list(roll(env, lambda obs: 10.0 + obs, seed=5))  # type: ignore[operator, return-value]
    assert [(seen.obs, seen.reward, seen.over, seen.info["at"]) for seen in found] == [
        (0, 0.0, False, 0),
        (1, 10.0, False, 1),
        (2, 11.0, False, 2),
        (3, 12.0, True, 3),
    ]
    list(roll(env, lambda obs: 0.0, seed=5, episode=2))
    list(roll(env, lambda obs: 0.0))
    assert env.resets == [(5, None), (5, {"episode": 2}), (None, None)]


def test_an_action_is_chosen_when_the_next_observation_is_asked_for() -> None:
    chosen: list[Any] = []
    playing = roll(Counter(), lambda obs: chosen.append(obs) or 0.0)
    next(playing)
    assert chosen == []
    next(playing)
    assert chosen == [0]


def test_the_episode_is_the_first_of_an_evaluation(subjects: dict[str, Subject]) -> None:
    subject = subjects["sgqn"]
    played = play(subject, "color_easy", seed=5)
    options = {"episodes": 2, "seed": 5, "num_workers": 0, "action_repeat": subject.config.action_repeat}
    returns = evaluate(subject.agent, subject.config.task, "color_easy", **options).returns
    assert returns[0] == pytest.approx(played.rewards.sum())
    env = environment(subject, "color_easy")
    second = [step.reward for step in steps(subject, env, seed=5, episode=1)]
    env.close()
    assert returns[1] == pytest.approx(sum(second))


def test_steps_are_those_of_the_episode_and_its_end(subjects: dict[str, Subject]) -> None:
    subject = subjects["sgqn"]
    played = play(subject, "train", seed=1, truth=True)
    env = environment(subject, "train", truth=True)
    found = list(steps(subject, env, seed=1))
    env.close()
    assert [step.number for step in found] == list(range(STEPS + 1))
    assert [step.over for step in found] == [False] * STEPS + [True]
    assert torch.equal(torch.cat([step.seen for step in found[:-1]]), played.seen)
    assert torch.equal(torch.cat([step.action for step in found[:-1]]), played.actions)
    assert np.array_equal([step.reward for step in found[1:]], played.rewards)
    assert played.truth is not None
    assert torch.equal(torch.cat([step.truth for step in found[:-1]]), played.truth)  # type: ignore[misc]
    assert 0 < played.truth.float().mean() < 0.5


def test_an_agent_that_crops_is_shown_the_same_moments_through_its_own_eyes(subjects: dict[str, Subject]) -> None:
    first, cropping = subjects["sgqn"], subjects["soda"]
    played = play(first, "train")
    seen = play(cropping, "train", actions=played.actions, truth=True)
    assert cropping.agent.spec.render_size == 28
    assert seen.seen.shape == played.seen.shape == (STEPS, 9, 24, 24)
    assert np.array_equal(seen.rewards, played.rewards)
    assert not torch.equal(seen.actions, played.actions)  # what it would do itself
    assert seen.truth is not None
    assert seen.truth.shape == (STEPS, 3, 24, 24)
    env = environment(cropping, "train")
    obs = torch.from_numpy(env.reset(seed=0)[0])
    env.close()
    assert torch.equal(seen.seen[0], center_crop(obs, 24))


def test_the_first_steps(subjects: dict[str, Subject]) -> None:
    reports: list[tuple[int, int]] = []
    whole = play(subjects["sac"], "train")
    part = play(subjects["sac"], "train", count=4, on_step=lambda *report: reports.append(report))
    assert torch.equal(part.seen, whole.seen[:4])
    assert np.array_equal(part.rewards, whole.rewards[:4])
    assert part.truth is None
    assert reports == [(done, 4) for done in range(1, 5)]
