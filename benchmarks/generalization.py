"""Compare learners with and without SGQN on a toy task: DQN and PPO, in the training scene and behind new backgrounds.

    python benchmarks/generalization.py --out docs/catch         # three seeds each: about an hour on two CPU cores
    python benchmarks/generalization.py --agents dqn sgdqn --seeds 0
    python benchmarks/generalization.py --tiny                   # check that the script works, in seconds

The task is gym:sgqn/Catch-v0: ten balls, 1 for each that is caught and -1 for each that is missed. Agents see a plain
background in training; in video_hard, a clip plays behind ball and paddle. Runs are ordinary runs (`--runs`): complete
ones are not trained again. Prints the final returns, mean over seeds and range; with `--out` also writes all points of
the curves (generalization.csv) and their figure (generalization.png).
"""

from __future__ import annotations

import csv
import tempfile
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
import tyro
from rich.console import Console
from rich.table import Table

from sgqn import run_folder, training
from sgqn.config import TINY, TINY_SETTINGS, TrainConfig, settings_for

TASK, SHIFTS = "gym:sgqn/Catch-v0", ("train", "video_hard")
COMMON: dict[str, Any] = {
    "num_envs": 8,
    "device": "cpu",
    "evaluate_episodes": 10,
    "evaluate_shifts": SHIFTS,
    "images_every": 0,
}
OPTIONS: dict[str, dict[str, Any]] = {
    "dqn": {"steps": 10_000, "evaluate_every": 2000, "replay_capacity": 10_000, "save_replay": False},
    "ppo": {"steps": 40_000, "evaluate_every": 5000},
}
SETTINGS: dict[str, dict[str, Any]] = {"dqn": {"learning_rate": 1e-3, "epsilon_steps": 3000}, "ppo": {}}
"""By learner; the same with SGQN around it."""
Points = dict[tuple[str, str], dict[int, list[float]]]
"""Of an agent and a shift: the mean returns of all seeds at each step."""


@dataclass
class Options:
    """What to compare."""

    agents: list[str] = field(default_factory=lambda: ["dqn", "sgdqn", "ppo", "sgppo"])
    seeds: list[int] = field(default_factory=lambda: [0, 1, 2])
    runs: Path | None = None
    """Folder of the runs; a temporary one by default."""
    out: Path | None = None
    """Write generalization.csv and generalization.png to this folder."""
    tiny: bool = False
    """Train for a few steps only, to check that the script works."""


def main(options: Options) -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        runs = options.runs or Path(folder)
        points: Points = defaultdict(lambda: defaultdict(list))
        for agent in options.agents:
            config = configuration(agent, options.tiny)
            for run in training.train_seeds(config, options.seeds[: 1 if options.tiny else None], runs, progress=False):
                for line in run_folder.read_lines(run / run_folder.EVALUATIONS):
                    points[agent, line["shift"]][line["step"]].append(line["mean"])
    show(points)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        write(points, options.out / "generalization.csv")
        draw(points, options.out / "generalization.png")


def configuration(agent: str, tiny: bool) -> TrainConfig:
    learner = agent.removeprefix("sg")
    values = {**TINY_SETTINGS, "batch_size": 32, **SETTINGS[learner]}
    options = {**TINY, **COMMON, **OPTIONS[learner]}
    if tiny:
        options |= {"steps": 400, "warmup_steps": 40, "num_envs": 2, "evaluate_every": 400, "evaluate_episodes": 1}
    options["checkpoint_every"] = options["steps"]
    return TrainConfig(task=TASK, agent=agent, settings=settings_for(agent, TASK, **values), **options)


def show(points: Points) -> None:
    table = Table("agent", "seeds", "steps", *SHIFTS)
    for agent in dict.fromkeys(agent for agent, _ in points):
        last = max(points[agent, SHIFTS[0]])
        returns = [points[agent, shift][last] for shift in SHIFTS]
        shown = [f"{np.mean(found):.1f} ({min(found):.1f} to {max(found):.1f})" for found in returns]
        table.add_row(agent, str(len(returns[0])), f"{last:,}", *shown)
    Console().print(table)


def write(points: Points, path: Path) -> None:
    with open(path, "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["agent", "shift", "step", "returns"])
        for (agent, shift), curve in points.items():
            for step, returns in sorted(curve.items()):
                rows.writerow([agent, shift, step, " ".join(f"{value:g}" for value in returns)])


def draw(points: Points, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    learners = list(dict.fromkeys(agent.removeprefix("sg") for agent, _ in points))
    figure, axes = plt.subplots(1, len(learners), figsize=(4.6 * len(learners), 3.2), sharey=True, squeeze=False)
    for axis, learner in zip(axes[0], learners, strict=True):
        for agent, color in ((learner, "tab:gray"), (f"sg{learner}", "tab:blue")):
            for shift, style in zip(SHIFTS, ("--", "-"), strict=True):
                curve = sorted(points.get((agent, shift), {}).items())
                if not curve:
                    continue
                steps = [step for step, _ in curve]
                axis.plot(steps, [np.mean(found) for _, found in curve], style, color=color, label=f"{agent}, {shift}")
                if shift != SHIFTS[0]:
                    low, high = ([pick(found) for _, found in curve] for pick in (min, max))
                    axis.fill_between(steps, low, high, color=color, alpha=0.15, linewidth=0)
        axis.set(title=learner, xlabel="agent steps", ylim=(-10, 10))
        axis.grid(alpha=0.3)
        axis.legend(fontsize="small", loc="lower center", ncols=2)
    axes[0][0].set_ylabel("return")
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)


if __name__ == "__main__":
    main(tyro.cli(Options))
