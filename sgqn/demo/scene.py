"""What the demo plays and measures: one episode in one scene."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from sgqn.envs.families import find_task
from sgqn.inspect import Episode, Images, Look, Report, Subject, looks, play
from sgqn.inspect.measures import base_rate, binary, mask_iou, mask_share


class Numbers(NamedTuple):
    """What the table says about one scene; shares are means over the frames of all steps."""

    score: float
    base_rate: float
    """Share of the image that shows the body."""
    mask_share: float
    """Share of the attribution mask that lies on the body."""
    agreement: float
    """IoU of the predicted mask and the attribution mask; NaN without a decoder."""


@dataclass(frozen=True)
class Scene:
    """An episode in one scene, what the agent looks at in each step, and how that measures."""

    shift: str
    clean: bool
    """Whether it is the scene that agents are trained in."""
    episode: Episode
    images: Images
    numbers: Numbers

    @property
    def name(self) -> str:
        return scene_name(self.shift, self.clean)

    @property
    def heading(self) -> str:
        return "the scene it was trained in" if self.clean else f"a scene it never saw: {self.shift}"


@dataclass(frozen=True)
class Demo:
    """What `demo` made."""

    source: str
    """The pretrained name or the folder that was asked for."""
    subject: Subject
    scenes: tuple[Scene, Scene]
    page: Path
    animation: Path

    @property
    def steps(self) -> int:
        return max(len(scene.episode.rewards) for scene in self.scenes)


def scene_name(shift: str, clean: bool) -> str:
    return "clean scene" if clean else shift


def look_into(subject: Subject, shift: str, steps: int, seed: int, renderer: str, report: Report) -> Scene:
    """Play, attribute the value in every step, and measure against the simulator's mask of the body."""
    clean = shift == find_task(subject.config.task).shifts[0]
    name = scene_name(shift, clean)
    playing = partial(report, f"{name}: episode")
    playing(0, steps)
    episode = play(subject, shift, seed, renderer, steps, truth=True, on_step=playing)
    assert episode.truth is not None
    parts, found, done = [], [], 0
    looking = partial(report, f"{name}: where it looks")
    for look in looks(subject.agent, episode.seen, episode.actions, subject.method, looking):
        truth = episode.truth[done : done + len(look.seen)]
        parts.append(look.images(subject.rho))
        found.append(_measures(look, subject.rho, truth))
        done += len(look.seen)
    means = [float(values.nanmean()) for values in torch.cat(found, dim=1)]
    return Scene(shift, clean, episode, Images.join(parts), Numbers(float(episode.rewards.sum()), *means))


@torch.no_grad()
def _measures(look: Look, rho: float, truth: Tensor) -> Tensor:
    """Base rate, share of the mask on the body and agreement of each observation, (3, B)."""
    mask, frames = binary(look.mask(rho)), truth.shape[1]
    base, share = base_rate(truth), mask_share(mask, truth)
    agree = torch.full_like(base, math.nan)
    if look.predicted is not None:
        agree = mask_iou(look.predicted > 0.5, mask, frames)
    return torch.stack([values.nanmean(dim=1) for values in (base, share, agree)])
