"""The numbers of an agent. Defaults are the authors' code; where the paper's text differs, the field says so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from sgqn.errors import InvalidValueError


@dataclass(frozen=True)
class AgentSettings:
    """Hyperparameters of all agents; each agent reads those that concern it."""

    # ---- networks
    encoder_layers: int = 11
    encoder_filters: int = 32
    embedding_dim: int = 100
    hidden_dim: int = 1024
    decoder_filters: tuple[int, int] = (128, 64)
    """Filters of M_theta's two convolutions. The paper's text says (64, 64)."""

    # ---- SAC
    batch_size: int = 128
    discount: float = 0.99
    learning_rate: float = 1e-3
    """Of actor and critic."""
    temperature_learning_rate: float = 1e-4
    initial_temperature: float = 0.1
    encoder_tau: float = 0.05
    critic_tau: float = 0.01
    actor_every: int = 2
    """Updates between two steps of actor and temperature; 1 in the paper's pseudo-code."""
    targets_every: int = 2
    actor_trains_encoder: bool = False
    """Let the actor's loss reach the convolutions. The authors stop it there; the paper draws one shared network."""

    # ---- augmentation of the value update
    shift_pad: int = 4
    """DrQ's random shift, which SVEA and SGQN's code use too; 0 is the paper's SGQN: no augmentation."""

    # ---- SVEA
    svea_alpha: float = 0.5
    svea_beta: float = 0.5

    # ---- auxiliary steps: SGQN's mask prediction, SODA's consistency
    augmentation: Literal["overlay", "random_conv"] = "overlay"
    auxiliary_every: int = 2
    auxiliary_learning_rate: float = 3e-4

    # ---- SGQN
    rho: float = 0.95
    """Quantile of the attribution below which pixels are masked; 0.98 for cartpole and ball in cup."""
    attribution: str = "guided_backprop"
    attribution_target: Literal["q1", "mean"] = "q1"
    """What is attributed: the first critic (authors), or the mean of both."""
    mask: Literal["quantile", "soft"] = "quantile"
    """A hard mask, or the normalised map that the paper mentions as an alternative."""
    mask_fill: Literal["random", "zero"] = "random"
    """Masked pixels become one random value per batch (authors) or zero (the paper's s ⊙ M)."""
    consistency_weight: float = 0.5
    """Lambda; the paper gives no value."""
    recompute_attribution: bool = True
    """Attribute anew after the critic step for the auxiliary step, or predict the critic step's mask."""

    # ---- SODA
    soda_batch_size: int = 256
    soda_tau: float = 0.005
    soda_learning_rate: float = 1e-3

    def __post_init__(self) -> None:
        checks = {
            "rho": 0 <= self.rho < 1,
            "discount": 0 < self.discount <= 1,
            "batch_size": self.batch_size >= 1,
            "shift_pad": self.shift_pad >= 0,
            "consistency_weight": self.consistency_weight >= 0,
            "initial_temperature": self.initial_temperature > 0,
            "encoder_tau": 0 < self.encoder_tau <= 1,
            "critic_tau": 0 < self.critic_tau <= 1,
            "actor_every": self.actor_every >= 1,
            "targets_every": self.targets_every >= 1,
            "auxiliary_every": self.auxiliary_every >= 1,
        }
        for name, holds in checks.items():
            if not holds:
                raise InvalidValueError(f"{name} cannot be {getattr(self, name)!r}")
