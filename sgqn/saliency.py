"""Saliency, measured: how much of an attribution lies on the controlled system, and how much of the value follows it.

Measures are per stacked frame: they take maps and masks (B, C, H, W) and the simulator's ground truth, bool
(B, frames, H, W), and return float64 (B, frames). A pixel's magnitude is its largest absolute attribution over the
colours of its frame, as for masks. Two rules decide every degenerate frame:

- A map or mask that ranks no pixel (constant, zero, empty) scores the base rate; an empty mask's IoU is 0.
- A frame that shows nothing of the controlled system has no answer: NaN, its base rate too. So does a map with NaN.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from sgqn import attribution as methods
from sgqn.agents.base import Agent
from sgqn.agents.learner import Learner
from sgqn.attribution.base import QFunction
from sgqn.attribution.common import check_natural, check_pictures, one_value
from sgqn.attribution.mask import magnitude_of, quantile_mask
from sgqn.augmentations import center_crop
from sgqn.errors import InvalidValueError, UnknownNameError
from sgqn.evaluation import Moment, evaluate

FILLS = ("zero", "mean", "blur")

# ---------------------------------------------------------------- against the ground truth


def base_rate(truth: Tensor) -> Tensor:
    """The share of a frame's pixels that show the controlled system: what looking everywhere alike scores."""
    if truth.ndim != 4 or truth.dtype != torch.bool:
        raise InvalidValueError(f"a ground truth is bool (B, frames, H, W), not {truth.dtype} {tuple(truth.shape)}")
    share = truth.sum(dim=(2, 3)).double() / truth.shape[2:].numel()
    return torch.where(share == 0, math.nan, share)


def mass_share(attribution: Tensor, truth: Tensor) -> Tensor:
    """The share of the magnitude that lies on the controlled system."""
    base = base_rate(truth)
    magnitude = _magnitude_like(attribution, truth)
    peak = magnitude.amax(dim=(2, 3), keepdim=True)
    mass = torch.where(peak == 0, 1, magnitude / peak)
    share = (mass * truth).sum(dim=(2, 3)) / mass.sum(dim=(2, 3))
    return torch.where(base.isnan(), base, share)


def pointing(attribution: Tensor, truth: Tensor) -> Tensor:
    """The pointing game: 1 if the strongest pixel lies on the system, else 0; of tied ones, the share that does."""
    base = base_rate(truth)
    magnitude = _magnitude_like(attribution, truth)
    strongest = magnitude == magnitude.amax(dim=(2, 3), keepdim=True)
    share = (strongest & truth).sum(dim=(2, 3)).double() / strongest.sum(dim=(2, 3))
    return torch.where(base.isnan(), base, share)


def mask_share(mask: Tensor, truth: Tensor) -> Tensor:
    """The share of a mask's pixels that lie on the controlled system (its precision)."""
    base = base_rate(truth)
    both, kept, _ = _overlap(mask, truth)
    return torch.where(base.isnan() | (kept == 0), base, both / kept)


def iou(mask: Tensor, truth: Tensor) -> Tensor:
    """Intersection over union of a mask and the controlled system."""
    base = base_rate(truth)
    both, kept, shown = _overlap(mask, truth)
    return torch.where(base.isnan(), base, both / (kept + shown - both))


def iou_ceiling(mask: Tensor, truth: Tensor) -> Tensor:
    """The best IoU of any mask that keeps as many pixels as this one: smaller size over larger size."""
    base = base_rate(truth)
    _, kept, shown = _overlap(mask, truth)
    return torch.where(base.isnan(), base, torch.minimum(kept, shown) / torch.maximum(kept, shown))


def _magnitude_like(attribution: Tensor, truth: Tensor) -> Tensor:
    _check_fit(attribution, truth)
    return magnitude_of(attribution.double(), truth.shape[1])


def _overlap(mask: Tensor, truth: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """How many values of each frame, over its colours, are in both, in the mask, in the truth."""
    _check_mask(mask)
    _check_fit(mask, truth)
    masks = mask.unflatten(1, (truth.shape[1], -1))  # (B, frames, colours, H, W)
    truths = truth[:, :, None].expand_as(masks)
    both, kept, shown = (part.sum(dim=(2, 3, 4)).double() for part in (masks & truths, masks, truths))
    return both, kept, shown


def _check_mask(mask: Tensor) -> None:
    if mask.dtype != torch.bool:
        raise InvalidValueError(f"a mask is bool, not {mask.dtype}: compare probabilities with 0.5 first")


def _check_fit(picture: Tensor, truth: Tensor) -> None:
    fits = picture.ndim == 4 and len(picture) == len(truth) and picture.shape[2:] == truth.shape[2:]
    if not fits or picture.shape[1] % truth.shape[1]:
        raise InvalidValueError(
            f"(B, frames * colours, H, W) and a ground truth (B, frames, H, W) must fit, "
            f"not {tuple(picture.shape)} and {tuple(truth.shape)}"
        )


# ---------------------------------------------------------------- of the predicted mask


class Agreement(NamedTuple):
    """How well M_theta predicts the attribution mask; each (B, frames)."""

    accuracy: Tensor
    """Share of values on the right side of 0.5. Predicting nothing already scores rho."""
    iou: Tensor
    """Of the prediction at 0.5 with the mask. Predicting nothing scores 0."""
    average_precision: Tensor
    """Area under precision over recall, over all thresholds. A constant prediction scores the share kept."""


def agreement(predicted: Tensor, mask: Tensor, frames: int | None = None) -> Agreement:
    """Compare probabilities with the true attribution mask, both (B, C, H, W), colours counted one by one.

    Without `frames`, three colours a frame. Where the mask is empty, IoU and average precision are NaN.
    """
    _check_mask(mask)
    if predicted.shape != mask.shape:
        raise InvalidValueError(f"a prediction {tuple(predicted.shape)} of a mask {tuple(mask.shape)}: shapes differ")
    frames = magnitude_of(predicted, frames).shape[1]
    scores, wanted = (part.unflatten(1, (frames, -1)).flatten(2) for part in (predicted, mask))  # (B, frames, values)
    said = scores > 0.5
    kept = wanted.sum(dim=2).double()
    overlap = (said & wanted).sum(dim=2) / (said | wanted).sum(dim=2).double()
    return Agreement(
        accuracy=(said == wanted).double().mean(dim=2),
        iou=torch.where(kept == 0, math.nan, overlap),
        average_precision=_average_precision(scores, wanted),
    )


def _average_precision(scores: Tensor, wanted: Tensor) -> Tensor:
    """The mean, over the wanted values, of the precision among all values that score at least as high."""
    falling, order = (-scores).sort(dim=-1)
    hits = wanted.gather(-1, order)
    precision = hits.cumsum(dim=-1) / torch.arange(1, hits.shape[-1] + 1, device=hits.device).double()
    last_of_tie = torch.searchsorted(falling, falling, right=True) - 1
    return (precision.gather(-1, last_of_tie) * hits).sum(dim=-1) / hits.sum(dim=-1)


# ---------------------------------------------------------------- deletion and insertion


@dataclass(frozen=True)
class Curve:
    """Q(s', a) of pictures s' of which a growing (insertion) or shrinking (deletion) share of pixels is shown."""

    shown: Tensor
    """(S,) the share that is still, or already, shown: from 1 to 0 in a deletion, from 0 to 1 in an insertion."""
    values: Tensor
    """(B, S)"""

    @property
    def whole(self) -> Tensor:
        """Q(s, a), (B,)."""
        return self.values[:, self.shown.argmax()]

    @property
    def filled(self) -> Tensor:
        """The value of the picture of which nothing is shown, (B,)."""
        return self.values[:, self.shown.argmin()]

    @property
    def normalised(self) -> Tensor:
        """(Q(s') - Q(filled)) / (Q(s) - Q(filled)), (B, S): 1 at the whole picture. NaN if the two don't differ."""
        span = (self.whole - self.filled)[:, None]
        return torch.where(span == 0, math.nan, (self.values - self.filled[:, None]) / span)

    @property
    def area(self) -> Tensor:
        """Under the normalised curve, by trapezoids, (B,). Deletion: small is good; insertion: large is good."""
        return self._integral(self.normalised)

    @property
    def pooled(self) -> Tensor:
        """The normalised curve of all observations together, (S,), each weighted by |Q(s) - Q(filled)|.

        Unlike a plain mean, it is not ruled by observations whose value hardly depends on the picture.
        """
        span = self.whole - self.filled
        total = span.abs().sum()
        weighted = (span.sign()[:, None] * (self.values - self.filled[:, None])).sum(dim=0)
        return torch.where(total == 0, math.nan, weighted / total)

    @property
    def pooled_area(self) -> Tensor:
        """Under the pooled curve, a scalar."""
        return self._integral(self.pooled)

    @property
    def changed(self) -> Tensor:
        """Mean |Q(s') - Q(s)| over mean |Q(s) - Q(filled)|, (S,): 0 at the whole picture, 1 at the filled one.

        Unlike `pooled`, it counts pixels that raise the value and pixels that lower it alike, as a magnitude does.
        """
        total = (self.whole - self.filled).abs().sum()
        change = (self.values - self.whole[:, None]).abs().sum(dim=0)
        return torch.where(total == 0, math.nan, change / total)

    @property
    def changed_area(self) -> Tensor:
        """Under `changed`, a scalar. Removing the most salient first: large is good; the least salient: small."""
        return self._integral(self.changed)

    def reversed(self) -> Curve:
        return Curve(self.shown.flip(0), self.values.flip(1))

    def _integral(self, heights: Tensor) -> Tensor:
        return torch.trapezoid(heights, self.shown.to(heights)) / (self.shown[-1] - self.shown[0])


def deletion(
    q: QFunction,
    obs: Tensor,
    action: Tensor,
    attribution: Tensor,
    steps: int = 20,
    fill: str | float | Tensor = "mean",
    least_first: bool = False,
    frames: int | None = None,
    batch_size: int = 256,
) -> Curve:
    """Q(s, a) as the most salient pixels are removed first, in `steps` equal parts of every frame.

    Pixels are ordered per frame by magnitude, ties by position (row by row, the first is the more salient).
    `least_first` is that order backwards. A removed pixel becomes `fill`: "zero", "mean" (the mean of its channel),
    "blur" (the blurred picture), a number, or a picture that broadcasts to `obs`. Without `frames`, three colours a
    frame. A pass has at most `batch_size` pictures.
    """
    check_pictures(obs)
    check_natural(steps=steps, batch_size=batch_size)
    if attribution.shape != obs.shape or len(action) != len(obs):
        raise InvalidValueError(
            f"observations {tuple(obs.shape)} need an attribution of that shape and as many actions, "
            f"not {tuple(attribution.shape)} and {len(action)}"
        )
    magnitude = magnitude_of(attribution, frames)  # (B, frames, H, W)
    pixels = magnitude.shape[2:].numel()
    order = magnitude.flatten(2).argsort(dim=2, descending=True, stable=True)
    rank = order.argsort(dim=2)  # 0 is removed first
    rank = (pixels - 1 - rank if least_first else rank).view_as(magnitude)
    pictures = obs if obs.is_floating_point() else obs.to(torch.get_default_dtype())
    blank = filled(pictures, fill)
    removed = torch.arange(steps + 1, device=obs.device) * pixels // steps
    q = one_value(q)
    values = []
    with torch.no_grad():
        for part in torch.arange(len(obs) * (steps + 1), device=obs.device).split(batch_size):
            row, step = part // (steps + 1), part % (steps + 1)
            shows = rank[row] >= removed[step, None, None, None]
            shows = shows.repeat_interleave(obs.shape[1] // shows.shape[1], dim=1)
            values.append(q(torch.where(shows, pictures[row], blank[row]), action[row]))
    return Curve(1 - removed.double() / pixels, torch.cat(values).view(len(obs), steps + 1))


def insertion(
    q: QFunction,
    obs: Tensor,
    action: Tensor,
    attribution: Tensor,
    steps: int = 20,
    fill: str | float | Tensor = "mean",
    least_first: bool = False,
    frames: int | None = None,
    batch_size: int = 256,
) -> Curve:
    """Q(s, a) as the most salient pixels are put into the filled picture first: the rest as in `deletion`.

    Showing the most salient is the same as having removed the least salient: this is that deletion, backwards.
    """
    return deletion(q, obs, action, attribution, steps, fill, not least_first, frames, batch_size).reversed()


def filled(obs: Tensor, fill: str | float | Tensor) -> Tensor:
    """The picture that takes the place of removed pixels, like `obs`, floats."""
    if not isinstance(fill, str):
        try:
            return torch.as_tensor(fill).to(obs).expand_as(obs)
        except RuntimeError as error:
            shape = tuple(torch.as_tensor(fill).shape)
            raise InvalidValueError(f"a fill for observations {tuple(obs.shape)} cannot be {shape}") from error
    if fill == "zero":
        return torch.zeros_like(obs)
    if fill == "mean":
        return obs.mean(dim=(2, 3), keepdim=True).expand_as(obs)
    if fill == "blur":
        return blurred(obs, sigma=max(obs.shape[2:]) / 16)
    raise UnknownNameError("fill", fill, FILLS)


def blurred(obs: Tensor, sigma: float) -> Tensor:
    """Gaussian blur of float pictures (B, C, H, W), cut off at three sigma; the rim is continued outwards."""
    radius = math.ceil(3 * sigma)
    bell = torch.exp(-0.5 * (torch.arange(-radius, radius + 1, device=obs.device, dtype=obs.dtype) / sigma) ** 2)
    bell = (bell / bell.sum()).view(1, 1, 1, -1)
    flat = F.pad(obs.flatten(0, 1)[:, None], (radius,) * 4, mode="replicate")
    return F.conv2d(F.conv2d(flat, bell), bell.mT)[:, 0].view_as(obs)


# ---------------------------------------------------------------- of an agent


def q_of(agent: Agent) -> QFunction:
    """The value that the agent's attribution explains, Q1 or the mean of both, of pictures as its networks see them.

    An agent that crops sees `center_crop(obs, agent.spec.image_size)`.
    """
    learner = _learner_of(agent)

    def q(obs: Tensor, action: Tensor) -> Tensor:
        values = learner.values(learner.encode(obs), action)
        return values[0] if learner.settings.attribution_target == "q1" else torch.stack(values).mean(dim=0)

    return q


def _learner_of(agent: Agent) -> Learner:
    learner = getattr(agent, "learner", agent)
    if not isinstance(learner, Learner):
        raise InvalidValueError(f"a {type(agent).__name__} has no critic to attribute: it neither is nor has a Learner")
    return learner


@dataclass(frozen=True)
class Saliency:
    """Where an agent looks in one shift. What the names in `means` stand for is in docs/saliency.md."""

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
    """How many frames were measured: observations times frames of a stack."""
    returns: tuple[float, ...]
    means: dict[str, float]
    """Of each measure: the mean over an episode's frames, then over episodes. NaN where no frame had an answer."""
    errors: dict[str, float]
    """Standard errors of the means, over episodes, since an episode's frames are alike; NaN for a single one."""
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
    method: str = "guided_backprop",
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

    `rho` is the mask's quantile, by default the agent's. M_theta, where the agent has it, is held against the mask that
    it learned to predict: the agent's own method and rho. `curves`: deletion and insertion too, the costly part, in
    `steps` parts, with `fill` for removed pixels. `on_step(done, total)` reports steps.
    """
    check_natural(episodes=episodes, every=every, steps=steps, batch_size=batch_size)
    if fill not in FILLS:
        raise UnknownNameError("fill", fill, FILLS)
    probe = _Probe(agent, method, rho, steps if curves else 0, fill, batch_size)

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
        method,
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

    def __init__(self, agent: Agent, method: str, rho: float | None, steps: int, fill: str, batch_size: int):
        methods.check(method)
        self.agent, self.q, self.settings = agent, q_of(agent), _learner_of(agent).settings
        self.method, self.attribution = method, methods.get(method)
        self.rho = self.settings.rho if rho is None else float(rho)
        if not 0 <= self.rho <= 1:
            raise InvalidValueError(f"rho must lie in [0, 1], not {rho}")
        self.steps, self.fill, self.batch_size = steps, fill, batch_size
        self.frames = 0
        self._episodes: list[Tensor] = []
        self._measures: list[dict[str, Tensor]] = []
        self._curves: list[tuple[Curve, Curve]] = []

    @torch.no_grad()
    def __call__(self, episodes: np.ndarray, obs: Tensor, action: Tensor, truth: Tensor) -> None:
        """Observations, actions and ground truth, one row for each of the episodes."""
        obs, truth = (center_crop(part, self.agent.spec.image_size) for part in (obs, truth))
        attributed = self.attribution(self.q, obs, action)
        mask = quantile_mask(attributed, self.rho, truth.shape[1])
        found = {
            "base_rate": base_rate(truth),
            "mass_share": mass_share(attributed, truth),
            "pointing": pointing(attributed, truth),
            "kept": mask.unflatten(1, (truth.shape[1], -1)).double().mean(dim=(2, 3, 4)),
            "mask_share": mask_share(mask, truth),
            "iou": iou(mask, truth),
            "iou_ceiling": iou_ceiling(mask, truth),
        }
        if hasattr(self.agent, "decoder"):
            predicted = self.agent.mask_probabilities(obs, action)
            found |= {
                "predicted_share": mask_share(predicted > 0.5, truth),
                "predicted_iou": iou(predicted > 0.5, truth),
            }
            own = self._own_mask(obs, action, mask, truth.shape[1])
            found |= {f"agreement_{k}": v for k, v in agreement(predicted, own, truth.shape[1])._asdict().items()}
        self._measures.append({name: values.nanmean(dim=1).cpu() for name, values in found.items()})
        self._episodes.append(torch.as_tensor(episodes))
        self.frames += truth.shape[:2].numel()
        if self.steps:
            arguments = (self.q, obs, action, attributed, self.steps, self.fill)
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
        # Both from the filled picture on, so that one axis serves.
        removing, showing = (_joined([pair[kind] for pair in self._curves]) for kind in (0, 1))
        most, least = ([Curve(c.shown, c.values[row]) for row in rows] for c in (removing.reversed(), showing))
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

    def _own_mask(self, obs: Tensor, action: Tensor, mask: Tensor, frames: int) -> Tensor:
        """The mask that the decoder learned to predict."""
        settings = self.settings
        if (self.method, self.rho) == (settings.attribution, settings.rho):
            return mask
        return quantile_mask(methods.get(settings.attribution)(self.q, obs, action), settings.rho, frames)


def _joined(curves: list[Curve]) -> Curve:
    return Curve(curves[0].shown.cpu(), torch.cat([curve.values for curve in curves]).double().cpu())


def _standard_error(values: Tensor) -> float:
    answers = values[~values.isnan()]
    return float(answers.std() / len(answers) ** 0.5) if len(answers) > 1 else math.nan


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _plain(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(part) for part in value]
    return None if isinstance(value, float) and math.isnan(value) else value
