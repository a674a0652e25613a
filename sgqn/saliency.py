"""Saliency measures of an agent. See docs/saliency.md."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sgqn import attribution
from sgqn.agents.base import Agent
from sgqn.attribution import Attribution
from sgqn.attribution.common import check_natural
from sgqn.augmentations import center_crop
from sgqn.envs.families import find_task
from sgqn.errors import InvalidValueError, UnknownNameError
from sgqn.evaluation import Moment, evaluate
from sgqn.inspect.curves import FILLS, ValueCurve, deletion, insertion
from sgqn.inspect.look import Look, look_at
from sgqn.inspect.measures import (
    Agreement,
    agreement,
    base_rate,
    binary,
    iou,
    iou_ceiling,
    mask_share,
    mass_share,
    pointing,
)

__all__ = [
    "FILLS",
    "Agreement",
    "Saliency",
    "ValueCurve",
    "agreement",
    "base_rate",
    "deletion",
    "insertion",
    "iou",
    "iou_ceiling",
    "mask_share",
    "mass_share",
    "measure",
    "pointing",
]


@dataclass(frozen=True)
class Saliency:
    """Saliency measures in one shift. docs/saliency.md defines the names in `means`."""

    task: str
    shift: str
    seed: int
    renderer: str
    backgrounds: str
    method: str
    rho: float
    fill: str
    every: int
    frames: int
    """Number of measured frames: observations times stacked frames."""
    returns: tuple[float, ...]
    means: dict[str, float]
    """For each measure, the mean over an episode's frames, then over episodes. NaN if no frame was valid."""
    errors: dict[str, float]
    """Standard errors of the means, over episodes; NaN for a single episode."""
    curves: dict[str, tuple[float, ...]]
    """`shown`, the share of pixels shown, from 0 to 1, and the mean curves over it; empty without curves."""

    @property
    def episodes(self) -> int:
        return len(self.returns)

    def to_dict(self) -> dict[str, Any]:
        """For JSON: None in place of NaN."""
        return {**_plain(dataclasses.asdict(self)), "episodes": self.episodes}


def measure(
    agent: Agent,
    task: str,
    shift: str = "train",
    episodes: int = 5,
    seed: int = 0,
    renderer: str = "auto",
    *,
    method: str | Attribution = "guided_backprop",
    rho: float | None = None,
    every: int = 10,
    curves: bool = True,
    steps: int = 20,
    fill: str = "mean",
    batch_size: int = 256,
    num_envs: int | None = None,
    num_workers: int | None = None,
    action_repeat: int | None = None,
    on_step: Callable[[int, int], None] | None = None,
) -> Saliency:
    """Play the episodes that `evaluate` plays and measure every `every`-th observation at (s, pi(s)).

    `method` is a registered attribution method, or a function like them: (q, obs, action) -> attribution like obs.
    `rho` is the mask's quantile, by default the agent's, or the task's for agents without one. M_theta, where the
    agent has it, is compared with the mask that it learned to predict: the agent's own method and rho. `curves`: also
    deletion and insertion, which take most of the time, in `steps` steps, with `fill` for removed pixels.
    """
    check_natural(episodes=episodes, every=every, steps=steps, batch_size=batch_size)
    if fill not in FILLS:
        raise UnknownNameError("fill", fill, FILLS)
    own_rho = find_task(task).defaults.rho if agent.rho is None else agent.rho
    probe = _Probe(agent, method, own_rho if rho is None else rho, own_rho, steps if curves else 0, fill, batch_size)

    def look(moment: Moment) -> None:
        if moment.step % every == 0:
            probe(moment.episodes, moment.obs, moment.action, moment.mask)

    played = evaluate(
        agent,
        task,
        shift,
        episodes,
        seed,
        renderer,
        num_envs=num_envs,
        num_workers=num_workers,
        action_repeat=action_repeat,
        on_step=on_step,
        watch=look,
    )
    by_episode, drawn = probe.results(episodes)
    return Saliency(
        task,
        shift,
        seed,
        played.renderer,
        played.backgrounds,
        method if isinstance(method, str) else getattr(method, "__name__", type(method).__name__),
        probe.rho,
        fill,
        every,
        probe.frames,
        played.returns,
        means={name: float(values.nanmean()) for name, values in by_episode.items()},
        errors={name: _standard_error(values) for name, values in by_episode.items()},
        curves=drawn,
    )


class _Probe:
    """Collects the measures of observations, and averages them by episode."""

    def __init__(
        self,
        agent: Agent,
        method: str | Attribution,
        rho: float,
        own_rho: float,
        steps: int,
        fill: str,
        batch_size: int,
    ):
        if not callable(method):
            attribution.check(str(method))
        self.agent, self.method = agent, method
        self.rho, self.own_rho = float(rho), own_rho
        if not 0 <= self.rho <= 1:
            raise InvalidValueError(f"rho must lie in [0, 1], not {rho}")
        self.steps, self.fill, self.batch_size = steps, fill, batch_size
        self.frames = 0
        self._episodes: list[Tensor] = []
        self._measures: list[dict[str, Tensor]] = []
        self._curves: list[tuple[ValueCurve, ValueCurve]] = []

    @torch.no_grad()
    def __call__(self, episodes: np.ndarray, obs: Tensor, action: Tensor, truth: Tensor) -> None:
        """Observations, actions and ground truth, one row for each of the episodes."""
        seen, truth = (center_crop(part, self.agent.spec.image_size) for part in (obs, truth))
        look = look_at(self.agent, seen, action, self.method)
        mask = binary(look.mask(self.rho))
        found = {
            "base_rate": base_rate(truth),
            "mass_share": mass_share(look.attribution, truth),
            "pointing": pointing(look.attribution, truth),
            "kept": mask.unflatten(1, (truth.shape[1], -1)).double().mean(dim=(2, 3, 4)),
            "mask_share": mask_share(mask, truth),
            "iou": iou(mask, truth),
            "iou_ceiling": iou_ceiling(mask, truth),
        }
        if look.predicted is not None:
            found |= {
                "predicted_share": mask_share(look.predicted > 0.5, truth),
                "predicted_iou": iou(look.predicted > 0.5, truth),
            }
            agrees = agreement(look.predicted, self._own_mask(look, mask), truth.shape[1])
            found |= {f"agreement_{name}": values for name, values in agrees._asdict().items()}
        self._measures.append({name: values.nanmean(dim=1).cpu() for name, values in found.items()})
        self._episodes.append(torch.as_tensor(episodes))
        self.frames += truth.shape[:2].numel()
        if self.steps:
            arguments = (self.agent.value, seen, action, look.attribution, self.steps, self.fill)
            options: dict[str, Any] = {"frames": truth.shape[1], "batch_size": self.batch_size}
            self._curves.append((deletion(*arguments, **options), insertion(*arguments, **options)))

    def results(self, episodes: int) -> tuple[dict[str, Tensor], dict[str, tuple[float, ...]]]:
        """Each measure's mean in each episode, and the mean curves."""
        playing = torch.cat(self._episodes)
        rows = [playing == episode for episode in range(episodes)]
        means = {
            name: torch.stack([torch.cat([m[name] for m in self._measures])[row].nanmean() for row in rows])
            for name in self._measures[0]
        }
        if not self._curves:
            return means, {}
        # Both start from the filled image, so that they share one axis.
        removing, showing = (_joined([pair[kind] for pair in self._curves]) for kind in (0, 1))
        most, least = ([ValueCurve(c.shown, c.values[row]) for row in rows] for c in (removing.reversed(), showing))
        means |= {
            "deletion": torch.stack([curve.pooled_area for curve in most]),
            "insertion": torch.stack([curve.pooled_area for curve in least]),
            "change_most": torch.stack([curve.changed_area for curve in most]),
            "change_least": torch.stack([curve.changed_area for curve in least]),
        }
        drawn = {
            "deletion": torch.stack([curve.pooled for curve in most]),
            "insertion": torch.stack([curve.pooled for curve in least]),
            "change_most": torch.stack([curve.changed for curve in most]),
            "change_least": torch.stack([curve.changed for curve in least]),
        }
        means["curve_gap"] = means["insertion"] - means["deletion"]
        means["change_gap"] = means["change_most"] - means["change_least"]
        shown = {"shown": tuple(showing.shown.tolist())}
        return means, shown | {name: tuple(values.nanmean(dim=0).tolist()) for name, values in drawn.items()}

    def _own_mask(self, look: Look, mask: Tensor) -> Tensor:
        """The mask that the decoder learned to predict."""
        own = self.agent.explained_by
        if (self.method, self.rho) == (own, self.own_rho):
            return mask
        return binary(look_at(self.agent, look.seen, look.actions, own).mask(self.own_rho))


def _joined(curves: list[ValueCurve]) -> ValueCurve:
    return ValueCurve(curves[0].shown.cpu(), torch.cat([curve.values for curve in curves]).double().cpu())


def _standard_error(values: Tensor) -> float:
    answers = values[~values.isnan()]
    return float(answers.std() / len(answers) ** 0.5) if len(answers) > 1 else math.nan


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return None if isinstance(value, float) and math.isnan(value) else value
