"""`sgqn report`: one page about any set of runs, as HTML, as Markdown, and its tables as CSV."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import sgqn
from sgqn.config import TrainConfig, preset
from sgqn.envs.families import all_shifts, find_task
from sgqn.errors import InvalidValueError, SgqnError, UnknownNameError
from sgqn.files import write_atomically
from sgqn.inspect.look import PERCENTILE
from sgqn.results import gallery, html_page, looking, markdown_page, paper
from sgqn.results.curves import profile_charts, score_charts, shift_charts, training_chart
from sgqn.results.document import (
    Bullets,
    Definitions,
    Document,
    Figure,
    Grid,
    Paragraph,
    Part,
    Picture,
    Scores,
    Section,
    distinct_slugs,
    slug,
)
from sgqn.results.gallery import OnShare
from sgqn.results.runs import Found, Run, find_runs
from sgqn.results.tables import (
    ResultTable,
    agents_of,
    headline,
    left_out,
    orders,
    shifts_of,
    tables,
    tasks_of,
    to_csv,
    variant_of,
)

T = TypeVar("T")

PAGE, MARKDOWN, MARKER = "index.html", "report.md", "report.json"
MADE_BY = "sgqn report"
FEW = 12
"""Tasks and agents that the summary lists one by one; of more it has an overview."""
BEYOND = ("interquartile_mean", "improvement", "gap")
"""Tables that the paper has no counterpart of."""

_OURS = re.compile(r"(?:(?:pictures|tables)/[a-z0-9_-]+\.(?:png|svg|csv))|index\.html|report\.md")
"""What a report's files are called: nothing else is ever removed."""

OnPart = Callable[[str, int, int], None]
"""on_part(what, done, total)"""


class Made(NamedTuple):
    page: Path
    runs: int
    warnings: list[str]


def report(
    paths: Sequence[str | Path],
    out: str | Path,
    shifts: Sequence[str] = (),
    *,
    pictures: bool = True,
    saliency: bool = False,
    seed: int = 0,
    renderer: str = "auto",
    device: str = "cpu",
    on_part: OnPart | None = None,
) -> Made:
    """Read the runs, and write the report about them into the folder `out`.

    `pictures`: galleries of what the agents look at, which need weights, in `shifts`; by default the training scene
    and the hardest shift that was evaluated. `saliency`: measure it first where it is not recorded.
    """
    out = Path(out)
    check_out(out)
    for shift in shifts:
        if shift not in all_shifts():
            raise UnknownNameError("shift", shift, all_shifts())
    found = find_runs(paths)
    warnings: list[str] = []
    if saliency:
        for run, say in _told(found.runs, "saliency", on_part):
            _measure(run, shifts or _two_shifts([run]), seed, renderer, device, warnings, say)
        found = find_runs(paths)
    sheets: list[Picture] = []
    for task, say in _told(tasks_of(found.runs) if pictures else (), "pictures", on_part):
        of_task = [run for run in found.runs if run.task == task]
        shown = shifts or _two_shifts(of_task)
        sheets += gallery.sheets(gallery.choose(of_task), shown, warnings, seed, renderer, device, say)
    warnings = list(dict.fromkeys([*found.warnings, *warnings]))
    document = build(Found(found.runs, warnings), sheets)
    write(out, document)
    return Made(out / PAGE, len(found.runs), warnings)


def _told(things: Sequence[T], what: str, on_part: OnPart | None) -> Iterator[tuple[T, OnShare]]:
    """Each thing with a way to say how far the work on it is; all together make one bar."""
    for number, thing in enumerate(things):

        def say(share: float, number: int = number) -> None:
            if on_part is not None:
                on_part(what, round(100 * (number + share)), 100 * len(things))

        yield thing, say
        say(1.0)


def _measure(
    run: Run,
    shifts: Sequence[str],
    seed: int,
    renderer: str,
    device: str,
    warnings: list[str],
    say: OnShare,
) -> None:
    if run.checkpoint is None:
        warnings.append(f"saliency not measured: {run.path} has no checkpoint")
        return
    try:
        wanted = looking.missing(run, shifts)
    except SgqnError as error:
        warnings.append(f"saliency of {run.path} not measured: {error}")
        return
    for number, shift in enumerate(wanted):

        def on_step(_: str, done: int, total: int, number: int = number) -> None:
            say((number + done / total) / len(wanted))

        options: dict[str, Any] = {"every": looking.EVERY, "on_step": on_step}
        try:
            looking.record(run.path, [shift], looking.EPISODES, (), None, seed, renderer, device, **options)
        except SgqnError as error:
            warnings.append(f"saliency of {run.path} in {shift} not measured: {error}")


def _two_shifts(runs: Sequence[Run]) -> tuple[str, ...]:
    """The training scene, and the hardest shift that was evaluated."""
    tasks = [find_task(task) for task in tasks_of(runs)]
    training = list(dict.fromkeys(task.shifts[0] for task in tasks))
    known = {shift for task in tasks for shift in task.shifts}
    evaluated = [shift for shift in shifts_of(runs) if shift not in training and shift in known]
    return (*training, evaluated[-1] if evaluated else tasks[0].shifts[-1])


# ---------------------------------------------------------------- the document


def build(found: Found, sheets: Sequence[Picture] = ()) -> Document:
    """All that there is to say about the runs."""
    runs = found.runs
    made = tables(runs)
    sections = [
        Section("summary", "Summary", tuple(_summary(runs, found.warnings))),
        Section("paper", "Beside the paper", tuple(_beside_the_paper(made))),
        Section("statistics", "Over all tasks", tuple(_statistics(runs, made))),
        Section("curves", "Learning curves", tuple(_curves(runs))),
        Section("saliency", "Where the agents look", tuple(_saliency(runs, sheets))),
    ]
    if len(_groups(runs)) > FEW:
        sections.append(Section("runs", "Runs", (_runs_grid(runs),)))
    counts = (
        _count(len(runs), "run"),
        _count(len(tasks_of(runs)), "task"),
        _count(len(agents_of(runs)), "agent"),
        f"up to {max(map(_steps, runs)):,} agent steps",
    )
    return Document("sgqn report", " · ".join(counts), tuple(sections))


def _summary(runs: list[Run], warnings: list[str]) -> Iterator[Part]:
    if warnings:
        yield Bullets(tuple(warnings), warning=True)
    if len(_groups(runs)) <= FEW:
        yield _runs_grid(runs)
    else:
        where = f"Runs read from {_root(runs)}, as number of seeds × agent steps; the last section lists them all."
        yield Paragraph(where)
        yield _runs_matrix(runs)
    first = headline(runs)
    if first is None:
        yield Paragraph(
            'No run with the paper\'s settings has been evaluated yet: "sgqn evaluate RUN" adds what the tables need.'
        )
    else:
        yield Scores(first, to_csv(first))
        charts = score_charts(first)
        if charts:
            caption = "Mean return, with whiskers of one standard deviation over seeds where there are several."
            yield Figure("scores", "Scores beside the paper's", caption, tuple(charts))
    yield _differences(runs)


def _groups(runs: list[Run]) -> dict[tuple[str, str], list[Run]]:
    """Task and agent, with what of its settings stands out -> runs; agents in the paper's order."""
    groups: dict[tuple[str, str], list[Run]] = {}
    for agent in agents_of(runs):
        for run in (run for run in runs if run.agent == agent):
            groups.setdefault((run.task, variant_of(run)), []).append(run)
    return groups


def _runs_matrix(runs: list[Run]) -> Grid:
    groups, tasks = _groups(runs), tasks_of(runs)
    rows = []
    for variant in dict.fromkeys(variant for _, variant in groups):
        of_tasks = [groups.get((task, variant), []) for task in tasks]
        rows.append(
            (variant, *(f"{len(found)} × {_range(map(_steps, found))}" if found else "–" for found in of_tasks))
        )
    return Grid(("agent", *tasks), tuple(rows), numbers=tuple(tasks))


def _root(runs: Sequence[Run]) -> str:
    try:
        return os.path.commonpath([run.path for run in runs])
    except ValueError:  # some absolute, some relative
        return os.path.commonpath([run.path.resolve() for run in runs])


def _runs_grid(runs: list[Run]) -> Grid:
    rows = []
    for (task, variant), members in sorted(_groups(runs).items(), key=lambda item: item[0][0]):
        rows.append(
            (
                task,
                variant,
                ", ".join(str(run.seed) for run in members),
                _range(map(_steps, members)),
                ", ".join(shifts_of(members)) or "not evaluated",
                _together(run.machine.get("device", "") for run in members),
                _where(members),
            )
        )
    headers = ("task", "agent", "seeds", "steps", "evaluated in", "trained on", "folder")
    return Grid(headers, tuple(rows), numbers=("steps",))


def _where(runs: Sequence[Run]) -> str:
    """The run's folder, or that of several runs side by side."""
    parents = {run.path.parent for run in runs}
    if len(runs) > 1 and len(parents) == 1:
        return str(parents.pop())
    return ", ".join(str(run.path) for run in runs)


def _differences(runs: list[Run]) -> Grid:
    """What a reader must know before comparing, side by side."""
    evaluations = [found for run in runs if run.evaluations for found in map(run.evaluation, shifts_of([run])) if found]
    seeds = [len({run.seed for run in members}) for members in _groups(runs).values()]
    backgrounds = _together(found.backgrounds for found in evaluations if found.backgrounds != "none")
    rows = [
        ("agent steps", f"{paper.STEPS:,} (robots {paper.ROBOT_STEPS:,})", _range(map(_steps, runs))),
        ("seeds of a task and agent", str(paper.RUNS), _range(seeds)),
        ("episodes of an evaluation", "not stated", _range(found.episodes for found in evaluations)),
        ("backgrounds and colours", "the benchmark's", backgrounds),
        ("overlay pictures", "Places365", _together(run.machine.get("pictures", "") for run in runs)),
        ("renderer of the evaluations", "gl (OpenGL)", _together(found.renderer for found in evaluations)),
        ("other settings", "its table of hyperparameters", "; ".join(_other_settings(runs)) or "the same"),
        ("machine", paper.HARDWARE, _together(run.machine.get("device", "") for run in runs)),
        ("versions", "–", "; ".join(_versions(runs)) or "not recorded"),
    ]
    return Grid(("", "the paper", "these runs"), tuple(rows), title="What differs from the paper")


def _other_settings(runs: Iterable[Run]) -> Iterator[str]:
    """Each setting that differs, with our values and the paper's."""
    found: dict[str, tuple[dict[str, None], dict[str, None]]] = {}
    for run in runs:
        for name in run.other_settings:
            ours, papers = found.setdefault(name, ({}, {}))
            ours[_setting(run.config, name)] = None
            papers[_setting(preset("paper", run.task, run.agent), name)] = None
    for name, (ours, papers) in found.items():
        yield f"{name} {' or '.join(ours)} (paper {' or '.join(papers)})"


def _setting(config: TrainConfig, name: str) -> str:
    value = getattr(config, name) if hasattr(config, name) else getattr(config.settings, name)
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _versions(runs: Iterable[Run]) -> Iterator[str]:
    found: dict[str, dict[str, None]] = {}
    for run in runs:
        for package, version in run.versions.items():
            found.setdefault(package, {})[version] = None
    for package, numbers in found.items():
        yield f"{package} {' or '.join(numbers)}"


def _beside_the_paper(made: list[ResultTable]) -> Iterator[Part]:
    for table in made:
        if table.name not in BEYOND:
            yield Scores(table, to_csv(table))
            if notes := paper.NOTES.get(table.name):
                yield Bullets(tuple(f"On the print: {note}" for note in notes))
    if missing := [title for title in left_out(made) if title not in ("Not in the paper", "Success rates")]:
        yield Paragraph(f"No evaluated run has a number for: {', '.join(missing)}.")


def _statistics(runs: list[Run], made: list[ResultTable]) -> Iterator[Part]:
    found = {table.name: table for table in made}
    if "improvement" in found:
        yield Scores(found["improvement"], to_csv(found["improvement"]))
        yield from _orders(runs)
    if "interquartile_mean" not in found:
        yield Paragraph("No run with the paper's settings has been evaluated yet.")
        return
    yield Scores(found["interquartile_mean"], to_csv(found["interquartile_mean"]))
    caption = (
        "The share of runs that score above τ, every task weighing the same, with 95 % bootstrap bands where a task "
        "has several runs: higher is better, and a curve that crosses another is better for some runs only."
    )
    yield Figure("profiles", "Performance profiles", caption, tuple(profile_charts(runs)))
    if "gap" in found:
        yield Scores(found["gap"], to_csv(found["gap"]))


def _orders(runs: list[Run]) -> Iterator[Part]:
    """The agents of each task, best first, in these runs and in the paper."""
    rows = [(order.shift, order.task, order.ours_text(), order.paper_text(), order.verdict()) for order in orders(runs)]
    if rows:
        yield Grid(("shift", "task", "these runs", "the paper", "same order"), tuple(rows), title="Order of the agents")


def _curves(runs: list[Run]) -> Iterator[Part]:
    drawn = False
    for task in tasks_of(runs):
        of_task = [run for run in runs if run.task == task]
        charts = [*filter(None, [training_chart(of_task)]), *shift_charts(of_task)]
        if charts:
            drawn = True
            caption = (
                "Mean over seeds of the episodes played while training, then of evaluations; bands are one standard "
                "deviation over seeds."
            )
            if any(chart.marks for chart in charts):
                caption += " Triangles at the right edge are the paper's final scores."
            yield Figure(slug(f"curves-{task}"), task, caption, tuple(charts))
    if not drawn:
        yield Paragraph("No run has finished an episode or been evaluated yet.")


def _saliency(runs: list[Run], sheets: Sequence[Picture]) -> Iterator[Part]:
    table = looking.saliency_table(runs)
    if table is None:
        yield Paragraph(
            'No saliency has been measured: "sgqn saliency RUN" does, and "sgqn report" with --saliency for all runs.'
        )
    else:
        yield Scores(table, to_csv(table))
        yield Definitions(tuple(looking.DEFINITIONS.items()))
        caption = (
            "What is left of the value as pixels go, 1 for the whole picture and 0 for the filled one, and how much it "
            "has changed. What lies outside of the axes is cut off."
        )
        drawn = looking.saliency_charts(runs)
        names = distinct_slugs(f"deletion-{title}" for title in drawn)
        for name, (title, charts) in zip(names, drawn.items(), strict=True):
            yield Figure(name, f"Deletion and insertion: {title}", caption, tuple(charts))
    if sheets:
        yield Paragraph(
            "The newest frame of each agent's observation; the attribution of its value, the brightest colour at the "
            f"{PERCENTILE}th percentile; the mask of the pixels at or above the quantile ρ; and the mask that "
            "the decoder predicts.",
            title="Gallery",
        )
        yield from sheets


def _steps(run: Run) -> int:
    """How far the run has come, by its log or its evaluations."""
    return max([run.steps, *(found.step for found in run.evaluations)])


def _range(numbers: Iterable[int]) -> str:
    found = sorted(set(numbers))
    if not found:
        return "–"
    return f"{found[0]:,}" if len(found) == 1 else f"{found[0]:,} to {found[-1]:,}"


def _together(texts: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(text or "not recorded" for text in texts)) or "–"


def _count(number: int, name: str) -> str:
    return f"{number} {name}{'s' * (number != 1)}"


# ---------------------------------------------------------------- files


def check_out(out: Path) -> None:
    """A report goes into a new or empty folder, or takes the place of an earlier report."""
    if out.exists() and not out.is_dir():
        raise InvalidValueError(f"cannot write a report to {str(out)!r}: it is a file")
    if out.is_dir() and any(out.iterdir()) and _earlier(out) is None:
        raise InvalidValueError(
            f"cannot write a report to {str(out)!r}: the folder is not empty and holds no earlier report; "
            "choose another --out"
        )


def _earlier(out: Path) -> list[str] | None:
    """The files of the report that lies there; None if none does."""
    try:
        marker = json.loads((out / MARKER).read_text())
        if marker["made_by"] == MADE_BY:
            return [name for name in marker["files"] if isinstance(name, str) and _OURS.fullmatch(name)]
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return None


def write(out: Path, document: Document) -> None:
    """Every file is replaced as a whole; those of an earlier report that have no successor go at the end."""
    files = {
        **markdown_page.files_of(document),
        MARKDOWN: markdown_page.to_page(document).encode(),
        PAGE: html_page.to_page(document).encode(),
    }
    check_out(out)
    before = _earlier(out) or [] if out.is_dir() else []
    out.mkdir(parents=True, exist_ok=True)
    _mark(out, {*before, *files})
    for name, content in files.items():
        (out / name).parent.mkdir(exist_ok=True)
        write_atomically(out / name, content)
    for name in set(before) - files.keys():
        (out / name).unlink(missing_ok=True)
    _mark(out, files)


def _mark(out: Path, files: Iterable[str]) -> None:
    marker = {"made_by": MADE_BY, "version": sgqn.__version__, "files": sorted(files)}
    write_atomically(out / MARKER, json.dumps(marker, indent=1) + "\n")
