"""RAD (Laskin et al., 2020): SAC on random crops of larger pictures; it acts on the centre crop."""

from __future__ import annotations

from functools import partial

from sgqn.agents.base import Spec
from sgqn.agents.sac import SAC
from sgqn.agents.settings import AgentSettings
from sgqn.augmentations import random_crop


def rad(spec: Spec, settings: AgentSettings) -> SAC:
    return SAC(spec, settings, view=partial(random_crop, size=spec.image_size))
