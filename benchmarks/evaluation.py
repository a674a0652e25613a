"""Measure how long `sgqn.evaluate` takes, compared with a reference pipeline with the same policy.

    python benchmarks/evaluation.py                        # 30 episodes in video_hard with both renderers, some minutes
    python benchmarks/evaluation.py --renderers warp --episodes 8
    python benchmarks/evaluation.py --tiny                 # check that the script works, in seconds

The measured time is one whole call of `sgqn.evaluate`: starting workers, decoding clips, all episodes. At regular
intervals it pauses while the reference runs a window of one reset and some steps. The time of the reference is
extrapolated from the median window, without its set-up. The reference is that of env_throughput.py, with the same
network applied to one observation at a time.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import tyro
from env_throughput import Reference
from rich.console import Console
from rich.table import Table

import sgqn
from sgqn.agents import Agent, Spec, build_agent
from sgqn.config import preset
from sgqn.envs.backgrounds import PREFETCHER
from sgqn.envs.families import find_task
from sgqn.envs.opengl import gl_error


@dataclass
class Options:
    """What to measure."""

    task: str = "walker-walk"
    shift: str = "video_hard"
    episodes: int = 30
    renderers: list[str] = field(default_factory=lambda: ["warp", "gl"])
    run: Path | None = None
    """Run whose agent acts. Default: an untrained agent with the paper's networks."""
    action_repeat: int | None = None
    """Control steps per action. Default: the task's."""
    windows: int = 12
    """Reference windows per evaluation."""
    steps: int = 10
    """Steps per window."""
    json: Annotated[bool, tyro.conf.arg(help="Print JSON instead of a table.")] = False
    tiny: bool = False
    """Run a few steps with a small network only, to check that the script works."""


def main(options: Options) -> int:
    if gl_error() is not None:
        print(f"skipped: the reference pipeline needs OpenGL ({gl_error()})")
        return 0 if options.tiny else 2
    if options.tiny:
        options = replace(
            options, task="cartpole-swingup", episodes=2, renderers=["warp"], action_repeat=200, windows=2, steps=2
        )
    agent = sgqn.load_agent(options.run) if options.run else untrained(options.task, options.tiny)
    reference = Reference(options.task, agent.act, clip_frames=10 if options.tiny else 500)
    reference.measure(options.steps)  # the first steps are slower
    rows = [measure(options, agent, reference, renderer) for renderer in options.renderers]
    show(options, rows)
    return 0


def untrained(task: str, tiny: bool = False) -> Agent:
    action_dim = find_task(task).load("train").action_dim
    settings = preset("tiny" if tiny else "paper", task).settings
    return build_agent("sgqn", Spec(action_dim), settings, seed=0)


def episode_steps(options: Options) -> int:
    return find_task(options.task, options.action_repeat).episode_steps


def measure(options: Options, agent: Agent, reference: Reference, renderer: str) -> dict:
    """One evaluation, interleaved with windows of the reference."""
    windows = Windows(reference, options)
    start = time.perf_counter()
    result = sgqn.evaluate(
        agent,
        options.task,
        options.shift,
        options.episodes,
        renderer=renderer,
        action_repeat=options.action_repeat,
        on_step=windows,
    )
    seconds = time.perf_counter() - start - windows.away
    steps = options.episodes * episode_steps(options)
    expected = steps / float(np.median(windows.rates))
    return {
        "renderer": result.renderer,
        "backgrounds": result.backgrounds,
        "seconds": seconds,
        "steps/s": steps / seconds,
        "reference seconds": expected,
        "reference steps/s": steps / expected,
        "speedup": expected / seconds,
        "window speedups": np.round(windows.ratios, 2).tolist(),
    }


class Windows:
    """Callback of an evaluation that runs the reference at regular intervals and sums up how long that takes."""

    def __init__(self, reference: Reference, options: Options):
        self._reference, self._options = reference, options
        self._mark: tuple[int, float] = (0, time.perf_counter())
        self._threads = torch.get_num_threads()
        self.away = 0.0
        self.rates: list[float] = []
        self.ratios: list[float] = []
        """Per window: our steps/s since the last window, divided by the reference's steps/s."""

    def __call__(self, done: int, total: int) -> None:
        due = (len(self.rates) + 1) * total / self._options.windows
        if done < due or any(thread.name == PREFETCHER for thread in threading.enumerate()):
            return  # decoding in the background would slow down the reference only
        start = time.perf_counter()
        steps, since = self._mark
        ours = torch.get_num_threads()
        torch.set_num_threads(self._threads)  # the default, which the evaluation has changed
        self.rates.append(self._reference.measure(self._options.steps))
        torch.set_num_threads(ours)
        self.ratios.append((done - steps) / (start - since) / self.rates[-1])
        self._mark = (done, time.perf_counter())
        self.away += time.perf_counter() - start


def show(options: Options, rows: list[dict]) -> None:
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    steps = episode_steps(options)
    played = f"{options.task}, {options.shift}: {options.episodes} episodes x {steps} steps"
    table = Table(title=f"{played} ({os.cpu_count()} CPU cores, backgrounds {rows[0]['backgrounds']})")
    for name in ("pipeline", "seconds", "steps/s", "speedup", "speedup by window"):
        table.add_column(name, justify="left" if name == "pipeline" else "right")
    for row in rows:
        lowest, median, highest = np.quantile(row["window speedups"], (0, 0.5, 1))
        within = f"{median:.1f} ({lowest:.1f} to {highest:.1f})"
        table.add_row("reference", f"{row['reference seconds']:,.0f}", f"{row['reference steps/s']:,.1f}", "1.0", "")
        ours = (f"{row['seconds']:,.0f}", f"{row['steps/s']:,.1f}", f"{row['speedup']:.1f}", within)
        table.add_row(f"sgqn.evaluate, {row['renderer']}", *ours)
    Console(width=120).print(table)


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Options, description=__doc__)))
