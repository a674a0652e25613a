"""`sgqn evaluate`"""

from __future__ import annotations

import json as jsonlib
from pathlib import Path
from typing import Annotated, Any

import tyro

from sgqn.cli.command import Flag, Renderer, Shift, bars, command
from sgqn.errors import InvalidValueError


@command("evaluate", order=1)
def evaluate(
    path: Annotated[tyro.conf.Positional[Path | None], tyro.conf.arg(metavar="RUN")] = None,
    shift: tuple[Shift, ...] | None = None,
    episodes: int = 30,
    seed: int = 0,
    renderer: Renderer = "auto",
    device: str | None = None,
    json: Flag = False,
    policy: str | None = None,
    name: str | None = None,
    task: str | None = None,
    out: Path | None = None,
    policy_seed: int | None = None,
    steps: int | None = None,
    action_repeat: int | None = None,
    image_size: int | None = None,
    frame_stack: int | None = None,
) -> None:
    """Evaluate a trained agent in one or several shifts, with the benchmark's protocol.

    Results are appended to the run's evaluations.jsonl. Those of an exported or pretrained agent are only printed, or
    with --out kept in OUT/<task>/<agent>/<seed>. With --policy, --name and --task instead of RUN, any policy is
    evaluated, in a folder OUT/<task>/<name>/<seed> that `sgqn report` reads.

    Args:
        path: Run, checkpoint or exported agent, or a name such as pretrained:walker-walk.
        shift: Shifts to evaluate in. Default: the task's test shifts.
        episodes: Episodes in each shift.
        seed: Seed of the episodes: the same for everyone.
        renderer: Renderer of the images. gl draws the benchmark's own pixels.
        device: Device of the networks, cpu by default. A policy is given tensors on it instead of NumPy arrays.
        json: Print JSON instead of a table.
        policy: Policy as package.module:name, a function of observations or an object with act, or what makes one.
        name: Name of the policy in tables and folders.
        task: Task of the policy.
        out: Folder of runs to keep the results of an exported agent or of a policy in. Default for a policy: runs.
        policy_seed: Seed that the policy was trained with, which names its folder. Default: --seed.
        steps: Agent steps that the policy was trained for, if known.
        action_repeat: Control steps per action of the policy. Default: the task's.
        image_size: Width and height of the policy's images. Default: 84.
        frame_stack: Frames in an observation of the policy. Default: the task's.
    """
    from sgqn import evaluation, policies

    own: dict[str, Any] = {"policy_seed": policy_seed, "steps": steps, "action_repeat": action_repeat}
    own |= {"image_size": image_size, "frame_stack": frame_stack}
    with bars("steps/s") as report:
        if policy is None:
            _refuse({"name": name, "task": task, **own}, "for --policy only")
            if path is None:
                raise InvalidValueError("name a run to evaluate, or a policy with --policy, --name and --task")
            lines = evaluation.record(path, shift, episodes, seed, renderer, device or "cpu", report, out)
        else:
            _refuse({"RUN": path}, "not for --policy")
            if name is None or task is None:
                raise InvalidValueError("--policy needs --name and --task: what tables call it, and what it plays")
            own |= {"device": device, "on_step": report}
            lines = policies.record(policy, name, task, shift, episodes, seed, renderer, out or "runs", **own)
    if json:
        print(jsonlib.dumps(lines, indent=1))
    else:
        _print_table(lines)


def _refuse(options: dict[str, Any], why: str) -> None:
    for option, value in options.items():
        if value is not None:
            shown = option if option.isupper() else "--" + option.replace("_", "-")
            raise InvalidValueError(f"{shown} {value} is {why}")


def _print_table(lines: list[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    has_success = any("success_rate" in line for line in lines)
    table = Table("shift", "return", *(["success"] if has_success else []), "episodes", "renderer", "backgrounds")
    for line in lines:
        shown = f"{line['mean']:.1f} ± {line['std']:.1f}"
        success = [f"{line['success_rate']:.0%}"] if has_success else []
        table.add_row(line["shift"], shown, *success, str(len(line["returns"])), line["renderer"], line["backgrounds"])
    Console().print(table)
