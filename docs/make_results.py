"""Update docs/results.md and its images from the runs in results/.

    python docs/make_results.py            # the tables, the curves, and a sheet of observations and masks
    python docs/make_results.py --tiny     # the tables and curves only, which takes seconds

The images are those of `sgqn report results` that the page shows.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path

from sgqn.envs.families import all_shifts
from sgqn.results.report import report
from sgqn.results.runs import Run, RunEvaluation, find_runs, rank
from sgqn.results.tables import Cell, headline, title_of

DOCS = Path(__file__).resolve().parent
RESULTS = Path("results")
"""Relative to the repository, because a report names the folders of its runs."""
PAGE, IMAGES = "results.md", "results"
MARKS = (20_000, 50_000, 100_000, 200_000, 300_000, 400_000, 500_000)
FAILED = 100
LOOKED_AT = ("train", "video_hard")
MEASURES = {
    "base_rate": "body, share of image",
    "mask_share": "mask on body",
    "predicted_share": "M_θ on body",
    "deletion": "deletion",
    "insertion": "insertion",
}
BEGIN, END = "<!-- {}: made by docs/make_results.py -->", "<!-- end -->"


def scores(runs: list[Run]) -> str:
    """Mean returns, with the paper's in parentheses."""
    table = headline(runs)
    assert table is not None, "no run with the paper's settings has been evaluated"
    return _grid(
        [["task", "agent", *table.columns], *([*row.labels, *map(_compared, row.cells)] for row in table.rows)]
    )


def _compared(cell: Cell) -> str:
    ours = f"{cell.ours.mean:.0f}" if cell.ours else ""
    return ours if cell.paper is None else f"{ours} ({cell.paper.mean:.0f} ± {cell.paper.std:.0f})"


def renderers(runs: list[Run]) -> str:
    """Returns of each run by renderer."""
    shifts = [shift for shift in all_shifts() if any(found.shift == shift for run in runs for found in run.evaluations)]
    rows = [["run", "renderer", *shifts]]
    for run in runs:
        last = max(found.step for found in run.evaluations)
        for renderer in sorted({found.renderer for found in run.evaluations if found.step == last}):
            cells = [_score(_counted(run, shift, last, renderer)) for shift in shifts]
            rows.append([_name(run), f"`{renderer}`", *cells])
    return _grid(rows)


def _counted(run: Run, shift: str, step: int, renderer: str) -> RunEvaluation | None:
    found = [one for one in run.evaluations if (one.shift, one.step, one.renderer) == (shift, step, renderer)]
    return max(reversed(found), key=rank, default=None)


def _score(found: RunEvaluation | None) -> str:
    if found is None:
        return ""
    failed = sum(value < FAILED for value in found.returns)
    return f"{found.mean:.0f} ± {found.std:.0f}" + (f" ({failed})" if failed else "")


def training(runs: list[Run]) -> str:
    """Returns while training."""
    rows = [["run", *(f"{mark // 1000}k" for mark in MARKS), "minutes"]]
    rows += ([_name(run), *_returns(run, MARKS), f"{run.seconds / 60:.1f}"] for run in runs)
    return _grid(rows)


def _returns(run: Run, marks: Iterable[int]) -> Iterator[str]:
    """The last return before each step that the run has reached."""
    for mark in marks:
        known = [value for at, value in zip(run.curve.steps, run.curve.returns, strict=True) if at <= mark]
        yield f"{known[-1]:.0f}" if known and run.steps >= mark else ""


def saliency(runs: list[Run]) -> str:
    rows = [["run", "shift", *MEASURES.values()]]
    for run in runs:
        for found in run.looks().values():
            if found.shift in LOOKED_AT:
                known = found.means  # agents without a decoder have no predicted mask
                cells = (f"{known[name]:.2f}" if name in known else "" for name in MEASURES)
                rows.append([_name(run), found.shift, *cells])
    return _grid(rows)


TABLES = (scores, renderers, training, saliency)


def _name(run: Run) -> str:
    return f"{run.task}, {title_of(run.agent)}, seed {run.seed}"


def _grid(rows: list[list[str]]) -> str:
    head, *body = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join([head, f"|{'---|' * len(rows[0])}", *body])


def page(text: str, runs: list[Run]) -> str:
    """The page with updated tables."""
    for table in TABLES:
        mark = BEGIN.format(table.__name__)
        before, rest = text.split(mark)
        _, after = rest.split(END, maxsplit=1)
        text = f"{before}{mark}\n\n{table(runs)}\n\n{END}{after}"
    return text


def draw(names: Iterable[str], out: Path) -> None:
    """Write the named images of the report to a folder. Images other than SVG need an agent to play episodes."""
    names = list(names)
    plays = any(not name.endswith(".svg") for name in names)
    with tempfile.TemporaryDirectory() as folder:
        report([RESULTS], folder, pictures=plays)
        for name in names:
            (found,) = Path(folder).rglob(name)
            out.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(found, out / name)


def main(tiny: bool, out: Path) -> None:
    os.chdir(DOCS.parent)
    text = page((DOCS / PAGE).read_text(), find_runs(RESULTS).runs)
    shown = re.findall(rf"\({IMAGES}/([\w.-]+)\)", text)
    draw([name for name in shown if name.endswith(".svg") or not tiny], out / IMAGES)
    (out / PAGE).write_text(text)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="skip images for which an agent has to play episodes")
    parser.add_argument("--out", type=Path, default=DOCS, help="folder of results.md (default: docs)")
    options = parser.parse_args()
    main(options.tiny, options.out.resolve())
