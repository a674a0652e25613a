"""Makes what docs/results.md shows of the runs kept in results/.

    python docs/make_results.py            # the tables in docs/results.md
    python docs/make_results.py --report   # first the report in docs/results, with its charts and pictures

The report is `sgqn report results --out docs/results`; its gallery plays episodes with the pretrained agents.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from statistics import mean, pstdev

from sgqn.envs import SHIFTS
from sgqn.results.report import report
from sgqn.results.runs import Run, RunEvaluation, find_runs, rank
from sgqn.results.tables import headline, title_of, to_markdown
from sgqn.run import METRICS, read_lines

ROOT = Path(__file__).parent.parent
RESULTS, PAGE, REPORT = Path("results"), Path("docs/results.md"), Path("docs/results")
EARLIER = {"lagging": Path("docs/lagging"), "square": Path("docs/square")}
"""What earlier versions reached: with targets that lagged, and seen through samples in a square."""
SAMPLES = Path("docs/square/samples.json")
"""What docs/make_samples.py found."""
FINGER = Path("docs/finger")
"""Runs on finger-spin that were begun and stopped."""
MARKS = (20_000, 50_000, 100_000, 200_000, 300_000, 400_000, 500_000)
FIRST_MARKS = (8_000, 16_000, 24_000, 32_000, 48_000, 72_000)
FAILED = 100
MEASURES = {
    "base_rate": "body's share of the picture",
    "mask_share": "mask on body",
    "predicted_share": "M_θ on body",
    "deletion": "deletion",
    "insertion": "insertion",
}
BEGIN, END = "<!-- {}: made by docs/make_results.py -->", "<!-- end -->"


def made(runs: list[Run]) -> str:
    """All that stands between the marks."""
    table = headline(runs)
    assert table is not None, "no run with the paper's settings has been evaluated"
    return "\n\n".join([to_markdown(table), *_renderers(runs), *_training(runs), *_looking(runs)])


def _renderers(runs: Iterable[Run]) -> Iterator[str]:
    yield (
        "**Both renderers, all steps**: mean return and standard deviation over episodes, of each run; "
        f"in brackets how many episodes stayed below {FAILED}, if any."
    )
    yield _evaluations(list(runs))


def _evaluations(runs: list[Run]) -> str:
    shifts = [shift for shift in SHIFTS if any(found.shift == shift for run in runs for found in run.evaluations)]
    rows = [["run", "steps", "renderer", *shifts]]
    for run in runs:
        for step, renderer in sorted({(found.step, found.renderer) for found in run.evaluations}):
            cells = [_score(_counted(run, shift, step, renderer)) for shift in shifts]
            rows.append([_name(run), f"{step:,}", f"`{renderer}`", *cells])
    return _grid(rows)


def _counted(run: Run, shift: str, step: int, renderer: str) -> RunEvaluation | None:
    found = [one for one in run.evaluations if (one.shift, one.step, one.renderer) == (shift, step, renderer)]
    return max(reversed(found), key=rank, default=None)


def _score(found: RunEvaluation | None) -> str:
    if found is None:
        return ""
    failed = sum(value < FAILED for value in found.returns)
    return f"{found.mean:.0f} ± {found.std:.0f}" + (f" ({failed})" if failed else "")


def _training(runs: Iterable[Run]) -> Iterator[str]:
    yield "**While training**: mean return of all environments' last episodes before each step, exploration included."
    rows = [["run", *(f"{mark // 1000}k" for mark in MARKS), "minutes"]]
    rows += ([_name(run), *_returns(run, MARKS), f"{run.seconds / 60:.1f}"] for run in runs)
    yield _grid(rows)


def _returns(run: Run, marks: Iterable[int]) -> Iterator[str]:
    """The last return before each step, if the run came so far."""
    for mark in marks:
        known = [value for at, value in zip(run.curve.steps, run.curve.returns, strict=True) if at <= mark]
        yield f"{known[-1]:.0f}" if known and run.steps >= mark else ""


def _sampled() -> str:
    """One agent in Warp's pictures, by where rays pass and how actions are chosen."""
    rows = [["rays", "actions", "return"]]
    for line in json.loads(SAMPLES.read_text()):
        rows.append([line["samples"], line["actions"], f"{mean(line['returns']):.0f} ± {pstdev(line['returns']):.0f}"])
    return _grid(rows)


def _begun(runs: Iterable[Run]) -> str:
    """The first steps of runs, and how random their policies were at the end of them."""
    rows = [["run", "environments", *(f"{mark // 1000}k" for mark in FIRST_MARKS), "stopped at", "entropy then"]]
    for run in runs:
        *_, last = read_lines(run.path / METRICS)
        end = [f"{run.steps:,}", f"{last['entropy']:.2f}"]
        rows.append([_name(run), str(run.config.num_envs), *_returns(run, FIRST_MARKS), *end])
    return _grid(rows)


def _looking(runs: Iterable[Run]) -> Iterator[str]:
    yield "**Where they look**, against the simulator's own mask of the body; all measures are in the report."
    rows = [["run", "shift", *MEASURES.values()]]
    for run in runs:
        for found in run.looks().values():
            known = found.means  # of an agent without a decoder not all
            rows.append(
                [_name(run), found.shift, *(f"{known[name]:.2f}" if name in known else "" for name in MEASURES)]
            )
    yield _grid(rows)


def _name(run: Run) -> str:
    return f"{run.task}, {title_of(run.agent)}, seed {run.seed}"


def _grid(rows: list[list[str]]) -> str:
    head, *body = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join([head, f"|{'---|' * len(rows[0])}", *body])


def page(text: str, runs: list[Run]) -> str:
    """The page with its tables made anew."""
    parts = {"runs": made(runs), "samples": _sampled(), "finger": _begun(find_runs(FINGER).runs)}
    parts |= {name: _evaluations(find_runs(folder).runs) for name, folder in EARLIER.items()}
    for name, part in parts.items():
        before, rest = text.split(BEGIN.format(name))
        _, after = rest.split(END, maxsplit=1)
        text = f"{before}{BEGIN.format(name)}\n\n{part}\n\n{END}{after}"
    return text


def main(arguments: list[str]) -> None:
    os.chdir(ROOT)  # the report names the folders of its runs
    if "--report" in arguments:
        report([RESULTS], REPORT)
    PAGE.write_text(page(PAGE.read_text(), find_runs(RESULTS).runs))


if __name__ == "__main__":
    main(sys.argv[1:])
