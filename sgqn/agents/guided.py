"""SGQN around any learner, from plain callables: for use in other projects."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from sgqn.agents.learner import Learner
from sgqn.agents.sgqn import SGQN, SaliencySettings
from sgqn.attribution import Attribution, Mask, Method, QFunction
from sgqn.augmentations import AUGMENTATIONS, Augmentation, make_augmentation
from sgqn.errors import InvalidValueError


class SaliencyGuided(SGQN):
    """A learner whose value may not depend on the pixels outside its attribution mask, and whose features predict it.

    `update(batch)` is the learner's update with SGQN's losses; `act`, `value` and `predict_mask` use the result.

    Args:
        learner: A `sgqn.agents.Learner`, on its device. Existing optimizers are kept.
        attribution: Name of a method, or `method(q, obs, action) -> attribution like obs`.
        augmentation: Name of an augmentation without images, or `augmentation(obs, generator) -> images like obs`.
        mask: "quantile", "soft", or `mask(attribution) -> mask like it`, boolean or in [0, 1].
        weight: Weight of the consistency loss.
        rho: Quantile of the attribution below which pixels are masked.
        fill: Value of masked pixels: one random value per batch, zero, or that of the augmented observation.
        auxiliary_every: Updates per mask prediction step.
        auxiliary_learning_rate: Learning rate of mask prediction.
        decoder_filters: Filters of the decoder's two hidden convolutions.
        seed: Seed of the decoder's weights and of all random numbers.
    """

    def __init__(
        self,
        learner: Learner,
        attribution: str | Attribution = "guided_backprop",
        augmentation: str | Augmentation = "random_conv",
        mask: Literal["quantile", "soft"] | Mask = "quantile",
        weight: float = 0.5,
        *,
        rho: float = 0.95,
        fill: Literal["random", "zero", "augmented"] = "random",
        auxiliary_every: int = 2,
        auxiliary_learning_rate: float = 3e-4,
        decoder_filters: tuple[int, int] = (128, 64),
        seed: int = 0,
    ):
        if not isinstance(learner, Learner):
            raise InvalidValueError(
                f"SaliencyGuided wraps a sgqn.agents.Learner, not a {type(learner).__name__}: subclass Learner and "
                "implement encoder, projection, values, critic_losses, target_step, make_optimizers, learn and policy"
            )
        settings = SaliencySettings(
            rho=rho,
            attribution=attribution if isinstance(attribution, str) else "guided_backprop",
            mask=mask if isinstance(mask, str) else "quantile",
            mask_fill=fill,
            consistency_weight=weight,
            auxiliary_every=auxiliary_every,
            auxiliary_learning_rate=auxiliary_learning_rate,
            decoder_filters=decoder_filters,
        )
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)
            super().__init__(learner, settings, _augmentation(augmentation))
        if not isinstance(attribution, str):
            self.saliency.method = Method(_name(attribution), _checked_attribution(attribution))
        if not isinstance(mask, str):
            self.saliency.own_mask = _checked_mask(mask)
        self.to(learner.device)
        self.generator = torch.Generator(self.device).manual_seed(seed)
        self.preparer = torch.Generator(self.device).manual_seed(seed + 3)
        self.make_optimizers()


def _augmentation(given: str | Augmentation) -> Augmentation:
    if not isinstance(given, str):
        return _checked_augmentation(given)
    if AUGMENTATIONS[given].needs_images:
        names = [name for name, entry in AUGMENTATIONS.items() if not entry.needs_images]
        raise InvalidValueError(
            f"the augmentation {given!r} needs images: choose {' or '.join(map(repr, names))}, or pass a function such "
            "as functools.partial(sgqn.augmentations.overlay, images=...)"
        )
    return make_augmentation(given)


def _checked_attribution(method: Attribution) -> Attribution:
    def checked(q: QFunction, obs: Tensor, action: Tensor) -> Tensor:
        found = method(q, obs, action)
        check_like(f"attribution {_name(method)}", found, obs, (torch.float32, torch.float64, torch.bfloat16))
        return found

    return checked


def _checked_augmentation(augmentation: Augmentation) -> Augmentation:
    def checked(obs: Tensor, generator: torch.Generator) -> Tensor:
        found = augmentation(obs, generator)
        check_like(f"augmentation {_name(augmentation)}", found, obs, (torch.uint8, torch.float32, torch.bfloat16))
        return found

    return checked


def _checked_mask(mask: Mask) -> Mask:
    def checked(attribution: Tensor) -> Tensor:
        found = mask(attribution)
        check_like(f"mask {_name(mask)}", found, attribution, (torch.bool, torch.float32, torch.float64))
        return found

    return checked


def check_like(what: str, found: object, like: Tensor, dtypes: tuple[torch.dtype, ...]) -> None:
    """Raise an error unless the result is a tensor with the shape and device of `like` and one of the dtypes."""
    kinds = " or ".join(str(dtype).removeprefix("torch.") for dtype in dtypes)
    expected = f"expected a tensor of shape {tuple(like.shape)} on {like.device}, {kinds}"
    if not isinstance(found, Tensor):
        raise InvalidValueError(f"{what} gave a {type(found).__name__}: {expected}")
    if found.shape != like.shape or found.device != like.device or found.dtype not in dtypes:
        kind = str(found.dtype).removeprefix("torch.")
        raise InvalidValueError(f"{what} gave {kind} of shape {tuple(found.shape)} on {found.device}: {expected}")


def _name(function: object) -> str:
    return getattr(function, "__name__", type(function).__name__)
