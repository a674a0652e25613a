"""SGQN, the paper's method: a value learner that is told to look where it looks."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from sgqn.agents.base import Agent, Metrics, Phase, adam, minimize
from sgqn.agents.learner import Learner
from sgqn.attribution import (
    METHODS,
    fill,
    get,
    gradient_of,
    guided_gradient_of,
    quantile_mask,
    share,
    sign_agreement,
    soft_mask,
    switchable_relu,
)
from sgqn.augmentations import Augmentation
from sgqn.fast.pixels import byte_range, fits_range
from sgqn.fast.streams import AHEAD, FIRST, Join, aside, done, mark
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
        self.learner.generator, self.learner.preparer = self.generator, self.preparer
        self.learner.make_optimizers()
        self.optimizers = self.learner.optimizers
        if self.selfsup:
            trained = nn.ModuleList([self.learner.encoder, self.learner.projection, self.decoder]).parameters()
            self.optimizers["auxiliary"] = adam(trained, self.settings.auxiliary_learning_rate)

    def prepare(self, batch: Batch) -> Batch:
        return self.learner.prepare(batch)

    def learn(self, batch: Batch, phase: Phase = Phase()) -> Metrics:  # noqa: B008
        metrics, mask = self.critic_step(batch)
        auxiliary, device = phase.auxiliary and self.selfsup, batch.obs.device
        with aside(device, FIRST) as join_mask:  # on a GPU, the mask beside its prediction, which waits for it
            features, seen = None, None
            if auxiliary and (mask is None or self.settings.recompute_attribution):
                # Attributed with the weights that the critic step left, as the actor sees them: one pass serves both.
                trains = phase.actor and self.settings.actor_trains_encoder
                leaf, features = self.traced_features(batch.obs, trains)
                seen = None if trains else mark(device)  # the actor need not wait for the mask
                mask = self.mask(self.attribute(self.traced_values(features, batch.action), leaf, batch))
            elif phase.actor:
                features = self.learner.actor_features(batch.obs)
            with aside(device, since=seen) as join_actor:
                if phase.actor:
                    assert features is not None
                    metrics |= self.learner.actor_step(features)
                if phase.targets:
                    self.learner.target_step()
        if self.settings.actor_trains_encoder:
            join_actor()
        if auxiliary:
            assert mask is not None
            metrics |= self.auxiliary_step(batch, mask, join_mask, join_actor)
        join_mask()
        join_actor()
        return metrics

    def critic_step(self, batch: Batch) -> tuple[Metrics, Tensor | None]:
        """L_Q + lambda L_C; also returns the mask M_rho(Q, s, a)."""
        learner, action = self.learner, batch.action
        if not self.consistency:
            values = learner.values(learner.encode(batch.obs), action)
            return learner.critic_step(learner.critic_losses(batch, values)), None
        leaf, features = self.traced_features(batch.obs)
        values = self.traced_values(features, action)
        with aside(leaf.device, FIRST) as join_fill:
            fill_value = self.fill_value(batch.obs)
        with aside(leaf.device) as join_losses:  # nobody but the values' own gradient waits for the target
            losses = learner.critic_losses(batch, values)
        mask = self.mask(self.attribute(values, leaf, batch))
        join_fill()
        masked = fill(batch.obs, mask, fill_value)
        with aside(leaf.device, FIRST) as join_masked:  # its backward pass then runs beside the other
            masked_values = learner.values(learner.encode(masked), action)
        with aside(leaf.device, AHEAD) as join_share:
            kept = share(mask)
        join_masked()
        losses["consistency"] = self.settings.consistency_weight * consistency_loss(values, masked_values)
        metrics = learner.critic_step(losses, join_losses)
        join_share()
        return metrics | {"mask/kept": kept}, mask

    def predict(self, obs: Tensor, action: Tensor) -> Tensor:
        """The logits of M_theta."""
        return self.decoder(self.learner.embed(self.learner.encode(obs)), action)

    def auxiliary_step(self, batch: Batch, mask: Tensor, before_loss: Join = done, before_step: Join = done) -> Metrics:
        """L_SL: predict the mask from the augmented picture."""
        logits = self.predict(self.augmentation(batch.obs, self.generator), batch.action)
        before_loss()
        with aside(mask.device, AHEAD) as join:
            agreement = sign_agreement(logits, mask)
        loss = {"mask": mask_prediction_loss(logits, mask)}
        metrics = minimize(self.optimizers["auxiliary"], loss, before_step)  # whose weights the actor's loss reads
        join()
        return metrics | {"mask/agreement": agreement}

    def traced_features(self, obs: Tensor, trains: bool = True) -> tuple[Tensor, Tensor]:
        """A leaf that stands for the observation, and features whose ReLUs can be read backwards in the guided way too.

        `trains`: whether a loss of these features will be minimised.
        """
        with switchable_relu():
            return self.learner.encoder.traced(obs, trains)

    def traced_values(self, features: Tensor, action: Tensor) -> tuple[Tensor, ...]:
        """The values of (s, a), whose ReLUs can also be read backwards in the guided way."""
        with switchable_relu():
            return self.learner.values(features, action)

    def attribute(self, values: tuple[Tensor, ...], leaf: Tensor, batch: Batch) -> Tensor:
        """The attribution of traced values to the pixels of s; from their own forward pass where that is exact."""
        method = self.settings.attribution
        if method in _OF_GRAPH:
            return _OF_GRAPH[method](self.target_of(values), leaf)
        return self.attribution(lambda o, a: self.target_of(self._values(o, a)), batch.obs, batch.action)

    def attribution_mask(self, batch: Batch) -> Tensor:
        """M_rho(Q, s, a)."""
        leaf, features = self.traced_features(batch.obs, trains=False)
        return self.mask(self.attribute(self.traced_values(features, batch.action), leaf, batch))

    def target_of(self, values: tuple[Tensor, ...]) -> Tensor:
        return values[0] if self.settings.attribution_target == "q1" else torch.stack(values).mean(dim=0)

    def fill_value(self, obs: Tensor) -> Tensor | float:
        """What masked pixels become: zero, or one uniform value within the batch's range of pixels."""
        if self.settings.mask_fill == "zero":
            return 0.0
        low, high = byte_range(obs) if fits_range(obs) else (bound.float() for bound in torch.aminmax(obs))
        return low + (high - low) * torch.rand((), generator=self.generator, device=obs.device)

    def policy(self, obs: Tensor, deterministic: bool) -> Tensor:
        return self.learner.policy(obs, deterministic)

    def value(self, obs: Tensor, action: Tensor) -> Tensor:
        return self.target_of(self._values(obs, action))

    @property
    def explained_by(self) -> str:
        return self.settings.attribution

    @property
    def rho(self) -> float:
        return self.settings.rho

    def mask_of(self, attribution: Tensor, rho: float) -> Tensor:
        return soft_mask(attribution) if self.settings.mask == "soft" else quantile_mask(attribution, rho)

    @property
    def predicts_masks(self) -> bool:
        return self.selfsup

    def mask_probabilities(self, obs: Tensor, action: Tensor) -> Tensor:
        if not self.selfsup:
            return super().mask_probabilities(obs, action)
        return self.predict(obs, action).sigmoid()

    def _values(self, obs: Tensor, action: Tensor) -> tuple[Tensor, ...]:
        return self.learner.values(self.learner.encode(obs), action)


assert set(_OF_GRAPH) <= set(METHODS)
