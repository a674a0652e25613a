"""The attribution mask M_rho(Q, s, a) of a learner's value, and agents that learn with it."""

from __future__ import annotations

import torch
from torch import Tensor

from sgqn.agents.learner import Learner, Wrapper
from sgqn.attribution import find_method, switchable_relu
from sgqn.attribution.mask import Mask, quantile_mask, soft_mask
from sgqn.networks import AttributionDecoder
from sgqn.replay import Batch

Values = tuple[Tensor, ...]


class Saliency:
    """Which value is attributed, by which method, and how the attribution becomes a mask.

    A method that differentiates the value itself reads the forward pass of the learner's own loss: `trace`, `values`,
    `attribution`. Others compute passes of their own.
    """

    def __init__(self, learner: Learner, method: str, rho: float, target: str = "q1", mask: str = "quantile"):
        self.learner, self.method, self.rho = learner, find_method(method), rho
        self.of_mean, self.is_soft = target == "mean", mask == "soft"
        self.own_mask: Mask | None = None
        """In place of the quantile's, if there is one."""

    def __call__(self, batch: Batch) -> Tensor:
        """M_rho(Q, s, a), from a forward pass of its own."""
        leaf, features = self.trace(batch.obs, trains=False)
        return self.mask(self.attribution(self.values(features, batch.action), leaf, batch))

    def trace(self, obs: Tensor, trains: bool = True) -> tuple[Tensor, Tensor]:
        """A leaf that represents the observations, and features whose ReLUs can be guided in a backward pass.

        `trains`: whether a loss of these features will be minimized.
        """
        with switchable_relu():
            return self.learner.traced(obs, trains)

    def values(self, features: Tensor, action: Tensor) -> Values:
        """Q_i(s, a) of traced features."""
        with switchable_relu():
            return self.learner.values(features, action)

    def attribution(self, values: Values, leaf: Tensor, batch: Batch) -> Tensor:
        """The attribution of traced values to the pixels of s, like obs."""
        if self.method.of_graph is not None:
            return self.method.of_graph(self.target(values), leaf)
        return self.method(self.value, batch.obs, batch.action)

    def value(self, obs: Tensor, action: Tensor) -> Tensor:
        """The attributed value, (B,)."""
        return self.target(self.learner.values(self.learner.encode(obs), action))

    def target(self, values: Values) -> Tensor:
        return torch.stack(values).mean(dim=0) if self.of_mean else values[0]

    def mask(self, attribution: Tensor, rho: float | None = None) -> Tensor:
        if self.own_mask is not None:
            return self.own_mask(attribution)
        return soft_mask(attribution) if self.is_soft else quantile_mask(attribution, self.rho if rho is None else rho)


class SaliencyWrapper(Wrapper):
    """A wrapper that learns with attribution masks, and perhaps with a decoder M_theta: how it is looked into."""

    saliency: Saliency
    decoder: AttributionDecoder | None

    def value(self, obs: Tensor, action: Tensor) -> Tensor:
        return self.saliency.value(obs, action)

    @property
    def explained_by(self) -> str:
        return self.saliency.method.name

    @property
    def rho(self) -> float:
        return self.saliency.rho

    def mask_of(self, attribution: Tensor, rho: float) -> Tensor:
        return self.saliency.mask(attribution, rho)

    @property
    def predicts_masks(self) -> bool:
        return self.decoder is not None

    def predict(self, obs: Tensor, action: Tensor) -> Tensor:
        """The logits of M_theta(f_theta(obs), a)."""
        assert self.decoder is not None
        return self.decoder(self.learner.embed(self.learner.encode(obs)), self.spec.action_vector(action))

    def mask_probabilities(self, obs: Tensor, action: Tensor) -> Tensor:
        return self.predict(obs, action).sigmoid() if self.predicts_masks else super().mask_probabilities(obs, action)

    def left_out(self, all_critics: bool = False) -> dict[str, str | None]:
        return super().left_out(all_critics or self.saliency.of_mean)
