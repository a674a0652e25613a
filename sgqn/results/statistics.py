"""Statistics over runs: those of the paper, and robust statistics for few runs.

Interquartile means, stratified bootstrap intervals, performance profiles and probabilities of improvement follow
Agarwal et al., "Deep Reinforcement Learning at the Edge of the Statistical Precipice" (2021). A run is one trained
agent, its score the mean return of its episodes. Every interval comes from resampling runs, with replacement, within
each task; tasks are never resampled.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sgqn.errors import InvalidValueError

Array: TypeAlias = NDArray[np.float64]
Scores: TypeAlias = Mapping[str, ArrayLike]
"""task -> the scores of its runs; tasks may have different numbers of runs."""
Runs: TypeAlias = Mapping[str, Mapping[Hashable, float]]
"""task -> run (its seed, say) -> score."""
Statistic: TypeAlias = Callable[[Sequence[Array]], Array]
"""Arrays (..., runs), one for each task -> (...)."""
Seed: TypeAlias = int | np.random.Generator

RESAMPLES = 2000
CONFIDENCE = 0.95


@dataclass(frozen=True)
class Summary:
    """Mean and standard deviation, over how many runs."""

    mean: float
    std: float
    runs: int

    def text(self, digits: int = 0) -> str:
        return f"{self.mean:.{digits}f} ± {self.std:.{digits}f}"


@dataclass(frozen=True)
class Interval:
    """A value and the bootstrap interval around it."""

    low: float
    value: float
    high: float


@dataclass(frozen=True)
class Profile:
    """Of every threshold tau, the share of runs that score above it, with its band."""

    taus: Array
    share: Array
    low: Array
    high: Array


@dataclass(frozen=True)
class Gap:
    """The generalization gap: training score minus shifted score, mean over tasks."""

    absolute: Interval
    relative: Interval | None
    """As a share of the training score; None where that is 0, or is in a resample."""
    runs: int


# ---------------------------------------------------------------- point statistics


def summarize(scores: ArrayLike) -> Summary:
    """Mean and standard deviation of one task's runs, as a table prints them (numpy's deviation: divided by n)."""
    values = _values(scores)
    return Summary(float(values.mean()), float(values.std()), values.size)


def mean_over_tasks(tasks: Sequence[Array]) -> Array:
    """A `Statistic`: the mean of the tasks' means, the paper's "Average"."""
    return np.mean([runs.mean(axis=-1) for runs in tasks], axis=0)


def trimmed_mean(tasks: Sequence[Array]) -> Array:
    """A `Statistic`: the interquartile mean, which is the mean over all runs of all tasks without the lowest and the
    highest quarter, each rounded down to whole runs."""
    values = np.sort(np.concatenate(tasks, axis=-1), axis=-1)
    cut = values.shape[-1] // 4
    return values[..., cut : values.shape[-1] - cut].mean(axis=-1)


# ---------------------------------------------------------------- over resampled runs


def bootstrap_interval(
    scores: Scores,
    statistic: Statistic = trimmed_mean,
    *,
    seed: Seed = 0,
    resamples: int = RESAMPLES,
    confidence: float = CONFIDENCE,
) -> Interval:
    """The statistic and its stratified percentile bootstrap interval."""
    tasks = _tasks(scores)
    draws = [runs[index] for runs, index in zip(tasks, _draws(tasks, seed, resamples), strict=True)]
    return _interval(statistic(tasks), statistic(draws), confidence)


def performance_profile(
    scores: Scores,
    taus: ArrayLike,
    *,
    seed: Seed = 0,
    resamples: int = RESAMPLES,
    confidence: float = CONFIDENCE,
) -> Profile:
    """The share of runs that score above each tau, every task weighing the same; bands hold at each tau by itself."""
    tasks, thresholds = _tasks(scores), _values(taus, "taus")
    draws = _draws(tasks, seed, resamples)
    share, resampled = np.zeros(thresholds.size), np.zeros((resamples, thresholds.size))
    for runs, index in zip(tasks, draws, strict=True):
        above = (runs[:, None] > thresholds).astype(np.float64)  # (runs, taus)
        times_drawn = (index[:, :, None] == np.arange(runs.size)).sum(axis=1)  # (resamples, runs)
        share += above.mean(axis=0) / len(tasks)
        resampled += times_drawn @ above / (runs.size * len(tasks))
    low, high = _percentiles(resampled, confidence)
    return Profile(thresholds, share, low, high)


def improvement_probability(
    scores: Scores,
    others: Scores,
    *,
    seed: Seed = 0,
    resamples: int = RESAMPLES,
    confidence: float = CONFIDENCE,
) -> Interval:
    """Probability that a run of one agent scores higher than a run of another, mean over the tasks that both have.

    In a task it is the share of pairs of runs that the first agent wins, a tie counting half (the Mann-Whitney
    statistic). The bootstrap resamples the runs of both agents.
    """
    shared = [task for task in scores if task in others]
    if not shared:
        raise InvalidValueError("no task has scores of both agents")
    ours, theirs = ([_values(of[task], task) for task in shared] for of in (scores, others))
    generator = np.random.default_rng(seed)
    draws = [_draws(tasks, generator, resamples) for tasks in (ours, theirs)]
    value, resampled = 0.0, np.zeros(resamples)
    for x, y, drawn_x, drawn_y in zip(ours, theirs, *draws, strict=True):
        wins = (x[:, None] > y) + 0.5 * (x[:, None] == y)  # (our runs, their runs)
        value += wins.mean() / len(shared)
        resampled += wins[drawn_x[:, :, None], drawn_y[:, None, :]].mean(axis=(1, 2)) / len(shared)
    return _interval(value, resampled, confidence)


def generalization_gap(
    train: Runs,
    shifted: Runs,
    *,
    seed: Seed = 0,
    resamples: int = RESAMPLES,
    confidence: float = CONFIDENCE,
) -> Gap:
    """The generalization gap from training scene to shift, over runs with a score in both.

    The relative gap is the ratio of means, not the mean of ratios, which one failed run would rule.
    """
    pairs = [_pairs(task, train[task], shifted[task]) for task in train if task in shifted]
    if not pairs:
        raise InvalidValueError("no task has scores both in training and in the shift")
    before, after = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    lost = [b - a for b, a in zip(before, after, strict=True)]
    index = _draws(before, seed, resamples)  # the same for both: a run keeps its pair
    drawn_before = mean_over_tasks([runs[i] for runs, i in zip(before, index, strict=True)])
    drawn_lost = mean_over_tasks([runs[i] for runs, i in zip(lost, index, strict=True)])
    whole = mean_over_tasks(before)
    relative = None
    if whole != 0 and (drawn_before != 0).all():
        relative = _interval(mean_over_tasks(lost) / abs(whole), drawn_lost / np.abs(drawn_before), confidence)
    absolute = _interval(mean_over_tasks(lost), drawn_lost, confidence)
    return Gap(absolute, relative, sum(runs.size for runs in before))


# ---------------------------------------------------------------- parts


def _draws(tasks: Sequence[Array], seed: Seed, resamples: int) -> list[NDArray[np.int64]]:
    """For each task the runs of every resample: indices (resamples, runs)."""
    if resamples < 1:
        raise InvalidValueError(f"resamples must be at least 1, not {resamples!r}")
    generator = np.random.default_rng(seed)
    return [generator.integers(runs.size, size=(resamples, runs.size)) for runs in tasks]


def _interval(value: ArrayLike, resampled: Array, confidence: float) -> Interval:
    low, high = _percentiles(resampled, confidence)
    return Interval(float(low), float(np.asarray(value)), float(high))


def _percentiles(resampled: Array, confidence: float) -> tuple[Array, Array]:
    """The bounds that leave half of 1 - confidence of the resamples (the first axis) on either side."""
    if not 0 < confidence < 1:
        raise InvalidValueError(f"confidence must lie between 0 and 1, not {confidence!r}")
    low, high = np.quantile(resampled, [(1 - confidence) / 2, (1 + confidence) / 2], axis=0)
    return low, high


def _pairs(task: str, train: Mapping[Hashable, float], shifted: Mapping[Hashable, float]) -> tuple[Array, Array]:
    runs = [run for run in train if run in shifted]
    if not runs:
        raise InvalidValueError(f"no run of {task!r} has scores both in training and in the shift")
    return _values([train[run] for run in runs], task), _values([shifted[run] for run in runs], task)


def _tasks(scores: Scores) -> list[Array]:
    if not scores:
        raise InvalidValueError("no scores: there is no task")
    return [_values(runs, task) for task, runs in scores.items()]


def _values(scores: ArrayLike, name: str = "scores") -> Array:
    values = np.asarray(scores, dtype=np.float64)
    if values.ndim != 1 or not values.size:
        raise InvalidValueError(f"{name}: expected a list of at least one number, not shape {values.shape}")
    wrong = np.flatnonzero(~np.isfinite(values))
    if wrong.size:
        raise InvalidValueError(f"{name}: number {wrong[0]} is {values[wrong[0]]}; leave failed runs out")
    return values
