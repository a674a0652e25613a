"""`sgqn train`"""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tyro

from sgqn.cli.command import check_target, command, has, literal, peek, run_tyro
from sgqn.errors import InvalidValueError

if TYPE_CHECKING:
    from sgqn.config import TrainConfig, TrainOptions


def parse(args: list[str]) -> Callable[[], None]:
    """The options depend on agent, task and preset, so these are read first."""
    from sgqn.config import TrainOptions

    args = _renamed(args)
    defaults = _defaults(args)
    with _choices(defaults, args):
        how = {"default": TrainOptions(defaults), "config": (tyro.conf.OmitArgPrefixes,)}
        options: TrainOptions = run_tyro("train", TrainOptions, args, lists_tasks=True, **how)
    _check(options, args)

    def call() -> None:
        from sgqn import training
        from sgqn.loggers import LOGGERS

        if options.threads is not None:
            _use_threads(options.threads)
        config, out, progress = options.config, options.out, not options.quiet
        loggers = [LOGGERS[name]() for name in dict.fromkeys(options.logger)]
        folders: Iterable[Path | str]
        if options.devices:
            from sgqn.sweep import Planned, sweep

            names = tuple(dict.fromkeys(options.logger))
            runs = [Planned(dataclasses.replace(config, seed=seed), loggers=names) for seed in options.seeds]
            folders = sweep(runs, out, devices=options.devices, live=progress)
        elif options.seeds:
            folders = training.train_seeds(config, options.seeds, out, progress, loggers)
        elif options.resume is not None:
            steps = config.steps if has(args, "--steps") else None
            folders = [training.resume(options.resume, progress, steps, loggers)]
        else:
            folders = [training.train(config, out, progress, loggers)]
        for folder in folders:
            print(f"done: {folder}")

    return call


def _use_threads(count: int) -> None:
    """In this process, and in those that it starts."""
    import torch

    os.environ["OMP_NUM_THREADS"] = str(count)
    torch.set_num_threads(count)


def _renamed(args: list[str]) -> list[str]:
    """The arguments with options under their current names."""
    from sgqn.config import RENAMED

    options = {f"--{old.replace('_', '-')}": f"--{new.replace('_', '-')}" for old, new in RENAMED.items()}
    given = [arg.partition("=") for arg in args]
    for old in dict.fromkeys(name for name, _, _ in given if name in options):
        logging.getLogger(__name__).warning("%s is now %s", old, options[old])
    return [options.get(name, name) + equals + value for name, equals, value in given]


def _defaults(args: list[str]) -> TrainConfig:
    """Values of options that are not on the command line: from the file, or from agent, task and preset."""
    from sgqn import config_file
    from sgqn.config import CHOSEN_FIRST, PRESETS, preset

    chosen = {name: peek(args, f"--{name}", "") for name in CHOSEN_FIRST if has(args, f"--{name}")}
    if (file := peek(args, "--config", "")) and not has(args, "--resume"):
        return config_file.read(Path(file), **chosen)
    given = {**CHOSEN_FIRST, **chosen}
    return preset(given["preset"] if given["preset"] in PRESETS else "paper", given["task"], given["agent"])


@command("train", order=0, parse=parse)
def train() -> None:
    """Train an agent, or several (`--seeds 0 1 2`), or resume a run (`--resume RUN [--steps N]`)."""


def _check(options: TrainOptions, args: list[str]) -> None:
    check_target(options.out)
    if has(args, "--seeds"):
        for other in ("--resume", "--seed"):
            if has(args, other):
                raise InvalidValueError(f"--seeds cannot be combined with {other}: it already names all runs")
        if not options.seeds:
            raise InvalidValueError("--seeds needs at least one number, such as --seeds 0 1 2")
    if options.threads is not None and options.threads < 1:
        raise InvalidValueError(f"threads must be at least 1, not {options.threads}")
    if options.devices and not options.seeds:
        raise InvalidValueError(
            "--devices needs --seeds, because it trains several runs in parallel. Use --device for a single run"
        )
    if options.resume is not None:
        others = [arg.partition("=")[0] for arg in args if arg.startswith("--")]
        others = [other for other in others if other not in ("--resume", "--steps", "--quiet", "--logger", "--threads")]
        if others:
            what = f"{', '.join(others)} cannot be changed, only --steps"
            raise InvalidValueError(f"--resume uses the run's own configuration: {what}")


@contextmanager
def _choices(config: TrainConfig, args: list[str]) -> Iterator[None]:
    """While the options are parsed, fields that take registered names have these as their type.

    tyro reads types from annotations; nothing else does meanwhile.
    """
    from sgqn.agents import AGENTS
    from sgqn.config import TrainOptions
    from sgqn.envs.families import find_task
    from sgqn.loggers import LOGGERS

    task = find_task(config.task)
    own: dict[str, Any] = {
        "agent": literal(AGENTS, args),
        "renderer": literal((*task.family.renderers(config.task), "auto"), args),
        "evaluate_shifts": tuple[(literal(task.shifts, args), ...)],  # type: ignore[misc]
    }
    fields = dataclasses.fields(config.settings)
    named = {
        one.name: literal(one.metadata["names"](), [*args, getattr(config.settings, one.name)])
        for one in fields
        if "names" in one.metadata
    }
    logged = {"logger": tuple[(literal(LOGGERS, args), ...)]}  # type: ignore[misc]
    changes: dict[type, dict[str, Any]] = {type(config): own, type(config.settings): named, TrainOptions: logged}
    before = {kind: dict(kind.__annotations__) for kind in changes}
    try:
        for kind, hints in changes.items():
            kind.__annotations__ = {**kind.__annotations__, **hints}
        yield
    finally:
        for kind, hints in before.items():
            kind.__annotations__ = hints
