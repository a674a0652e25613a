"""SGQN, distilled: a copy of a trained agent learns to see distracting scenes as the agent sees the training scene."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sgqn.agents.base import Agent, Metrics, Phase, Spec, adam, copy_weights, minimize
from sgqn.agents.distraction import Distraction, DistractionSettings
from sgqn.agents.registry import register_agent
from sgqn.agents.sac import SAC, SACSettings
from sgqn.agents.saliency import Saliency, SaliencyWrapper
from sgqn.agents.settings import NetworkSettings, count, named, positive, quantile, ruled, share, weight
from sgqn.attribution import METHODS
from sgqn.attribution.mask import share as share_of
from sgqn.augmentations import Augmentation
from sgqn.errors import InvalidValueError
from sgqn.losses import distillation_losses
from sgqn.networks import AttributionDecoder, frozen_copy
from sgqn.replay import Batch


@dataclass(frozen=True)
class DistilledSettings(DistractionSettings, NetworkSettings):
    """Hyperparameters of the distillation. Sizes must be those of the trained agent."""

    rho: float = quantile(0.95)
    """Quantile of the attribution mask that is shown; `kept_rho` is used in training."""
    attribution: str = named("guided_backprop", "attribution method", lambda: METHODS)
    """Attribution method, optionally with arguments (smoothgrad:samples=4)."""
    decoder_filters: tuple[int, int] = ruled(
        (128, 64), lambda value: len(value) == 2 and all(n >= 1 for n in value), "two positive integers"
    )
    """Filters of the decoder's two hidden convolutions."""
    distracted_actions: float = share(0.0)
    """Share of training actions that are the learner's for a distracted observation; the others are the teacher's."""
    embedding_weight: float = weight(1.0)
    """Weight of the difference of embeddings."""
    action_weight: float = weight(4.0)
    """Weight of the difference of actions."""
    learning_rate: float = positive(1e-3)
    """Highest learning rate."""
    learning_rate_warmup: int = count(50, least=0)
    """Updates in which the learning rate rises from zero."""
    learning_rate_decay: int = count(3000)
    """Updates in which the learning rate falls to zero."""
    update_every: int = count(4)
    """Steps per update."""
    batch_size: int = count(32, least=2)
    """Batch size."""
    views: int = count(2)
    """Distracted observations of each state of a batch."""


class Distilled(SaliencyWrapper):
    """A learner whose encoder and projections learn to give the embeddings of `teacher`, a frozen copy.

    The teacher sees the observation, the learner a distracted one: the same pixels inside the teacher's attribution
    mask, in other colours, and another scene outside. Heads and decoder stay as they are.
    """

    def __init__(self, learner: SAC, settings: DistilledSettings, augmentation: Augmentation):
        super().__init__(learner, augmentation, 1)
        self.settings, self.update_every = settings, settings.update_every
        self.saliency = Saliency(learner, settings.attribution, settings.rho)
        sizes = (learner.embedding_dim, self.spec.image_size, learner.encoder.out_shape[0], settings.decoder_filters)
        self.decoder: AttributionDecoder = AttributionDecoder(self.spec.action_dim, self.spec.channels, *sizes)
        self.teacher = frozen_copy(learner)
        self.teacher_saliency = Saliency(self.teacher, settings.attribution, settings.rho)
        self.distraction = Distraction(settings, augmentation)

    def make_optimizers(self) -> None:
        settings = self.settings
        trained = nn.ModuleList([self.learner.encoder, *self.learner.projections]).parameters()
        warmup, decay = settings.learning_rate_warmup, settings.learning_rate_decay
        self.optimizers = {"distillation": adam(trained, settings.learning_rate, warmup=warmup, decay=decay)}

    @torch.no_grad()
    def start_from(self, trained: Agent) -> None:
        """Copy an agent with a decoder M_theta. Its projections are scaled; their embeddings stay the same."""
        if not isinstance(trained, SaliencyWrapper) or trained.decoder is None:
            kind = type(trained).__name__
            raise InvalidValueError(f"only agents that predict masks, such as sgqn, can be distilled, not {kind}")
        copy_weights(self.learner, trained.learner)
        copy_weights(self.decoder, trained.decoder)
        shape = (16, self.spec.channels, self.spec.image_size, self.spec.image_size)
        noise = torch.randint(256, shape, generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
        features = self.learner.encode(noise.to(self.device))
        for projection in self.learner.projections:
            projection.normalize(features)
        copy_weights(self.teacher, self.learner)

    def learn(self, batch: Batch, phase: Phase = Phase()) -> Metrics:  # noqa: B008
        del phase
        learner, views = self.learner, self.settings.views
        embeddings, action, mask = self.lesson(batch.obs, views)
        features = learner.encode(self.distraction(batch.obs.repeat(views, 1, 1, 1), mask, self.generator))
        losses = distillation_losses(
            [projection(features) for projection in learner.projections],
            [embedding.repeat(views, 1) for embedding in embeddings],
            learner.mean_action(features),
            action.repeat(views, 1),
        )
        error = losses["action"].detach().sqrt()
        losses["embedding"] *= self.settings.embedding_weight
        losses["action"] *= self.settings.action_weight
        return minimize(self.optimizers["distillation"], losses) | {"action_error": error, "mask/kept": share_of(mask)}

    def lesson(self, obs: Tensor, views: int = 1) -> tuple[list[Tensor], Tensor, Tensor]:
        """The teacher's embeddings and action, and `views` masks of each observation: the pixels that decide the value
        of this action, (views * B, 1, H, W)."""
        saliency = self.teacher_saliency
        with torch.enable_grad():
            leaf, features = saliency.trace(obs, trains=False)
            with torch.no_grad():
                embeddings = [projection(features) for projection in self.teacher.projections]
                action = self.teacher.mean_action(features)
            batch = Batch(obs, action, *3 * [torch.empty(0)])
            attribution = saliency.attribution(saliency.values(features, action), leaf, batch, features)
        return embeddings, action, self.distraction.masks(attribution, self.generator, views)

    def policy(self, obs: Tensor, deterministic: bool) -> Tensor:
        """The learner's deterministic actions. While it learns, some are those of distracted observations, so that it
        visits the states that errors of distracted agents lead to, and the others are the teacher's."""
        if deterministic:
            return self.learner.policy(obs, deterministic=True)
        _, action, mask = self.lesson(obs)
        distracted = self.learner.policy(self.distraction(obs, mask, self.generator), deterministic=True)
        chosen = torch.rand((len(obs), 1), generator=self.generator, device=obs.device)
        return torch.where(chosen < self.settings.distracted_actions, distracted, action)

    def left_out(self, all_critics: bool = False) -> dict[str, str | None]:
        """What the learner leaves out, and the teacher."""
        return {**super().left_out(all_critics), **{f"teacher.{name}": None for name in self.teacher.state_dict()}}


@register_agent(
    "sgqn_distilled", settings=DistilledSettings, actions="continuous", masks=True, steps=12_000, copies=True
)
def sgqn_distilled(spec: Spec, settings: DistilledSettings, augmentation: Augmentation) -> Distilled:
    sizes = {one.name: getattr(settings, one.name) for one in dataclasses.fields(NetworkSettings)}
    return Distilled(SAC(spec, SACSettings(**sizes, batch_size=settings.batch_size)), settings, augmentation)
