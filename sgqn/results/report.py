"""`sgqn report`: one page about any set of runs, as HTML, as Markdown, and its tables as CSV."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import sgqn
from sgqn.envs.families import all_shifts, find_task
from sgqn.errors import InvalidValueError, SgqnError, UnknownNameError
from sgqn.files import write_atomically
from sgqn.inspect.look import PERCENTILE
from sgqn.results import gallery, html_page, looking, markdown_page, paper
from sgqn.results.curves import learning_charts, profile_charts, score_charts
from sgqn.results.document import (
    Bullets,
    Definitions,
    Document,
    Figure,
    Fold,
    Grid,
    Paragraph,
    Part,
    Scores,
    Section,
    Sheet,
    distinct_slugs,
)
from sgqn.results.gallery import OnShare
from sgqn.results.runs import Found, Run, find_runs
from sgqn.results.tables import (
    UNKNOWN,
    ResultTable,
    agents_of,
    headlines,
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
BEYOND = ("interquartile_mean", "improvement", "gap")
"""Tables without a counterpart in the paper."""
MANY, SEVERAL, FEW = 24, 12, 6
"""Rows of the scores' chart or of saliency, rows of the ranking, orders of the agents or galleries: more are folded."""
OWN = ("Not in the paper", "Success rates")
"""Optional tables, which appear only if there are runs for them."""

_OURS = re.compile(r"(?:(?:images|pictures|tables)/[a-z0-9_-]+\.(?:png|svg|csv))|index\.html|report\.md")
"""Names of a report's files; no other file is ever removed."""

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
    images: bool = True,
    saliency: bool = False,
    seed: int = 0,
    renderer: str = "auto",
    device: str = "cpu",
    on_part: OnPart | None = None,
) -> Made:
    """Read the runs, and write the report about them into the folder `out`.

    `images`: include galleries, which need weights, in `shifts`; by default the training scene and the hardest
    evaluated shift. `saliency`: measure it first where it is not recorded.
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
    sheets: list[Sheet] = []
    for task, say in _told(tasks_of(found.runs) if images else (), "images", on_part):
        of_task = [run for run in found.runs if run.task == task]
        shown = shifts or _two_shifts(of_task)
        sheets += gallery.sheets(gallery.choose(of_task), shown, warnings, seed, renderer, device, say)
    warnings = list(dict.fromkeys([*found.warnings, *warnings]))
    document = build(Found(found.runs, warnings), sheets, paths)
    write(out, document)
    return Made(out / PAGE, len(found.runs), warnings)


def _told(things: Sequence[T], what: str, on_part: OnPart | None) -> Iterator[tuple[T, OnShare]]:
    """Each item with a function to report its progress; all items share one progress bar."""
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
    if run.foreign:
        return
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


def build(found: Found, sheets: Sequence[Sheet] = (), paths: Sequence[str | Path] = ()) -> Document:
    """The report about the runs that were found in `paths`."""
    runs = found.runs
    made = {table.name: table for table in tables(runs)}
    short = _shortener(runs, paths)
    sections = [
        Section("summary", "Summary", tuple(_summary(runs, made, [short(text) for text in found.warnings], short))),
        Section("paper", "Comparison with the paper", tuple(_comparison(runs, made))),
        Section("statistics", "Over all tasks", tuple(_statistics(runs, made))),
        Section("curves", "Learning curves", tuple(_curves(runs))),
        Section("saliency", "What the agents look at", tuple(_saliency(runs, sheets))),
    ]
    counts = (
        _count(len(runs), "run"),
        _count(len(tasks_of(runs)), "task"),
        _count(len(agents_of(runs)), "agent"),
        f"up to {max((step for step in map(_steps, runs) if step is not None), default=0):,} agent steps",
    )
    return Document("sgqn report", " · ".join(counts), tuple(sections))


def _shortener(runs: Sequence[Run], paths: Sequence[str | Path]) -> Callable[[str], str]:
    """Makes absolute paths in a text relative to the folder that contains all runs."""
    folders = {Path(path).absolute() for path in (*paths, *map(_home, runs))}
    common = Path(os.path.commonpath(folders))
    roots = [common] if common.name else sorted(folders, key=lambda path: -len(str(path)))

    def short(text: str) -> str:
        for root in roots:
            text = text.replace(str(root), root.name)
        return text

    return short


def _home(run: Run) -> Path:
    """The folder above task, agent and seed; where a run lies elsewhere, the one above it."""
    usual = run.path.parts[-3:] == (run.task, run.agent, str(run.seed))
    return run.path.parents[2] if usual else run.path.parent


def _summary(
    runs: list[Run], made: dict[str, ResultTable], warnings: list[str], short: Callable[[str], str]
) -> Iterator[Part]:
    if warnings:
        yield Bullets(tuple(warnings), warning=True)
    yield _runs_matrix(runs)
    listed = _runs_grid(runs, short)
    yield Fold("All runs", "seeds, steps, evaluated shifts, machine, folder", (listed,))
    found = headlines(runs)
    if not found:
        yield Paragraph(
            'No run with the paper\'s settings has been evaluated yet: "sgqn evaluate RUN" adds what the tables need.'
        )
    else:
        yield from map(_scores, found)
        charts = [chart for table in found for chart in score_charts(table)]
        if charts:
            caption = "Mean return, with whiskers of one standard deviation over seeds where there are several."
            figure = Figure("scores", "Scores next to the paper's", caption, tuple(charts))
            few = max(len(chart.rows) for chart in charts) <= MANY
            yield figure if few else Fold(figure.title, _count(len(charts), "chart"), (figure,))
    for name in ("improvement", "interquartile_mean"):
        if name in made:
            yield _folded(made[name], SEVERAL)
    yield Fold("Differences from the paper", "steps, seeds, data, renderer, settings, machine", (_differences(runs),))


def _scores(table: ResultTable) -> Scores:
    return Scores(table, to_csv(table))


def _folded(table: ResultTable, most: int) -> Part:
    """A table, behind one line if it has more than `most` rows."""
    scores = _scores(table)
    return scores if len(table.rows) <= most else Fold(table.title, _count(len(table.rows), "row"), (scores,))


def _groups(runs: list[Run]) -> dict[tuple[str, str], list[Run]]:
    """Task and agent, with unusual settings -> runs; agents in the paper's order."""
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
    return Grid(("agent", *tasks), tuple(rows), numbers=tuple(tasks), title="Runs: number of seeds × agent steps")


def _runs_grid(runs: list[Run], short: Callable[[str], str]) -> Grid:
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
                short(_where(members)),
            )
        )
    headers = ("task", "agent", "seeds", "steps", "evaluated in", "trained on", "folder")
    return Grid(headers, tuple(rows), numbers=("steps",))


def _where(runs: Sequence[Run]) -> str:
    """The run's folder, or that of several runs next to each other."""
    parents = {run.path.parent for run in runs}
    if len(runs) > 1 and len(parents) == 1:
        return str(parents.pop())
    return ", ".join(str(run.path) for run in runs)


def _differences(runs: list[Run]) -> Grid:
    """Notes to read before comparing."""
    evaluations = [found for run in runs if run.evaluations for found in map(run.evaluation, shifts_of([run])) if found]
    seeds = [len({run.seed for run in members}) for members in _groups(runs).values()]
    backgrounds = _together(found.backgrounds for found in evaluations if found.backgrounds != "none")
    rows = [
        ("agent steps", f"{paper.STEPS:,} (robots {paper.ROBOT_STEPS:,})", _range(map(_steps, runs))),
        ("seeds of a task and agent", str(paper.RUNS), _range(seeds)),
        ("episodes of an evaluation", "not stated", _range(found.episodes for found in evaluations)),
        ("backgrounds and colours", "the benchmark's", backgrounds),
        ("overlay images", "Places365", _together(run.overlay_images for run in runs)),
        ("renderer of the evaluations", "gl (OpenGL)", _together(found.renderer for found in evaluations)),
        ("other settings", "its table of hyperparameters", "; ".join(_other_settings(runs)) or "the same"),
        ("machine", paper.HARDWARE, _together(run.machine.get("device", "") for run in runs)),
        ("versions", "–", "; ".join(_versions(runs)) or "not recorded"),
    ]
    return Grid(("", "the paper", "these runs"), tuple(rows))


def _other_settings(runs: Iterable[Run]) -> Iterator[str]:
    """Each setting that differs, with our values and the paper's."""
    found: dict[str, tuple[dict[str, None], dict[str, None]]] = {}
    unknown: dict[str, None] = {}
    for run in runs:
        if run.foreign:
            unknown[run.agent] = None
        for name, (value, papers_value) in run.other_settings.items():
            ours, papers = found.setdefault(name, ({}, {}))
            ours[_setting(value)] = None
            papers[_setting(papers_value)] = None
    for name, (ours, papers) in found.items():
        yield f"{name} {' or '.join(ours)} (paper {' or '.join(papers)})"
    if unknown:
        yield f"{UNKNOWN} for {', '.join(unknown)}"


def _setting(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _versions(runs: Iterable[Run]) -> Iterator[str]:
    found: dict[str, dict[str, None]] = {}
    for run in runs:
        for package, version in run.versions.items():
            found.setdefault(package, {})[version] = None
    for package, numbers in found.items():
        yield f"{package} {' or '.join(numbers)}"


def _comparison(runs: list[Run], made: dict[str, ResultTable]) -> Iterator[Part]:
    """The first table is open, the others are a line each."""
    found = [table for name, table in made.items() if name not in BEYOND]
    for number, table in enumerate(found):
        parts = [_scores(table), *_remarks(table)]
        if number == 0:
            yield from parts
        else:
            yield Fold(table.title, _filled(table), tuple(parts))
    missing = [title for title in left_out(made.values()) if title not in OWN]
    yield from (Fold(title, "no evaluated run", ()) for title in missing)


def _remarks(table: ResultTable) -> Iterator[Part]:
    if notes := paper.NOTES.get(table.name):
        yield Bullets(tuple(f"About the paper: {note}" for note in notes))


def _filled(table: ResultTable) -> str:
    """How much of the paper's table the runs cover."""
    printed = [cell for cell in table.cells if cell.paper]
    ours = sum(cell.ours is not None for cell in printed or table.cells)
    return f"{ours} of {len(printed)} numbers" if printed else _count(ours, "number")


def _statistics(runs: list[Run], made: dict[str, ResultTable]) -> Iterator[Part]:
    yield from _orders(runs)
    if "interquartile_mean" not in made:
        yield Paragraph("No run with the paper's settings has been evaluated yet.")
        return
    caption = (
        "The share of runs that score above τ, every task weighing the same, with 95 % bootstrap bands where a task "
        "has several runs: higher is better, and a curve that crosses another is better for some runs only."
    )
    yield Figure("profiles", "Performance profiles", caption, tuple(profile_charts(runs)))
    if "gap" in made:
        yield _scores(made["gap"])


def _orders(runs: list[Run]) -> Iterator[Part]:
    """The agents of each task, best first, in these runs and in the paper."""
    found = orders(runs)
    rows = [(order.shift, order.task, order.ours_text(), order.paper_text(), order.verdict()) for order in found]
    title = "Order of the agents"
    grid = Grid(("shift", "task", "these runs", "the paper", "same order"), tuple(rows), title=title)
    if len(rows) > FEW:
        same = sum(order.verdict() != "no" for order in found)
        yield Fold(title, f"{same} of {len(rows)} as in the paper, within its deviation", (grid,))
    elif rows:
        yield grid


def _curves(runs: list[Run]) -> Iterator[Part]:
    groups = learning_charts(runs)
    single = [charts for charts in groups if len(charts) == 1]  # a task whose returns have a range of their own
    if len(single) > 1:
        groups = [*(charts for charts in groups if len(charts) > 1), [chart for charts in single for chart in charts]]
    for name, charts in zip(distinct_slugs(["curves"] * len(groups)), groups, strict=True):
        caption = "Mean return over seeds; bands are one standard deviation."
        if any(chart.marks for chart in charts):
            caption += " Triangles at the right edge are the paper's final scores."
        of_task = max(Counter(chart.title.rsplit(", ", 1)[0] for chart in charts).values())
        yield Figure(name, "", caption, tuple(charts), across=of_task if 1 < of_task <= 4 else 0)
    if not groups:
        yield Paragraph("No run has logged two points of a curve yet.")


def _saliency(runs: list[Run], sheets: Sequence[Sheet]) -> Iterator[Part]:
    if sheets:
        yield Paragraph(
            "The newest frame of the observation; the attribution of the value of the action that the agent would "
            f"take, the brightest colour at the {PERCENTILE}th percentile; the mask of the pixels at or above the "
            "quantile ρ; and the mask that the decoder predicts. All agents of a task see the same time steps of one "
            "episode."
        )
        training = [sheet for sheet in sheets if sheet.training and len(sheets) > FEW]
        yield from (sheet for sheet in sheets if sheet not in training)
        if training:
            yield Fold("In the training scene", _count(len(training), "gallery", "galleries"), tuple(training))
    table = looking.saliency_table(runs)
    if table is None:
        yield Paragraph(
            'No saliency has been measured: "sgqn saliency RUN" does, and "sgqn report" with --saliency for all runs.'
        )
        return
    yield _folded(table, MANY)
    definitions = Definitions(tuple(looking.DEFINITIONS.items()))
    yield Fold("Measures", "what each column of the table means", (definitions,))
    caption = (
        "The remaining value as pixels are removed, 1 for the whole image and 0 for the filled one, and how much "
        "it has changed. Values outside of the axes are cut off."
    )
    drawn = looking.saliency_charts(runs)
    if drawn:
        names = distinct_slugs(f"deletion-{title}" for title in drawn)
        figures = [
            Figure(name, title, caption if number == 0 else "", tuple(charts))
            for number, (name, (title, charts)) in enumerate(zip(names, drawn.items(), strict=True))
        ]
        note = f"charts of {_count(len(drawn), 'measurement')}"
        yield Fold("Deletion and insertion curves", note, tuple(figures), printed=False)


def _steps(run: Run) -> int | None:
    """How far the run has come, by its log or its evaluations; None if that is not known."""
    known = [*[run.steps] * (not run.foreign), *(found.step for found in run.evaluations if found.step is not None)]
    return max(known, default=None)


def _range(numbers: Iterable[int | None]) -> str:
    there = set(numbers)
    found = sorted(number for number in there if number is not None)
    unknown = [UNKNOWN] * (None in there)
    ends = [f"{found[0]:,}" if len(found) == 1 else f"{found[0]:,} to {found[-1]:,}"] if found else []
    return ", ".join([*ends, *unknown]) or "–"


def _together(texts: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(text or "not recorded" for text in texts)) or "–"


def _count(number: int, name: str, plural: str = "") -> str:
    return f"{number} {name if number == 1 else plural or name + 's'}"


# ---------------------------------------------------------------- files


def check_out(out: Path) -> None:
    """Check that the folder is new, empty, or has an earlier report."""
    if out.exists() and not out.is_dir():
        raise InvalidValueError(f"cannot write a report to {str(out)!r}: it is a file")
    if out.is_dir() and any(out.iterdir()) and _earlier(out) is None:
        raise InvalidValueError(
            f"cannot write a report to {str(out)!r}: the folder is not empty and holds no earlier report; "
            "choose another --out"
        )


def _earlier(out: Path) -> list[str] | None:
    """The files of an existing report; None if there is none."""
    try:
        marker = json.loads((out / MARKER).read_text())
        if marker["made_by"] == MADE_BY:
            return [name for name in marker["files"] if isinstance(name, str) and _OURS.fullmatch(name)]
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return None


def write(out: Path, document: Document) -> None:
    """Replace every file atomically, then remove obsolete files of an earlier report."""
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
