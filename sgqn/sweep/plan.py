"""What a sweep file asks for: runs, each checked before the first one starts.

    task = ["walker-walk", "cartpole-swingup"]     # lists span a grid
    agent = ["sgqn", "svea"]
    seed = [0, 1, 2]
    steps = 500_000                                # every other key is an option of `sgqn train`
    rho = [0.9, 0.95]                              # a list spans the grid too

    [resources]
    gpus = 0.5
    cpus = 4

    [[run]]                                        # one more run, with the options above that are not lists
    task = "finger-spin"
    agent = "sac"

A run's folder is `<task>/<agent>/<seed>`. Options that vary otherwise are a folder above: `rho=0.9/walker-walk/sgqn/0`.
"""

from __future__ import annotations

import itertools
import re
import tomllib
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sgqn import run_folder
from sgqn.agents.registry import AGENTS
from sgqn.agents.settings import check_type
from sgqn.config import CHOSEN_FIRST, TrainConfig, configure
from sgqn.errors import DataError, InvalidValueError, SgqnError
from sgqn.loggers import LOGGERS

_NAMING = ("task", "agent", "seed")
"""Options that name a run's folder."""


@dataclass(frozen=True)
class Resources:
    """What one run takes of a machine."""

    gpus: float | None = None
    """Share of a GPU. Default: a whole one where there is one."""
    cpus: int | None = None
    """Threads of the computation and processes of the environments, at most. Default: what is there; on Ray 1."""

    def __post_init__(self) -> None:
        check_type("gpus", self.gpus, float | None)
        check_type("cpus", self.cpus, int | None)
        if self.gpus is not None and not (0 <= self.gpus <= 1):
            raise InvalidValueError(f"gpus must be from 0 to 1, not {self.gpus!r}: a run computes on one GPU at most")
        if self.cpus is not None and self.cpus < 1:
            raise InvalidValueError(f"cpus must be a positive integer, not {self.cpus!r}")


_LIMIT = 1 << 20


@dataclass(frozen=True)
class Planned:
    """One run of a sweep."""

    config: TrainConfig
    variant: str = ""
    """Folder below the sweep's own for the options that vary, such as `rho=0.9`; empty if none does."""
    resources: Resources = Resources()
    loggers: tuple[str, ...] = ()
    """Services that the run is logged to."""

    @property
    def name(self) -> str:
        """The run's folder, relative to the sweep's."""
        return run_folder.folder_of(self.config, Path(self.variant)).as_posix()


def read(file: str | Path) -> list[Planned]:
    """The runs of a sweep file, in the order of the file: the first key varies slowest."""
    path = Path(file)
    try:
        if path.exists() and not (path.is_file() and path.stat().st_size <= _LIMIT):  # a pipe, a device
            raise DataError(f"{file} is not a sweep file: it is a folder, a device, or larger than {_LIMIT:,} bytes")
        values = tomllib.loads(path.read_text())
    except OSError as error:
        raise DataError(f"{file} cannot be read: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DataError(f"{file} is not a TOML file: {error}") from error
    try:
        return plan(values)
    except SgqnError as error:
        raise DataError(f"{file}: {error}") from error


def plan(values: Mapping[str, Any]) -> list[Planned]:
    """The runs that the content of a sweep file asks for."""
    values = {name.replace("-", "_"): value for name, value in values.items()}
    singles = values.pop("run", [])
    if not isinstance(singles, list) or not all(isinstance(single, dict) for single in singles):
        raise InvalidValueError("single runs are written as [[run]], with two brackets on each side")
    resources = _resources(values.pop("resources", {}))
    logger = values.pop("logger", [])
    loggers = tuple(logger) if isinstance(logger, list) else (logger,)
    for name in loggers:
        LOGGERS[name]  # says what is wrong with it
    axes = {name: value for name, value in values.items() if _spans(name, value, values)}
    shared = {name: value for name, value in values.items() if name not in axes}
    runs = (
        list(_grid(shared, axes, resources)) if axes or not singles or any(name in shared for name in _NAMING) else []
    )
    for single in singles:
        own = {name.replace("-", "_"): value for name, value in single.items()}
        taken = _resources(own.pop("resources")) if "resources" in own else resources
        run = _planned({**shared, **own}, [], taken)
        if any(run.name == other.name for other in runs):
            run = _planned({**shared, **own}, [name for name in own if name not in _NAMING], taken)
        runs.append(run)
    names = [run.name for run in runs]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InvalidValueError(f"{twice[0]} is asked for twice")
    return [replace(run, loggers=loggers) for run in runs]


def _grid(shared: dict[str, Any], axes: dict[str, list[Any]], resources: Resources) -> Iterator[Planned]:
    """A run for every combination of the listed values."""
    for name, listed in axes.items():
        if not listed:
            raise InvalidValueError(f"{name} is an empty list: give at least one value")
    varying = [name for name in axes if name not in _NAMING]
    for combination in itertools.product(*axes.values()):
        yield _planned({**shared, **dict(zip(axes, combination, strict=True))}, varying, resources)


def _spans(name: str, value: Any, values: Mapping[str, Any]) -> bool:
    """Whether a value lists several: a list, or a list of lists for an option whose value is a list itself."""
    if not isinstance(value, list):
        return False
    return not _is_listed(name, values) or any(isinstance(one, list) for one in value)


def _is_listed(name: str, values: Mapping[str, Any]) -> bool:
    """Whether an option's own value is a list, such as that of evaluate_shifts."""
    agents = values.get("agent", CHOSEN_FIRST["agent"])
    kinds = [AGENTS[agent].settings for agent in (agents if isinstance(agents, list) else [agents])]
    hints = [typing.get_type_hints(kind).get(name) for kind in (TrainConfig, *kinds)]
    return any(typing.get_origin(hint) is tuple for hint in hints)


def _planned(options: dict[str, Any], varying: list[str], resources: Resources) -> Planned:
    config = configure(options)
    text = ",".join(f"{name}={_word(options[name])}" for name in varying)
    return Planned(config, re.sub(r"[^\w.=,+-]+", "-", text), resources)


def _word(value: Any) -> str:
    return "+".join(map(str, value)) if isinstance(value, list) else str(value)


def _resources(values: Any) -> Resources:
    names = ("gpus", "cpus")
    if not isinstance(values, dict) or any(name not in names for name in values):
        raise InvalidValueError(f"resources are {' and '.join(names)}, not {values!r}")
    return Resources(**values)
