"""Packing a run's agent for sharing: `sgqn export`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, NamedTuple

import torch

from sgqn import attribution, checkpoint, pretrained
from sgqn.agents import Agent
from sgqn.envs.tasks import find_task
from sgqn.errors import DataError, InvalidValueError
from sgqn.explain import AT_ONCE, Report, Subject, attribute, play
from sgqn.files import write_folder
from sgqn.pretrained import card, package
from sgqn.pretrained.package import Package, Precision
from sgqn.results.runs import find_runs

CHECKED = ("train", "video_hard")
CHECK_STEPS = 100
"""Steps of an episode in each of these shifts on which the packed agent is compared with the trained one."""
TOLERANCE: dict[Precision, float] = {"half": 0.01, "int8": 0.05}
"""How far the actions, which range from -1 to 1, may differ in the mean."""


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
    weights = package.pack(subject.agent, precision)
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
    steps = min(CHECK_STEPS, subject.config.episode_steps)
    differences, overlaps = [], []
    for shift in CHECKED:
        episode = play(subject, shift, renderer=renderer, steps=steps, report=report)
        differences.append((packed.policy(episode.seen, True) - episode.actions).abs())
        for part in torch.arange(len(episode.seen)).split(AT_ONCE):
            seen, actions = episode.seen[part], episode.actions[part]
            ours, theirs = (_mask(agent, subject, seen, actions) for agent in (subject.agent, packed))
            overlaps.append((ours & theirs).sum(dim=(1, 2, 3)) / (ours | theirs).sum(dim=(1, 2, 3)))
    difference = torch.cat(differences)
    return {
        "observations": len(difference),
        "shifts": list(CHECKED),
        "mean": float(difference.mean()),
        "largest": float(difference.max()),
        "masks": float(torch.cat(overlaps).mean()),
    }


def _mask(agent: Agent, subject: Subject, seen: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
    settings = subject.config.settings
    heat = attribute(agent, seen, actions, settings.attribution)
    return attribution.quantile_mask(heat, settings.rho, subject.config.frame_stack)
