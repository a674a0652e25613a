"""`sgqn train`"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal

import tyro

from sgqn.cli.command import command, has, peek, run_tyro
from sgqn.errors import InvalidValueError

if TYPE_CHECKING:
    from sgqn.config import TrainConfig, TrainOptions


def parse(args: list[str]) -> Callable[[], None]:
    """The options depend on agent, task and preset, so these are read first."""
    from sgqn.config import PRESETS, TrainOptions, preset

    name = peek(args, "--preset", "paper")
    task, agent = peek(args, "--task", "walker-walk"), peek(args, "--agent", "sgqn")
    defaults = preset(name if name in PRESETS else "paper", task, agent)
    with _choices(defaults):
        how = {"default": TrainOptions(defaults), "config": (tyro.conf.OmitArgPrefixes,)}
        options: TrainOptions = run_tyro("train", TrainOptions, args, lists_tasks=True, **how)
    _check(options, args)

    def call() -> None:
        from sgqn import training

        config, out, progress = options.config, options.out, not options.quiet
        if options.seeds:
            folders = training.train_seeds(config, options.seeds, out, progress)
        elif options.resume is not None:
            steps = config.steps if has(args, "--steps") else None
            folders = [training.resume(options.resume, progress, steps)]
        else:
            folders = [training.train(config, out, progress)]
        for folder in folders:
            print(f"done: {folder}")

    return call


@command("train", order=0, parse=parse)
def train() -> None:
    """Train an agent, several (`--seeds 0 1 2`), or continue a run (`--resume RUN [--steps N]`)."""


def _check(options: TrainOptions, args: list[str]) -> None:
    if has(args, "--seeds"):
        for other in ("--resume", "--seed"):
            if has(args, other):
                raise InvalidValueError(f"--seeds and {other} exclude each other: --seeds names all runs of a queue")
        if not options.seeds:
            raise InvalidValueError("--seeds needs at least one number, such as --seeds 0 1 2")
    if options.resume is not None:
        others = [arg.partition("=")[0] for arg in args if arg.startswith("--")]
        others = [other for other in others if other not in ("--resume", "--steps", "--quiet")]
        if others:
            what = f"{', '.join(others)} cannot be changed, --steps alone can"
            raise InvalidValueError(f"--resume continues with the configuration that the run was started with: {what}")


@contextmanager
def _choices(config: TrainConfig) -> Iterator[None]:
    """While the options are parsed, fields that take registered names have these as their type.

    tyro reads types from annotations; nothing else does meanwhile.
    """
    from sgqn.agents import AGENTS
    from sgqn.envs.families import find_task

    task = find_task(config.task)
    own: dict[str, Any] = {
        "agent": _literal(AGENTS),
        "renderer": _literal((*task.family.renderers(config.task), "auto")),
        "evaluate_shifts": tuple[(_literal(task.shifts), ...)],  # type: ignore[misc]
    }
    fields = dataclasses.fields(config.settings)
    named = {one.name: _literal(one.metadata["names"]()) for one in fields if "names" in one.metadata}
    changes = {type(config): own, type(config.settings): named}
    before = {kind: dict(kind.__annotations__) for kind in changes}
    try:
        for kind, hints in changes.items():
            kind.__annotations__ = {**kind.__annotations__, **hints}
        yield
    finally:
        for kind, hints in before.items():
            kind.__annotations__ = hints


def _literal(names: Iterable[str]) -> Any:
    return Literal[tuple(names)]
