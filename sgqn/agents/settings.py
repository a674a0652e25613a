"""The numbers of an agent. Defaults are the authors' code; where the paper's text differs, the field says so."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any, Literal

from sgqn import attribution
from sgqn.errors import InvalidValueError, UnknownNameError


@dataclass(frozen=True)
class AgentSettings:
    """Hyperparameters of all agents; each agent reads those that concern it."""

    # ---- networks

    encoder_layers: int = 11
    """Convolutions of the encoder."""
    encoder_filters: int = 32
    """Filters of each of them, and of M_theta's input."""
    embedding_dim: int = 100
    """Numbers that actor and critic each make of the encoder's features."""
    hidden_dim: int = 1024
    """Units of the two hidden layers of actor and critics."""
    decoder_filters: tuple[int, int] = (128, 64)
    """Filters of M_theta's two convolutions. The paper's text says (64, 64)."""

    # ---- SAC

    batch_size: int = 128
    """Transitions in one update."""
    discount: float = 0.99
    """Gamma, of the rewards of later steps."""
    learning_rate: float = 1e-3
    """Of actor and critic."""
    temperature_learning_rate: float = 1e-4
    """Of the temperature, SAC's weight of entropy."""
    initial_temperature: float = 0.1
    """Where the temperature begins."""
    encoder_tau: float = 0.05
    """Share by which the target's encoder and projection move to the critic's."""
    critic_tau: float = 0.01
    """The same for the target's Q heads."""
    actor_every: int = 2
    """Updates between two steps of actor and temperature; 1 in the paper's pseudo-code."""
    targets_every: int = 2
    """Updates between two moves of the target networks."""
    actor_trains_encoder: bool = False
    """Let the actor's loss reach the convolutions. The authors stop it there; the paper draws one shared network."""

    # ---- augmentation of the value update

    shift_pad: int = 4
    """DrQ's random shift, which SVEA and SGQN's code use too; 0 is the paper's SGQN: no augmentation."""

    # ---- SVEA

    svea_alpha: float = 0.5
    """Weight of the critic's loss on clean pictures."""
    svea_beta: float = 0.5
    """Weight of its loss on augmented ones."""

    # ---- auxiliary steps: SGQN's mask prediction, SODA's consistency

    augmentation: Literal["overlay", "random_conv"] = "overlay"
    """The strong augmentation: other pictures laid over, or a random convolution."""
    auxiliary_every: int = 2
    """Updates between two auxiliary steps."""
    auxiliary_learning_rate: float = 3e-4
    """Of SGQN's mask prediction."""

    # ---- SGQN

    rho: float = 0.95
    """Quantile of the attribution below which pixels are masked; 0.98 for cartpole and ball in cup."""
    attribution: str = "guided_backprop"
    """gradient, guided_backprop, grad_cam, guided_grad_cam, integrated_gradients, smoothgrad, occlusion or rise."""
    attribution_target: Literal["q1", "mean"] = "q1"
    """What is attributed: the first critic (authors), or the mean of both."""
    mask: Literal["quantile", "soft"] = "quantile"
    """A hard mask, or the normalised map that the paper mentions as an alternative."""
    mask_fill: Literal["random", "zero"] = "random"
    """Masked pixels become one random value per batch (authors) or zero (the paper's s ⊙ M)."""
    consistency_weight: float = 0.5
    """Lambda, of the loss between values of the whole and of the masked picture; the paper gives no value."""
    recompute_attribution: bool = True
    """Attribute anew after the critic step for the auxiliary step, or predict the critic step's mask."""

    # ---- SODA

    soda_batch_size: int = 256
    """Transitions of SODA's auxiliary step."""
    soda_tau: float = 0.005
    """Share by which its slow network moves."""
    soda_learning_rate: float = 1e-3
    """Of SODA's auxiliary step."""

    def __post_init__(self) -> None:
        attribution.get(self.attribution)
        for field in fields(self):
            value, rule = getattr(self, field.name), _RULES.get(field.name)
            if field.name in _CHOICES and value not in _CHOICES[field.name]:
                raise UnknownNameError(field.name, value, _CHOICES[field.name])
            if rule is not None and not rule(value):
                raise InvalidValueError(f"{field.name} must be {rule.__doc__}, not {value!r}")


def _natural(value: int) -> bool:
    """a whole number from 1 on"""
    return isinstance(value, int) and value >= 1


def _two(value: int) -> bool:
    """a whole number from 2 on"""  # batch norm needs two
    return _natural(value) and value >= 2


def _positive(value: float) -> bool:
    """a number above 0"""
    return 0 < value < math.inf


def _weight(value: float) -> bool:
    """a number from 0 on"""
    return 0 <= value < math.inf


def _share(value: float) -> bool:
    """above 0 and at most 1"""
    return 0 < value <= 1


def _quantile(value: float) -> bool:
    """from 0 to below 1 (0.95 keeps one pixel in twenty)"""
    return 0 <= value < 1


def _pad(value: int) -> bool:
    """a whole number from 0 on"""
    return value == 0 or _natural(value)


def _filters(value: tuple[int, ...]) -> bool:
    """two whole numbers from 1 on"""
    return len(value) == 2 and all(map(_natural, value))


_RULES: dict[str, Callable[[Any], bool]] = {
    **dict.fromkeys(("encoder_layers", "encoder_filters", "embedding_dim", "hidden_dim", "batch_size"), _natural),
    **dict.fromkeys(("actor_every", "targets_every", "auxiliary_every"), _natural),
    **dict.fromkeys(("learning_rate", "temperature_learning_rate", "auxiliary_learning_rate"), _positive),
    **dict.fromkeys(("soda_learning_rate", "initial_temperature"), _positive),
    **dict.fromkeys(("consistency_weight", "svea_alpha", "svea_beta"), _weight),
    **dict.fromkeys(("discount", "encoder_tau", "critic_tau", "soda_tau"), _share),
    "decoder_filters": _filters,
    "shift_pad": _pad,
    "rho": _quantile,
    "soda_batch_size": _two,
}

_CHOICES: dict[str, tuple[str, ...]] = {
    "augmentation": ("overlay", "random_conv"),
    "attribution_target": ("q1", "mean"),
    "mask": ("quantile", "soft"),
    "mask_fill": ("random", "zero"),
}
