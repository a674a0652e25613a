"""Learning curves, performance profiles and scores beside the paper's, as charts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from sgqn.results import paper
from sgqn.results.figures import Chart, Dot, DotChart, DotRow, Line, Mark, color_of
from sgqn.results.runs import Run, RunEvaluation, rank, scores, with_settings
from sgqn.results.statistics import performance_profile
from sgqn.results.tables import ResultTable, agents_of, comparable, returns_of, shifts_of, title_of, variant_of

Points: TypeAlias = tuple[Sequence[float], Sequence[float]]
"""Steps, and a return at each."""
Array: TypeAlias = NDArray[np.float64]

MOST_BINS = 100
"""Points of a training curve, at most; each is the mean of what was logged in its part of the training."""
FAR_ENOUGH = 0.1
"""Of the paper's steps: below, its final scores are no yardstick for a curve."""


def training_chart(runs: Iterable[Run]) -> Chart | None:
    """Returns of the training episodes of one task's runs; None where no episode has ended."""
    runs = [run for run in runs if run.curve.steps]
    end = max((run.steps for run in runs), default=0)
    lines = [
        _line(variant, members, [_binned(run.curve.steps, run.curve.returns, end) for run in members])
        for variant, members in _variants(runs).items()
    ]
    return _chart("while training", lines, runs, "train") if lines else None


def shift_charts(runs: Iterable[Run]) -> list[Chart]:
    """Evaluations of one task's runs over training, a chart for each shift."""
    runs = list(runs)
    charts = []
    for shift in shifts_of(runs):
        there = [run for run in runs if any(found.shift == shift for found in run.evaluations)]
        lines = [
            _line(variant, members, [_evaluated(run, shift) for run in members])
            for variant, members in _variants(there).items()
        ]
        charts.append(_chart(shift, lines, runs, shift))
    return charts


def profile_charts(runs: Iterable[Run]) -> list[Chart]:
    """For each shift the share of runs that score above every threshold, over tasks with one range of returns."""
    own = comparable(with_settings(runs))
    bounds = (returns_of(own[0].task) if own else None) or (0.0, 1.0)
    taus = np.linspace(*bounds, 101)
    charts = []
    for shift in shifts_of(own):
        found = scores(own, shift)
        lines = []
        for agent in agents_of(own):
            of_agent = {task: list(found[task][agent].values()) for task in found if agent in found[task]}
            if of_agent:
                profile = performance_profile(of_agent, taus)
                several = any(len(values) > 1 for values in of_agent.values())
                band = (list(profile.low), list(profile.high)) if several else ((), ())
                lines.append(Line(title_of(agent), color_of(agent), list(taus), list(profile.share), *band))
        chart = Chart(shift, "return τ", "share of runs above τ", tuple(lines), x_range=bounds, y_range=(0, 1))
        charts.append(chart)
    return charts


def score_charts(headline: ResultTable) -> list[DotChart]:
    """Where the paper has scores too: ours beside them, a chart for each task and shift, agents below each other."""
    found = {(cell.task, cell.shift, cell.agent): cell for cell in headline.cells if cell.ours}
    charts = []
    for task, shift in dict.fromkeys((task, shift) for task, shift, _ in found):
        rows = []
        for agent, title in paper.TITLES.items():
            printed, cell = paper.score(task, agent, shift), found.get((task, shift, agent))
            ours = Dot(cell.ours.mean, cell.ours.std or 0.0) if cell and cell.ours else None
            beside = Dot(printed.mean, printed.std or 0.0) if printed else None
            if ours or beside:
                rows.append(DotRow(title, color_of(agent), ours, beside))
        if any(row.paper for row in rows):
            bounds = returns_of(task)
            charts.append(DotChart(f"{task}, {shift}", "return", tuple(rows), bounds))
    return charts


# ---------------------------------------------------------------- parts


def _variants(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Runs of one task that differ in nothing but the seed; of two with one seed, the one that came further."""
    groups: dict[str, dict[int, Run]] = {}
    runs = list(runs)
    for agent in agents_of(runs):
        for run in (run for run in runs if run.agent == agent):
            members = groups.setdefault(variant_of(run), {})
            if run.seed not in members or run.steps > members[run.seed].steps:
                members[run.seed] = run
    return {variant: list(members.values()) for variant, members in groups.items()}


def _chart(title: str, lines: Iterable[Line], runs: Sequence[Run], shift: str) -> Chart:
    lines = tuple(lines)
    end = max((float(line.x[-1]) for line in lines if len(line.x)), default=1.0)
    own = with_settings(runs)
    papers_steps = paper.ROBOT_STEPS if runs[0].task in paper.ROBOT_TASKS else paper.STEPS
    marks = []
    for agent in agents_of(own) if end >= FAR_ENOUGH * papers_steps else ():
        if printed := paper.score(runs[0].task, agent, shift):
            marks.append(Mark(title_of(agent), color_of(agent), printed.mean))
    tops = [*(value for line in lines for value in line.y), *(mark.y for mark in marks)]
    bounds = returns_of(runs[0].task)
    whole = bounds is not None and max(tops, default=0.0) > 0.6 * bounds[1]
    return Chart(title, "agent steps", "return", lines, tuple(marks), (0.0, end or 1.0), bounds if whole else None)


def _line(variant: str, runs: Sequence[Run], curves: Sequence[Points]) -> Line:
    """The mean over seeds, with a band of one deviation where there are several."""
    grid, mean, std = mean_curve(curves)
    band: Mapping[str, list[float]] = {}
    if np.isfinite(std).any():
        band = {"low": list(mean - std), "high": list(mean + std)}
    agent = runs[0].agent
    return Line(variant, color_of(agent), list(grid), list(mean), dashed=variant != title_of(agent), **band)


def mean_curve(curves: Sequence[Points]) -> tuple[Array, Array, Array]:
    """Every step of any curve, and mean and deviation of those that have come so far; no deviation of a single one."""
    pairs = [np.array(sorted(zip(*curve, strict=True)), dtype=float).T for curve in curves]
    grid = np.unique(np.concatenate([steps for steps, _ in pairs]))
    values = np.stack([np.interp(grid, steps, returns, left=np.nan, right=np.nan) for steps, returns in pairs])
    count = np.isfinite(values).sum(axis=0)
    mean = np.nansum(values, axis=0) / count
    std = np.sqrt(np.nansum((values - mean) ** 2, axis=0) / count)
    return grid, mean, np.where(count > 1, std, np.nan)


def _binned(steps: Sequence[int], returns: Sequence[float], end: int) -> Points:
    """As it is, or where there are many points their means in equal parts of the training, at the parts' ends."""
    if len(steps) <= MOST_BINS:
        return steps, returns
    part = np.ceil(np.asarray(steps) / end * MOST_BINS)
    parts = np.unique(part)
    return list(parts * end / MOST_BINS), [float(np.asarray(returns)[part == p].mean()) for p in parts]


def _evaluated(run: Run, shift: str) -> Points:
    """The evaluation that counts at each step."""
    best: dict[int, RunEvaluation] = {}
    for found in run.evaluations:
        if found.shift == shift and (found.step not in best or rank(found) >= rank(best[found.step])):
            best[found.step] = found
    steps = sorted(best)
    return steps, [best[step].mean for step in steps]
