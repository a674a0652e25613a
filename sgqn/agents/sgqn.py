"""SGQN, the paper's method: a value learner that is told to look where it looks."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from sgqn.agents.base import Agent, Metrics, Phase, adam, minimize
from sgqn.agents.learner import Learner
from sgqn.attribution import (
    METHODS,
    differentiable,
    fill,
    get,
    gradient_of,
    guided_gradient_of,
    quantile_mask,
    soft_mask,
    switchable_relu,
)
from sgqn.augmentations import Augmentation
from sgqn.losses import consistency_loss, mask_prediction_loss
from sgqn.networks import AttributionDecoder
from sgqn.replay import Batch

# Methods that differentiate the value itself can share its forward pass.
_OF_GRAPH = {"gradient": gradient_of, "guided_backprop": guided_gradient_of}


class SGQN(Agent):
    """Wraps a learner. L_C: its value may not depend on the pixels outside the attribution mask.
    L_SL: its features of an augmented picture must tell that mask.

    Either half can be left out, which gives the paper's ablations.
    """

    def __init__(self, learner: Learner, augmentation: Augmentation, consistency: bool = True, selfsup: bool = True):
        super().__init__(learner.spec, learner.batch_size)
        self.settings = settings = learner.settings
        self.learner = learner
        self.augmentation = augmentation
        self.consistency, self.selfsup = consistency, selfsup
        self.attribution = get(settings.attribution)
        self.mask = partial(quantile_mask, rho=settings.rho) if settings.mask == "quantile" else soft_mask
        if selfsup:
            spec = self.spec
            self.decoder = AttributionDecoder(
                spec.action_dim,
                spec.channels,
                settings.embedding_dim,
                spec.image_size,
                settings.encoder_filters,
                settings.decoder_filters,
            )

    def make_optimizers(self) -> None:
        self.learner.generator = self.generator
        self.learner.make_optimizers()
        self.optimizers = self.learner.optimizers
        if self.selfsup:
            trained = nn.ModuleList([self.learner.encoder, self.learner.projection, self.decoder]).parameters()
            self.optimizers["auxiliary"] = adam(trained, self.settings.auxiliary_learning_rate)

    def update(self, batch: Batch, phase: Phase = Phase()) -> Metrics:  # noqa: B008
        batch = self.learner.augment(batch)
        metrics, mask = self.critic_step(batch)
        auxiliary = phase.auxiliary and self.selfsup
        if auxiliary and (mask is None or self.settings.recompute_attribution):
            # Attributed with the weights that the critic step left, as the actor sees them: one pass serves both.
            obs, features = self.traced_features(batch.obs)
            mask = self.mask(self.attribute(obs, features, batch.action)[1])
        elif phase.actor:
            features = self.learner.actor_features(batch.obs)
        if phase.actor:
            metrics |= self.learner.actor_step(features)
        if phase.targets:
            self.learner.target_step()
        if auxiliary:
            assert mask is not None
            metrics |= self.auxiliary_step(batch, mask)
        return metrics

    def critic_step(self, batch: Batch) -> tuple[Metrics, Tensor | None]:
        """L_Q + lambda L_C; also returns the mask M_rho(Q, s, a)."""
        learner, action = self.learner, batch.action
        if not self.consistency:
            values = learner.values(learner.encode(batch.obs), action)
            return learner.critic_step(learner.critic_losses(batch, values)), None
        obs, features = self.traced_features(batch.obs)
        values, attribution = self.attribute(obs, features, action)
        mask = self.mask(attribution)
        masked = fill(batch.obs, mask, self.fill_value(batch.obs))
        losses = learner.critic_losses(batch, values)
        consistency = consistency_loss(values, learner.values(learner.encode(masked), action))
        losses["consistency"] = self.settings.consistency_weight * consistency
        metrics = learner.critic_step(losses)
        return metrics | {"mask/kept": mask.mean(dtype=torch.float32)}, mask

    def auxiliary_step(self, batch: Batch, mask: Tensor) -> Metrics:
        """L_SL: predict the mask from the augmented picture."""
        features = self.learner.encode(self.augmentation(batch.obs, self.generator))
        logits = self.decoder(self.learner.embed(features), batch.action)
        metrics = minimize(self.optimizers["auxiliary"], {"mask": mask_prediction_loss(logits, mask)})
        salient = mask if mask.dtype == torch.bool else mask > 0.5
        return metrics | {"mask/agreement": ((logits.detach() > 0) == salient).mean(dtype=torch.float32)}

    def traced_features(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """The observation as a leaf, and features whose ReLUs can also be read backwards in the guided way."""
        obs = differentiable(obs)
        with switchable_relu():
            return obs, self.learner.encode(obs)

    def attribute(self, obs: Tensor, features: Tensor, action: Tensor) -> tuple[tuple[Tensor, ...], Tensor]:
        """The values of (s, a) and their attribution to the pixels of s, from one forward pass where that is exact."""
        with switchable_relu():
            values = self.learner.values(features, action)
        method = self.settings.attribution
        if method in _OF_GRAPH:
            return values, _OF_GRAPH[method](self.target_of(values), obs)
        return values, self.attribution(lambda o, a: self.target_of(self._values(o, a)), obs, action)

    def target_of(self, values: tuple[Tensor, ...]) -> Tensor:
        return values[0] if self.settings.attribution_target == "q1" else torch.stack(values).mean(dim=0)

    def fill_value(self, obs: Tensor) -> Tensor | float:
        """What masked pixels become: zero, or one uniform value within the batch's range of pixels."""
        if self.settings.mask_fill == "zero":
            return 0.0
        low, high = obs.amin().float(), obs.amax().float()
        return low + (high - low) * torch.rand((), generator=self.generator, device=obs.device)

    def policy(self, obs: Tensor, deterministic: bool) -> Tensor:
        return self.learner.policy(obs, deterministic)

    def mask_probabilities(self, obs: Tensor, action: Tensor) -> Tensor:
        if not self.selfsup:
            return super().mask_probabilities(obs, action)
        return self.decoder(self.learner.embed(self.learner.encode(obs)), action).sigmoid()

    def _values(self, obs: Tensor, action: Tensor) -> tuple[Tensor, ...]:
        return self.learner.values(self.learner.encode(obs), action)


assert set(_OF_GRAPH) <= set(METHODS)
