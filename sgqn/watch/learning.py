"""The learning curves of a run, read again when training appends to them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from sgqn import run_folder
from sgqn.errors import SgqnError
from sgqn.results.runs import Run, RunEvaluation, find_runs
from sgqn.watch.session import Session, part_of

EVERY = 2.0
MOST = 500
"""Points of a curve; a longer one is thinned out."""


def follow(home: Path | None, session: Session, every: float = EVERY, number: int = 0) -> None:
    """Publish part `learning` whenever the run's logs have changed, until the session stops; None: there are none."""
    part = part_of("learning", number)
    if home is None:
        return session.publish(part, {"error": "this agent came without the logs of its training"})
    before = None
    while True:
        now = [_stamp(home / name) for name in (run_folder.METRICS, run_folder.EVALUATIONS)]
        if now != before:
            try:
                session.publish(part, learning(find_runs(home).runs[0]))
                before = now
            except SgqnError as error:
                session.publish(part, {"error": str(error)})
        if not session.rest(every):
            return None


def learning(run: Run) -> dict[str, Any]:
    """Training returns as [step, return], evaluations of each shift as [step, mean, deviation, episodes]."""
    curve = list(zip(run.curve.steps, run.curve.returns, strict=True))
    shifts = dict.fromkeys(evaluation.shift for evaluation in run.evaluations)
    return {
        "step": run.steps,
        "steps": run.config.steps,
        "training": thinned(curve),
        "evaluations": {shift: thinned(list(_points(run.evaluations, shift))) for shift in shifts},
    }


def _points(evaluations: Iterable[RunEvaluation], shift: str) -> list[tuple[int, float, float, int]]:
    """One point per step: of several evaluations the one with the most episodes, then the latest."""
    best: dict[int, RunEvaluation] = {}
    for one in evaluations:
        step = one.step
        if one.shift == shift and step is not None and (step not in best or one.episodes >= best[step].episodes):
            best[step] = one
    return [(step, best[step].mean, best[step].std, best[step].episodes) for step in sorted(best)]


def thinned(points: Sequence[Any]) -> list[Any]:
    """At most about `MOST` points, evenly spaced, always including the last."""
    stride = -(-len(points) // MOST) or 1
    return list(points[::-1][::stride][::-1])


def _stamp(path: Path) -> tuple[int, int] | None:
    try:
        about = path.stat()
    except OSError:
        return None
    return about.st_mtime_ns, about.st_size
