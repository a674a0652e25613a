"""Rollouts against computations by hand: advantages, batches, episodes that end, resuming."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sgqn.agents import Phase, Spec
from sgqn.errors import InvalidValueError
from sgqn.rollout import Rollouts, generalized_advantages


class Fake:
    """V(s) is the first pixel, log pi(a | s) a function of action and pixel."""

    spec = Spec(3, channels=3, image_size=4, render_size=4, discrete=True)

    def judge(self, obs: Tensor, action: Tensor) -> tuple[Tensor, Tensor]:
        pixel = obs[:, 0, 0, 0].float()
        return -pixel / 100 - action, pixel / 10


def made(num_envs: int = 2, **changes: Any) -> Rollouts:
    values = {"rollout_steps": 5, "epochs": 3, "batch_size": 4, "discount": 0.9, "gae_lambda": 0.8, **changes}
    config: Any = SimpleNamespace(settings=SimpleNamespace(**values), num_envs=num_envs, seed=0)
    agent: Any = Fake()
    return Rollouts(config, agent, torch.device("cpu"))


def image(value: int) -> Tensor:
    return torch.full((3, 4, 4), value, dtype=torch.uint8)


class Played:
    """Random steps of two environments, and what they were."""

    def __init__(self, seed: int, steps: int = 5, num_envs: int = 2):
        random = np.random.default_rng(seed)
        self.obs = random.integers(0, 256, (steps + 1, num_envs))
        self.last = random.integers(0, 256, (steps, num_envs))  # true last observations of episodes that end
        self.actions = random.integers(0, 3, (steps, num_envs))
        self.rewards = random.normal(size=(steps, num_envs))
        self.terminated = random.random((steps, num_envs)) < 0.2
        self.truncated = random.random((steps, num_envs)) < 0.2

    def feed(self, rollouts: Rollouts, first: int = 0, stop: int | None = None) -> None:
        if first == 0:
            rollouts.start(torch.stack([image(value) for value in self.obs[0]]))
        for t in range(first, len(self.actions) if stop is None else stop):
            over = self.terminated[t] | self.truncated[t]
            new = torch.stack([image(value) for value in self.obs[t + 1]])
            last = torch.stack([image(v if o else n) for v, n, o in zip(self.last[t], self.obs[t + 1], over)])  # noqa: B905
            rollouts.add(
                torch.as_tensor(self.actions[t]), self.rewards[t], last, self.terminated[t], self.truncated[t],
                new if over.any() else None,
            )  # fmt: skip

    def advantages(self, discount: float, decay: float) -> np.ndarray:
        """The definition: a decaying sum of the errors until the episode ends."""
        steps, num_envs = self.actions.shape
        found = np.zeros((steps, num_envs))
        for env in range(num_envs):
            for t in range(steps):
                factor = 1.0
                for k in range(t, steps):
                    over = self.terminated[k, env] or self.truncated[k, env]
                    after = self.last[k, env] / 10 if over else self.obs[k + 1, env] / 10
                    after = 0.0 if self.terminated[k, env] else after
                    found[t, env] += factor * (self.rewards[k, env] + discount * after - self.obs[k, env] / 10)
                    factor *= discount * decay
                    if over:
                        break
        return found


@settings(max_examples=30)
@given(seed=st.integers(0, 10_000))
def test_advantages_are_those_of_the_definition(seed: int) -> None:
    played, rollouts = Played(seed), made()
    played.feed(rollouts)
    expected = played.advantages(0.9, 0.8)
    torch.testing.assert_close(
        rollouts._data["advantage"], torch.as_tensor(expected, dtype=torch.float32), atol=1e-4, rtol=1e-4
    )
    target = expected + played.obs[:-1] / 10
    torch.testing.assert_close(
        rollouts._data["target"], torch.as_tensor(target, dtype=torch.float32), atol=1e-4, rtol=1e-4
    )


def test_with_lambda_1_targets_are_discounted_returns() -> None:
    reward, value = torch.rand(6, 1), torch.rand(6, 1)
    found = generalized_advantages(reward, value, torch.tensor([2.0]), torch.ones(6, 1), 0.9, 1.0) + value
    returns, running = [], torch.tensor([2.0])
    for t in reversed(range(6)):
        running = reward[t] + 0.9 * running
        returns.append(running)
    torch.testing.assert_close(found, torch.stack(returns[::-1]))


def test_every_epoch_takes_every_step_at_most_once_and_rows_belong_together() -> None:
    played, rollouts = Played(3), made()
    played.feed(rollouts)
    assert rollouts.due(10) == 6  # three epochs of two batches of four, of ten steps
    data = {name: tensor.flatten(0, 1) for name, tensor in rollouts._data.items()}
    for _ in range(3):
        seen = []
        for _ in range(2):
            batch = rollouts.sample(Phase())
            for row in range(4):
                (at,) = np.flatnonzero((data["advantage"] == batch.advantage[row]).numpy())
                assert torch.equal(data["obs"][at], batch.obs[row])
                assert data["action"][at] == batch.action[row]
                assert data["log_prob"][at] == batch.log_prob[row]
                assert data["target"][at] == batch.target[row]
                seen.append(int(at))
        assert len(set(seen)) == 8
    pixel = data["obs"][:, 0, 0, 0].float()
    torch.testing.assert_close(data["log_prob"], -pixel / 100 - data["action"])


def test_updates_are_due_when_a_rollout_is_full_and_not_before() -> None:
    played, rollouts = Played(1), made()
    played.feed(rollouts, stop=4)
    assert rollouts.due(8) == 0
    played.feed(rollouts, first=4)
    assert rollouts.due(10) == 6
    rollouts.updates += 6
    assert rollouts.due(10) == 0
    assert not rollouts.explores(0)


@pytest.mark.parametrize("stop", [3, 5])
def test_a_restored_rollout_continues_bit_for_bit(stop: int) -> None:
    played, whole, part = Played(5), made(), made()
    for rollouts in (whole, part):
        played.feed(rollouts, stop=stop)
    if stop == 5:
        for rollouts in (whole, part):
            rollouts.sample(Phase())
            rollouts.updates += 1
    restored = made()
    obs = torch.stack([image(value) for value in played.obs[stop]])
    restored.load(None, "", part.state_dict(), 0, obs)  # type: ignore[arg-type]
    if stop == 3:
        played.feed(whole, first=3)
        played.feed(restored, first=3)
    assert restored.due(10) == whole.due(10)
    for one, other in zip(whole.sample(Phase()), restored.sample(Phase()), strict=True):
        assert torch.equal(one, other)


def test_a_rollout_smaller_than_a_batch_is_refused() -> None:
    with pytest.raises(InvalidValueError, match=r"has 10 steps, fewer than the batch_size 11: raise rollout_steps"):
        made(batch_size=11)
