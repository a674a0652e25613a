"""Update the tables and images of the pages with results (`PAGES`).

    python docs/make_results.py            # the tables, the curves, and a sheet of observations and masks
    python docs/make_results.py --tiny     # the tables and curves only, which takes seconds

The images are those of `sgqn report results` that the pages show.
"""

from __future__ import annotations

import argparse
import csv
import math
import os
import re
import shutil
import statistics
import tempfile
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

from sgqn.envs.families import all_shifts, find_task
from sgqn.pretrained import listing, package
from sgqn.results import paper
from sgqn.results.report import report
from sgqn.results.runs import Run, RunEvaluation, find_runs, rank
from sgqn.results.tables import Cell, ResultRow, headline, orders, returns_of, title_of

DOCS = Path(__file__).resolve().parent
RESULTS = Path("results")
"""Relative to the repository, because a report names the folders of its runs."""
IMAGES = "results"
MARKS = (20_000, 50_000, 100_000, 200_000, 300_000, 400_000, 500_000)
FAILED = 0.1
"""Of the highest return: episodes below are counted."""
PACKED = "int8"
"""The precision of the agents in the package."""
LOOKED_AT = ("train", "video_hard")
SCENES = ("train", "test1", "test2", "test3")
"""The shifts of the robot tasks in the paper."""
MEASURES = {
    "base_rate": "body, share of image",
    "mask_share": "mask on body",
    "predicted_share": "M_θ on body",
    "deletion": "deletion",
    "insertion": "insertion",
}
DRIFTS = {
    "action": "action",
    "body": "body only",
    "scene": "scene only",
    "inside": "inside only",
    "outside": "outside only",
    "value": "value",
    "embedding": "embedding",
    "mask_iou": "mask IoU",
}
RESTORED = "sgqn_restored"
PUBLISHED = {
    "MaDi (its authors)": ((858, 824, 610, 769, 566), (895, 966, 807, 848, 679)),
    "SimGRL (NeurIPS 2024)": ((773, 932, 902, 727, 864), (910, 973, 964, 838, 983)),
    "TSTM (CVPR 2026, trained with the simulator's masks)": ((821, 924, 903, 741, 906), (912, 967, 969, 851, 971)),
}
"""Returns that other methods report in `video_hard` and `video_easy`, in the order of `paper.TASKS`."""
BINS = (0.0, 0.05, 0.1, 0.2, math.inf)
"""Drifts of the action whose returns are compared."""
BEGIN, END = "<!-- {}: made by docs/make_results.py -->", "<!-- end -->"


def scores(runs: list[Run]) -> str:
    """Mean returns over seeds, with the paper's in parentheses."""
    table = headline(runs)
    assert table is not None, "no run with the paper's settings has been evaluated"
    shifts = find_task(table.rows[0].cells[0].task).test_shifts
    rows = [["task", "agent", "seeds", *shifts]]
    for row in table.rows:
        cells = {cell.shift: cell for cell in row.cells}
        rows.append(
            [*row.labels, _seeds(row), *(_compared(cells[shift]) if shift in cells else "" for shift in shifts)]
        )
    return _grid(rows)


def robots(runs: list[Run]) -> str:
    """Returns and success rates, and the means of the test scenes; the paper's mean returns in parentheses."""
    training_scene, *tests = SCENES
    rows = [["task", "agent", *SCENES, "mean of the tests"]]
    ranks = list(paper.TITLES)
    for run in sorted(runs, key=lambda run: (paper.ROBOT_TASKS.index(run.task), ranks.index(run.agent))):
        found = {one.shift: one for one in run.evaluations if one.weights != PACKED}
        theirs = {shift: paper.score(run.task, run.agent, shift) for shift in SCENES}
        cells = []
        for shifts in ([training_scene], *([test] for test in tests), tests):
            mean = statistics.mean(found[shift].mean for shift in shifts)
            solved = statistics.mean(found[shift].success_rate or 0 for shift in shifts)
            papers = [score.mean for shift in shifts if (score := theirs[shift])]
            beside = f" ({statistics.mean(papers):.1f})" if len(papers) == len(shifts) else ""
            cells.append(f"{mean:.1f}{beside}, {solved:.0%}")
        rows.append([run.task, title_of(run.agent), *cells])
    return _grid(rows)


def pilots(runs: list[Run]) -> str:
    """Short runs of other settings on robot-reach, which are not kept as runs."""
    del runs
    rows = [["agent", "options", "seed", "steps", *SCENES, "mean of the tests", "without shadows"]]
    with open(DOCS / "notes" / "2026-11-robot-reach-pilots" / "returns.csv", newline="") as file:
        for row in csv.DictReader(file):
            cells = []
            for scenes in ([SCENES[0]], *([test] for test in SCENES[1:]), SCENES[1:], ["no_shadows"]):
                if any(row[scene] == "" for scene in scenes):
                    cells.append("")
                    continue
                mean = statistics.mean(float(row[scene]) for scene in scenes)
                solved = statistics.mean(float(row[f"{scene}_success"]) for scene in scenes)
                cells.append(f"{mean:.1f}, {solved:.0%}")
            options = f"`{row['options']}`" if row["options"] else ""
            rows.append([f"`{row['agent']}`", options, row["seed"], f"{int(row['steps']):,}", *cells])
    return _grid(rows)


def restored(runs: list[Run]) -> str:
    """Returns of SGQN and of the same agents behind their restorers, per task and on average."""
    pairs = []
    for run in runs:
        if run.agent == RESTORED:
            (source,) = (one for one in runs if (one.task, one.agent, one.seed) == (run.task, "sgqn", run.seed))
            pairs.append((source, run))
    shifts = find_task(pairs[0][0].task).test_shifts
    columns: list[list[tuple[float, float]]] = [[] for _ in shifts]
    rows = [["task", *shifts]]
    for both in pairs:
        cells = []
        for shift, column in zip(shifts, columns, strict=True):
            before, after = (_counted(run, shift, run.steps, "gl") for run in both)
            assert before is not None
            assert after is not None
            column.append((before.mean, after.mean))
            cells.append(_change(before.mean, after.mean))
        rows.append([both[0].task, *cells])
    if len(pairs) > 1:
        means = [_change(*(statistics.mean(pair[i] for pair in column) for i in (0, 1))) for column in columns]
        rows.append(["mean", *means])
    return _grid(rows)


def published(runs: list[Run]) -> str:
    """Returns in `video_hard`, and the means of both video shifts, next to those that other methods report."""
    known = {f"{title_of('sgqn')} (the paper)": tuple(_of_paper(shift) for shift in ("video_hard", "video_easy"))}
    known |= PUBLISHED
    for agent in ("sgqn", RESTORED):
        known[f"{title_of(agent)}, here"] = tuple(_kept(runs, agent, shift) for shift in ("video_hard", "video_easy"))
    rows = [["method", *paper.TASKS, "mean", "mean in `video_easy`"]]
    for name, (hard, easy) in known.items():
        rows.append([name, *(f"{value:.0f}" for value in (*hard, statistics.mean(hard), statistics.mean(easy)))])
    return _grid(rows)


def _of_paper(shift: str) -> tuple[float, ...]:
    scores = [paper.score(task, "sgqn", shift) for task in paper.TASKS]
    return tuple(score.mean for score in scores if score is not None)


def _kept(runs: list[Run], agent: str, shift: str) -> tuple[float, ...]:
    """The returns of an agent's first seed on all tasks of the paper."""
    found = {run.task: _counted(run, shift, run.steps, "gl") for run in runs if (run.agent, run.seed) == (agent, 0)}
    means = [one.mean for task in paper.TASKS if (one := found[task]) is not None]
    assert len(means) == len(paper.TASKS)
    return tuple(means)


def _change(before: float, after: float) -> str:
    return f"{before:.0f} → {after:.0f}"


def _seeds(row: ResultRow) -> str:
    counts = sorted({cell.seeds for cell in row.cells if cell.ours})
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"


def _compared(cell: Cell) -> str:
    ours = cell.value_text() if cell.ours else ""
    return f"{ours} ({cell.paper_text()})" if cell.paper else ours


def order(runs: list[Run]) -> str:
    """The order of the agents where at least two can be compared, and the paper's."""
    rows = [["shift", "task", "these runs", "paper", "same order"]]
    for one in orders(runs):
        rows.append([one.shift, one.task, one.ours_text(), one.paper_text(), one.verdict()])
    return _grid(rows)


def renderers(runs: list[Run]) -> str:
    """Returns of each run by renderer, before packing."""
    shifts = [shift for shift in all_shifts() if any(found.shift == shift for run in runs for found in run.evaluations)]
    rows = [["run", "renderer", *shifts]]
    for run in runs:
        last = max((found.step or 0 for found in run.evaluations), default=0)
        for renderer in sorted({found.renderer for found in run.evaluations if found.step == last}):
            cells = [_score(_counted(run, shift, last, renderer)) for shift in shifts]
            rows.append([_name(run), f"`{renderer}`", *cells])
    return _grid(rows)


def _counted(run: Run, shift: str, step: int, renderer: str) -> RunEvaluation | None:
    found = [one for one in run.evaluations if (one.shift, one.step, one.renderer) == (shift, step, renderer)]
    found = [one for one in found if one.weights != PACKED]
    return max(reversed(found), key=rank, default=None)


def _score(found: RunEvaluation | None) -> str:
    if found is None:
        return ""
    bounds, show = returns_of(found.task), find_task(found.task).return_text
    failed = 0 if bounds is None else sum(value < FAILED * bounds[1] for value in found.returns)
    return f"{show(found.mean)} ± {show(found.std)}" + (f" ({failed})" if failed else "")


def training(runs: list[Run]) -> str:
    """Returns while training."""
    rows = [["run", *(f"{mark // 1000}k" for mark in MARKS), "minutes"]]
    rows += ([_name(run), *_returns(run, MARKS), f"{run.seconds / 60:.1f}"] for run in runs if run.curve.steps)
    return _grid(rows)


def _returns(run: Run, marks: Iterable[int]) -> Iterator[str]:
    """The last return before each step that the run has reached."""
    for mark in marks:
        known = [value for at, value in zip(run.curve.steps, run.curve.returns, strict=True) if at <= mark]
        yield find_task(run.task).return_text(known[-1]) if known and run.steps >= mark else ""


def saliency(runs: list[Run]) -> str:
    rows = [["run", "shift", *MEASURES.values()]]
    for run in runs:
        for found in run.looks().values():
            if found.shift in LOOKED_AT:
                known = found.means  # agents without a decoder have no predicted mask
                cells = (f"{known[name]:.2f}" if name in known else "" for name in MEASURES)
                rows.append([_name(run), found.shift, *cells])
    return _grid(rows)


def packaged(runs: list[Run]) -> str:
    """The agents in the package: returns before packing, with those of the packed weights in parentheses."""
    grids = []
    for shifts, entries in listing.by_shifts(listing.entries()).items():
        rows = [["name", "steps, seed", *shifts, "size"]]
        for entry in entries:
            cells = (_with_packed(entry["returns"], shift) for shift in shifts)
            size = f"{entry['bytes'] / 1e6:.1f} MB"
            rows.append([f"`{entry['name']}`", f"{entry['steps']:,}, {entry['seed']}", *cells, size])
        grids.append(_grid(rows))
    return "\n\n".join(grids)


def _with_packed(returns: list[dict[str, Any]], shift: str) -> str:
    found = {
        line.get("weights", package.PRECISIONS[0]): find_task(line["task"]).return_text(line["mean"])
        for line in returns
        if (line["shift"], line["renderer"]) == (shift, "gl")
    }
    before = next((found[name] for name in package.PRECISIONS if name in found and name != PACKED), "")
    return f"{before} ({found[PACKED]})" if PACKED in found else before


def drift(runs: list[Run]) -> str:
    """What benchmarks/drift.py measured, as means over episodes."""
    del runs
    groups: dict[tuple[str, str], list[dict[str, str]]] = {}
    for row in _drift_rows():
        groups.setdefault((row["task"], row["shift"]), []).append(row)
    rows = [["task", "shift", "return", *DRIFTS.values()]]
    for (task, shift), of in groups.items():
        means = {name: statistics.mean(float(row[name]) for row in of) for name in ("return", *DRIFTS)}
        cells = (f"{means[name]:.1%}" if name == "value" else f"{means[name]:.2f}" for name in DRIFTS)
        rows.append([task, shift, f"{means['return']:.0f}", *cells])
    return _grid(rows)


def drift_returns(runs: list[Run]) -> str:
    """Returns by the drift of the action, over all tasks and shifts."""
    del runs
    rows = [["drift of the action", "episodes", "mean return", "lowest return"]]
    for low, high in pairwise(BINS):
        found = [float(row["return"]) for row in _drift_rows() if low <= float(row["action"]) < high]
        label = f"{low:g} to {high:g}" if high < math.inf else f"more than {low:g}"
        rows.append([label, str(len(found)), f"{statistics.mean(found):.0f}", f"{min(found):.0f}"])
    return _grid(rows)


def _drift_rows() -> list[dict[str, str]]:
    with open(DOCS / "drift" / "drift.csv", newline="") as file:
        return list(csv.DictReader(file))


PAGES: dict[str, tuple[str, tuple[Callable[[list[Run]], str], ...]]] = {
    "results.md": ("suite", (scores, order, training)),
    "results-details.md": ("suite", (renderers, saliency)),
    "robots.md": ("robot", (robots, pilots)),
    "pretrained.md": ("", (packaged,)),
    "drift.md": ("", (drift, drift_returns)),
    f"agents/{RESTORED}.md": ("suite", (restored, published)),
}
"""The task family and the tables of each page."""


def _name(run: Run) -> str:
    return f"{run.task}, {title_of(run.agent)}, seed {run.seed}"


def _grid(rows: list[list[str]]) -> str:
    head, *body = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join([head, f"|{'---|' * len(rows[0])}", *body])


def page(name: str, runs: list[Run]) -> str:
    """The text of a page with updated tables."""
    text = (DOCS / name).read_text()
    family, tables = PAGES[name]
    own = [run for run in runs if find_task(run.task).family.name == family]
    for table in tables:
        mark = BEGIN.format(table.__name__)
        before, rest = text.split(mark)
        _, after = rest.split(END, maxsplit=1)
        text = f"{before}{mark}\n\n{table(own)}\n\n{END}{after}"
    return text


def draw(names: Iterable[str], out: Path) -> None:
    """Write the named images of the report to a folder. Images other than SVG need an agent to play episodes."""
    names = list(names)
    plays = any(not name.endswith(".svg") for name in names)
    with tempfile.TemporaryDirectory() as folder:
        report([RESULTS], folder, images=plays)
        for name in names:
            (found,) = Path(folder).rglob(name)
            out.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(found, out / name)


def main(tiny: bool, out: Path) -> None:
    os.chdir(DOCS.parent)
    runs = find_runs(RESULTS).runs
    texts = {name: page(name, runs) for name in PAGES}
    shown = [name for text in texts.values() for name in re.findall(rf"\({IMAGES}/([\w.-]+)\)", text)]
    draw([name for name in shown if name.endswith(".svg") or not tiny], out / IMAGES)
    for name, text in texts.items():
        (out / name).parent.mkdir(parents=True, exist_ok=True)
        (out / name).write_text(text)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="skip images for which an agent has to play episodes")
    parser.add_argument("--out", type=Path, default=DOCS, help="folder of the pages (default: docs)")
    options = parser.parse_args()
    main(options.tiny, options.out.resolve())
