"""Policies from elsewhere: found by name, evaluated, and recorded in a folder that `sgqn report` reads."""

from __future__ import annotations

import inspect
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from sgqn import plugins, run_folder
from sgqn.agents import AGENTS, Agent
from sgqn.envs.checks import check_count, check_sizes
from sgqn.envs.families import find_task
from sgqn.errors import InvalidValueError, SgqnError, UnknownNameError
from sgqn.evaluation import Act, Policy, act_of, check_plan, check_writable, play_shifts, seen_by
from sgqn.loading import AS_TRAINED
from sgqn.run_folder import PolicyRecord


def record(
    policy: Policy | Act | str,
    name: str,
    task: str,
    shifts: Sequence[str] | None = None,
    episodes: int = 30,
    seed: int = 0,
    renderer: str = "auto",
    out: str | Path = "runs",
    *,
    policy_seed: int | None = None,
    steps: int | None = None,
    action_repeat: int | None = None,
    image_size: int | None = None,
    frame_stack: int | None = None,
    device: str | torch.device | None = None,
    on_step: Callable[[str, int, int], None] | None = None,
) -> list[dict[str, Any]]:
    """Evaluate any policy, and record the results as `name` in `out/<task>/<name>/<seed>`, which `sgqn report` reads.

    `policy` and the keyword arguments are those of `sgqn.evaluate`; "package.module:name" is a policy too. `seed` is
    that of the episodes. Of several policies with one name, `policy_seed` (default: `seed`) tells which one this is.
    `steps` is how long the policy was trained, if that is known. Returns the lines of evaluations.jsonl.
    """
    found = load_policy(policy) if isinstance(policy, str) else policy
    act = act_of(found)
    shifts = check_plan(task, shifts, episodes, seed, renderer)
    if isinstance(found, Agent) and action_repeat is None and found.task == task:
        action_repeat = found.action_repeat
    repeat = find_task(task, action_repeat).action_repeat
    seen = seen_by(found, task, image_size, frame_stack, device)
    check_sizes(seen["image_size"], seen["frame_stack"])
    about = PolicyRecord(
        _checked_name(name),
        task,
        check_count("policy_seed", seed if policy_seed is None else policy_seed),
        repeat,
        seen["image_size"],
        seen["frame_stack"],
        policy if isinstance(policy, str) else _source_of(act),
    )
    folder = run_folder.folder_of(about, Path(out))
    _check_free(folder, about)
    check_writable(folder / run_folder.EVALUATIONS)

    def keep(line: dict[str, Any]) -> None:
        if not (folder / run_folder.POLICY).exists():
            folder.mkdir(parents=True, exist_ok=True)
            run_folder.write_policy(folder, about)
        run_folder.append_line(folder / run_folder.EVALUATIONS, line)

    options = {"image_size": image_size, "frame_stack": frame_stack, "device": device, "action_repeat": repeat}
    options["num_workers"] = 0 if episodes <= 2 else None  # starting processes would take longer
    known = None if steps is None else check_count("steps", steps)
    return play_shifts(found, task, shifts, episodes, seed, renderer, known, AS_TRAINED, keep, on_step, **options)


def load_policy(name: str) -> Policy | Act:
    """The policy that `package.module:name` names: a function or object, or a class or function that makes one."""
    module, _, path = name.partition(":")
    if not module or not path:
        raise InvalidValueError(f"policy {name!r} must be written as package.module:name")
    plugins.import_module(module, f"{module}, the module of policy {name!r},")
    found: Any = sys.modules[module]
    for part in path.split("."):
        if not hasattr(found, part):
            raise UnknownNameError(f"policy in {module}", path, [key for key in vars(found) if key[0] != "_"])
        found = getattr(found, part)
    if isinstance(found, type) or _takes_nothing(found):
        try:
            found = found()
        except Exception as error:
            raise SgqnError(f"policy {name!r} could not be created: {type(error).__name__}: {error}") from error
    act_of(found)
    return found


def _takes_nothing(found: Any) -> bool:
    """Whether a function can only be called without arguments: it makes a policy."""
    try:
        signature = inspect.signature(found)
        signature.bind()
    except (TypeError, ValueError):
        return False
    try:
        signature.bind(None)
    except TypeError:
        return True
    return False


def _source_of(act: Any) -> str:
    kind = act if hasattr(act, "__qualname__") else type(act)
    return f"{kind.__module__}:{kind.__qualname__}"


def _checked_name(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", name):
        raise InvalidValueError(f"name {name!r} of a policy must have letters, digits, '_', '-' and '.' only")
    if name in AGENTS:
        raise InvalidValueError(f"name {name!r} is that of an agent of sgqn: choose another name for the policy")
    return name


def _check_free(folder: Path, about: PolicyRecord) -> None:
    """Refuse a folder with a training run, or with results of a policy that sees or acts in another way."""
    if runs := sorted(folder.parent.glob(f"*/{run_folder.CONFIG}")):
        raise InvalidValueError(
            f"{runs[0].parent} is a training run: choose another name for the policy, or another out"
        )
    if not (folder / run_folder.POLICY).exists():
        return
    found = run_folder.read_policy(folder)
    for option in ("task", "action_repeat", "image_size", "frame_stack"):
        here, asked = getattr(found, option), getattr(about, option)
        if here != asked:
            raise InvalidValueError(
                f"{folder} has results of another policy ({option} is {here!r}, not {asked!r}): choose another name"
            )
