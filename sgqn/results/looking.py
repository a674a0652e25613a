"""Measured saliency of runs: measured once, kept in the run's folder, shown as a table and as curves."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from sgqn import attribution, run_folder
from sgqn.config import versions
from sgqn.envs.families import check_shift, find_task
from sgqn.errors import InvalidValueError
from sgqn.inspect import Subject
from sgqn.results.figures import Chart, Line, color_of
from sgqn.results.runs import Run, RunSaliency
from sgqn.results.tables import (
    NO_ANSWER,
    Cell,
    ResultRow,
    ResultTable,
    Sample,
    Value,
    agents_of,
    shift_order,
    title_of,
    variant_of,
    with_footnotes,
)
from sgqn.saliency import measure

MEASURES = {
    "base_rate": "base rate",
    "mass_share": "mass on body",
    "pointing": "pointing",
    "mask_share": "mask on body",
    "iou": "IoU",
    "iou_ceiling": "IoU ceiling",
    "predicted_share": "M_θ on body",
    "predicted_iou": "M_θ IoU",
    "agreement_iou": "M_θ agreement",
    "deletion": "deletion",
    "insertion": "insertion",
    "change_gap": "change gap",
}
"""The measures that are shown, and their headings; the recorded lines have more."""

DIGITS = dict.fromkeys(("deletion", "insertion", "change_gap"), 2)
"""Of a measure's mean; 3 of all others."""

DEFINITIONS = {
    "base rate": "share of the image that shows the controlled body: the score of a uniform map",
    "mass on body": "share of the attribution's magnitude that is on the body",
    "pointing": "how often the strongest pixel is on the body",
    "mask on body": "share of the binarised mask's pixels that are on the body",
    "IoU": "intersection over union of mask and body; no mask of this size can exceed the ceiling",
    "M_θ on body, M_θ IoU": "the same for the mask predicted by the decoder, if the agent has one",
    "M_θ agreement": "IoU of the predicted mask with the attribution mask that it learned to predict",
    "deletion": "area under the value as the most salient pixels are removed first; lower is better",
    "insertion": "area under the value as the most salient pixels are shown first; higher is better",
    "change gap": "how much more the value changes when the most salient pixels go first than when the least salient "
    "do; 0 for a random order",
}

CURVES = {
    "deletion": ("deletion", "share removed, most salient first", "value left"),
    "insertion": ("insertion", "share shown, most salient first", "value reached"),
    "change_most": ("change, most salient first", "share removed", "change of value"),
    "change_least": ("change, least salient first", "share removed", "change of value"),
}
"""Name in the record -> title and axes of its chart."""
VALUE_RANGE = (-0.5, 1.5)

EPISODES, EVERY = 3, 25
"""What a report measures where nothing is recorded: less than `sgqn saliency`."""

OnStep = Callable[[str, int, int], None]
"""on_step(shift and method, done, total)"""


# ---------------------------------------------------------------- measuring


def record(
    path: str | Path,
    shifts: Sequence[str] | None = None,
    episodes: int = 5,
    methods: Sequence[str] = (),
    rho: float | None = None,
    seed: int = 0,
    renderer: str = "auto",
    device: str = "cpu",
    every: int = 10,
    curves: bool = True,
    on_step: OnStep | None = None,
    out: Path | None = None,
) -> list[dict[str, Any]]:
    """Measure the saliency of a run's latest checkpoint, or of another agent, and append it to the run's log.

    Results of an exported agent are kept in `out`/<task>/<agent>/<seed> if `out` is given.

    Without shifts, the training scene and the task's hardest shift; without methods or rho, the agent's own.
    """
    for method in methods:
        attribution.check(method)
    if rho is not None and not 0 <= rho < 1:
        raise InvalidValueError(f"rho must lie in [0, 1), not {rho}: 0.95 keeps one pixel in twenty")
    subject = Subject.load(path, device)
    task = subject.config.task
    shifts = (find_task(task).shifts[0], find_task(task).shifts[-1]) if shifts is None else shifts
    if not shifts:
        raise InvalidValueError("name at least one shift")
    for shift in shifts:
        check_shift(task, shift)
    home = run_folder.results_folder(subject.config, subject.home, out)
    lines = []
    for shift in shifts:
        for method in methods or (subject.method,):

            def say(done: int, total: int, what: str = f"{shift}, {method}") -> None:
                if on_step is not None:
                    on_step(what, done, total)

            found = measure(
                subject.agent,
                task,
                shift,
                episodes,
                seed,
                renderer,
                method=method,
                rho=rho,
                every=every,
                curves=curves,
                num_workers=0 if episodes <= 2 else None,
                on_step=say,
            )
            line = {"step": subject.step, **found.to_dict(), "weights": subject.precision, "versions": versions()}
            if home is not None:
                run_folder.append_line(home / run_folder.SALIENCY, line)
            lines.append(line)
    return lines


def printed(lines: Sequence[dict[str, Any]]) -> Any:
    """Recorded lines as a table for the terminal, a column for each shift and method."""
    from rich.table import Table

    table = Table("measure")
    for line in lines:
        table.add_column(f"{line['shift']}\n{line['method']}, ρ {line['rho']:g}", justify="right")
    for name, title in MEASURES.items():
        if any(name in line["means"] for line in lines):
            table.add_row(title, *(_mean_and_error(line, name) for line in lines))
    shown = (find_task(line["task"]).return_text(float(np.mean(line["returns"]))) for line in lines)
    table.add_row("return", *shown)
    table.add_row("episodes", *(str(line["episodes"]) for line in lines))
    return table


def _mean_and_error(line: dict[str, Any], name: str) -> str:
    mean, error = (line[part].get(name) for part in ("means", "errors"))
    if mean is None:
        return NO_ANSWER
    digits = DIGITS.get(name, 3)
    return f"{mean:.{digits}f}" + (f" ± {error:.{digits}f}" if error is not None else "")


def missing(run: Run, shifts: Iterable[str]) -> list[str]:
    """The shifts in which the run's latest checkpoint was not measured with its own method and rho."""
    if run.checkpoint is None:
        return []
    subject = Subject.load(run.checkpoint)
    done = {
        found.shift
        for found in run.saliency
        if (found.step, found.method) == (subject.step, subject.method) and math.isclose(found.rho, subject.rho)
    }
    return [shift for shift in shifts if shift not in done]


# ---------------------------------------------------------------- showing


def saliency_table(runs: Iterable[Run]) -> ResultTable | None:
    """Every measure of every task, shift and agent; None where nothing is recorded."""
    groups = _groups(runs)
    if not groups:
        return None
    ways = {how: how.split(", ") for *_, how in groups}
    shared = [part for part in next(iter(ways.values())) if all(part in parts for parts in ways.values())]
    counts = [f"{len(samples)} × {_episodes(samples)}" for samples in groups.values()]
    differ = {"attribution": len(ways) > 1, "n": len(set(counts)) > 1}
    rows = []
    for ((task, shift, variant, how), samples), count in zip(groups.items(), counts, strict=True):
        labels = {"attribution": ", ".join(part for part in ways[how] if part not in shared), "n": count}
        cells = [_cell(task, shift, samples, name) for name in MEASURES]
        rows.append(ResultRow((task, shift, variant, *(labels[name] for name in labels if differ[name])), tuple(cells)))
    caption = (
        "Compared with the simulator's own mask of the controlled body. Each mean has its standard error: over runs "
        "where there are several, else over the episodes of the one."
    )
    caption += f" Attribution by {', '.join(shared)}." if shared else ""
    caption += " n: runs × episodes." if differ["n"] else f" Runs × episodes: {counts[0]}."
    headers = ("task", "shift", "agent", *(name for name in differ if differ[name]))
    return with_footnotes(ResultTable("saliency", caption, headers, tuple(MEASURES.values()), tuple(rows)))


def saliency_charts(runs: Iterable[Run]) -> dict[str, list[Chart]]:
    """Task, shift and way of attribution -> deletion and insertion curves of all agents."""
    runs = list(runs)
    agents = {variant_of(run): run.agent for run in runs}
    drawn: dict[str, list[tuple[str, str, list[RunSaliency]]]] = {}
    for (task, shift, variant, how), samples in _groups(runs).items():
        looks = [sample.saliency for sample in samples if sample.saliency and sample.saliency.curves]
        if looks:
            drawn.setdefault(f"{task}, {shift}, {how}", []).append((variant, agents[variant], looks))
    return {title: [_chart(name, groups) for name in CURVES] for title, groups in drawn.items()}


def _groups(runs: Iterable[Run]) -> dict[tuple[str, str, str, str], list[Sample]]:
    """Task, shift, agent and way of attribution -> what counts of each seed, in the order of a table."""
    runs = list(runs)
    agents = agents_of(runs)
    found: dict[tuple[str, str, str, str], dict[int, Sample]] = {}
    for run in sorted(runs, key=lambda run: (run.task, agents.index(run.agent))):
        for look in run.looks().values():
            how = f"{look.method}, ρ {look.rho:g}" + (f", {look.fill} fill" if look.fill != "mean" else "")
            seeds = found.setdefault((run.task, look.shift, variant_of(run), how), {})
            if run.seed not in seeds or look.step >= (seeds[run.seed].step or 0):
                seeds[run.seed] = Sample(run, saliency=look)
    order = sorted(found, key=lambda key: (key[0], shift_order(key[1]), list(found).index(key)))
    return {key: list(found[key].values()) for key in order}


def _episodes(samples: Sequence[Sample]) -> str:
    counts = sorted({sample.saliency.episodes for sample in samples if sample.saliency})
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"


def _cell(task: str, shift: str, samples: Sequence[Sample], name: str) -> Cell:
    answers = [
        (sample.saliency.means[name], sample.saliency.errors.get(name, math.nan))
        for sample in samples
        if sample.saliency and not math.isnan(sample.saliency.means.get(name, math.nan))
    ]
    ours = None
    if answers:
        means = np.array([mean for mean, _ in answers])
        error = means.std(ddof=1) / len(means) ** 0.5 if len(means) > 1 else answers[0][1]
        ours = Value(float(means.mean()), error=None if math.isnan(error) else float(error))
    agent = samples[0].run.agent
    return Cell(task, shift, agent, name, "saliency", ours, samples=tuple(samples), digits=DIGITS.get(name, 3))


def _chart(name: str, groups: Sequence[tuple[str, str, list[RunSaliency]]]) -> Chart:
    title, x_label, y_label = CURVES[name]
    lines = []
    for variant, agent, looks in groups:
        there = [look for look in looks if name in look.curves]
        if not there:
            continue
        shown = np.array(there[-1].curves["shown"])
        curves = np.array([look.curves[name] for look in there if look.curves["shown"] == there[-1].curves["shown"]])
        x = shown if "shown" in x_label else 1 - shown
        band = _band(curves) if len(curves) > 1 else {}
        dashed = variant != title_of(agent)
        lines.append(Line(variant, color_of(agent), list(x), list(curves.mean(axis=0)), dashed=dashed, **band))
    return Chart(title, x_label, y_label, tuple(lines), x_range=(0.0, 1.0), y_range=VALUE_RANGE)


def _band(curves: np.ndarray) -> dict[str, list[float]]:
    mean, std = curves.mean(axis=0), curves.std(axis=0)
    return {"low": list(mean - std), "high": list(mean + std)}
