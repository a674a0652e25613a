"""Kill training runs with SIGKILL, resume them each time, and compare them with an uninterrupted run.

    python benchmarks/kill_and_resume.py --kills 100 --starts 60
    python benchmarks/kill_and_resume.py --tiny            # a few kills of a short run

Half of the kills come at random moments, the others immediately before or after a call of fsync, rename, replace,
mkdir, unlink or rmdir. Every run must resume, no file may be corrupt, and the final weights, metrics and evaluations
must be bitwise equal to those of the uninterrupted run. Then several processes start the same run, and resume it, at
the same time: exactly one of them may train.

Processes are forked from one that has imported everything, so that a start takes a second.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
import itertools
import json
import os
import random
import re
import signal
import socket
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

import torch
import tyro
from rich.console import Console
from rich.progress import Progress

from sgqn import checkpoint, run_folder, training
from sgqn.cli import main as sgqn

TASK = "gym:sgqn/Catch-v0"
SMALL = [
    *("--task", TASK, "--preset", "tiny", "--quiet", "--device", "cpu", "--num-envs", "2", "--image-size", "24"),
    *("--warmup-steps", "16", "--encoder-layers", "2", "--encoder-filters", "4", "--hidden-dim", "16"),
    *("--embedding-dim", "8", "--decoder-filters", "4", "4", "--batch-size", "8", "--overlay-images", "16"),
    *("--overlay-images-renewed-every", "32", "--log-every", "8", "--images-every", "0", "--evaluate-every", "40"),
    *("--evaluate-shifts", "train", "--checkpoint-every", "8", "--replay-capacity", "64"),
]
WRITES = ("fsync", "rename", "replace", "mkdir", "unlink", "rmdir")


@dataclass
class Options:
    """What to run."""

    kills: int = 20
    """Number of kills, every second one inside a write."""
    starts: int = 5
    """Number of simultaneous starts of one run, and of simultaneous resumes."""
    steps: int = 80
    """Agent steps of a run."""
    agent: str = "sgdqn"
    """Agent to train."""
    seed: int = 0
    """Seed of the kill times."""
    workers: bool = False
    """Simulate in worker processes, which take long to start."""
    tiny: bool = False
    """Kill a short run four times, to check that the script works."""


class Child:
    """A forked process that runs one `sgqn train`; what it prints goes to a file."""

    def __init__(self, arguments: list[str], log: Path, prepare: Callable[[], None] = lambda: None):
        self.log = log
        self.pid = os.fork()
        if self.pid == 0:
            self._run(arguments, prepare)

    def _run(self, arguments: list[str], prepare: Callable[[], None]) -> None:
        code = 1
        try:
            descriptor = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            for stream in (1, 2):
                os.dup2(descriptor, stream)
            prepare()
            code = sgqn(["train", *arguments])
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)

    def wait(self, seconds: float | None = None) -> int | None:
        """The exit code, negative for a signal; None if the process still runs after this time."""
        end = None if seconds is None else time.monotonic() + seconds
        while end is None or time.monotonic() < end:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.002)
        return None

    def kill(self) -> int:
        os.kill(self.pid, signal.SIGKILL)
        code = self.wait()
        assert code is not None
        return code

    def said(self) -> str:
        lines = self.log.read_text().strip().splitlines()
        return lines[-1] if lines else ""


def count_writes(fatal: int | None = None, before: bool = True, note: Path | None = None) -> None:
    """Count the calls of `WRITES` in this process, and kill it before or after call number `fatal`.

    The name of that call, or without one the number of calls at exit, is written to `note`.
    """
    counter, lock = itertools.count(1), threading.Lock()
    real_open, real_write = os.open, os.write

    def leave(text: str) -> None:
        if note is not None:
            real_write(real_open(note, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), text.encode())

    def wrapped(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*args: Any, **named: Any) -> Any:
            with lock:
                number = next(counter)
            if fatal is None:
                leave(str(number))
            if number == fatal and before:
                leave(name)
                os.kill(os.getpid(), signal.SIGKILL)
            result = function(*args, **named)
            if number == fatal:
                leave(name)
                os.kill(os.getpid(), signal.SIGKILL)
            return result

        return call

    for name in WRITES:
        setattr(os, name, wrapped(name, getattr(os, name)))


def record_modules(path: Path) -> None:
    """Write the names of the imported modules when this process trains its last step."""
    save = training.Trainer.save

    def saved(self: training.Trainer) -> None:
        save(self)
        path.write_text(json.dumps(sorted(sys.modules)))

    training.Trainer.save = saved  # type: ignore[method-assign]


def outcome(folder: Path) -> tuple[dict[str, torch.Tensor], list[dict], list[dict]]:
    """Final weights, metrics and evaluations, without timings."""
    metrics = [
        {
            name: value
            for name, value in line.items()
            if name not in ("seconds", "steps_per_second", training.COLLECTION)
        }
        for line in run_folder.read_lines(folder / run_folder.METRICS)
    ]
    weights = checkpoint.load(checkpoint.find(folder)).weights
    return weights, metrics, list(run_folder.read_lines(folder / run_folder.EVALUATIONS))


def same(one: tuple, other: tuple) -> bool:
    weights, others = one[0], other[0]
    equal = weights.keys() == others.keys() and all(torch.equal(weights[name], others[name]) for name in weights)
    return equal and one[1:] == other[1:]


class Trial:
    """Runs of one configuration in a folder."""

    def __init__(self, options: Options, folder: Path):
        self.options, self.folder, self.log = options, folder, folder / "log"
        self.shape = [*SMALL, "--agent", options.agent, "--steps", str(options.steps)]
        self.random = random.Random(options.seed)
        self.whole = self.where("whole")
        self.seconds, self.writes = 0.0, 0
        self.placed: Counter[str] = Counter()

    def where(self, out: str) -> Path:
        return self.folder / out / re.sub(r"[^\w.-]+", "-", TASK) / self.options.agent / "0"

    def start(self, out: str, prepare: Callable[[], None] = lambda: None, log: str = "log") -> Child:
        """Start the run, or resume it where it has begun."""
        begun = (self.where(out) / run_folder.CONFIG).exists()
        new = [*self.shape, "--out", str(self.folder / out)]
        return Child(["--resume", str(self.where(out)), "--quiet"] if begun else new, self.folder / log, prepare)

    def uninterrupted(self) -> str | None:
        """The run to compare with, made twice: the first time to learn what to import."""
        modules, count = self.folder / "modules", self.folder / "count"
        for out, prepare in (
            ("first", functools.partial(record_modules, modules)),
            ("whole", functools.partial(count_writes, note=count)),
        ):
            began = time.monotonic()
            child = self.start(out, prepare)
            if child.wait() != 0:
                return f"the uninterrupted run failed: {child.said()}"
            self.seconds = time.monotonic() - began
            for name in json.loads(modules.read_text()):
                with contextlib.suppress(Exception):
                    importlib.import_module(name)
        self.writes = int(count.read_text())
        return None if same(outcome(self.where("first")), outcome(self.whole)) else "two uninterrupted runs differ"

    def kill_all(self, progress: Callable[[], None]) -> tuple[str | None, dict[str, int]]:
        """Kill and resume; the first problem, and what was done."""
        done = {"kills": 0, "runs": 0, "corrupt": 0}
        while True:
            out = f"killed{done['runs']}"
            last = done["kills"] >= self.options.kills
            placed = done["kills"] % 2 == 1
            code = self._kill(out, placed) if not last else self.start(out).wait()
            if code == -signal.SIGKILL:
                done["kills"] += 1
                progress()
                found = checkpoint.list_checkpoints(self.where(out))
                done["corrupt"] += bool(found) and checkpoint.newest_good(self.where(out)) != found[-1]
                continue
            if code != 0:
                return f"after {done['kills']} kills the run did not resume: {Path(self.log).read_text()[-500:]}", done
            done["runs"] += 1
            if not same(outcome(self.where(out)), outcome(self.whole)):
                return "a resumed run differs from the uninterrupted run", done
            if last:
                return None, done

    def _kill(self, out: str, placed: bool) -> int | None:
        """Start or resume a run and kill it; its exit code, which is 0 if it has finished before."""
        if not placed:
            child = self.start(out)
            code = child.wait(self.random.uniform(0, 0.7 * self.seconds))
            return child.kill() if code is None else code
        fatal = self.random.randint(1, max(1, self.writes // 3))
        note = self.folder / "note"
        code = self.start(out, functools.partial(count_writes, fatal, self.random.random() < 0.5, note)).wait()
        if code == -signal.SIGKILL:
            self.placed[note.read_text()] += 1
        return code

    def race(self, out: str, contenders: int = 3) -> str | None:
        """Several processes start one run at the same moment, or resume it; what is wrong, or None."""
        reader, writer = os.pipe()

        def wait_for_all() -> None:
            os.close(writer)
            os.read(reader, 1)  # returns when the last writer closes

        children = [self.start(out, wait_for_all, f"log{number}") for number in range(contenders)]
        time.sleep(0.05)
        os.close(reader)
        os.close(writer)
        codes = [child.wait() for child in children]
        said = [child.said() for child, code in zip(children, codes, strict=True) if code != 0]
        host = re.escape(socket.gethostname())
        pids = "|".join(str(child.pid) for child in children)
        busy = rf"error: .* is being trained by process ({pids}) on {host}: .*"
        if codes.count(0) != 1 or codes.count(2) != contenders - 1:
            return f"exit codes {codes} of {contenders} processes at once: {said}"
        # A loser that comes late finds the winner's configuration.
        unclear = [line for line in said if not re.fullmatch(busy, line) and "holds a run already" not in line]
        return f"unclear: {unclear[0]}" if unclear else None


def main(options: Options) -> int:
    """Return 0 if the result is the same after every kill, and one process trains a run at a time."""
    if options.tiny:
        options = replace(options, kills=4, starts=1, steps=24)
    # The progress bar may not have a thread, which forks would not survive.
    console, began = Console(width=120, soft_wrap=True), time.monotonic()
    torch.set_num_threads(1)
    if not options.workers:
        training.make_vec = functools.partial(training.make_vec, num_workers=0)
    with (
        tempfile.TemporaryDirectory() as folder,
        Progress(console=console, transient=True, auto_refresh=False) as progress,
    ):
        trial = Trial(options, Path(folder))
        task = progress.add_task("uninterrupted runs", total=options.kills + 2 * options.starts)
        problem = trial.uninterrupted()
        done = {"kills": 0, "runs": 0, "corrupt": 0}
        if problem is None:
            progress.update(task, description="killing")
            problem, done = trial.kill_all(lambda: progress.update(task, advance=1, refresh=True))
        won, equal = {"starts": 0, "resumes": 0}, problem is None
        trial.shape += ["--steps", "24"]
        for number in range(options.starts if equal else 0):
            progress.update(task, advance=1, description="starting at once", refresh=True)
            wrong = trial.race(f"race{number}")
            won["starts"] += wrong is None
            problem = problem or wrong
        for number in range(options.starts if equal else 0):
            progress.update(task, advance=1, description="resuming at once", refresh=True)
            (trial.where(f"race{number}") / run_folder.EVALUATIONS).unlink(missing_ok=True)
            config = trial.where(f"race{number}") / run_folder.CONFIG
            config.write_text(json.dumps({**json.loads(config.read_text()), "steps": 40}))
            wrong = trial.race(f"race{number}", 2)
            won["resumes"] += wrong is None
            problem = problem or wrong
    console.print(
        f"{done['kills']} kills ({done['kills'] - trial.placed.total()} at random moments, "
        f"{', '.join(f'{count} at {name}' for name, count in sorted(trial.placed.items()))}), "
        f"{done['runs']} runs finished, {done['corrupt']} corrupt checkpoints, same result: {equal}"
    )
    console.print(f"exactly one of 3 processes won {won['starts']} of {options.starts} simultaneous starts,")
    console.print(f"exactly one of 2 processes won {won['resumes']} of {options.starts} simultaneous resumes")
    console.print(f"{time.monotonic() - began:.0f} seconds")
    if problem:
        console.print(f"[red]{problem}")
    return 0 if problem is None and not done["corrupt"] else 1


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Options, description=__doc__)))
