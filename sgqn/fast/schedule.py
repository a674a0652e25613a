"""Concurrency of an SGQN update on a GPU. The steps are SGQN's own; `sgqn.agents.sgqn` has them in order.

Small kernels hide behind large ones: the temporal-difference target next to the attribution, the masked forward pass
on a stream of its own (its backward pass then runs next to the other), the actor next to the recomputed mask, metrics
behind everything.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from sgqn.agents.base import Metrics, Phase, minimize
from sgqn.agents.sgqn import SGQN
from sgqn.attribution.mask import share, sign_agreement
from sgqn.fast import switch
from sgqn.fast.streams import AHEAD, FIRST, Join, aside, mark
from sgqn.losses import consistency_loss, mask_prediction_loss
from sgqn.replaceable import replace
from sgqn.replay import Batch


@contextmanager
def joined_before_step(optimizer: torch.optim.Optimizer, join: Join) -> Iterator[None]:
    """The optimizer's next step waits for what `join` waits for; gradients may be computed before."""
    hook = optimizer.register_step_pre_hook(lambda *_: join())
    try:
        yield
    finally:
        hook.remove()


@replace(SGQN.learn, fits=lambda agent, batch, phase=None: switch.takes(batch.obs))
def learn(agent: SGQN, batch: Batch, phase: Phase = Phase()) -> Metrics:  # noqa: B008
    """`SGQN.learn`, its independent parts on several streams."""
    metrics, mask = critic_step(agent, batch)
    auxiliary, device, predicted = phase.auxiliary and agent.selfsup, batch.obs.device, mask
    with aside(device, FIRST) as join_mask:  # the mask runs next to its prediction, which waits for it
        features, seen = None, None
        if auxiliary and (mask is None or agent.settings.recompute_attribution):
            # Attributed with the weights that the critic step left, as the actor sees them: they share the pass.
            trains = phase.actor and agent.learner.actor_trains_encoder
            leaf, features = agent.saliency.trace(batch.obs, trains)
            seen = None if trains else mark(device)  # the actor need not wait for the mask
            values = agent.saliency.values(features, batch.action)
            predicted = agent.saliency.kept(batch.obs, agent.saliency.attribution(values, leaf, batch, features))
        elif phase.actor:
            features = agent.learner.actor_features(batch.obs)
        with aside(device, since=seen) as join_actor:
            if phase.actor:
                assert features is not None
                metrics |= agent.actor_step(features, batch, mask)
            if phase.targets:
                agent.learner.target_step()
    if agent.learner.actor_trains_encoder:
        join_actor()
    if auxiliary:
        assert predicted is not None
        metrics |= auxiliary_step(agent, batch, predicted, join_mask, join_actor)
    join_mask()
    join_actor()
    return metrics


def critic_step(agent: SGQN, batch: Batch) -> tuple[Metrics, Tensor | None]:
    if not agent.consistency:
        return agent.critic_step(batch)
    learner, action = agent.learner, batch.action
    leaf, features = agent.saliency.trace(batch.obs)
    values = agent.saliency.values(features, action)
    with aside(leaf.device, FIRST) as join_masking:
        masking = agent.masking(batch.obs)
    with aside(leaf.device) as join_losses:  # nothing but the values' own gradient waits for the target
        losses = learner.critic_losses(batch, values)
    mask = agent.saliency.kept(batch.obs, agent.saliency.attribution(values, leaf, batch, features))
    join_masking()
    masked = masking(mask)
    with aside(leaf.device, FIRST) as join_masked:  # its backward pass then runs next to the other
        masked_features = learner.encode(masked)
        masked_values = learner.values(masked_features, action)
    with aside(leaf.device, AHEAD) as join_share:
        kept = share(mask)
    join_masked()
    losses["consistency"] = agent.settings.consistency_weight * consistency_loss(values, masked_values)
    losses |= agent.further_losses(features, masked_features)
    with joined_before_step(learner.optimizers["critic"], join_losses):
        metrics = learner.critic_step(losses)
    join_share()
    return metrics | {"mask/kept": kept}, mask


def auxiliary_step(agent: SGQN, batch: Batch, mask: Tensor, before_loss: Join, before_step: Join) -> Metrics:
    logits = agent.predict(agent.augmentation(batch.obs, agent.generator), batch.action)
    before_loss()
    with aside(mask.device, AHEAD) as join:
        agreement = sign_agreement(logits, mask)
    loss = {"mask": mask_prediction_loss(logits, mask)}
    with joined_before_step(agent.optimizers["auxiliary"], before_step):  # whose weights the actor's loss reads
        metrics = minimize(agent.optimizers["auxiliary"], loss)
    join()
    return metrics | {"mask/agreement": agreement}
