"""The interface of value learners for the methods that wrap them, and the base of these methods."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from sgqn.agents.base import Agent, Intervals, Losses, Metrics, adam, minimize
from sgqn.attribution.base import differentiable
from sgqn.augmentations import Augmentation
from sgqn.networks import Encoder
from sgqn.replay import Batch


class Learner(Agent):
    """A value learner for SGQN and SODA, which add losses to its critic step and further steps.

    `encode` and `values` are the online networks; gradients flow through both. With discrete actions, `values` returns
    the values of the actions taken. Without an actor, `actor_step` does nothing.
    """

    actor_trains_encoder = False
    """Whether the actor loss trains the encoder."""

    @property
    def encoder(self) -> Encoder:
        """f_theta: observations to feature maps."""
        raise NotImplementedError

    @property
    def projection(self) -> nn.Module:
        """Feature maps to the embedding that the values are computed from."""
        raise NotImplementedError

    def mean_action(self, features: Tensor) -> Tensor:
        """The deterministic action of a policy over continuous actions, (B, A)."""
        raise NotImplementedError

    @property
    def embedding_dim(self) -> int:
        """Size of the embedding."""
        with torch.no_grad():
            return self.embed(torch.zeros(1, *self.encoder.out_shape, device=self.device)).shape[1]

    def make_optimizer(self, parameters: Iterable[Tensor], learning_rate: float) -> torch.optim.Optimizer:
        """The optimizer of a further loss that trains the encoder."""
        return adam(parameters, learning_rate)

    def prepare(self, batch: Batch) -> Batch:
        """The batch with weakly augmented obs and next obs."""
        obs, next_obs = (self.view(obs, self.preparer) for obs in (batch.obs, batch.next_obs))
        return batch._replace(obs=obs, next_obs=next_obs)

    def view(self, obs: Tensor, generator: torch.Generator) -> Tensor:
        """Weakly augmented observations, different in each call."""
        del generator
        return obs

    def traced(self, obs: Tensor, trains: bool = True) -> tuple[Tensor, Tensor]:
        """A leaf that represents the observations, to differentiate by, and their features.

        Without `trains`, the features are not used in a loss, so the weights may have no gradient.
        """
        del trains
        leaf = differentiable(obs)
        return leaf, self.encode(leaf)

    def encode(self, obs: Tensor) -> Tensor:
        return self.encoder(obs)

    def embed(self, features: Tensor) -> Tensor:
        return self.projection(features)

    def values(self, features: Tensor, action: Tensor) -> tuple[Tensor, ...]:
        """Q_i(s, a) of every critic, each (B,)."""
        raise NotImplementedError

    def explained(self, values: tuple[Tensor, ...], target: str) -> Tensor:
        """The value that is attributed, (B,): the first, or with the target "mean" the mean of all."""
        return torch.stack(values).mean(dim=0) if target == "mean" else values[0]

    def value(self, obs: Tensor, action: Tensor) -> Tensor:
        return self.values(self.encode(obs), action)[0]

    def critic_losses(self, batch: Batch, values: tuple[Tensor, ...]) -> Losses:
        """The losses of the critic step; `values` are those of the batch's observations and actions."""
        raise NotImplementedError

    def critic_step(self, losses: Losses) -> Metrics:
        return minimize(self.optimizers["critic"], losses)

    def actor_features(self, obs: Tensor) -> Tensor:
        """The features of the observations for `actor_step`."""
        with torch.set_grad_enabled(self.actor_trains_encoder):
            return self.encode(obs)

    def actor_step(self, features: Tensor, distracted: Tensor | None = None, weight: float = 1.0) -> Metrics:
        """A gradient step of the actor, if there is one.

        With `distracted`, features of other observations of the same states, it also minimizes the weighted
        `policy_consistency`.
        """
        del features, distracted, weight
        return {}

    def policy_consistency(self, features: Tensor, distracted: Tensor) -> Tensor:
        """The loss L_PC: the difference of the actions for features of two observations of the same states.

        The gradient flows through the second only.
        """
        raise NotImplementedError

    def target_step(self) -> None:
        raise NotImplementedError

    def noise(self, like: Tensor) -> Tensor:
        """Standard normal numbers of the shape of `like`, from the agent's own generator."""
        return torch.randn(like.shape, generator=self.generator, device=like.device)

    def left_out(self, all_critics: bool = False) -> dict[str, str | None]:
        """`all_critics`: attributions use all critics, so none is left out."""
        del all_critics
        return {}


class Wrapper(Agent):
    """An agent that extends a learner's update and otherwise behaves like the learner."""

    def __init__(self, learner: Learner, augmentation: Augmentation, auxiliary_every: int):
        super().__init__(learner.spec, learner.batch_size)
        self.learner, self.augmentation = learner, augmentation
        self.discount, self.n_steps, self.update_every = learner.discount, learner.n_steps, learner.update_every
        self.intervals = Intervals(learner.intervals.actor, learner.intervals.targets, auxiliary_every)

    def make_optimizers(self) -> None:
        self.learner.generator, self.learner.preparer = self.generator, self.preparer
        if not self.learner.optimizers:
            self.learner.make_optimizers()
        self.optimizers = self.learner.optimizers

    def policy(self, obs: Tensor, deterministic: bool) -> Tensor:
        return self.learner.policy(obs, deterministic)

    def value(self, obs: Tensor, action: Tensor) -> Tensor:
        return self.learner.value(obs, action)

    def left_out(self, all_critics: bool = False) -> dict[str, str | None]:
        inner = self.learner.left_out(all_critics).items()
        return {f"learner.{name}": None if source is None else f"learner.{source}" for name, source in inner}
