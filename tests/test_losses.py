"""Every loss against the same equation written out in numpy float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from sgqn import losses
from sgqn.errors import InvalidValueError

RNG = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return RNG.normal(size=shape)


def t(array: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(array).requires_grad_()


def test_soft_td_target_bootstraps_by_each_transitions_discount():
    reward, q1, q2, log_pi = normal(5), normal(5), normal(5), normal(5)
    discount = np.array([0.99, 0.99, 0.0, 0.99, 0.5])
    target = losses.soft_td_target(
        t(reward), t(discount), (t(q1), t(q2)), t(log_pi), torch.tensor(0.3, dtype=torch.float64)
    )
    expected = [r + d * (min(a, b) - 0.3 * lp) for r, d, a, b, lp in zip(reward, discount, q1, q2, log_pi, strict=True)]
    np.testing.assert_allclose(target.detach(), expected, rtol=1e-12)
    assert target[2] == reward[2]


def test_soft_td_target_takes_a_stacked_ensemble():
    args = [torch.rand(4), torch.rand(4)], torch.rand(3, 4), [torch.rand(4), torch.tensor(0.1)]
    stacked = losses.soft_td_target(*args[0], args[1], *args[2])
    assert torch.equal(stacked, losses.soft_td_target(*args[0], tuple(args[1]), *args[2]))


def test_td_target_and_the_deterministic_actors_loss():
    reward, q1, q2 = normal(4), normal(4), normal(4)
    discount = np.array([0.99**3, 0.0, 0.99, 0.99**2])
    target = losses.td_target(t(reward), t(discount), (t(q1), t(q2)))
    np.testing.assert_allclose(target.detach(), reward + discount * np.minimum(q1, q2), rtol=1e-12)
    assert target[1] == reward[1]
    single = losses.td_target(t(reward), t(discount), (t(q1),))
    np.testing.assert_allclose(single.detach(), reward + discount * q1, rtol=1e-12)
    tensors = t(q1), t(q2)
    loss = losses.deterministic_actor_loss(tensors)
    loss.backward()
    np.testing.assert_allclose(loss.item(), -np.minimum(q1, q2).mean(), rtol=1e-12)
    np.testing.assert_allclose(tensors[0].grad, np.where(q1 < q2, -0.25, 0), rtol=1e-12)


def test_critic_loss_and_its_gradient():
    q1, q2, y = normal(6), normal(6), normal(6)
    tensors = t(q1), t(q2), t(y)
    loss = losses.critic_loss(tensors[:2], tensors[2])
    loss.backward()
    np.testing.assert_allclose(loss.item(), np.mean((q1 - y) ** 2) + np.mean((q2 - y) ** 2), rtol=1e-12)
    np.testing.assert_allclose(tensors[0].grad, 2 * (q1 - y) / 6, rtol=1e-12)
    assert tensors[2].grad is None


def test_actor_loss_and_its_gradient():
    q1, q2, log_pi, alpha = normal(6), normal(6), normal(6), t(np.array(0.2))
    tensors = t(q1), t(q2), t(log_pi)
    loss = losses.actor_loss(tensors[:2], tensors[2], alpha)
    loss.backward()
    np.testing.assert_allclose(loss.item(), np.mean(0.2 * log_pi - np.minimum(q1, q2)), rtol=1e-12)
    np.testing.assert_allclose(tensors[0].grad, np.where(q1 < q2, -1 / 6, 0), rtol=1e-12)
    np.testing.assert_allclose(tensors[2].grad, np.full(6, 0.2 / 6), rtol=1e-12)
    assert alpha.grad is None


def test_temperature_loss_lowers_alpha_above_the_target_entropy():
    log_alpha, log_pi = t(np.array(-1.5)), t(normal(6))
    loss = losses.temperature_loss(log_alpha, log_pi, target_entropy=-6.0)
    loss.backward()
    expected = np.mean(np.exp(-1.5) * (-log_pi.detach().numpy() + 6.0))
    np.testing.assert_allclose(loss.item(), expected, rtol=1e-12)
    np.testing.assert_allclose(log_alpha.grad, expected, rtol=1e-12)  # d exp(x) c / dx = exp(x) c
    assert log_alpha.grad > 0
    assert log_pi.grad is None


def test_consistency_loss_has_a_gradient_through_both_values():
    q, masked = (t(normal(4)), t(normal(4))), (t(normal(4)), t(normal(4)))
    loss = losses.consistency_loss(q, masked)
    loss.backward()
    d1, d2 = ((a - b).detach().numpy() for a, b in zip(q, masked, strict=True))
    np.testing.assert_allclose(loss.item(), np.mean(d1**2) + np.mean(d2**2), rtol=1e-12)
    np.testing.assert_allclose(q[1].grad, 2 * d2 / 4, rtol=1e-12)
    np.testing.assert_allclose(masked[1].grad, -2 * d2 / 4, rtol=1e-12)


@pytest.mark.parametrize("soft", [False, True])
def test_mask_prediction_loss(soft: bool):
    logits = normal(2, 3, 4, 4)
    mask = RNG.random((2, 3, 4, 4)) if soft else RNG.random((2, 3, 4, 4)) > 0.5
    p = 1 / (1 + np.exp(-logits))
    expected = -np.mean(mask * np.log(p) + (1 - mask) * np.log(1 - p))
    loss = losses.mask_prediction_loss(torch.from_numpy(logits), torch.from_numpy(mask))
    np.testing.assert_allclose(loss.item(), expected, rtol=1e-10)


def test_policy_consistency_loss():
    a, b = normal(5, 2), normal(5, 2)
    action, other = t(a), t(b)
    loss = losses.policy_consistency_loss(action, other)
    loss.backward()
    np.testing.assert_allclose(loss.item(), np.mean(np.sum((a - b) ** 2, axis=1)), rtol=1e-10)
    assert action.grad is None
    np.testing.assert_allclose(other.grad.numpy(), 2 * (b - a) / 5, rtol=1e-10)


def test_byol_loss():
    p, z = normal(5, 7), normal(5, 7)
    prediction, target = t(p), t(z)
    loss = losses.byol_loss(prediction, target)
    loss.backward()
    cosine = np.sum(p * z, 1) / np.linalg.norm(p, axis=1) / np.linalg.norm(z, axis=1)
    np.testing.assert_allclose(loss.item(), np.mean(2 - 2 * cosine) / 7, rtol=1e-10)
    assert prediction.grad is not None
    assert target.grad is None


def test_svea_loss():
    assert losses.svea_loss(torch.tensor(2.0), torch.tensor(4.0)) == 3
    assert losses.svea_loss(torch.tensor(2.0), torch.tensor(4.0), alpha=1.0, beta=0.25) == 3


def test_shapes_that_would_broadcast_are_refused():
    column, row, alpha = torch.zeros(4, 1), torch.zeros(4), torch.tensor(0.1)
    with pytest.raises(InvalidValueError, match=r"q \(4, 1\), target \(4,\)"):
        losses.critic_loss((column, column), row)
    with pytest.raises(InvalidValueError, match="next_log_pi"):
        losses.soft_td_target(row, row, (row, row), column, alpha)
    with pytest.raises(InvalidValueError, match="discount"):
        losses.td_target(row, column, (row, row))
    with pytest.raises(InvalidValueError, match="log_pi"):
        losses.actor_loss((row, row), column, alpha)
    with pytest.raises(ValueError):
        losses.consistency_loss((row, row), (row,))
