"""Kills a training run with SIGKILL at random moments, resumes it each time, and compares it with one left alone.

    python benchmarks/kill_and_resume.py --kills 20

Every run must resume, no file may be corrupt, and at the end weights, metrics and evaluations must be the same to the
last bit as those of the run that was never killed.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import torch
import tyro
from rich.console import Console
from rich.progress import Progress

from sgqn import checkpoint, run
from sgqn.training import COLLECTION

SMALL = [
    *("--task", "cartpole-swingup", "--preset", "tiny", "--quiet", "--device", "cpu", "--num-envs", "2"),
    *("--action-repeat", "50", "--image-size", "24", "--warmup-steps", "40", "--encoder-layers", "2"),
    *("--encoder-filters", "4", "--hidden-dim", "16", "--embedding-dim", "8", "--decoder-filters", "4", "4"),
    *("--batch-size", "8", "--pictures", "16", "--pictures-renewed-every", "32", "--log-every", "10"),
    *("--evaluate-every", "100", "--evaluate-shifts", "train", "--checkpoint-every", "20", "--replay-capacity", "200"),
]


@dataclass
class Options:
    """How often to kill."""

    kills: int = 20
    steps: int = 600
    agent: str = "sgqn"
    seed: int = 0
    """Of the moments of the kills."""


def start(arguments: list[str]) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "sgqn.cli", "train", *arguments]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def outcome(folder: Path) -> tuple[dict[str, torch.Tensor], list[dict], list[dict]]:
    """Final weights, metrics and evaluations, without times."""
    metrics = [
        {name: value for name, value in line.items() if name not in ("seconds", "steps_per_second", COLLECTION)}
        for line in run.read_lines(folder / run.METRICS)
    ]
    weights = checkpoint.load(checkpoint.find(folder)).weights
    return weights, metrics, list(run.read_lines(folder / run.EVALUATIONS))


def main(options: Options) -> int:
    """Returns 0 if every kill was survived without a difference."""
    console = Console()
    moments = random.Random(options.seed)
    shape = [*SMALL, "--agent", options.agent, "--steps", str(options.steps)]
    with tempfile.TemporaryDirectory() as folder, Progress(console=console) as progress:
        task = progress.add_task("the run left alone", total=options.kills + 1)
        whole, killed = Path(folder) / "whole", Path(folder) / "killed"
        began = time.monotonic()
        if start([*shape, "--out", str(whole)]).wait() != 0:
            console.print("the run left alone failed")
            return 1
        length = time.monotonic() - began
        where = killed / "cartpole-swingup" / options.agent / "0"
        progress.update(task, advance=1, description="killing")
        kills, resumed, corrupt = 0, 0, 0
        while True:
            has_begun = (where / run.CONFIG).exists()
            process = start(["--resume", str(where), "--quiet"] if has_begun else [*shape, "--out", str(killed)])
            began = time.monotonic()
            try:
                # Moments spread over a whole run, its start-up included.
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
            # It finished before the next kill: begin another run to be killed.
            killed = Path(folder) / f"killed{resumed}"
            where_done, where = where, killed / "cartpole-swingup" / options.agent / "0"
            if not same(outcome(where_done), outcome(whole / "cartpole-swingup" / options.agent / "0")):
                console.print("a resumed run differs from the one left alone")
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
