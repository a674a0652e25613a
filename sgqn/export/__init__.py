"""Packing a run's agent for sharing: `sgqn export`."""

from __future__ import annotations

import dataclasses
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from sgqn import checkpoint, pretrained
from sgqn.agents import Agent
from sgqn.envs.families import find_task
from sgqn.errors import DataError, InvalidValueError
from sgqn.export import card
from sgqn.files import write_folder
from sgqn.inspect import Report, Subject, looks, play
from sgqn.inspect.measures import binary, mask_iou
from sgqn.pretrained import package
from sgqn.pretrained.package import Package, Precision
from sgqn.results.runs import find_runs

CHECK_STEPS = 100
"""Steps of an episode, in the clean scene and under the hardest shift, on which both agents are compared."""
TOLERANCE: dict[Precision, float] = {"half": 0.01, "int8": 0.05}
"""Largest mean difference of the actions, which range from -1 to 1."""


class Exported(NamedTuple):
    """What was written where."""

    folder: Path
    size: int
    """Bytes of all files."""
    check: dict[str, Any]
    """On how many observations of which shifts the packed agent was compared; the mean and the largest difference of
    its actions; the mean IoU of its attribution masks with the trained agent's."""


def export(
    path: str | Path,
    out: str | Path,
    precision: Precision = "half",
    renderer: str = "auto",
    report: Report | None = None,
) -> Exported:
    """Pack the agent of a run (its newest checkpoint), or of one checkpoint, into the folder `out`.

    Refused if the packed agent would act otherwise than the trained one, or if `out` holds anything but an exported
    agent, which is replaced.
    """
    out = Path(out)
    if pretrained.find(path) is not None:
        raise InvalidValueError(f"{path} is exported already: copy its folder")
    _check_out(out)
    folder = checkpoint.find(path)
    state, home = checkpoint.load(folder), folder.parent.parent
    subject = Subject.load(folder)
    config = dataclasses.replace(
        subject.config, action_repeat=find_task(subject.config.task, subject.config.action_repeat).action_repeat
    )
    weights = package.pack(state.weights, precision, subject.agent.left_out())
    bare = Package(config, subject.agent.spec, subject.step, weights, {})
    check = compare(subject, bare.build(), renderer, report)
    if not check["mean"] <= TOLERANCE[precision]:
        raise DataError(
            f"{path} cannot be packed in {precision}: its actions would differ by {check['mean']:.2g} in the mean, "
            f"more than {TOLERANCE[precision]:g}" + ("; use --precision half" if precision == "int8" else "")
        )
    run = find_runs(home).runs[0]
    pictures = state.state.get("pictures") or {}
    about = {
        "precision": precision,
        "check": check,
        "returns": [
            {**evaluation.to_dict(), "episodes": evaluation.episodes} for evaluation in card.counted(run, bare.step)
        ],
        "pictures": run.machine.get("pictures") or pictures.get("source", "none"),
        "machine": run.machine,
        "versions": run.versions,
    }
    packed = dataclasses.replace(bare, about=about)
    files = packed.files(card.write(packed, run))
    write_folder(out, files)
    return Exported(out, sum(len(content) for content in files.values()), check)


def _check_out(out: Path) -> None:
    if out.is_dir() and not (out / package.ABOUT).is_file() and any(out.iterdir()):
        raise InvalidValueError(f"{out} holds something that is no exported agent: choose another --out")
    if out.exists() and not out.is_dir():
        raise InvalidValueError(f"{out} is not a folder: choose another --out")


@torch.no_grad()
def compare(subject: Subject, packed: Agent, renderer: str = "auto", report: Report | None = None) -> dict[str, Any]:
    """How the packed agent differs from the trained one, on what the trained one meets in two shifts."""
    task = subject.config.task
    checked = tuple(dict.fromkeys((find_task(task).shifts[0], find_task(task).shifts[-1])))
    steps = min(CHECK_STEPS, subject.config.episode_steps)
    on_step = None if report is None else partial(report, f"{subject.name}: episode")
    differences, overlaps = [], []
    for shift in checked:
        episode = play(subject, shift, renderer=renderer, count=steps, on_step=on_step)
        differences.append((packed.policy(episode.seen, True) - episode.actions).abs())
        ours, theirs = (
            looks(agent, episode.seen, episode.actions, subject.method) for agent in (subject.agent, packed)
        )
        for one, other in zip(ours, theirs, strict=True):
            overlaps.append(mask_iou(binary(one.mask(subject.rho)), binary(other.mask(subject.rho)), frames=1))
    difference = torch.cat(differences)
    return {
        "observations": len(difference),
        "shifts": list(checked),
        "mean": float(difference.mean()),
        "largest": float(difference.max()),
        "masks": float(torch.cat(overlaps).mean()),
    }
