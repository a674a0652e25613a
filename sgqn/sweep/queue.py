"""Work through the runs of a sweep: start, follow, retry, stop."""

from __future__ import annotations

import contextlib
import signal
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from rich.console import Console
from rich.live import Live
from rich.table import Table

from sgqn import training
from sgqn.errors import Interrupted, SgqnError
from sgqn.signals import asked_to_stop
from sgqn.sweep.plan import Planned
from sgqn.sweep.storage import Storage
from sgqn.sweep.work import Ended, Report

RETRIES = 3
"""Attempts in a row that may be lost without a new checkpoint before a run is given up."""
TICK = 0.5
LONGEST_TABLE = 24
"""Rows of the live table; of longer sweeps it shows the runs that are running."""


class Pool(Protocol):
    """Something that runs can be given to."""

    def submit(self, run: Planned) -> None:
        """Start a run as soon as there is room for it."""

    def poll(self, seconds: float) -> list[tuple[str, Ended]]:
        """The runs that have ended, by name; waits for one for so long at most."""

    def reports(self) -> dict[str, tuple[Report, str]]:
        """Of running runs: how far they are, and where they run."""

    def stop(self) -> list[str]:
        """Ask all runs to save and stop; returns those that had not started."""

    def close(self) -> None:
        """End what is still running."""


@dataclass
class Entry:
    """A run of the sweep as the live table shows it."""

    run: Planned
    state: Literal["waiting", "running", "complete", "failed", "stopped", "lost"] = "waiting"
    step: int = 0
    """Of its newest checkpoint or line of metrics."""
    episode_return: float | None = None
    rate: float | None = None
    node: str = ""
    message: str = ""
    saved: int = 0
    """Step of the newest checkpoint."""
    lost: int = 0
    """Attempts lost since that checkpoint."""


def survey(plan: Sequence[Planned], storage: Storage) -> list[Entry]:
    """What is done of a plan; a stored run of another configuration is an error."""
    entries = []
    for run in plan:
        found = storage.progress(run)
        if found.config is not None:
            training.check_same(run.config, Path(storage.where, run.name), found.config)
        entries.append(Entry(run, "complete" if found.complete else "waiting", found.step, saved=found.step))
    return entries


def work_through(entries: Sequence[Entry], pool: Pool, storage: Storage, live: bool = True) -> None:
    """Train every run that is not complete; an error at the end names those that could not be."""
    by_name = {entry.run.name: entry for entry in entries}
    stop: signal.Signals | None = None

    def ask(by: signal.Signals) -> None:
        nonlocal stop
        stop = by

    console = Console(stderr=True)
    try:
        with asked_to_stop(ask), _display(entries, console, live) as show:
            open_runs = [entry for entry in entries if entry.state != "complete"]
            for entry in open_runs:
                pool.submit(entry.run)
            stopping = False
            while any(entry.state in ("waiting", "running") for entry in entries):
                if stop is not None and not stopping:
                    stopping = True
                    for name in pool.stop():
                        by_name[name].state = "stopped"
                for name, ended in pool.poll(TICK):
                    _settle(by_name[name], ended, pool, storage, stopping)
                for name, (report, node) in pool.reports().items():
                    _note(by_name[name], report, node)
                show()
    finally:
        pool.close()
    failed = [entry for entry in entries if entry.state == "failed"]
    if stop is not None:
        raise Interrupted(f"stopped by {stop.name}; the same command continues the sweep", 128 + stop)
    if failed:
        reasons = "; ".join(f"{entry.run.name}: {entry.message}" for entry in failed[:5])
        more = f"; and {len(failed) - 5} more" if len(failed) > 5 else ""
        raise SgqnError(f"{len(failed)} of {len(entries)} runs failed: {reasons}{more}")


def _settle(entry: Entry, ended: Ended, pool: Pool, storage: Storage, stopping: bool) -> None:
    """Take note of how an attempt ended; one that was lost is made again, from the newest checkpoint.

    So is one that was stopped by somebody else: a machine that shuts down asks its processes to stop.
    """
    entry.node = ""
    if ended.state == "stopped" and not stopping:
        ended = Ended("lost", ended.message)
    if ended.state != "lost":
        entry.state, entry.message = ended.state, ended.message
        if ended.state == "complete":
            entry.step = entry.run.config.steps
        return
    if stopping:
        entry.state = "stopped"
        return
    saved = storage.progress(entry.run).step
    entry.lost = entry.lost + 1 if saved <= entry.saved else 1
    entry.saved = entry.step = saved
    entry.message = ended.message
    if entry.lost > RETRIES:
        entry.state = "failed"
        entry.message = f"lost {entry.lost} times in a row after step {saved}: {ended.message}"
        return
    entry.state = "waiting"
    pool.submit(entry.run)


def _note(entry: Entry, report: Report, node: str) -> None:
    if entry.state in ("waiting", "running"):
        entry.state, entry.node = "running", node
        entry.step = max(report.step, entry.saved)
        entry.episode_return, entry.rate = report.episode_return, report.rate


@contextlib.contextmanager
def _display(entries: Sequence[Entry], console: Console, live: bool) -> Iterator[Callable[[], None]]:
    """A live table on a terminal, else a line for each change of state."""
    if not live:
        yield lambda: None
    elif console.is_terminal:
        with Live(table(entries), console=console, auto_refresh=False) as shown:
            yield lambda: shown.update(table(entries), refresh=True)
    else:
        said = {entry.run.name: entry.state for entry in entries}

        def say() -> None:
            for entry in entries:
                if said[entry.run.name] != entry.state:
                    said[entry.run.name] = entry.state
                    where = f" on {entry.node}" if entry.node else ""
                    why = f": {entry.message}" if entry.message and entry.state != "running" else ""
                    console.print(f"{entry.run.name}: {entry.state}{where}, step {entry.step:,}{why}", soft_wrap=True)

        yield say


def table(entries: Sequence[Entry]) -> Table:
    """All runs, or those that are running where they are many, with a count of each state below."""
    shown = [entry for entry in entries if entry.state == "running"] if len(entries) > LONGEST_TABLE else entries
    counts = Counter(entry.state for entry in entries)
    found = Table(caption=", ".join(f"{count} {state}" for state, count in counts.items()), caption_justify="left")
    for column in ("run", "state"):
        found.add_column(column)
    for column in ("step", "return", "steps/s"):
        found.add_column(column, justify="right")
    found.add_column("where")
    for entry in shown[:LONGEST_TABLE]:
        found.add_row(
            entry.run.name,
            entry.state,
            f"{entry.step:,} / {entry.run.config.steps:,}",
            "" if entry.episode_return is None else f"{entry.episode_return:.1f}",
            "" if entry.rate is None or entry.state != "running" else f"{entry.rate:,.0f}",
            entry.node or entry.message[:40],
        )
    return found
