"""SGQN, the paper's method: a value learner that is trained to look where it looks."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

from torch import Tensor, nn

from sgqn.agents.base import Losses, Metrics, Phase, Spec, minimize
from sgqn.agents.drq import DrQSettings, drq
from sgqn.agents.learner import Learner
from sgqn.agents.registry import register_agent
from sgqn.agents.saliency import Saliency, SaliencyWrapper
from sgqn.agents.settings import Settings, count, named, positive, quantile, ruled, weight
from sgqn.attribution import METHODS
from sgqn.attribution.mask import Mask, fill, random_value, share, sign_agreement
from sgqn.augmentations import AUGMENTATIONS, Augmentation
from sgqn.losses import consistency_loss, mask_prediction_loss
from sgqn.networks import AttributionDecoder
from sgqn.replaceable import replaceable
from sgqn.replay import Batch


@dataclass(frozen=True)
class SaliencySettings(Settings):
    """Hyperparameters of SGQN itself, for any learner."""

    rho: float = quantile(0.95)
    """Quantile of the attribution below which pixels are masked."""
    attribution: str = named("guided_backprop", "attribution method", lambda: METHODS)
    """Attribution method, optionally with arguments (smoothgrad:samples=4)."""
    attribution_target: Literal["q1", "mean"] = "q1"
    """Attributed value: the first critic (authors' code), or the mean of both."""
    mask: Literal["quantile", "soft", "contrast"] = "quantile"
    """Binary mask, the normalised attribution (an alternative in the paper), or what stands out near the mask."""
    mask_fill: Literal["random", "zero", "augmented"] = "random"
    """Value of masked pixels: one random value per batch (authors' code), zero (paper's text), or augmented pixels."""
    consistency_weight: float = weight(0.5)
    """Weight lambda of the consistency loss; not stated in the paper."""
    augmentation: str = named("overlay", "augmentation", lambda: AUGMENTATIONS)
    """Strong augmentation tau for the mask prediction."""
    auxiliary_every: int = count(2)
    """Updates per mask prediction step."""
    auxiliary_learning_rate: float = positive(3e-4)
    """Learning rate of the mask prediction."""
    recompute_attribution: bool = True
    """Recompute the mask after the critic step (authors' code), or predict the mask of the critic step."""
    decoder_filters: tuple[int, int] = ruled(
        (128, 64), lambda value: len(value) == 2 and all(n >= 1 for n in value), "two positive integers"
    )
    """Filters of the decoder's two hidden convolutions; 64 64 in the paper's text."""


@dataclass(frozen=True)
class SGQNSettings(SaliencySettings, DrQSettings):
    """Hyperparameters of SGQN around DrQ, the paper's agent."""


class SGQN(SaliencyWrapper):
    """Wraps a learner. L_C: its value may not depend on the pixels outside the attribution mask.
    L_SL: its features of an augmented image must predict that mask. The ablations omit one of them.
    """

    def __init__(
        self, learner: Learner, settings: SaliencySettings, augmentation: Augmentation, *, without: str | None = None
    ):
        super().__init__(learner, augmentation, settings.auxiliary_every)
        self.settings = settings
        self.consistency, self.selfsup = without != "consistency", without != "selfsup"
        self.saliency = Saliency(
            learner, settings.attribution, settings.rho, settings.attribution_target, settings.mask
        )
        self.decoder = None
        if self.selfsup:
            filters = learner.encoder.out_shape[0]
            sizes = (learner.embedding_dim, self.spec.image_size, filters, settings.decoder_filters)
            self.decoder = AttributionDecoder(self.spec.action_dim, self.spec.channels, *sizes)

    def make_optimizers(self) -> None:
        super().make_optimizers()
        if self.decoder is not None:
            trained = nn.ModuleList([self.learner.encoder, self.learner.projection, self.decoder]).parameters()
            self.optimizers["auxiliary"] = self.learner.make_optimizer(trained, self.settings.auxiliary_learning_rate)

    def prepare(self, batch: Batch) -> Batch:
        return self.learner.prepare(batch)

    @replaceable
    def learn(self, batch: Batch, phase: Phase = Phase()) -> Metrics:  # noqa: B008
        metrics, mask = self.critic_step(batch)
        predicts = phase.auxiliary and self.selfsup
        recomputes = mask is None or self.settings.recompute_attribution
        predicted = self.saliency(batch) if predicts and recomputes else mask
        if phase.actor:
            metrics |= self.actor_step(self.learner.actor_features(batch.obs), batch, mask)
        if phase.targets:
            self.learner.target_step()
        if predicts:
            metrics |= self.auxiliary_step(batch, predicted)
        return metrics

    def critic_step(self, batch: Batch) -> tuple[Metrics, Tensor | None]:
        """A gradient step on L_Q + lambda L_C; also returns the mask M_rho(Q, s, a)."""
        learner, saliency, (obs, action) = self.learner, self.saliency, batch[:2]
        if not self.consistency:
            return learner.critic_step(learner.critic_losses(batch, learner.values(learner.encode(obs), action))), None
        leaf, features = saliency.trace(obs)
        values = saliency.values(features, action)
        mask = saliency.kept(obs, saliency.attribution(values, leaf, batch, features))
        masked = self.masking(obs)(mask)
        losses = learner.critic_losses(batch, values)
        masked_features = learner.encode(masked)
        masked_values = learner.values(masked_features, action)
        losses["consistency"] = self.settings.consistency_weight * consistency_loss(values, masked_values)
        losses |= self.further_losses(features, masked_features)
        return learner.critic_step(losses) | {"mask/kept": share(mask)}, mask

    def further_losses(self, features: Tensor, masked_features: Tensor) -> Losses:
        """More losses of the critic step, for subclasses."""
        del features, masked_features
        return {}

    def actor_step(self, features: Tensor, batch: Batch, mask: Tensor | None) -> Metrics:
        """A gradient step on L_pi. `mask` is that of the critic step."""
        del batch, mask
        return self.learner.actor_step(features)

    def auxiliary_step(self, batch: Batch, mask: Tensor | None) -> Metrics:
        """A gradient step on L_SL: predict the mask from the augmented image."""
        assert mask is not None
        logits = self.predict(self.augmentation(batch.obs, self.generator), batch.action)
        metrics = minimize(self.optimizers["auxiliary"], {"mask": mask_prediction_loss(logits, mask)})
        return metrics | {"mask/agreement": sign_agreement(logits, mask)}

    def masking(self, obs: Tensor) -> Mask:
        """From a mask to the observations with their other pixels replaced."""
        return partial(fill, obs, value=self.fill_value(obs))

    def fill_value(self, obs: Tensor) -> Tensor | float:
        """The value of masked pixels: a number, or an image for each observation."""
        match self.settings.mask_fill:
            case "zero":
                return 0.0
            case "augmented":
                return self.augmentation(obs, self.generator)
            case _:
                return random_value(obs, self.generator)


@register_agent("sgqn", settings=SGQNSettings, actions="continuous", masks=True)
def sgqn(spec: Spec, settings: SGQNSettings, augmentation: Augmentation) -> SGQN:
    return SGQN(drq(spec, settings), settings, augmentation)
