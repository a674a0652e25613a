"""Kill a training run with SIGKILL at random times, resume it each time, and compare it with an uninterrupted run.

    python benchmarks/kill_and_resume.py --kills 20
    python benchmarks/kill_and_resume.py --tiny            # one kill of a short run

Every run must resume, no file may be corrupt, and the final weights, metrics and evaluations must be bitwise equal to
those of the uninterrupted run.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import tyro
from rich.console import Console
from rich.progress import Progress

from sgqn import checkpoint, run_folder
from sgqn.training import COLLECTION

SMALL = [
    *("--task", "cartpole-swingup", "--preset", "tiny", "--quiet", "--device", "cpu", "--num-envs", "2"),
    *("--action-repeat", "50", "--image-size", "24", "--warmup-steps", "40", "--encoder-layers", "2"),
    *("--encoder-filters", "4", "--hidden-dim", "16", "--embedding-dim", "8", "--decoder-filters", "4", "4"),
    *("--batch-size", "8", "--overlay-images", "16", "--overlay-images-renewed-every", "32", "--log-every", "10"),
    *("--evaluate-every", "100", "--evaluate-shifts", "train", "--checkpoint-every", "20", "--replay-capacity", "200"),
]


@dataclass
class Options:
    """What to run."""

    kills: int = 20
    """Number of kills."""
    steps: int = 600
    """Agent steps of the run."""
    agent: str = "sgqn"
    """Agent to train."""
    seed: int = 0
    """Seed of the kill times."""
    tiny: bool = False
    """Kill one short run once, to check that the script works."""


def start(arguments: list[str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "sgqn.cli", "train", *arguments]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def outcome(folder: Path) -> tuple[dict[str, torch.Tensor], list[dict], list[dict]]:
    """Final weights, metrics and evaluations, without timings."""
    metrics = [
        {name: value for name, value in line.items() if name not in ("seconds", "steps_per_second", COLLECTION)}
        for line in run_folder.read_lines(folder / run_folder.METRICS)
    ]
    weights = checkpoint.load(checkpoint.find(folder)).weights
    return weights, metrics, list(run_folder.read_lines(folder / run_folder.EVALUATIONS))


def main(options: Options) -> int:
    """Return 0 if the result is the same after every kill."""
    if options.tiny:
        options = replace(options, kills=1, steps=60)
    console = Console()
    moments = random.Random(options.seed)
    shape = [*SMALL, "--agent", options.agent, "--steps", str(options.steps)]
    with tempfile.TemporaryDirectory() as folder, Progress(console=console) as progress:
        task = progress.add_task("uninterrupted run", total=options.kills + 1)
        whole, killed = Path(folder) / "whole", Path(folder) / "killed"
        began = time.monotonic()
        if start([*shape, "--out", str(whole)]).wait() != 0:
            console.print("the uninterrupted run failed")
            return 1
        length = time.monotonic() - began
        where = killed / "cartpole-swingup" / options.agent / "0"
        progress.update(task, advance=1, description="killing")
        kills, resumed, corrupt = 0, 0, 0
        while True:
            has_begun = (where / run_folder.CONFIG).exists()
            process = start(["--resume", str(where), "--quiet"] if has_begun else [*shape, "--out", str(killed)])
            began = time.monotonic()
            try:
                # Kill times cover the whole run, including its start-up.
                code = process.wait(timeout=moments.uniform(0.3, 0.7 * length) if kills < options.kills else None)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.wait()
                kills += 1
                progress.update(task, advance=1)
                found = checkpoint.list_checkpoints(where)
                corrupt += bool(found) and checkpoint.newest_good(where) != found[-1]
                continue
            if code != 0:
                console.print(f"after {kills} kills the run did not resume (exit code {code})")
                return 1
            resumed += 1
            length = min(length, time.monotonic() - began) if not has_begun else length
            if kills >= options.kills:
                break
            # The run finished before the next kill: start another one.
            killed = Path(folder) / f"killed{resumed}"
            where_done, where = where, killed / "cartpole-swingup" / options.agent / "0"
            if not same(outcome(where_done), outcome(whole / "cartpole-swingup" / options.agent / "0")):
                console.print("a resumed run differs from the uninterrupted run")
                return 1
        equal = same(outcome(where), outcome(whole / "cartpole-swingup" / options.agent / "0"))
    console.print(f"{kills} kills, {resumed} runs finished, {corrupt} corrupt checkpoints, same result: {equal}")
    return 0 if equal and not corrupt else 1


def same(one: tuple, other: tuple) -> bool:
    weights, others = one[0], other[0]
    equal = weights.keys() == others.keys() and all(torch.equal(weights[name], others[name]) for name in weights)
    return equal and one[1:] == other[1:]


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Options, description=__doc__)))
