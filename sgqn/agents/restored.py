"""SGQN, restored: a network in front of a trained agent repaints distracting scenes as the scene of its training."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from sgqn.agents.base import Adam, Agent, Metrics, Phase, Spec, adam, copy_weights, minimize
from sgqn.agents.distraction import Distraction, DistractionSettings
from sgqn.agents.registry import register_agent
from sgqn.agents.sac import SAC, SACSettings
from sgqn.agents.saliency import Saliency, SaliencyWrapper
from sgqn.agents.settings import NetworkSettings, count, named, positive, quantile, ruled, share, weight
from sgqn.attribution import METHODS
from sgqn.attribution.mask import share as share_of
from sgqn.augmentations import Augmentation
from sgqn.errors import InvalidValueError
from sgqn.losses import gate_loss, perception_loss, restoration_loss
from sgqn.networks import AttributionDecoder, Restorer
from sgqn.replay import Batch


@dataclass(frozen=True)
class RestoredSettings(DistractionSettings, NetworkSettings):
    """Hyperparameters of the restoration. Sizes of the agent's networks must be those of the trained agent."""

    rho: float = quantile(0.95)
    """Quantile of the attribution mask that is shown; `kept_rho` is used in training."""
    attribution: str = named("guided_backprop", "attribution method", lambda: METHODS)
    """Attribution method, optionally with arguments (smoothgrad:samples=4)."""
    decoder_filters: tuple[int, int] = ruled(
        (128, 64), lambda value: len(value) == 2 and all(n >= 1 for n in value), "two positive integers"
    )
    """Filters of the decoder's two hidden convolutions."""
    restorer_filters: tuple[int, int, int] = ruled(
        (16, 32, 64), lambda value: len(value) == 3 and all(n >= 1 for n in value), "three positive integers"
    )
    """Filters of the restorer at a half, a quarter and an eighth of the image size."""
    canvas: bool = True
    """Whether the restorer learns an image of what is always at the same place, from which its paint starts."""
    canvas_rate: float = positive(30.0)
    """Learning rate of this image, relative to that of the other weights."""
    kept_weight: float = weight(1.0)
    """Weight of the mean error of the kept pixels in the loss, next to that of all pixels."""
    gate_weight: float = weight(0.05)
    """Weight of the cross-entropy between the restorer's gate and the kept pixels."""
    feature_weight: float = weight(0.2)
    """Weight of the relative error of the agent's feature maps for restored observations."""
    embedding_weight: float = weight(0.02)
    """Weight of the relative errors of the embeddings of critic and actor. Like `action_weight`, it rises from zero in
    the first half of the updates, because the restorer finds bodies faster without."""
    action_weight: float = weight(0.05)
    """Weight of the squared error of the actions."""
    random_actions: float = share(0.5)
    """Largest share of random actions while states are collected; the shares of the environments rise from 0 to it."""
    learning_rate: float = positive(1e-3)
    """Highest learning rate."""
    learning_rate_warmup: int = count(50, least=0)
    """Updates in which the learning rate rises from zero."""
    learning_rate_decay: int = count(10_000)
    """Updates in which the learning rate falls to zero."""
    update_every: int = count(1)
    """Steps per update."""
    batch_size: int = count(8)
    """Batch size."""
    views: int = count(2)
    """Distracted observations of each state of a batch."""


class Restored(SaliencyWrapper):
    """A trained agent, which does not change, behind a restorer, which learns to undo distractions.

    The restorer sees a distracted observation: the same pixels inside the agent's attribution mask, in other colours,
    and another scene outside. It learns to return the observation of the training scene.
    """

    def __init__(self, learner: SAC, settings: RestoredSettings, augmentation: Augmentation):
        super().__init__(learner, augmentation, 1)
        self.settings, self.update_every = settings, settings.update_every
        self.saliency = Saliency(learner, settings.attribution, settings.rho)
        sizes = (learner.embedding_dim, self.spec.image_size, learner.encoder.out_shape[0], settings.decoder_filters)
        self.decoder: AttributionDecoder = AttributionDecoder(self.spec.action_dim, self.spec.channels, *sizes)
        self.restorer = Restorer(
            self.spec.channels, settings.restorer_filters, self.spec.image_size, canvas=settings.canvas
        )
        self.distraction = Distraction(settings, augmentation)

    def make_optimizers(self) -> None:
        settings = self.settings
        self.learner.generator = self.generator
        weights, canvas = self.restorer.parameters(), self.restorer.canvas
        self.optimizers["restorer"] = adam(
            weights,
            settings.learning_rate,
            warmup=settings.learning_rate_warmup,
            decay=settings.learning_rate_decay,
            scaled=[] if canvas is None else [canvas],
            scale=settings.canvas_rate,
        )

    @torch.no_grad()
    def start_from(self, trained: Agent) -> None:
        """Copy an agent with a decoder M_theta."""
        if not isinstance(trained, SaliencyWrapper) or trained.decoder is None or isinstance(trained, Restored):
            kind = type(trained).__name__
            raise InvalidValueError(f"only agents that predict masks, such as sgqn, can be restored, not {kind}")
        copy_weights(self.learner, trained.learner)
        copy_weights(self.decoder, trained.decoder)

    def learn(self, batch: Batch, phase: Phase = Phase()) -> Metrics:  # noqa: B008
        del phase
        settings, learner = self.settings, self.learner
        features, mask = self.lesson(batch.obs, settings.views)
        obs = batch.obs.repeat(settings.views, 1, 1, 1)
        distracted = self.distraction(obs, mask, self.generator)
        restored, gate = self.restorer.gated(distracted.obs)
        losses = {"restoration": restoration_loss(restored, obs, mask, settings.kept_weight)}
        if settings.gate_weight:
            losses["gate"] = settings.gate_weight * gate_loss(gate, distracted.kept, distracted.replaced)
        if settings.feature_weight or settings.embedding_weight or settings.action_weight:
            seen, rise = self._percepts(learner.encode(restored)), self._rise()
            with torch.no_grad():
                originals = [x.repeat(settings.views, *[1] * (x.ndim - 1)) for x in self._percepts(features)]
            pairs = zip(seen[:3], originals[:3], strict=True)
            error, of_critic, of_actor = (perception_loss(one, original) for one, original in pairs)
            losses["features"] = settings.feature_weight * error
            losses["embeddings"] = settings.embedding_weight * rise * (of_critic + of_actor)
            losses["action"] = settings.action_weight * rise * F.mse_loss(seen[3], originals[3])
        return minimize(self.optimizers["restorer"], losses) | {"mask/kept": share_of(mask)}

    def _rise(self) -> Tensor:
        """From 0 to 1 in the first half of the updates."""
        optimizer = self.optimizers["restorer"]
        assert isinstance(optimizer, Adam)
        return (2 * optimizer.progress()).clamp(max=1)

    def _percepts(self, features: Tensor) -> tuple[Tensor, ...]:
        """What the agent makes of features: themselves, the embeddings of critic and actor, and the action."""
        assert isinstance(self.learner, SAC)
        actor = self.learner.actor
        embedding = actor.projection(features)
        return features, self.learner.embed(features), embedding, actor.head.mean_action(embedding)

    def lesson(self, obs: Tensor, views: int = 1) -> tuple[Tensor, Tensor]:
        """The agent's features, and `views` masks of each observation: the pixels that decide the value of its action,
        (views * B, C, H, W)."""
        saliency = self.saliency
        with torch.enable_grad():
            leaf, features = saliency.trace(obs, trains=False)
            with torch.no_grad():
                action = self.learner.mean_action(features)
            batch = Batch(obs, action, *3 * [torch.empty(0)])
            attribution = saliency.attribution(saliency.values(features, action), leaf, batch, features)
        return features.detach(), self.distraction.masks(obs, attribution, self.generator, views)

    def policy(self, obs: Tensor, deterministic: bool) -> Tensor:
        """The agent's deterministic actions for the restored observations. While states are collected, those of the
        training scene, and random ones: environments range from none to many, so that all kinds of states occur."""
        if deterministic:
            return self.learner.policy(self.restorer(obs), deterministic=True)
        action = self.learner.policy(obs, deterministic=True)
        draws = torch.rand((len(obs), 1 + self.spec.action_dim), generator=self.generator, device=obs.device)
        shares = torch.linspace(0, self.settings.random_actions, len(obs), device=obs.device)
        return torch.where(draws[:, :1] < shares[:, None], 2 * draws[:, 1:] - 1, action)

    def restored(self, obs: Tensor) -> Tensor:
        return self.restorer(obs)

    def value(self, obs: Tensor, action: Tensor) -> Tensor:
        return super().value(self.restorer(obs), action)

    def predict(self, obs: Tensor, action: Tensor) -> Tensor:
        return super().predict(self.restorer(obs), action)


@register_agent("sgqn_restored", settings=RestoredSettings, actions="continuous", masks=True, steps=10_000, copies=True)
def sgqn_restored(spec: Spec, settings: RestoredSettings, augmentation: Augmentation) -> Restored:
    sizes = {one.name: getattr(settings, one.name) for one in dataclasses.fields(NetworkSettings)}
    return Restored(SAC(spec, SACSettings(**sizes, batch_size=settings.batch_size)), settings, augmentation)
