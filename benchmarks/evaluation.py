"""How long `sgqn.evaluate` takes, beside a plain reading of the benchmark's own pipeline with the same policy.

    python benchmarks/evaluation.py                        # 30 episodes in video_hard with both renderers, some minutes
    python benchmarks/evaluation.py --renderers warp --episodes 8

Ours is one whole call of `sgqn.evaluate`: starting workers, decoding clips, all episodes. Now and then it is halted
and the reference plays a window: a reset and some steps. Its time is extrapolated from the median of the windows,
without what it takes to set it up. The reference is that of env_throughput.py; its policy is the same network, eager,
one observation at a time.
"""

from __future__ import annotations

import json
import os
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import tyro
from env_throughput import Reference
from rich.console import Console
from rich.table import Table

import sgqn
from sgqn.agents import Agent, AgentSettings, Spec, build_agent
from sgqn.envs.backgrounds import PREFETCHER
from sgqn.envs.families import find_task


@dataclass
class Options:
    """What to measure."""

    task: str = "walker-walk"
    shift: str = "video_hard"
    episodes: int = 30
    renderers: list[str] = field(default_factory=lambda: ["warp", "gl"])
    run: Path | None = None
    """A run whose agent acts; else an untrained one with the paper's networks."""
    windows: int = 12
    """Windows of the reference during each evaluation."""
    steps: int = 10
    """Steps in a window."""
    json: Annotated[bool, tyro.conf.arg(help="Print JSON instead of a table.")] = False


def main(options: Options) -> None:
    agent = sgqn.load_agent(options.run) if options.run else untrained(options.task)
    reference = Reference(options.task, agent.act)
    reference.measure()  # the first steps are slower
    rows = [measure(options, agent, reference, renderer) for renderer in options.renderers]
    show(options, rows)


def untrained(task: str) -> Agent:
    action_dim = find_task(task).load("train").action_dim
    return build_agent("sgqn", Spec(action_dim), AgentSettings(), seed=0)


def measure(options: Options, agent: Agent, reference: Reference, renderer: str) -> dict:
    """One evaluation, with the reference's windows in between."""
    windows = Windows(reference, options)
    start = time.perf_counter()
    result = sgqn.evaluate(agent, options.task, options.shift, options.episodes, renderer=renderer, on_step=windows)
    seconds = time.perf_counter() - start - windows.away
    steps = options.episodes * find_task(options.task).episode_steps
    expected = steps / float(np.median(windows.rates))
    return {
        "renderer": result.renderer,
        "backgrounds": result.backgrounds,
        "seconds": seconds,
        "steps/s": steps / seconds,
        "reference seconds": expected,
        "reference steps/s": steps / expected,
        "times": expected / seconds,
        "window times": np.round(windows.ratios, 2).tolist(),
    }


class Windows:
    """Called at every step of an evaluation; plays the reference at even distances, and sums up how long that took."""

    def __init__(self, reference: Reference, options: Options):
        self._reference, self._options = reference, options
        self._mark: tuple[int, float] = (0, time.perf_counter())
        self._threads = torch.get_num_threads()
        self.away = 0.0
        self.rates: list[float] = []
        self.ratios: list[float] = []
        """In each window: our steps/s since the last one over the reference's."""

    def __call__(self, done: int, total: int) -> None:
        due = (len(self.rates) + 1) * total / self._options.windows
        if done < due or any(thread.name == PREFETCHER for thread in threading.enumerate()):
            return  # or its decoding would slow the reference down, and cost us nothing
        start = time.perf_counter()
        steps, since = self._mark
        ours = torch.get_num_threads()
        torch.set_num_threads(self._threads)  # as many as it would have by itself
        self.rates.append(self._reference.measure(self._options.steps))
        torch.set_num_threads(ours)
        self.ratios.append((done - steps) / (start - since) / self.rates[-1])
        self._mark = (done, time.perf_counter())
        self.away += time.perf_counter() - start


def show(options: Options, rows: list[dict]) -> None:
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    steps = find_task(options.task).episode_steps
    played = f"{options.task}, {options.shift}: {options.episodes} episodes x {steps} steps"
    table = Table(title=f"{played} ({os.cpu_count()} CPU cores, backgrounds {rows[0]['backgrounds']})")
    for name in ("what", "seconds", "steps/s", "times the reference", "window by window"):
        table.add_column(name, justify="left" if name == "what" else "right")
    for row in rows:
        lowest, median, highest = np.quantile(row["window times"], (0, 0.5, 1))
        within = f"{median:.1f} ({lowest:.1f} to {highest:.1f})"
        table.add_row("reference", f"{row['reference seconds']:,.0f}", f"{row['reference steps/s']:,.1f}", "1.0", "")
        ours = (f"{row['seconds']:,.0f}", f"{row['steps/s']:,.1f}", f"{row['times']:.1f}", within)
        table.add_row(f"sgqn.evaluate, {row['renderer']}", *ours)
    Console(width=120).print(table)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
