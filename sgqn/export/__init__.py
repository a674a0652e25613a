"""Packing a run's agent for sharing: `sgqn export`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from sgqn import checkpoint, pretrained
from sgqn.agents import Agent
from sgqn.envs.families import find_task
from sgqn.errors import DataError, InvalidValueError, SgqnError
from sgqn.export import card
from sgqn.files import other_files, write_folder
from sgqn.inspect import Report, Subject, looks, play
from sgqn.inspect.measures import binary, mask_iou
from sgqn.pretrained import package
from sgqn.pretrained.package import PRECISIONS, Package, Precision
from sgqn.reading import line
from sgqn.results.runs import Run, RunEvaluation, find_runs, rank

CHECK_STEPS = 100
"""Steps of an episode, in the clean scene and under the hardest shift, on which both agents are compared."""
TOLERANCE: dict[Precision, float] = {"half": 0.01, "int8": 0.05}
"""Largest mean difference of continuous actions, which range from -1 to 1."""
TOLERANCE_DISCRETE: dict[Precision, float] = {"half": 0.05, "int8": 0.1}
"""Largest share of observations with another discrete action: nearly equal values may change places."""


class Exported(NamedTuple):
    """What was written where."""

    folder: Path
    size: int
    """Bytes of all files."""
    check: dict[str, Any] | None
    """The comparison of the packed agent with the given one, None if it was skipped: on how many observations of which
    shifts; the mean and the largest difference of actions, or the share of those that differ if they are discrete; the
    mean IoU of attribution masks."""


def export(
    path: str | Path,
    out: str | Path,
    precision: Precision | None = None,
    renderer: str = "auto",
    report: Report | None = None,
    runs: str | Path | None = None,
    base: str | None = None,
    unchecked: bool = False,
) -> Exported:
    """Pack the agent of a run (its newest checkpoint) or of one checkpoint, or pack an exported agent again.

    `precision` is half by default, or that of the exported agent. `runs` is a folder of kept runs: the card gets its
    records from the agent's own run there, and states which of them the agent was chosen from. `base` names a
    pretrained agent from which this one was made: the weights that both have are left out. `unchecked`: do not compare
    the packed agent with the given one, which plays episodes.

    Refused if the packed agent would act otherwise than the given one, or if `out` holds anything but the files of an
    exported agent, which are replaced.
    """
    out = Path(out)
    _check_out(out)
    folder, subject = pretrained.find(path), Subject.load(path)
    given = _trained(subject) if folder is None else package.read(folder)
    if runs is not None:
        given = dataclasses.replace(given, about=given.about | _records_among(find_runs(runs).runs, given, runs))
    wanted: Precision = precision or given.about.get("precision", "half")
    if base is not None:
        given = package.based_on(given, base)
    if PRECISIONS.index(wanted) < PRECISIONS.index(subject.precision):
        raise InvalidValueError(f"{path} has weights in {subject.precision}: {wanted} cannot restore them")
    try:
        packed = given
        if wanted != subject.precision:
            packed = _packed(given, wanted)
            check = None if unchecked else _checked(packed, wanted, subject, renderer, report)
            packed = dataclasses.replace(packed, about=packed.about | {"check": check})
        files, check = packed.files(card.write(packed)), packed.about["check"]
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, SgqnError):
            raise
        raise DataError(f"{given.origin}: {package.ABOUT} is not what `sgqn export` writes ({line(error)})") from error
    write_folder(out, files)
    return Exported(out, sum(len(content) for content in files.values()), check)


def _trained(subject: Subject) -> Package:
    """The agent of a checkpoint, in single precision, without what only learning needs."""
    assert subject.folder is not None
    assert subject.home is not None
    state, config = checkpoint.load(subject.folder), subject.config
    config = dataclasses.replace(config, action_repeat=find_task(config.task, config.action_repeat).action_repeat)
    left_out = subject.agent.left_out()
    weights = {name: tensor for name, tensor in state.weights.items() if name not in left_out}
    pictures = (state.state.get("pictures") or {}).get("source", "none")
    about = {"pictures": pictures, **records(find_runs(subject.home).runs[0], subject.step)}
    return Package(config, subject.agent.spec, subject.step, weights, about, str(subject.folder))


def _packed(given: Package, precision: Precision) -> Package:
    """The agent with weights of less precision."""
    again = given.precision != PRECISIONS[0]
    weights = package.pack(package.unpacked(given.weights) if again else given.weights, precision)
    about = {**given.about, "precision": precision}
    if again:
        about["packed_from"] = {name: given.about[name] for name in ("precision", "check")}
    return dataclasses.replace(given, weights=weights, about=about)


def _checked(
    packed: Package, precision: Precision, subject: Subject, renderer: str, report: Report | None
) -> dict[str, Any]:
    """The comparison of a packed agent with the given one, which `subject` is; refused if they act differently."""
    check = compare(subject, packed.build(), renderer, report)
    discrete = packed.spec.discrete
    tolerance = (TOLERANCE_DISCRETE if discrete else TOLERANCE)[precision]
    if not check["mean"] <= tolerance:
        how = "in a share of {:.2g} of observations" if discrete else "by {:.2g} on average"
        raise DataError(
            f"{packed.origin} cannot be packed in {precision}: its actions would differ {how.format(check['mean'])}, "
            f"more than {tolerance:g}" + ("; use --precision half" if precision == "int8" else "")
        )
    return check


# What the model card says about the run


def _records_among(kept: Sequence[Run], given: Package, where: str | Path) -> dict[str, Any]:
    """The records of the agent's own run, and the runs that it was chosen from."""
    own = next((run for run in kept if run.is_of(given.config)), None)
    if own is None:
        raise InvalidValueError(f"no run in {where} has the configuration of {given.origin}")
    return {**records(own, given.step), "chosen_from": candidates(kept, own.task, own.agent)}


def records(run: Run, step: int) -> dict[str, Any]:
    """What a run's logs say about its agent after `step` steps."""
    about: dict[str, Any] = {
        "returns": [{**evaluation.to_dict(), "episodes": evaluation.episodes} for evaluation in counted(run, step)],
        "curve": list(card.points(run.curve, step)),
        "machine": run.machine,
        "versions": run.versions,
    }
    if images := run.overlay_images:
        about["pictures"] = images
    return about


def counted(run: Run, step: int) -> list[RunEvaluation]:
    """The best evaluation of each shift, renderer, source of backgrounds and precision, none later than `step`."""
    kinds: dict[tuple[str, ...], RunEvaluation] = {}
    for found in run.evaluations:
        kind = found.shift, found.renderer, found.backgrounds, found.weights
        if found.step is not None and found.step <= step and (kind not in kinds or rank(found) >= rank(kinds[kind])):
            kinds[kind] = found
    return [kinds[kind] for kind in sorted(kinds)]


def candidates(kept: Iterable[Run], task: str, agent: str) -> list[dict[str, Any]]:
    """The kept runs of a task and agent with their training returns, by which the agent to share is chosen."""
    return [
        {"seed": run.seed, "steps": run.steps, "training_return": run.training_return}
        for run in sorted(kept, key=lambda run: run.seed)
        if (run.task, run.agent) == (task, agent) and run.training_return is not None
    ]


def _check_out(out: Path) -> None:
    if out.exists() and not out.is_dir():
        raise InvalidValueError(f"{out} is not a folder: choose another --out")
    if others := other_files(out, (package.WEIGHTS, package.ABOUT, package.CARD)):
        raise InvalidValueError(f"{out} holds something that is no exported agent, {others[0]}: choose another --out")
    if out.is_dir() and any(out.iterdir()):
        try:
            package.read_about(out)
        except DataError as error:
            raise InvalidValueError(
                f"{out} holds no exported agent to replace ({error}): choose another --out"
            ) from error


@torch.no_grad()
def compare(subject: Subject, packed: Agent, renderer: str = "auto", report: Report | None = None) -> dict[str, Any]:
    """How the packed agent differs from the trained one, on what the trained one meets in two shifts.

    The difference of two discrete actions is 0 or 1.
    """
    task = subject.config.task
    checked = tuple(dict.fromkeys((find_task(task).shifts[0], find_task(task).shifts[-1])))
    steps = min(CHECK_STEPS, subject.config.episode_steps)
    on_step = None if report is None else partial(report, f"{subject.name}: episode")
    differences, overlaps = [], []
    for shift in checked:
        episode = play(subject, shift, renderer=renderer, count=steps, on_step=on_step)
        action = packed.policy(episode.seen, True)
        differs = action != episode.actions if subject.agent.spec.discrete else (action - episode.actions).abs()
        differences.append(differs.float())
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
