"""Learning curves, performance profiles and scores next to the paper's, as charts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from sgqn.results import paper
from sgqn.results.figures import Chart, Dot, DotChart, DotRow, Line, Mark, color_of, with_equal_axes
from sgqn.results.runs import Run, RunEvaluation, rank, scores, with_settings
from sgqn.results.statistics import performance_profile
from sgqn.results.tables import (
    Cell,
    ResultTable,
    agents_of,
    comparable,
    returns_of,
    shifts_of,
    tasks_of,
    title_of,
    variant_of,
)

Points: TypeAlias = tuple[Sequence[float], Sequence[float]]
"""Steps, and a return at each."""
Array: TypeAlias = NDArray[np.float64]

MOST_BINS = 100
"""Points of a training curve, at most; each is the mean of what was logged in its part of the training."""
SHORT = 22
"""Characters of a task and an agent that fit on one line of a chart; else the task has its own."""
FAR_ENOUGH = 0.1
"""Minimum share of the paper's steps for which its final scores are shown."""


def training_chart(runs: Iterable[Run]) -> Chart | None:
    """Training returns of one task's runs; None if no run has logged two of them."""
    runs = [run for run in runs if run.curve.steps]
    end = max((run.steps for run in runs), default=0)
    lines = [
        _line(variant, members, [_binned(run.curve.steps, run.curve.returns, end) for run in members])
        for variant, members in _variants(runs).items()
    ]
    return _chart("while training", lines, runs, "train")


def shift_charts(runs: Iterable[Run]) -> list[Chart]:
    """Evaluations of one task's runs over training, a chart for each shift in which a run was evaluated twice."""
    runs = list(runs)
    charts: list[Chart] = []
    for shift in shifts_of(runs):
        there = [run for run in runs if _evaluated(run, shift)[0]]
        lines = [
            _line(variant, members, [_evaluated(run, shift) for run in members])
            for variant, members in _variants(there).items()
        ]
        charts += filter(None, [_chart(shift, lines, runs, shift)])
    return charts


def learning_charts(runs: Iterable[Run]) -> list[list[Chart]]:
    """While training and in each shift, task by task; those of tasks with one range of returns share their axes."""
    groups: dict[object, list[Chart]] = {}
    runs = list(runs)
    for task in tasks_of(runs):
        of_task = [run for run in runs if run.task == task]
        charts = [*filter(None, [training_chart(of_task)]), *shift_charts(of_task)]
        groups.setdefault(returns_of(task) or task, []).extend(charts)
    return [with_equal_axes(charts) for charts in groups.values() if charts]


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
    """A chart for each shift in which the paper has scores too: our runs and the paper's, task by task."""
    charts = []
    for shift in headline.columns:
        cells = [cell for cell in headline.cells if cell.shift == shift and cell.ours]
        for bounds in dict.fromkeys(returns_of(cell.task) for cell in cells if cell.paper):
            rows = list(_score_rows([cell for cell in cells if returns_of(cell.task) == bounds]))
            charts.append(DotChart(shift, "return", tuple(rows), bounds))
    return charts


def _score_rows(cells: Sequence[Cell]) -> Iterator[DotRow]:
    tasks = dict.fromkeys(cell.task for cell in cells)
    for task in tasks:
        of_task = [cell for cell in cells if cell.task == task]
        fits = len(task) + len(title_of(of_task[0].agent)) <= SHORT
        if len(tasks) > 1 and not fits:
            yield DotRow(task, "")
        for cell in of_task:
            printed = Dot(cell.paper.mean, cell.paper.std or 0.0) if cell.paper else None
            ours = Dot(cell.ours.mean, cell.ours.std or 0.0) if cell.ours else None
            group = task if len(tasks) > 1 and fits and cell is of_task[0] else ""
            yield DotRow(title_of(cell.agent), color_of(cell.agent), ours, printed, group)


# ---------------------------------------------------------------- parts


def _variants(runs: Iterable[Run]) -> dict[str, list[Run]]:
    """Runs of one task that differ only in the seed; of two with the same seed, the one with more steps."""
    groups: dict[str, dict[int, Run]] = {}
    runs = list(runs)
    for agent in agents_of(runs):
        for run in (run for run in runs if run.agent == agent):
            members = groups.setdefault(variant_of(run), {})
            if run.seed not in members or run.steps > members[run.seed].steps:
                members[run.seed] = run
    return {variant: list(members.values()) for variant, members in groups.items()}


def _chart(kind: str, lines: Iterable[Line], runs: Sequence[Run], shift: str) -> Chart | None:
    """Without lines of a single point; None if no line is left."""
    lines = tuple(line for line in lines if len(line.x) > 1)
    if not lines:
        return None
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
    title = f"{runs[0].task}, {kind}"
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
    """Every step of any curve, with mean and deviation of the curves that reach it; no deviation of a single one."""
    pairs = [np.array(sorted(zip(*curve, strict=True)), dtype=float).T for curve in curves]
    grid = np.unique(np.concatenate([steps for steps, _ in pairs]))
    values = np.stack([np.interp(grid, steps, returns, left=np.nan, right=np.nan) for steps, returns in pairs])
    count = np.isfinite(values).sum(axis=0)
    mean = np.nansum(values, axis=0) / count
    std = np.sqrt(np.nansum((values - mean) ** 2, axis=0) / count)
    return grid, mean, np.where(count > 1, std, np.nan)


def _binned(steps: Sequence[int], returns: Sequence[float], end: int) -> Points:
    """The curve, or, if it has many points, their means over equal intervals of the training."""
    if len(steps) <= MOST_BINS:
        return steps, returns
    part = np.ceil(np.asarray(steps) / end * MOST_BINS)
    parts = np.unique(part)
    return list(parts * end / MOST_BINS), [float(np.asarray(returns)[part == p].mean()) for p in parts]


def _evaluated(run: Run, shift: str) -> Points:
    """The evaluation that counts at each known step."""
    best: dict[int, RunEvaluation] = {}
    for found in run.evaluations:
        step = found.step
        if found.shift == shift and step is not None and (step not in best or rank(found) >= rank(best[step])):
            best[step] = found
    steps = sorted(best)
    return steps, [best[step].mean for step in steps]
