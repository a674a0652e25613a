"""The paper's tables with our runs, and further statistics of the same runs.

A cell has our number, the paper's and their difference. Which runs it counts follows from their configuration: the
paper's action repeat and rho of the task, or those that the table is about. Footnotes say what makes a number of ours
not quite the paper's: fewer steps or seeds, generated backgrounds, another renderer, other settings.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from sgqn.envs.families import all_shifts, find_task
from sgqn.pretrained.package import PRECISIONS
from sgqn.results import paper
from sgqn.results.paper import AVERAGE, Score
from sgqn.results.runs import Run, RunEvaluation, RunSaliency, by_seed, own_rho, with_settings
from sgqn.results.statistics import (
    Interval,
    bootstrap_interval,
    generalization_gap,
    improvement_probability,
    summarize,
)
from sgqn.results.text import in_markdown

NO_RUN = "no run"
INCOMPLETE = "incomplete"
"""An average or a margin of which only a part has runs."""
UNDEFINED = "undefined"
"""A percentage of a training score that is 0."""
NO_ANSWER = "–"
"""A measure that the agent has no part for, or that no frame had an answer to."""
UNKNOWN = "unknown"
"""The training steps of a policy that was not trained here."""
ALL = "all"
"""The task or the shift of cells about all of them."""
OF_ALL = "(All numbers of ours.)"
"""After a footnote that has no mark in the table."""
OTHERS = "all others"
"""The column with the mean over the other agents."""
MARGIN = "Δ"
"""The column with SGQN's distance from the best other agent."""

TITLES = {
    "video": "Video easy and video hard",
    "ablation": "Ablation",
    "action_repeat": "Action repeat 4",
    "robots": "Robots",
    "rho": "Quantile ρ",
    "svea_soda": "SVEA + SODA",
    "hours": "Hours per run",
    "other": "Not in the paper",
    "success": "Success rates",
    "interquartile_mean": "Interquartile mean over tasks",
    "improvement": "Ranking and probability of improvement",
    "gap": "Generalisation gap",
}
"""Every table of returns and times that there can be, in order."""
MORE_TITLES = {"headline": "At a glance", "saliency": "Saliency compared with the simulator's ground truth"}

_WITHOUT_NUMBER = {"relative gap": UNDEFINED, "saliency": NO_ANSWER, "improvement": NO_ANSWER}
_LOWER_IS_BETTER = ("gap", "relative gap", "deletion")
_WITHOUT_BEST = ("margin", "hours", "steps", "base_rate", "iou_ceiling")
_CLIPS = re.compile(r"(\d+) of (\d+) clips")

CSV_COLUMNS = (
    *("table", "task", "shift", "agent", "column", "quantity"),
    *("ours_mean", "ours_std", "ours_error", "ours_low", "ours_high", "seeds", "runs"),
    *("paper_mean", "paper_std", "difference"),
    *("renderer", "backgrounds", "steps", "episodes"),
)


@dataclass(frozen=True)
class Value:
    """A number of ours: with its deviation over seeds, with an interval, or with its standard error."""

    mean: float
    std: float | None = None
    low: float | None = None
    high: float | None = None
    error: float | None = None


@dataclass(frozen=True)
class Sample:
    """The contribution of one run to a cell: an evaluation, measured saliency, or neither: the training itself."""

    run: Run
    evaluation: RunEvaluation | None = None
    saliency: RunSaliency | None = None

    @property
    def played(self) -> RunEvaluation | RunSaliency | None:
        return self.evaluation or self.saliency

    @property
    def step(self) -> int | None:
        """None if that is not known."""
        return self.played.step if self.played else self.run.steps


@dataclass(frozen=True)
class Cell:
    """Our number and the paper's, either of which may be missing, and the runs behind ours."""

    task: str
    shift: str
    agent: str
    column: str
    quantity: str = "score"
    """score, success, margin, hours, steps, interquartile mean, improvement, gap, relative gap or saliency."""
    ours: Value | None = None
    paper: Score | None = None
    percent: float | None = None
    """Where the paper's table has percentages: ours."""
    paper_percent: float | None = None
    samples: tuple[Sample, ...] = ()
    digits: int = 0
    notes: tuple[int, ...] = ()
    """Numbers of the table's footnotes."""

    @property
    def difference(self) -> float | None:
        return None if self.ours is None or self.paper is None else self.ours.mean - self.paper.mean

    @property
    def seeds(self) -> int:
        """Runs behind the number; where several tasks, shifts or agents are, the fewest behind one of them."""
        groups = Counter((s.run.task, s.run.agent, s.played and s.played.shift) for s in self.samples)
        return min(groups.values(), default=0)

    @property
    def runs(self) -> tuple[Run, ...]:
        return tuple({sample.run.path: sample.run for sample in self.samples}.values())

    @property
    def tasks(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(run.task for run in self.runs))

    @property
    def steps(self) -> tuple[int | str, ...]:
        found = {sample.step for sample in self.samples}
        return (*sorted(step for step in found if step is not None), *[UNKNOWN] * (None in found))

    @property
    def evaluations(self) -> tuple[RunEvaluation | RunSaliency, ...]:
        return tuple(sample.played for sample in self.samples if sample.played)

    def ours_text(self) -> str:
        counted = self.count_text()
        return self.value_text() + (f" ({counted})" if counted else "")

    def value_text(self) -> str:
        """Our number alone, or why there is none."""
        if self.ours is None:
            text = _WITHOUT_NUMBER.get(self.quantity, INCOMPLETE)
            return text if self.samples or self.quantity == "improvement" else NO_RUN
        text = _number(self.ours.mean, self.digits, signed=self.quantity == "margin")
        spread = self.ours.std if self.ours.error is None else self.ours.error
        if spread is not None:
            text += f" ± {_number(spread, self.digits)}"
        if self.ours.low is not None and self.ours.high is not None:
            text += f" [{_number(self.ours.low, self.digits)}, {_number(self.ours.high, self.digits)}]"
        return text + _percent(self.percent, signed=self.quantity == "score")

    def count_text(self) -> str:
        """Number of runs behind our number; empty if it is stated elsewhere, or there is none."""
        if self.ours is None or self.quantity in ("steps", "saliency"):
            return ""
        if self.quantity == "improvement" and self.column != OTHERS:  # the first column says it
            return ""
        if self.task == ALL:
            return f"{_count(self.tasks, 'task')}, {_count(self.runs, 'run')}"
        return f"n = {self.seeds}"

    def paper_text(self) -> str:
        """Empty where the paper has no such number."""
        if self.paper is None:
            return ""
        if self.quantity == "hours":
            return f"about {self.paper.mean:g}"
        text = _number(self.paper.mean, self.digits, signed=self.quantity == "margin")
        if self.paper.std is not None:
            text += f" ± {_number(self.paper.std, self.digits)}"
        return text + _percent(self.paper_percent, signed=self.quantity == "score")

    def difference_text(self) -> str:
        return "" if self.difference is None else _number(self.difference, self.digits, signed=True)


@dataclass(frozen=True)
class ResultRow:
    """Cells next to each other, in the order of the table's columns."""

    labels: tuple[str, ...]
    cells: tuple[Cell, ...]


@dataclass(frozen=True)
class ResultTable:
    """One table; `footnotes[i]` is number i + 1."""

    name: str
    caption: str
    headers: tuple[str, ...]
    """Of the rows' labels."""
    columns: tuple[str, ...]
    rows: tuple[ResultRow, ...]
    footnotes: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        name, _, family = self.name.partition("-")
        return (TITLES | MORE_TITLES)[name] + (f": {family}" if family else "")

    @property
    def cells(self) -> list[Cell]:
        return [cell for row in self.rows for cell in row.cells]

    @property
    def common_notes(self) -> tuple[int, ...]:
        """Footnotes that apply to all of our numbers, if there are several: stated once."""
        notes = [set(cell.notes) for cell in self.cells if cell.ours]
        return tuple(sorted(set.intersection(*notes))) if len(notes) > 1 else ()

    @property
    def best(self) -> set[tuple[int, int]]:
        """Row and column of the best numbers of ours, each among those of the same task, shift and measure.

        Over all tasks, agents that have fewer of them than another are not compared.
        """
        groups: dict[tuple[str, ...], dict[tuple[int, int], float]] = {}
        for i, row in enumerate(self.rows):
            for j, cell in enumerate(row.cells):
                if cell.ours and (sign := _better(cell)) and not _fewer_tasks(self, cell):
                    measure = cell.column if cell.quantity == "saliency" else cell.quantity
                    group = groups.setdefault((cell.task, cell.shift, measure), {})
                    group[i, j] = round(sign * cell.ours.mean, cell.digits)
        several = [group for group in groups.values() if len(set(group.values())) > 1]
        return {at for group in several for at, value in group.items() if value == max(group.values())}


def _better(cell: Cell) -> int:
    """1 if higher is better, -1 if lower is, 0 where no number is the best."""
    if cell.quantity == "improvement":
        return int(cell.column == OTHERS)
    name = cell.column if cell.quantity == "saliency" else cell.quantity
    return -1 if name in _LOWER_IS_BETTER else int(name not in _WITHOUT_BEST)


def tables(runs: Iterable[Run]) -> list[ResultTable]:
    """Every table for which the runs have at least one number; `left_out` names the others."""
    runs = list(runs)
    own = with_settings(runs)
    papers = [_paper_table(table, runs) for table in paper.tables()]
    used = {of_run for table in papers for of_run in _evaluated(table.cells)}
    statistics = [_interquartile_means(own), _improvements(own), _gaps(own)]
    found = [*papers, _hours(own), _other(runs, used), _successes(own), *statistics]
    return [with_footnotes(table) for table in found if any(cell.ours for cell in table.cells)]


def headlines(runs: Iterable[Run]) -> list[ResultTable]:
    """`headline` of each task family, because their shifts differ; those after the first have its name in theirs."""
    families: dict[str, list[Run]] = {}
    for run in runs:
        families.setdefault(find_task(run.task).family.name, []).append(run)
    found = [(family, table) for family, of in families.items() if (table := headline(of))]
    found.sort(key=lambda item: -len(item[1].rows))
    rest = [replace(table, name=f"{table.name}-{family}") for family, table in found[1:]]
    return [*(table for _, table in found[:1]), *rest]


def headline(runs: Iterable[Run]) -> ResultTable | None:
    """Every task and agent with the paper's settings, in every shift; None without evaluations."""
    own = with_settings(runs)
    shifts = shifts_of(own)
    rows = []
    for task in tasks_of(own):
        for agent in agents_of(run for run in own if run.task == task):
            cells = [_score(own, task, shift, agent) for shift in shifts]
            beside = [
                replace(cell, column=cell.shift, paper=paper.score(task, agent, cell.shift), digits=_digits(task))
                for cell in cells
            ]
            if any(cell.ours for cell in beside):
                rows.append(ResultRow((task, title_of(agent)), tuple(beside)))
    caption = (
        "Mean return and deviation over seeds of the runs with the paper's action repeat and quantile, in the "
        "training scene and in every evaluated shift."
    )
    table = ResultTable("headline", caption, ("task", "agent"), shifts, tuple(rows))
    return with_footnotes(table) if rows else None


def left_out(found: Iterable[ResultTable]) -> list[str]:
    """The titles of tables without any run."""
    names = {table.name for table in found}
    return [title for name, title in TITLES.items() if name not in names]


# ---------------------------------------------------------------- the paper's tables


def _paper_table(table: paper.Table, runs: list[Run]) -> ResultTable:
    pools = [with_settings(runs, action_repeat=table.action_repeat, rho=column.rho) for column in table.columns]
    scores: dict[tuple[str, str], list[Cell]] = {}
    for row in table.rows:
        cells = [
            _score(pool, row.task, row.shift, column.agent) for pool, column in zip(pools, table.columns, strict=True)
        ]
        scores[row.task, row.shift] = cells
    for row in table.averages:
        members = [scores[member.task, member.shift] for member in table.averaged(row)]
        scores[row.task, row.shift] = [_average(row, list(cells)) for cells in zip(*members, strict=True)]
    columns = [column.title for column in table.columns] + [MARGIN] * (table.base in ("second best", "best"))
    rows = [_beside_the_paper(table, row, scores[row.task, row.shift]) for row in _in_print_order(table)]
    return ResultTable(table.name, table.caption, ("task", "shift"), tuple(columns), tuple(rows))


def _in_print_order(table: paper.Table) -> list[paper.Row]:
    """An average is below its rows if these are consecutive, else at the end."""
    order = list(table.rows)
    for average in table.averages:
        members = table.averaged(average)
        end = order.index(members[-1]) + 1
        together = order[end - len(members) : end] == members
        order.insert(end if together else len(order), average)
    return order


def _score(runs: list[Run], task: str, shift: str, agent: str) -> Cell:
    """Mean and deviation over seeds of an agent's runs."""
    samples = _samples(runs, task, shift, agent)
    return Cell(task, shift, agent, agent, ours=_summary(_means(samples)), samples=samples)


def _samples(runs: Iterable[Run], task: str, shift: str, agent: str) -> tuple[Sample, ...]:
    return tuple(Sample(run, run.evaluation(shift)) for run in by_seed(runs, task, agent, shift).values())


def _means(samples: Iterable[Sample]) -> list[float]:
    return [sample.evaluation.mean for sample in samples if sample.evaluation]


def _summary(values: Sequence[float]) -> Value | None:
    """One run alone has no deviation."""
    if not values:
        return None
    summary = summarize(values)
    return Value(summary.mean, summary.std if summary.runs > 1 else None)


def _average(row: paper.Row, cells: list[Cell]) -> Cell:
    """The mean of the cells' means, if all are there. Over shifts, the deviation of the runs' own averages."""
    samples = tuple(sample for cell in cells for sample in cell.samples)
    means = [cell.ours.mean for cell in cells if cell.ours]
    ours = None
    if len(means) == len(cells):
        ours = Value(summarize(means).mean)
        if row.shift == AVERAGE and len({tuple(run.path for run in cell.runs) for cell in cells}) == 1:
            of_runs = zip(*(_means(cell.samples) for cell in cells), strict=True)
            ours = _summary([summarize(of_run).mean for of_run in of_runs])
    return Cell(row.task, row.shift, cells[0].agent, cells[0].agent, ours=ours, samples=samples)


def _beside_the_paper(table: paper.Table, row: paper.Row, cells: list[Cell]) -> ResultRow:
    ours = {column.name: cell.ours.mean for column, cell in zip(table.columns, cells, strict=True) if cell.ours}
    beside = []
    for column, cell in zip(table.columns, cells, strict=True):
        change = row.changes.get(column.name) if table.base == "sac" else None
        beside.append(
            replace(
                cell,
                column=column.name,
                paper=row.scores[column.name],
                percent=_change(table, ours, column.name)[1] if change else None,
                paper_percent=change.percent if change else None,
                digits=table.digits,
            )
        )
    if table.base in ("second best", "best"):
        beside.append(_margin(table, row, cells, ours))
    return ResultRow((row.task, row.shift), tuple(beside))


def _margin(table: paper.Table, row: paper.Row, cells: list[Cell], ours: dict[str, float]) -> Cell:
    """SGQN's distance from the best of the others, where all have runs."""
    printed = row.changes["sgqn"]
    difference, percent = _change(table, ours, "sgqn")
    return Cell(
        row.task,
        row.shift,
        "sgqn",
        MARGIN,
        "margin",
        ours=None if difference is None else Value(difference),
        paper=None if printed.difference is None else Score(printed.difference),
        percent=None if percent is None else abs(percent),
        paper_percent=printed.percent,
        samples=tuple(sample for cell in cells for sample in cell.samples),
        digits=table.digits,
    )


def _change(table: paper.Table, ours: dict[str, float], column: str) -> tuple[float | None, float | None]:
    """Our difference from what the table compares with, and as a percentage of what it takes percentages of."""
    others = {column.name for column in table.columns} - {column}
    needed = {"sac"} if table.base == "sac" else others
    if not needed | {column} <= ours.keys():
        return None, None
    base = max(ours[name] for name in needed)
    whole = max(base, ours[column]) if table.base == "best" else base
    difference = ours[column] - base
    return difference, 100 * difference / abs(whole) if whole else None


def _hours(runs: list[Run]) -> ResultTable:
    """Measured wall time of each agent's longest runs, and how many steps that was."""
    runs = [run for run in comparable(runs) if not run.foreign]
    rows = []
    for agent in agents_of(runs, paper.HOURS):
        longest = max((run.steps for run in runs if run.agent == agent), default=0)
        timed = [run for run in runs if run.agent == agent and run.steps == longest > 0]
        hours = _summary([run.seconds / 3600 for run in timed])
        printed = Score(paper.HOURS[agent]) if agent in paper.HOURS else None
        samples = tuple(Sample(run) for run in timed)
        cells = (
            Cell(ALL, "train", agent, "hours", "hours", hours, printed, samples=samples, digits=2),
            Cell(
                *(ALL, "train", agent, "steps", "steps"),
                ours=Value(longest) if timed else None,
                paper=Score(paper.STEPS) if printed else None,
                samples=samples,
            ),
        )
        rows.append(ResultRow((title_of(agent), _machines(timed)), cells))
    caption = (
        "Wall time of a run as measured, evaluations included, on the machine that made it; "
        f"the paper's on {paper.HARDWARE}."
    )
    return ResultTable("hours", caption, ("agent", "our machine"), ("hours", "steps"), tuple(rows))


def _machines(runs: list[Run]) -> str:
    """The machines that the runs were trained on, if recorded."""
    return ", ".join(sorted({run.machine.get("device") or "not recorded" for run in runs}))


# ---------------------------------------------------------------- beyond the paper


def _other(runs: list[Run], used: set[tuple[Path, str]]) -> ResultTable:
    """Every evaluation that no table of the paper has a place for: other tasks, shifts, agents, settings.

    Their rows and columns are filled up with what the paper's tables have.
    """
    variants: dict[str, list[Run]] = {}
    for run in runs:
        variants.setdefault(variant_of(run), []).append(run)
    new: set[tuple[str, str, str]] = set()
    for name, members in variants.items():
        for task, shift in {(run.task, evaluation.shift) for run in members for evaluation in run.evaluations}:
            samples = _samples(members, task, shift, members[0].agent)
            if not all((sample.run.path, shift) in used for sample in samples):
                new.add((task, shift, name))
    shifts = shifts_of(runs)
    keys = sorted({(task, shift) for task, shift, _ in new}, key=lambda key: (key[0], shifts.index(key[1])))
    columns = [name for name in variants if name in {name for _, _, name in new}]
    rows = []
    for task, shift in keys:
        cells = [_score(variants[name], task, shift, variants[name][0].agent) for name in columns]
        named = (replace(c, column=name, digits=_digits(task)) for c, name in zip(cells, columns, strict=True))
        rows.append(ResultRow((task, shift), tuple(named)))
    caption = "Our scores that are not in any table of the paper."
    return ResultTable("other", caption, ("task", "shift"), tuple(columns), tuple(rows))


def _successes(runs: list[Run]) -> ResultTable:
    """The share of episodes that ended with the task solved, of tasks that can be."""
    runs = [run for run in runs if any(evaluation.successes for evaluation in run.evaluations)]
    agents, shifts = agents_of(runs), shifts_of(runs)
    rows = []
    for task in tasks_of(runs):
        for shift in shifts:
            cells = [_success(runs, task, shift, agent) for agent in agents]
            if any(cell.ours for cell in cells):
                rows.append(ResultRow((task, shift), tuple(cells)))
    caption = "Episodes in 100 that ended with the task solved: mean and deviation over seeds."
    return ResultTable("success", caption, ("task", "shift"), tuple(map(title_of, agents)), tuple(rows))


def _success(runs: list[Run], task: str, shift: str, agent: str) -> Cell:
    samples = _samples(runs, task, shift, agent)
    rates = [sample.evaluation.success_rate for sample in samples if sample.evaluation]
    percent = [100 * rate for rate in rates if rate is not None]
    return Cell(task, shift, agent, title_of(agent), "success", ours=_summary(percent), samples=samples)


def variant_of(run: Run) -> str:
    """The agent, with action repeat and rho if they differ from the paper's for the task."""
    repeat = f", action repeat {run.action_repeat}" if run.action_repeat != find_task(run.task).action_repeat else ""
    rho = "" if run.rho is None or run.rho == own_rho(run.task) else f", ρ = {run.rho:g}"
    return title_of(run.agent) + repeat + rho


def _interquartile_means(runs: list[Run]) -> ResultTable:
    runs = comparable(runs)
    shifts, agents = shifts_of(runs), agents_of(runs)
    rows = []
    for agent in agents:
        cells = []
        for shift in shifts:
            of_task = {task: _samples(runs, task, shift, agent) for task in tasks_of(runs)}
            scores = {task: _means(samples) for task, samples in of_task.items() if samples}
            ours = _value(bootstrap_interval(scores), _several_runs(scores)) if scores else None
            samples = tuple(sample for part in of_task.values() for sample in part)
            cells.append(Cell(ALL, shift, agent, shift, "interquartile mean", ours, samples=samples))
        rows.append(ResultRow((title_of(agent),), tuple(cells)))
    caption = (
        "Mean of the middle half of all runs of all tasks, with the 95 % interval of a bootstrap stratified by task."
    )
    return ResultTable("interquartile_mean", caption, ("agent",), shifts, tuple(rows))


def _improvements(runs: list[Run]) -> ResultTable:
    """Every pair of agents in every shift; the agents ranked by their mean over the others."""
    agents = agents_of(runs)
    rows = []
    for shift in shifts_of(runs):
        found = {agent: _improvement_cells(runs, agent, agents, shift) for agent in agents}
        means = {agent: cells[0].ours.mean for agent, cells in found.items() if cells[0].ours}
        for agent in sorted(means, key=lambda agent: -means[agent]):
            place = 1 + sum(other > means[agent] for other in means.values())
            rows.append(ResultRow((shift, str(place), title_of(agent)), tuple(found[agent])))
    caption = (
        "Probability that a run of the agent scores higher than a run of the agent in the column, mean over the tasks "
        "that both have, with the 95 % interval of a bootstrap stratified by task. Agents are ranked by the mean over "
        "all others; below 0.5, the other agent is better."
    )
    columns = (OTHERS, *map(title_of, agents))
    return ResultTable("improvement", caption, ("shift", "rank", "agent"), columns, tuple(rows))


def _improvement_cells(runs: list[Run], agent: str, agents: list[str], shift: str) -> list[Cell]:
    """The mean over the others, then each agent."""
    cells = [_improvement(runs, agent, other, shift) for other in agents]
    against = [cell for cell in cells if cell.ours]
    mean = Value(summarize([cell.ours.mean for cell in against if cell.ours]).mean) if against else None
    own = {sample.run.path: sample for cell in against for sample in cell.samples if sample.run.agent == agent}
    return [Cell(ALL, shift, agent, OTHERS, "improvement", mean, samples=tuple(own.values()), digits=2), *cells]


def _improvement(runs: list[Run], agent: str, other: str, shift: str) -> Cell:
    of_agents: list[dict[str, list[float]]] = [{}, {}]
    samples: list[Sample] = []
    for task in tasks_of(runs) if agent != other else ():
        both = [_samples(runs, task, shift, name) for name in (agent, other)]
        if all(both):
            for scores, found in zip(of_agents, both, strict=True):
                scores[task] = _means(found)
                samples += found
    ours = None
    if samples:
        ours = _value(improvement_probability(*of_agents), any(map(_several_runs, of_agents)))
    return Cell(ALL, shift, agent, other, "improvement", ours, samples=tuple(samples), digits=2)


class Order(NamedTuple):
    """Agents with a score of ours and of the paper in one task and shift, best first by ours."""

    task: str
    shift: str
    agents: tuple[str, ...]
    ours: tuple[float, ...]
    papers: tuple[Score, ...]

    def verdict(self) -> str:
        """Whether this is the paper's order, or differs only where the paper's deviation exceeds the difference."""
        reversed_ = [(a, b) for i, a in enumerate(self.papers) for b in self.papers[i + 1 :] if b.mean > a.mean]
        if not reversed_:
            return "yes"
        close = all(b.mean - a.mean <= max(a.std or 0, b.std or 0) for a, b in reversed_)
        return "within the paper's deviation" if close else "no"

    def ours_text(self) -> str:
        return self._text(self.ours)

    def paper_text(self) -> str:
        return self._text([score.mean for score in self.papers])

    def _text(self, scores: Sequence[float]) -> str:
        named = sorted(zip(scores, self.agents, strict=True), key=lambda pair: -pair[0])
        texts = [f"{title_of(agent)} {_number(value, _digits(self.task))}" for value, agent in named]
        signs = [" > " if before[0] > after[0] else " = " for before, after in pairwise(named)]
        return "".join(text + sign for text, sign in zip(texts, [*signs, ""], strict=True))


def orders(runs: Iterable[Run]) -> list[Order]:
    """How the agents of each shift and task compare, where at least two have scores of ours and of the paper."""
    table = headline(runs)
    known: dict[tuple[str, str], list[tuple[float, Score, str]]] = {}
    for cell in table.cells if table else ():
        if cell.ours and cell.paper:
            known.setdefault((cell.shift, cell.task), []).append((cell.ours.mean, cell.paper, cell.agent))
    found = []
    for (shift, task), scores in sorted(known.items(), key=lambda item: shift_order(item[0][0])):
        if len(scores) > 1:
            ours, papers, agents = zip(*sorted(scores, key=lambda score: -score[0]), strict=True)
            found.append(Order(task, shift, agents, ours, papers))
    return found


def _gaps(runs: list[Run]) -> ResultTable:
    runs = comparable(runs)
    training = {find_task(task).shifts[0] for task in tasks_of(runs)}
    shifts = tuple(shift for shift in shifts_of(runs) if shift not in training)
    rows = [
        ResultRow((title_of(agent),), tuple(cell for shift in shifts for cell in _gap(runs, agent, shift)))
        for agent in agents_of(runs)
    ]
    columns = tuple(title for shift in shifts for title in (shift, f"{shift}, % of train"))
    caption = (
        "Generalization gap: training score minus shifted score of the same runs, mean over tasks, "
        "with 95 % bootstrap intervals; then as a percentage of the training score."
    )
    return ResultTable("gap", caption, ("agent",), columns, tuple(rows))


def _gap(runs: list[Run], agent: str, shift: str) -> list[Cell]:
    """Absolute and relative, over the runs with a score in both scenes."""
    both: list[tuple[Sample, Sample]] = []
    for task in tasks_of(runs):
        train = {sample.run.path: sample for sample in _samples(runs, task, find_task(task).shifts[0], agent)}
        shifted = {sample.run.path: sample for sample in _samples(runs, task, shift, agent)}
        both += [(train[path], shifted[path]) for path in train if path in shifted]
    before: dict[str, dict[Hashable, float]] = {}
    after: dict[str, dict[Hashable, float]] = {}
    for pair in both:
        for part, sample in zip((before, after), pair, strict=True):
            part.setdefault(sample.run.task, {})[sample.run.seed] = _means([sample])[0]
    gap = generalization_gap(before, after) if both else None
    samples = tuple(sample for pair in both for sample in pair)
    relative = gap and gap.relative
    several = _several_runs(before)
    values = (_value(gap.absolute, several) if gap else None, _value(relative, several, 100) if relative else None)
    return [
        Cell(ALL, shift, agent, shift, quantity, value, samples=samples)
        for quantity, value in zip(("gap", "relative gap"), values, strict=True)
    ]


def _value(interval: Interval, several: bool, scale: float = 1) -> Value:
    """With its interval, if there was anything to resample."""
    if not several:
        return Value(scale * interval.value)
    return Value(scale * interval.value, low=scale * interval.low, high=scale * interval.high)


def _several_runs(scores: Mapping[str, Sized]) -> bool:
    """Whether a task has more than one run."""
    return any(len(runs) > 1 for runs in scores.values())


def comparable(runs: Iterable[Run]) -> list[Run]:
    """The runs of tasks whose returns have the same known range, that of most tasks: they can be averaged."""
    runs = list(runs)
    bounds = {task: returns_of(task) for task in tasks_of(runs)}
    known = Counter(found for found in bounds.values() if found is not None)
    common = known.most_common(1)[0][0] if known else None
    return [run for run in runs if common is not None and bounds[run.task] == common]


def returns_of(task: str) -> tuple[float, float] | None:
    """Lowest and highest return of a task, None where they are not known."""
    return find_task(task).defaults.returns


def agents_of(runs: Iterable[Run], also: Iterable[str] = ()) -> list[str]:
    """Those of the paper in its order, then others."""
    there = {run.agent for run in runs} | set(also)
    return [*(agent for agent in paper.TITLES if agent in there), *sorted(there - paper.TITLES.keys())]


def tasks_of(runs: Iterable[Run]) -> list[str]:
    return list(dict.fromkeys(run.task for run in runs))


def shifts_of(runs: Iterable[Run]) -> tuple[str, ...]:
    there = {evaluation.shift for run in runs for evaluation in run.evaluations}
    return tuple(sorted(there, key=shift_order))


def shift_order(shift: str) -> tuple[int, str]:
    """The known ones in their order, then others."""
    known = all_shifts()
    return (known.index(shift) if shift in known else len(known), shift)


def title_of(agent: str) -> str:
    return paper.TITLES.get(agent, agent)


def _digits(task: str) -> int:
    return int(task in paper.ROBOT_TASKS)


def _evaluated(cells: Iterable[Cell]) -> Iterator[tuple[Path, str]]:
    return ((s.run.path, s.evaluation.shift) for cell in cells for s in cell.samples if s.evaluation)


# ---------------------------------------------------------------- footnotes


def with_footnotes(table: ResultTable) -> ResultTable:
    """Number the footnotes of the cells, in the order of their first appearance."""
    said: dict[str, set[int | str]] = {}
    numbers: dict[str, int] = {}
    rows = []
    for row in table.rows:
        cells = []
        for cell in row.cells:
            mine = list(_notes(table, cell)) if cell.ours else []
            for head, value in mine:
                numbers.setdefault(head, len(numbers) + 1)
                said.setdefault(head, set()).update([value] if value else [])
            cells.append(replace(cell, notes=tuple(sorted({numbers[head] for head, _ in mine}))))
        rows.append(replace(row, cells=tuple(cells)))
    return replace(table, rows=tuple(rows), footnotes=tuple(_footnote(head, said[head]) for head in numbers))


def _footnote(head: str, values: set[int | str]) -> str:
    numbers = sorted(value for value in values if isinstance(value, int))
    texts = [f"{value:,}" for value in numbers] + sorted(value for value in values if isinstance(value, str))
    return f"{head}: {', '.join(texts)}." if texts else f"{head}."


def _notes(table: ResultTable, cell: Cell) -> Iterator[tuple[str, int | str | None]]:
    """Remarks about our numbers: the kind of remark and its value, collected over the table."""
    for sample in cell.samples:
        paper_steps = paper.ROBOT_STEPS if sample.run.task in paper.ROBOT_TASKS else paper.STEPS
        if sample.step is None:
            yield "Training steps unknown", sample.run.agent
        elif sample.step < paper_steps:
            yield f"Fewer steps than the paper's {paper_steps:,}", sample.step
    if cell.quantity not in ("hours", "steps", "saliency") and cell.seeds < paper.RUNS:
        yield f"Fewer seeds than the paper's {paper.RUNS}", None
    if cell.quantity == "improvement" and cell.seeds == 1:
        yield "A task with one run of an agent: 0 or 1 states which run scored higher, not how likely that is", None
    for evaluation in cell.evaluations:
        if evaluation.backgrounds == "generated":
            yield "Generated backgrounds or colours: not the benchmark", None
        elif (clips := _CLIPS.search(evaluation.backgrounds)) and clips[1] != clips[2]:
            yield "Not all of the benchmark's clips", clips[0]
        if evaluation.weights != PRECISIONS[0]:
            yield "Weights rounded for sharing", evaluation.weights
        if evaluation.renderer != "gl":
            yield "Images by another renderer than gl, the benchmark's own", evaluation.renderer
    for run in cell.runs:
        if run.foreign:
            yield "Not trained by sgqn, settings unknown", run.agent
        for name in run.other_settings:
            yield "Other settings than the paper's", name
    if _fewer_tasks(table, cell):
        yield "Over fewer tasks than another agent in this column: not to be compared", None
    if table.name == "action_repeat" and paper.ACTION_REPEAT.get(cell.task) == paper.table(table.name).action_repeat:
        yield f'The task repeats actions 4 times anyway: the same runs as in "{TITLES["video"]}", as in the paper', None
    for remark in paper.remarks(table.name):
        of_margin = remark.column == "sgqn" and remark.quantity in ("difference", "percent")
        column = MARGIN if of_margin and MARGIN in table.columns else remark.column
        if (remark.task, remark.shift, column) == (cell.task, cell.shift, cell.column):
            yield _remark(remark), None


def _fewer_tasks(table: ResultTable, cell: Cell) -> bool:
    """Whether a number over all tasks lacks a task that another number in its column has."""
    if cell.task != ALL or not cell.evaluations:
        return False
    beside = [c for c in table.cells if (c.shift, c.column, c.quantity) == (cell.shift, cell.column, cell.quantity)]
    return set(cell.tasks) != {task for other in beside for task in other.tasks}


def _remark(remark: paper.Remark) -> str:
    unit = " %" if remark.quantity == "percent" else ""
    where = "its other tables give" if remark.quantity == "score" else "its cells give"
    printed = "nothing" if remark.printed is None else f"{remark.printed:g}{unit}"
    return f"The paper prints {printed}, {where} {remark.gives:g}{unit}"


# ---------------------------------------------------------------- text


def to_markdown(table: ResultTable) -> str:
    """Heading, caption, table and footnotes. A cell reads ours, the paper's, the difference, below each other."""
    lines = [f"### {in_markdown(table.title)}", "", in_markdown(table.caption), ""]
    head = [in_markdown(text) for text in (*table.headers, *table.columns)]
    lines += [_line(head), _line(["---"] * len(table.headers) + ["---:"] * len(table.columns))]
    for row in table.rows:
        cells = [_cell_text(cell, table.common_notes) for cell in row.cells]
        lines.append(_line([*map(in_markdown, row.labels), *cells]))
    lines += [""] if table.footnotes else []
    for number, text in enumerate(table.footnotes, 1):
        lines.append(f"{number}. {in_markdown(text)}" + f" {OF_ALL}" * (number in table.common_notes))
    return "\n".join(lines) + "\n"


def _line(texts: Iterable[str]) -> str:
    return f"| {' | '.join(texts)} |"


def _cell_text(cell: Cell, common: Sequence[int]) -> str:
    notes = [str(number) for number in cell.notes if number not in common]
    marks = f" <sup>{','.join(notes)}</sup>" if notes else ""
    parts = [cell.ours_text() + marks]
    if printed := cell.paper_text():
        parts.append(f"paper {printed}")
    if difference := cell.difference_text():
        parts.append(f"difference {difference}")
    return "<br>".join(parts)


def to_csv(table: ResultTable) -> str:
    """A header and one row for each cell, the same columns for every table; numbers in full, empty where none is."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for given in table.cells:
        cell = given if given.ours else replace(given, samples=())  # runs that gave no number
        ours, printed = cell.ours or Value(math.nan), cell.paper or Score(math.nan)
        numbers = (ours.mean, ours.std, ours.error, ours.low, ours.high)
        writer.writerow(
            [
                *(table.name, cell.task, cell.shift, cell.agent, cell.column, cell.quantity),
                *map(_full, numbers),
                *(cell.seeds, len(cell.runs)),
                *map(_full, (printed.mean, printed.std, cell.difference)),
                *(_several(e.renderer for e in cell.evaluations), _several(e.backgrounds for e in cell.evaluations)),
                *(_several(cell.steps), _several(sorted({e.episodes for e in cell.evaluations}))),
            ]
        )
    return file.getvalue()


def _full(number: float | None) -> str:
    return "" if number is None or math.isnan(number) else repr(float(number))


def _several(values: Iterable[object]) -> str:
    return "; ".join(dict.fromkeys(map(str, values)))


def _number(value: float, digits: int, signed: bool = False) -> str:
    rounded = round(value, digits) + 0.0  # no "-0"
    return f"{rounded:{'+' if signed else ''},.{digits}f}"


def _percent(value: float | None, signed: bool) -> str:
    return "" if value is None else f", {_number(value, 0, signed)} %"


def _count(things: Sequence[object], name: str) -> str:
    return f"{len(things)} {name}{'s' * (len(things) != 1)}"
