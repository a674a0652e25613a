"""Open and close many environments, then train with evaluations, in one process: nothing may accumulate.

    python benchmarks/leaks.py                # 1,000 environments and 20,000 training steps
    python benchmarks/leaks.py --tiny         # a few of each

Environments are single and vector environments, with and without worker processes, of both renderers. Open file
descriptors, threads and child processes must not grow at all, resident memory not by more than `--tolerance`. A
Markdown table has the values when every kind of environment was open once, midway and at the end; those of training
are taken right after evaluations. The exit code is 1 if something has grown.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import itertools
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

os.environ.setdefault("OMP_NUM_THREADS", "1")

import tyro

import sgqn
from sgqn import training
from sgqn.callbacks import Callback
from sgqn.envs.opengl import gl_error

TASK = "gym:sgqn/Catch-v0"
SIZE = 32
EVALUATIONS = 20


@dataclass
class Options:
    """What to run."""

    environments: int = 1000
    """Environments to open and close."""
    steps: int = 20_000
    """Agent steps of training."""
    tolerance: float = 10.0
    """Megabytes by which resident memory may grow between midway and the end."""
    tiny: bool = False
    """Some environments and a short run, to check that the script works."""


class Usage(NamedTuple):
    """What a process holds."""

    descriptors: int
    threads: int
    children: int
    megabytes: float

    @classmethod
    def now(cls) -> Usage:
        gc.collect()
        with contextlib.suppress(OSError, AttributeError):  # give back what the allocator holds, where it is glibc's
            ctypes.CDLL("libc.so.6").malloc_trim(0)
        children = sum(len(path.read_text().split()) for path in Path("/proc/self/task").glob("*/children"))
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        counted = (len(os.listdir(f"/proc/self/{name}")) for name in ("fd", "task"))
        descriptors, threads = counted
        return cls(descriptors, threads, children, pages * os.sysconf("SC_PAGE_SIZE") / 1e6)

    def grown(self, before: Usage, tolerance: float) -> list[str]:
        """What is more than it was."""
        names = [name for name in self._fields[:3] if getattr(self, name) > getattr(before, name)]
        return names + ["memory"] * (self.megabytes > before.megabytes + tolerance)


def kinds(tiny: bool) -> list[tuple[int, Callable[[], Any]]]:
    """How to open each kind of environment, and how many of hundred are of that kind; `tiny`: only the fast ones."""
    options: dict[str, Any] = {"image_size": SIZE}
    drawn = [] if tiny else ["warp", *([] if gl_error() else ["gl"])]
    found: list[tuple[int, Callable[[], Any]]] = [
        (58, lambda: sgqn.make(TASK, **options)),
        (2, lambda: sgqn.make(TASK, shift="video_hard", **options)),
        (20, lambda: sgqn.make_vec(TASK, 4, num_workers=0, **options)),
        (1, lambda: sgqn.make_vec(TASK, 2, shift="video_hard", num_workers=2, **options)),
    ]
    for renderer in drawn:
        found += [
            (9, lambda renderer=renderer: sgqn.make("cartpole-swingup", renderer=renderer, **options)),  # type: ignore[misc]
            (
                1,
                lambda renderer=renderer: sgqn.make_vec(  # type: ignore[misc]
                    "cartpole-swingup", 2, renderer=renderer, num_workers=1, **options
                ),
            ),
        ]
    return found


def use(opened: Callable[[], Any]) -> None:
    env = opened()
    env.reset(seed=0)
    env.step(env.action_space.sample())
    env.close()


def open_and_close(count: int, tiny: bool = False) -> list[Usage]:
    """The usage after one environment of each kind, after half of them, and after all."""
    every = kinds(tiny)
    for _, opened in every:
        use(opened)
    found = [Usage.now()]
    # Rare kinds are spread evenly over the others.
    places = [((number + 0.5) / share, opened) for share, opened in every for number in range(share)]
    mixture = itertools.cycle([opened for _, opened in sorted(places, key=lambda place: place[0])])
    for number, opened in zip(range(1, count + 1), mixture, strict=False):
        use(opened)
        if number in (count // 2, count):
            found.append(Usage.now())
    return found


class Watcher(Callback):
    """Notes the usage after each evaluation."""

    def __init__(self) -> None:
        self.found: list[Usage] = []

    def on_evaluation(self, step: int, values: dict[str, Any]) -> None:
        self.found.append(Usage.now())


def train(steps: int, evaluations: int = EVALUATIONS) -> list[Usage]:
    """The usage after the first evaluations, midway and after the last ones, while the run's own workers live."""
    config = sgqn.configure(
        preset="tiny", task=TASK, agent="dqn", device="cpu", num_envs=8, image_size=24, steps=steps, warmup_steps=80,
        replay_capacity=1000, evaluate_every=steps // evaluations, evaluate_shifts=("train", "video_hard"),
        evaluate_episodes=2, checkpoint_every=steps // 5, log_every=steps // 20, images_every=0, encoder_layers=2,
        encoder_filters=4, hidden_dim=16, embedding_dim=8, batch_size=4,
    )  # fmt: skip
    watcher = Watcher()
    with tempfile.TemporaryDirectory() as folder:
        training.train(config, folder, progress=False, callbacks=[watcher])
    rounds = watcher.found[1::2]  # of the second shift, when both have been seen
    return [rounds[0], rounds[len(rounds) // 2], rounds[-1]]


def table(rows: dict[str, list[Usage]]) -> str:
    lines = ["| what | when | descriptors | threads | child processes | resident memory |", "|---|---|---|---|---|---|"]
    for what, found in rows.items():
        for when, usage in zip(("before", "midway", "after"), found, strict=True):
            *counts, megabytes = usage
            lines.append(f"| {what} | {when} | {' | '.join(map(str, counts))} | {megabytes:.0f} MB |")
    return "\n".join(lines)


def main(options: Options) -> int:
    """Return 0 if nothing has grown."""
    if options.tiny:
        options = replace(options, environments=4, steps=200, tolerance=200.0)
    began = time.monotonic()
    rows = {f"{options.environments:,} environments": open_and_close(options.environments, options.tiny)}
    print(f"environments: {time.monotonic() - began:.0f} seconds", file=sys.stderr)
    rows[f"{options.steps:,} training steps"] = train(options.steps, 3 if options.tiny else EVALUATIONS)
    print(table(rows))
    print(f"\n{time.monotonic() - began:.0f} seconds")
    failed = False
    for what, (before, midway, after) in rows.items():
        counts = after.grown(before, tolerance=float("inf"))
        if grown := dict.fromkeys([*counts, *after.grown(midway, options.tolerance)]):
            failed = True
            print(f"{what}: {', '.join(grown)} grew")
    return int(failed)


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Options, description=__doc__)))
