"""Draws the learning curves of docs/performance.md into docs/images/learning_gpu.png.

    python docs/make_performance.py                                              # from docs/performance/*.csv
    python docs/make_performance.py seed0=runs/walker-walk/sgqn/0/metrics.jsonl   # takes a run's returns over first

The curves are `seed0` (500,000 steps), `lagging0` and `lagging1` (the same with targets that lagged, seeds 0 and 1),
`sky` (stopped; with the stars of the sky as sharp as its texture), `cudnn`, `resumed` and `killed` (the same run before
it was killed). Needs matplotlib.
"""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
import numpy as np

DOCS = Path(__file__).parent
DATA = DOCS / "performance"
COLUMNS = ("step", "return", "seconds", "loss_mask")
CURVES = {
    "seed0": ("kernels, seed 0", "C0", "-"),
    "lagging1": ("lagging targets, seed 1", "0.45", "-"),
    "lagging0": ("lagging targets, seed 0", "0.7", "-"),
    "sky": ("sharper sky", "C4", "-"),
    "cudnn": ("cudnn", "C1", "-"),
    "resumed": ("killed and resumed", "C2", "-"),
    "killed": ("the same before the kill", "C2", ":"),
}
MARKS = (4_000, 8_000, 12_000, 16_000, 20_000, 48_000, 96_000, 100_000, 200_000, 300_000, 500_000)
LONG = ("seed0", "lagging1", "lagging0")
ALONE = "lagging0"
"""The run that had the GPU for itself: its seconds are a measure of speed."""


def take_over(name: str, metrics: Path) -> None:
    """Write a run's returns to docs/performance/<name>.csv, with the loss of the mask's prediction since the last."""
    rows: list[tuple[int, str, str, str]] = []
    losses: list[float] = []
    for line in map(json.loads, metrics.read_text().splitlines()):
        if "loss/mask" in line:
            losses.append(line["loss/mask"])
        if "episode/return" in line:
            loss = f"{np.mean(losses):.4f}" if losses else ""
            rows.append((line["step"], f"{line['episode/return']:.1f}", f"{line['seconds']:.1f}", loss))
            losses = []
    DATA.mkdir(exist_ok=True)
    with (DATA / f"{name}.csv").open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows(rows)


def read(name: str) -> np.ndarray:
    """Steps, returns, seconds, losses of the mask's prediction."""
    return np.genfromtxt(DATA / f"{name}.csv", delimiter=",", skip_header=1).reshape(-1, len(COLUMNS)).T


def draw() -> None:
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), constrained_layout=True)
    left.axhline(700, color="0.8", linewidth=1)
    for name in LONG:
        steps, returns, *_ = read(name)
        left.plot(steps / 1000, returns, color=CURVES[name][1], label=CURVES[name][0])
    steps, _, seconds, _ = read(ALONE)
    left.set(xlabel="thousand agent steps", ylabel="return of training episodes", ylim=(0, 1000))
    left.legend(frameon=False, loc="lower right")
    left.set_xlim(0, steps[-1] / 1000)
    thousands, minutes = np.append(0, steps) / 1000, np.append(0, seconds) / 60
    top = left.secondary_xaxis(
        "top", functions=(lambda x: np.interp(x, thousands, minutes), lambda x: np.interp(x, minutes, thousands))
    )
    top.set_xlabel("minutes")
    for name, (label, color, style) in CURVES.items():
        at, returns, *_ = read(name)
        first = at <= 20_000
        right.plot(at[first] / 1000, returns[first], style, color=color, marker=".", label=label)
    right.set(xlabel="thousand agent steps", ylim=(0, 1000), xticks=range(0, 21, 4))
    right.legend(frameon=False, loc="upper left")
    for axes in (left, right):
        axes.spines[["right"]].set_visible(False)
    right.spines["top"].set_visible(False)
    figure.savefig(DOCS / "images" / "learning_gpu.png", dpi=110)
    rate = (steps[-1] - steps[0]) / (seconds[-1] - seconds[0])
    for name in CURVES:
        at, returns, _, losses = read(name)
        marked = (f"{step}: {value:.0f}" for step, value in zip(at.astype(int), returns, strict=True) if step in MARKS)
        passed = f"700 at {at[returns >= 700][0]:.0f}" if (returns >= 700).any() else ""
        spans = [(low, low + 20_000) for low in (150_000, 480_000) if at[-1] > low]
        masks = (f"mask's loss from {low:,}: {losses[(at > low) & (at <= high)].mean():.4f}" for low, high in spans)
        print(name, *marked, passed, *masks)
    print(f"the run `{ALONE}`, from step {steps[0]:,.0f} to {steps[-1]:,.0f}: {rate:.0f} agent steps/s")


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        name, _, path = argument.partition("=")
        if name not in CURVES or not path:
            sys.exit(f"{argument!r} is not NAME=METRICS with a name of {', '.join(CURVES)}")
        take_over(name, Path(path))
    draw()
