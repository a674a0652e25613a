"""What the demo plays and measures: one episode in each of two scenes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from sgqn.envs.families import find_task
from sgqn.inspect import Episode, Images, Look, Report, Subject, looks, play
from sgqn.inspect.measures import base_rate, binary, mask_iou, mask_share

NEAR = 3
"""Pixels from the body, in each direction, that count as next to it."""


class Numbers(NamedTuple):
    """What the table says about one scene; shares are means over the frames of all steps."""

    score: float
    base_rate: float
    """Share of the image that shows the body."""
    mask_share: float
    """Share of the attribution mask that lies on the body."""
    near_rate: float
    """Share of the image that is at most `NEAR` pixels from the body."""
    near_share: float
    """Share of the attribution mask that lies there."""
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
class Shown:
    """One agent in the clean scene and in a distracting one."""

    source: str
    """The pretrained name or the folder that was asked for."""
    subject: Subject
    scenes: tuple[Scene, Scene]

    @property
    def steps(self) -> int:
        return max(len(scene.episode.rewards) for scene in self.scenes)


@dataclass(frozen=True)
class Demo:
    """What `demo` made: one agent, or two agents in the same episodes."""

    agents: tuple[Shown, ...]
    page: Path
    animation: Path

    @property
    def source(self) -> str:
        return self.agents[0].source

    @property
    def subject(self) -> Subject:
        return self.agents[0].subject

    @property
    def scenes(self) -> tuple[Scene, Scene]:
        """The scenes of the first agent."""
        return self.agents[0].scenes

    @property
    def steps(self) -> int:
        return max(agent.steps for agent in self.agents)

    @property
    def names(self) -> tuple[str, ...]:
        """What tells the agents apart: their names, with the seed, the step or the folder where those are equal."""
        subjects = [agent.subject for agent in self.agents]
        for parts in (
            [subject.config.agent for subject in subjects],
            [f"{subject.config.agent}, seed {subject.config.seed}" for subject in subjects],
            [f"{subject.config.agent}, {subject.step:,} steps" for subject in subjects],
        ):
            if len(set(parts)) == len(parts):
                return tuple(parts)
        return tuple(agent.source for agent in self.agents)


def scene_name(shift: str, clean: bool) -> str:
    return "clean scene" if clean else shift


def look_into(
    subject: Subject, shift: str, steps: int, seed: int, renderer: str, report: Report, of: str = ""
) -> Scene:
    """Play, attribute the value in every step, and measure against the simulator's mask of the body.

    `of` precedes what is reported.
    """
    clean = shift == find_task(subject.config.task).shifts[0]
    name = of + scene_name(shift, clean)
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
    """Shares of the image and of the mask on the body and near it, and the agreement, of each observation, (5, B)."""
    mask, frames = binary(look.mask(rho)), truth.shape[1]
    around = functional.max_pool2d(truth.float(), 2 * NEAR + 1, stride=1, padding=NEAR) > 0
    shares = [measure for area in (truth, around) for measure in (base_rate(area), mask_share(mask, area))]
    agree = torch.full_like(shares[0], math.nan)
    if look.predicted is not None:
        agree = mask_iou(look.predicted > 0.5, mask, frames)
    return torch.stack([values.nanmean(dim=1) for values in (*shares, agree)])
