"""RAD (Laskin et al., 2020): SAC on random crops of larger images; it acts on the centre crop."""

from __future__ import annotations

from functools import partial

from sgqn.agents.base import Spec
from sgqn.agents.registry import register_agent
from sgqn.agents.sac import SAC, SACSettings
from sgqn.augmentations import random_crop


def rad(spec: Spec, settings: SACSettings) -> SAC:
    return SAC(spec, settings, view=partial(random_crop, size=spec.image_size))


register_agent("rad", settings=SACSettings, actions="continuous", crops=True, augments=False)(
    lambda spec, settings, _: rad(spec, settings)
)
