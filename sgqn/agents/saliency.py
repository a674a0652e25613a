"""The attribution mask M_rho(Q, s, a) of a learner's value, and agents that learn with it."""

from __future__ import annotations

from torch import Tensor

from sgqn.agents.learner import Learner, Wrapper
from sgqn.attribution import find_method, switchable_relu
from sgqn.attribution.mask import Mask, contrast_mask, quantile_mask, soft_mask
from sgqn.networks import AttributionDecoder
from sgqn.registry import accepted
from sgqn.replay import Batch

Values = tuple[Tensor, ...]


class Saliency:
    """The attributed value, the attribution method and the mask.

    A method that differentiates the value with respect to pixels or features shares the forward pass of the learner's
    loss: `trace`, `values`, `attribution`. Other methods run their own passes.
    """

    def __init__(self, learner: Learner, method: str, rho: float, target: str = "q1", mask: str = "quantile"):
        self.learner, self.method, self.rho = learner, find_method(method), rho
        self.explained, self.kind = target, mask
        self.own_mask: Mask | None = None
        """Replaces the quantile mask, if given."""

    def __call__(self, batch: Batch) -> Tensor:
        """M_rho(Q, s, a), from a new forward pass."""
        leaf, features = self.trace(batch.obs, trains=False)
        return self.kept(batch.obs, self.attribution(self.values(features, batch.action), leaf, batch, features))

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

    def attribution(self, values: Values, leaf: Tensor, batch: Batch, features: Tensor | None = None) -> Tensor:
        """The attribution of traced values to the pixels of s, like obs.

        `features`: the features of the values, for methods that need them. Random methods with their own passes use the
        agent's generator.
        """
        method = self.method
        if method.of_graph is not None:
            spacing = getattr(self.learner.encoder, "pixels_per_feature", None)
            given = accepted(method.of_graph, {"features": features, "pixels_per_feature": spacing})
            if "features" not in given or (features is not None and features.ndim == 4):
                return method.of_graph(self.target(values), leaf, **given)
        given = accepted(method.function, {"generator": self.learner.generator})
        return method.function(self.value, batch.obs, batch.action, **given)

    def value(self, obs: Tensor, action: Tensor) -> Tensor:
        """The attributed value, (B,)."""
        return self.target(self.learner.values(self.learner.encode(obs), action))

    def target(self, values: Values) -> Tensor:
        return self.learner.explained(values, self.explained)

    def kept(self, obs: Tensor, attribution: Tensor) -> Tensor:
        """The mask of the losses: the pixels of s that the value may depend on."""
        if self.kind == "contrast" and self.own_mask is None:
            return contrast_mask(obs, attribution, self.rho)
        return self.mask(attribution)

    def mask(self, attribution: Tensor, rho: float | None = None) -> Tensor:
        """The mask that is shown and measured; it depends on the attribution alone."""
        if self.own_mask is not None:
            return self.own_mask(attribution)
        is_soft = self.kind == "soft"
        return soft_mask(attribution) if is_soft else quantile_mask(attribution, self.rho if rho is None else rho)


class SaliencyWrapper(Wrapper):
    """Base of wrappers that learn with attribution masks and, optionally, a decoder M_theta."""

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
        return super().left_out(all_critics or self.saliency.explained == "mean")
