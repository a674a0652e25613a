"""The paper's losses: one pure function per equation, all taking and returning tensors.

Per-transition quantities (rewards, discounts, log-probabilities, a critic's values) have shape (B,). Critics
come as an ensemble: a pair (q1, q2), or anything that yields one (B,) tensor per critic.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import reduce

import torch
import torch.nn.functional as F
from torch import Tensor

from sgqn.errors import InvalidValueError
from sgqn.replaceable import replaceable


def _same_shape(**tensors: Tensor) -> None:
    """Raise an error for (B,) and (B, 1), which would broadcast to (B, B)."""
    if len({tensor.shape for tensor in tensors.values()}) > 1:
        shapes = ", ".join(f"{name} {tuple(tensor.shape)}" for name, tensor in tensors.items())
        raise InvalidValueError(f"shapes differ: {shapes}")


def minimum(qs: Iterable[Tensor]) -> Tensor:
    """min_i Q_i, the pessimistic value of an ensemble of critics: (B,)."""
    return reduce(torch.minimum, qs)


@replaceable
def soft_td_target(
    reward: Tensor, discount: Tensor, next_qs: Iterable[Tensor], next_log_pi: Tensor, alpha: Tensor
) -> Tensor:
    r"""y = r + d (min_i Q_i'(s', a') - alpha log pi(a'|s')), with a' drawn from the policy.

    d is gamma where the episode continues, also at a time limit, and 0 only after a terminal state.
    """
    next_q = minimum(next_qs)
    _same_shape(reward=reward, discount=discount, next_q=next_q, next_log_pi=next_log_pi)
    return reward + discount * (next_q - alpha * next_log_pi)


def td_target(reward: Tensor, discount: Tensor, next_qs: Iterable[Tensor]) -> Tensor:
    r"""y = r + d min_i Q_i'(s', a'), d as in `soft_td_target`.

    With n-step returns, r is the discounted sum of rewards, s' follows the last one, and d is gamma^n or 0.
    """
    next_q = minimum(next_qs)
    _same_shape(reward=reward, discount=discount, next_q=next_q)
    return reward + discount * next_q


def critic_loss(qs: Iterable[Tensor], target: Tensor) -> Tensor:
    r"""L_Q = sum_i E[(Q_i(s, a) - y)^2]; no gradient flows into the target y."""
    return sum_of_squared_errors([(q, target.detach()) for q in qs], "q", "target")


def actor_loss(qs: Iterable[Tensor], log_pi: Tensor, alpha: Tensor) -> Tensor:
    r"""L_pi = E[alpha log pi(a|s) - min_i Q_i(s, a)], a drawn from the policy; alpha is held constant."""
    q = minimum(qs)
    _same_shape(q=q, log_pi=log_pi)
    return (alpha.detach() * log_pi - q).mean()


def deterministic_actor_loss(qs: Iterable[Tensor]) -> Tensor:
    r"""L_mu = -E[min_i Q_i(s, a)], a the policy's action, possibly with noise: the gradient flows through a."""
    return -minimum(qs).mean()


def temperature_loss(log_alpha: Tensor, log_pi: Tensor, target_entropy: float) -> Tensor:
    r"""L_alpha = E[alpha (-log pi(a|s) - H)]: alpha falls while the policy's entropy exceeds the target H."""
    return (log_alpha.exp() * (-log_pi - target_entropy).detach()).mean()


def consistency_loss(qs: Iterable[Tensor], qs_masked: Iterable[Tensor]) -> Tensor:
    r"""L_C = sum_i E[(Q_i(s, a) - Q_i(s ⊙ M_rho(Q, s, a), a))^2], the gradient flowing through both values.

    It makes the critics depend only on the salient pixels. Added to L_Q with the weight lambda.
    """
    return sum_of_squared_errors(list(zip(qs, qs_masked, strict=True)), "q", "q_masked")


def policy_consistency_loss(action: Tensor, action_distracted: Tensor) -> Tensor:
    r"""L_PC = E[|a(s, e) - a(s', e)|^2]: the same noise e must give the same action in a distracted observation s'.

    The clean action is the target: no gradient flows into it.
    """
    _same_shape(action=action, action_distracted=action_distracted)
    return (action.detach() - action_distracted).square().sum(dim=1).mean()


@replaceable
def mask_prediction_loss(logits: Tensor, mask: Tensor) -> Tensor:
    r"""L_SL = E[BCE(M_theta(f_theta(tau(s)), a), M_rho(Q, s, a))].

    It makes the features of an augmented image tau(s) predict which pixels of s are salient. Takes the decoder's
    logits and a boolean mask, or a soft one in [0, 1].
    """
    _same_shape(logits=logits, mask=mask)
    return F.binary_cross_entropy_with_logits(logits, mask.detach().to(logits.dtype))


def byol_loss(prediction: Tensor, target: Tensor) -> Tensor:
    r"""L_SODA = E[(p/||p|| - z/||z||)^2], p predicted online from an augmented view, z a momentum projection.

    Both are (B, D); the mean runs over D too, as in SODA. No gradient flows into the target.
    """
    _same_shape(prediction=prediction, target=target)
    return F.mse_loss(F.normalize(prediction, dim=-1), F.normalize(target.detach(), dim=-1))


def svea_loss(loss_clean: Tensor, loss_augmented: Tensor, alpha: float = 0.5, beta: float = 0.5) -> Tensor:
    r"""L_SVEA = alpha L_Q(s) + beta L_Q(tau(s)), both with the target of the unaugmented next observation."""
    return alpha * loss_clean + beta * loss_augmented


@replaceable
def sum_of_squared_errors(pairs: Sequence[tuple[Tensor, Tensor]], left: str, right: str) -> Tensor:
    """The sum over pairs of the mean squared difference; `left` and `right` name them where shapes differ."""
    for a, b in pairs:
        _same_shape(**{left: a, right: b})
    return torch.stack([F.mse_loss(a, b) for a, b in pairs]).sum()


def restoration_loss(restored: Tensor, obs: Tensor, kept: Tensor, kept_weight: float) -> Tensor:
    r"""L_R = (E[|r(s') - s|] + kept_weight E[|r(s') - s| | M]) / 255, where M are the pixels that s' kept of s."""
    _same_shape(restored=restored, obs=obs, kept=kept)
    error = (restored - obs).abs()
    return (error.mean() + kept_weight * (error * kept).sum() / kept.sum().clamp(min=1)) / 255


def gate_loss(logits: Tensor, kept: Tensor, replaced: Tensor) -> Tensor:
    r"""L_G = E[-log g | M] + E[-log(1 - g) | replaced], g being the probability that a pixel of s' shows s.

    All are (B, frames, H, W). Pixels that are neither kept nor replaced do not count, nor does how many the others are.
    """
    _same_shape(logits=logits, kept=kept, replaced=replaced)
    logits = logits.float()
    terms = ((F.softplus(-logits), kept), (F.softplus(logits), replaced))
    return torch.stack([(loss * mask).sum() / mask.sum().clamp(min=1) for loss, mask in terms]).sum()


def perception_loss(restored: Tensor, original: Tensor) -> Tensor:
    r"""L_F = E[||f(r(s')) - f(s)||^2] / Var[f(s)] of features or embeddings f, averaged over their elements.

    Relative to the variance over the batch, because the features of a trained agent may have any scale. No gradient
    flows into f(s).
    """
    _same_shape(restored=restored, original=original)
    original = original.detach().float()
    scale = original.abs().amax().clamp(min=1e-12)  # the square of features may exceed float32
    restored, original = restored.float() / scale, original / scale
    return F.mse_loss(restored, original) / original.var(dim=0, correction=0).mean().clamp(min=1e-8)
