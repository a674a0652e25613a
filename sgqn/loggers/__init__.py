"""Loggers: callbacks that send what a run logs to a service, by name: `sgqn train --logger wandb`. One per file."""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from sgqn import reading
from sgqn.callbacks import Callback
from sgqn.errors import DataError, SgqnError
from sgqn.files import write_atomically
from sgqn.registry import Registry, import_submodules

__all__ = ["LOGGERS", "register_logger"]

Factory = TypeVar("Factory", bound=Callable[[], Callback])

LOGGERS: Registry[Callable[[], Callback]] = Registry("logger", lambda: import_submodules(__name__))

RUNS = "loggers.json"
"""File in a run's folder with the run's id in each service, so that a resumed run continues there."""


def register_logger(name: str) -> Callable[[Factory], Factory]:
    """Register a callback class, or a function that returns a callback, under a name for `--logger`.

    It is called without arguments before training starts, and raises an error if a requirement is missing.
    """

    def register(factory: Factory) -> Factory:
        LOGGERS.register(name, factory, factory.__module__)
        return factory

    return register


def required(package: str, extra: str) -> Any:
    """Import a package that an extra of this one installs."""
    try:
        return importlib.import_module(package)
    except ImportError:
        raise SgqnError(f"--logger {extra} needs the package {package}: pip install 'sgqn[{extra}]'") from None


def title_of(config: dict[str, Any]) -> str:
    return f"{config['task']}/{config['agent']}/{config['seed']}"


def scores(values: dict[str, Any]) -> dict[str, float]:
    """An evaluation as metrics, named as in TensorBoard."""
    found = {f"evaluation/{values['shift']}": values["mean"]}
    return found | ({f"success/{values['shift']}": values["success_rate"]} if "success_rate" in values else {})


def remembered(folder: Path, service: str) -> str | None:
    """The run's id in the service; None before the run has started there."""
    return _known(folder).get(service)


def remember(folder: Path, service: str, name: str) -> None:
    write_atomically(folder / RUNS, json.dumps({**_known(folder), service: name}, indent=1) + "\n")


def _known(folder: Path) -> dict[str, str]:
    """The run's ids by service."""
    path = folder / RUNS
    try:
        found = reading.read_json(path, folder)
    except reading.MissingFileError:
        return {}
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found.values()):
        raise DataError(f"{path}: damaged; remove it to log to new runs of the services")
    return found
