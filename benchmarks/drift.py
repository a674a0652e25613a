"""Measure what changes in an agent when only the scene changes: its action, value, embedding and mask.

    python benchmarks/drift.py --out docs/drift          # the pretrained agents: about 15 minutes on two CPU cores
    python benchmarks/drift.py pretrained:walker-walk --episodes 5
    python benchmarks/drift.py --tiny                    # check that the script works, in seconds

The agent plays an episode in the training scene. The same actions are then played in the shifted scene, so that both
have the same states, pixel by pixel. With `--states shift`, it is the other way round: the states are those to which
the agent comes in the shifted scene, where its errors add up. For some of these states, the script compares what the
agent computes from the two observations, and from mixtures of them: the shifted pixels only inside or only outside of
the agent's attribution mask of the training scene, and only on or off the simulator's mask of the body. Prints the
means by agent and shift; with `--out` also writes every episode (drift.csv), and a figure of the drift of the action
next to the return that the run's kept evaluation has for the same episode (drift.png).
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
import tyro
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor

import sgqn
from sgqn import pretrained, run_folder
from sgqn.envs.families import find_task
from sgqn.inspect import Subject, attribute, environment
from sgqn.inspect.episode import roll
from sgqn.inspect.measures import mask_iou, mask_share

RESULTS = Path(sgqn.__file__).parent.parent / "results"
PARTS = ("inside", "outside", "body", "scene")
"""Where the shifted pixels are in a mixture: inside or outside the agent's mask, on the body or off it."""
COLUMNS = {
    "return": "mean return",
    "action": "action",
    **{part: f"{part} only" for part in PARTS},
    "value": "value",
    "bias": "value bias",
    "embedding": "embedding",
    "on_body_clean": "mask on body, train",
    "on_body": "mask on body",
    "mask_iou": "mask IoU",
}


@dataclass
class Options:
    """What to measure."""

    agents: tyro.conf.Positional[list[str]] = field(default_factory=list)
    """Anything that `sgqn.load_agent` accepts and that predicts masks. Default: the pretrained SGQN agents whose tasks
    have these shifts."""
    shifts: list[str] = field(default_factory=lambda: ["color_hard", "video_easy", "video_hard"])
    episodes: int = 10
    every: int = 5
    """Compare every so many steps of an episode."""
    steps: int | None = None
    """Steps of an episode; all by default."""
    states: Literal["train", "shift"] = "train"
    """Where the agent plays: in the training scene, or in the shifted one."""
    seed: int = 0
    """Seed of the episodes."""
    renderer: str = "warp"
    out: Path | None = None
    """Write drift.csv and drift.png to this folder."""
    tiny: bool = False
    """One agent and a few steps, to check that the script works."""


def main(options: Options) -> None:
    paths = options.agents or [pretrained.PREFIX + name for name in pretrained.available() if fits(name, options)]
    if options.tiny:
        paths, options.shifts, options.episodes, options.every = paths[:1], options.shifts[:1], 1, 2
        options.steps = 4
    rows: list[dict[str, Any]] = []
    for path in paths:
        subject = Subject.load(path)
        returns = {shift: [] if options.seed else kept_returns(subject, shift) for shift in options.shifts}
        for episode in track(range(options.episodes), f"{subject.config.task}"):
            for shift, found in measure(subject, episode, options).items():
                about = {"task": subject.config.task, "shift": shift, "episode": episode}
                known = returns[shift][episode] if episode < len(returns[shift]) else float("nan")
                rows.append({**about, "return": known, **found})
    show(rows)
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        with open(options.out / "drift.csv", "w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(
                {key: round(v, 4) if isinstance(v, float) else v for key, v in row.items()} for row in rows
            )
        draw(rows, options.out / "drift.png")


def fits(name: str, options: Options) -> bool:
    """Whether TASK/AGENT is SGQN on a task with all shifts."""
    task, _, agent = name.rpartition("/")
    return agent == pretrained.AGENT and {*options.shifts} <= {*find_task(task).shifts}


def kept_returns(subject: Subject, shift: str) -> list[float]:
    """The returns of the same episodes in the kept evaluation of the agent's run, with OpenGL."""
    file = RESULTS / subject.config.task / subject.config.agent / str(subject.config.seed) / run_folder.EVALUATIONS
    lines = [line for line in run_folder.read_lines(file) if line["shift"] == shift and line["renderer"] == "gl"]
    return lines[-1]["returns"] if lines else []


def measure(subject: Subject, episode: int, options: Options) -> dict[str, dict[str, float]]:
    """The drift of one episode in every shift."""
    if options.states == "train":
        clean, clean_truth, actions = play(subject, "train", episode, options)
    found = {}
    for shift in options.shifts:
        if options.states == "train":
            shifted, truth, _ = play(subject, shift, episode, options, actions)
        else:
            shifted, truth, actions = play(subject, shift, episode, options)
            clean, clean_truth, _ = play(subject, "train", episode, options, actions)
        if not torch.equal(truth, clean_truth):
            raise AssertionError(f"{subject.config.task}: the states in train and {shift} differ")
        found[shift] = compare(subject, clean, shifted, truth)
    return found


def play(
    subject: Subject, shift: str, episode: int, options: Options, actions: Sequence[np.ndarray] = ()
) -> tuple[Tensor, Tensor, list[np.ndarray]]:
    """Some observations of an episode, the body in them, and all actions: the given ones, or those of the agent."""
    env = environment(subject, shift, renderer=options.renderer, truth=True)
    seen, truth = [], []
    made: list[np.ndarray] = []

    def act(obs: np.ndarray) -> np.ndarray:
        made.append(actions[len(made)] if actions else subject.agent.act(obs))
        return made[-1]

    try:
        for number, step in enumerate(roll(env, act, seed=options.seed, episode=episode)):
            if step.over or number == options.steps:
                break
            if number % options.every == 0:
                seen.append(torch.from_numpy(step.obs.copy()))
                truth.append(torch.from_numpy(step.info["mask"].copy()))
    finally:
        env.close()
    return torch.stack(seen), torch.stack(truth), made


def compare(subject: Subject, clean: Tensor, shifted: Tensor, truth: Tensor) -> dict[str, float]:
    """What the agent computes from two observations of the same states. Values are relative to the clean values."""
    agent = subject.agent
    learner: Any = agent.learner
    with torch.no_grad():
        action = agent.policy(clean, True)
    masks = [agent.mask_of(attribute(agent, obs, action, subject.method), subject.rho) for obs in (clean, shifted)]
    body = truth.repeat_interleave(clean.shape[1] // truth.shape[1], dim=1)
    places = dict(zip(PARTS, (masks[0], ~masks[0], body, ~body), strict=True))

    @torch.no_grad()
    def moved(obs: Tensor) -> float:
        return (agent.policy(obs, True) - action).square().mean(dim=1).sqrt().mean().item()

    with torch.no_grad():
        values, drifted = (agent.value(obs, action) for obs in (clean, shifted))
        embeddings = [learner.embed(learner.encode(obs)) for obs in (clean, shifted)]
    frames = truth.shape[1]
    scale = values.abs().mean()
    return {
        "action": moved(shifted),
        **{part: moved(torch.where(place, shifted, clean)) for part, place in places.items()},
        "value": ((drifted - values).abs().mean() / scale).item(),
        "bias": ((drifted - values).mean() / scale).item(),
        "embedding": torch.cosine_similarity(*embeddings).mean().item(),
        "on_body_clean": mask_share(masks[0], truth).nanmean().item(),
        "on_body": mask_share(masks[1], truth).nanmean().item(),
        "mask_iou": mask_iou(masks[0], masks[1], frames).nanmean().item(),
    }


def show(rows: Sequence[dict[str, Any]]) -> None:
    table = Table("task", "shift", *COLUMNS.values())
    for task, shift in dict.fromkeys((row["task"], row["shift"]) for row in rows):
        of = [row for row in rows if (row["task"], row["shift"]) == (task, shift)]
        means = {name: float(np.mean([row[name] for row in of])) for name in COLUMNS}
        table.add_row(task, shift, f"{means.pop('return'):.0f}", *(f"{value:.2f}" for value in means.values()))
    Console(width=200).print(table)


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """The drift of the action and the return of every episode, a panel for each task."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    tasks, shifts = (list(dict.fromkeys(row[name] for row in rows)) for name in ("task", "shift"))
    figure, axes = pyplot.subplots(1, len(tasks), figsize=(3.2 * len(tasks), 3.2), squeeze=False, sharey=True)
    for axis, task in zip(axes[0], tasks, strict=True):
        for shift in shifts:
            of = [row for row in rows if (row["task"], row["shift"]) == (task, shift)]
            axis.scatter([row["action"] for row in of], [row["return"] for row in of], s=14, label=shift, alpha=0.8)
        axis.set(title=task, xlabel="drift of the action", ylim=(0, 1000))
        axis.grid(alpha=0.3)
    axes[0][0].set_ylabel("return")
    axes[0][-1].legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
