"""Pilots of sgqn_restored: train it with one setting changed, evaluate it on episodes kept for this purpose.

    python benchmarks/restoration.py --out docs/restored                      # every variant: hours on a CPU
    python benchmarks/restoration.py trained default --task walker-walk       # some of them
    python benchmarks/restoration.py default "no gate" --steps 2500 --drift   # short runs, and the drift of actions
    python benchmarks/restoration.py --tiny                                   # check that the script works, in a minute

Episodes of `sgqn evaluate` have seed 0 and, with 30 episodes, the benchmark's clips 1 to 30. Here the seed is 1, and
`video_hard` has clips 40 to 79 only. Prints the returns; with `--out`, also appends them to pilots.csv in this folder.
With `--drift`, it measures the drift of actions (benchmarks/drift.py) in these episodes instead, which needs fewer.
Runs are kept in RUNS/<variant>, and continue there if the script is started again.
"""

from __future__ import annotations

import csv
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import drift
import torch
import tyro
from rich.console import Console
from rich.progress import Progress

import sgqn
from sgqn import data, loading, training
from sgqn.inspect import Subject

AGENT = "sgqn_restored"
TRAINED = "trained"
"""The trained agent itself."""
VARIANTS: dict[str, dict[str, Any]] = {
    TRAINED: {},
    "default": {},
    "no attribution": {
        "kept_rho": (0.0,),
        "kept_margin": (0,),
        "kept_contrast": (0.0,),
        "overlaid": 0.95,
        "replaced": 0.0,
        "recolored": 0.0,
    },
    "no contrast": {"kept_contrast": (0.0,) * 8},
    "one mask": {"kept_rho": (0.95,), "kept_margin": (0,), "kept_contrast": (0.0,)},
    "plain edges": {"fringed": 0.0},
    "same colors": {"color_jitter": 0.0},
    "still images": {"augmentation": "overlay:alpha=1"},
    "whole images": {"sided": 0.0},
    "no canvas": {"canvas": False},
    "even weights": {"kept_weight": 0.0},
    "no gate": {"gate_weight": 0.0},
    "no features": {"feature_weight": 0.0, "embedding_weight": 0.0},
    "no embeddings": {"embedding_weight": 0.0},
    "no actions": {"action_weight": 0.0},
    "pixels only": {"gate_weight": 0.0, "feature_weight": 0.0, "embedding_weight": 0.0, "action_weight": 0.0},
    "trained states": {"random_actions": 0.0},
}
"""By name, what differs from the defaults."""
FIRST_CLIP = 40
COLUMNS = (
    *("task", "variant", "options", "steps", "minutes", "shift", "backgrounds", "renderer", "mean", "returns"),
    "drift",
)


@dataclass
class Options:
    """What to train and to evaluate."""

    variants: tyro.conf.Positional[list[str]] = field(default_factory=lambda: list(VARIANTS))
    """Names of variants; all by default."""
    task: str = "cartpole-swingup"
    shifts: tuple[str, ...] = ("train", "color_hard", "video_easy", "video_hard")
    episodes: int = 20
    seed: int = 1
    """Seed of the episodes."""
    renderer: str = "warp"
    steps: int | None = None
    """Updates; those of the agent by default. The learning rate falls to zero at the last."""
    drift: bool = False
    """Measure the drift of actions instead of returns, on every tenth step of the episodes."""
    precision: str = "bf16"
    """Precision of the updates."""
    threads: int | None = None
    """CPU threads of the computation."""
    runs: Path = Path("runs/pilots")
    """Where the runs are kept."""
    out: Path | None = None
    """Append the results to pilots.csv in this folder."""
    tiny: bool = False
    """Two variants of a tiny agent, to check that the script works."""


def main(options: Options) -> None:
    console = Console(highlight=False)
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        if options.tiny:
            options.variants, options.episodes, options.shifts = [TRAINED, "no attribution"], 1, ("train", "color_easy")
            options.runs, options.precision = Path(folder) / "runs", "fp32"
        for variant in options.variants:
            if variant not in VARIANTS:
                raise SystemExit(f"error: no variant {variant!r}; there are {', '.join(VARIANTS)}")
            start = time.monotonic()
            path = trained(variant, options)
            minutes = (time.monotonic() - start) / 60
            with Progress(console=console, transient=True) as bar:
                job = bar.add_task(f"{options.task}, {variant}")
                for row in evaluated(path, variant, options, Path(folder), partial(bar.advance, job)):
                    row["minutes"] = f"{minutes:.1f}" if variant != TRAINED else ""
                    found = f"drift {row['drift']}" if options.drift else f"{float(row['mean']):.0f}"
                    console.print(f"{row['task']}, {variant}, {row['shift']}: {found}")
                    if options.out is not None:
                        append(options.out / "pilots.csv", row)


def trained(variant: str, options: Options) -> str:
    """The agent of a variant: the path of its run, which is trained unless it is there."""
    trained_agent = f"pretrained:{options.task}"
    small: dict[str, Any] = {}
    if options.tiny:
        small = {"preset": "tiny", "renderer": "auto"}
        config = sgqn.configure(task=options.task, steps=200, evaluate_every=0, **small)
        trained_agent = str(training.advance(config, options.runs / TRAINED, progress=False))
        small["steps"] = 200
    if variant == TRAINED:
        return trained_agent
    if options.steps is not None:
        small |= {"steps": options.steps, "learning_rate_decay": options.steps}
    config = sgqn.configure(
        task=options.task,
        agent=AGENT,
        start_from=trained_agent,
        precision=options.precision,
        evaluate_every=0,
        images_every=0,
        save_replay=False,
        **{**VARIANTS[variant], **small},
    )
    length = "" if options.steps is None else f"-{options.steps}"
    return str(training.advance(config, options.runs / (variant.replace(" ", "-") + length), progress=False))


def evaluated(
    path: str, variant: str, options: Options, folder: Path, advance: Callable[[], None]
) -> Iterator[dict[str, Any]]:
    """A row for each shift."""
    about = {
        "task": options.task,
        "variant": variant,
        "options": " ".join(f"{name}={value}" for name, value in VARIANTS[variant].items()),
    }
    with patch.dict(os.environ, SGQN_DATA=str(held_out(folder))):
        for found in (drifts if options.drift else returns)(path, options):
            advance()
            yield about | found


def returns(path: str, options: Options) -> Iterator[dict[str, Any]]:
    """The returns of every shift."""
    found = loading.load(path)
    for shift in options.shifts:
        result = sgqn.evaluate(found.agent, options.task, shift, options.episodes, options.seed, options.renderer)
        yield {
            "steps": found.step,
            "shift": shift,
            "backgrounds": result.backgrounds,
            "renderer": result.renderer,
            "mean": f"{result.mean:.1f}",
            "returns": " ".join(f"{one:.1f}" for one in result.returns),
        }


def drifts(path: str, options: Options) -> Iterator[dict[str, Any]]:
    """The drift of the action in every shift but the training scene, averaged over episodes, in the states to which the
    agent comes there."""
    subject = Subject.load(path)
    shifts = [shift for shift in options.shifts if shift != "train"]
    how = drift.Options(shifts=shifts, every=10, states="shift", renderer=options.renderer, seed=options.seed)
    found = [drift.measure(subject, episode, how) for episode in range(options.episodes)]
    for shift in shifts:
        mean = statistics.fmean(one[shift]["action"] for one in found)
        yield {"steps": subject.step, "shift": shift, "renderer": options.renderer, "drift": f"{mean:.3f}"}


def held_out(folder: Path) -> Path:
    """A data directory whose `video_hard` lacks the first clips; the rest are links."""
    there, here = data.data_dir(), folder / "data"
    hard = here / "dmcgb" / "video_hard"
    if not hard.exists():
        hard.mkdir(parents=True)
        for path in [*(there / "dmcgb").glob("*"), *there.glob("overlay")]:
            if path.name != hard.name:
                (here / path.relative_to(there)).symlink_to(path.resolve())
        for clip in data.video_clips(hard.name)[FIRST_CLIP:]:
            (hard / clip.name).symlink_to(clip.resolve())
    return here


def append(path: Path, row: dict[str, Any]) -> None:
    """One line, which other processes may append to at the same time."""
    path.parent.mkdir(parents=True, exist_ok=True)
    fresh = not path.exists()
    with open(path, "a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        if fresh:
            writer.writeheader()
        writer.writerow(row)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
