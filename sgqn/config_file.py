"""Options of `sgqn train` from a JSON or TOML file, or from a run's config.json."""

from __future__ import annotations

import dataclasses
import os
import tomllib
import typing
from pathlib import Path
from typing import Any

from sgqn import plugins, reading
from sgqn.agents import AGENTS
from sgqn.config import TrainConfig, configure, renamed
from sgqn.errors import DataError, InvalidValueError, SgqnError
from sgqn.run_folder import ABOUT_THE_MACHINE, CONFIG


def read(path: Path, **chosen: str) -> TrainConfig:
    """The configuration in a file, or in the folder of a run; `chosen` replaces its task, agent or preset.

    Hyperparameters that the chosen agent does not have are ignored.
    """
    path = path / CONFIG if path.is_dir() else path
    options = _options(path)
    try:
        config = configure(_with_integers(options))
    except SgqnError as error:
        raise InvalidValueError(f"{path}: {error}") from error
    if not chosen:
        return config
    try:
        own, wanted = (_names(AGENTS[agent].settings) for agent in (config.agent, chosen.get("agent", config.agent)))
        kept = {name: value for name, value in options.items() if name not in own - wanted}
        return configure(_with_integers({**kept, **chosen}))
    except SgqnError as error:
        flags = " ".join(f"--{name} {value}" for name, value in chosen.items())
        raise InvalidValueError(f"{path} with {flags}: {error}") from error


def _options(path: Path) -> dict[str, Any]:
    """The content of a file as options by name, after the plugins that it names are imported."""
    try:
        text = reading.read_bytes(path, Path(os.path.realpath(path)).parent).decode()
        values = tomllib.loads(text) if path.suffix == ".toml" else reading.parse_json(text)
    except reading.MissingFileError as error:
        raise DataError(f"{path} cannot be read: No such file") from error
    except (ValueError, RecursionError) as error:
        kind = "TOML" if path.suffix == ".toml" else "JSON"
        raise DataError(f"{path} is not {kind}: {reading.line(error)}") from error
    if not isinstance(values, dict):
        raise DataError(f"{path} must have options by name, such as task and agent, not a {type(values).__name__}")
    options = {name.replace("-", "_"): value for name, value in values.items() if name not in ABOUT_THE_MACHINE}
    settings, needed = options.pop("settings", {}), options.pop("plugins", [])
    if not isinstance(settings, dict) or not isinstance(needed, list):
        raise DataError(f"{path}: settings must be a table of options, and plugins a list of modules")
    plugins.load(plugins.checked(needed))
    return renamed({**options, **{name.replace("-", "_"): value for name, value in settings.items()}})


def _with_integers(options: dict[str, Any]) -> dict[str, Any]:
    """JSON and TOML read 5e5 as a float; options that take integers get one."""
    agent = options.get("agent", TrainConfig.agent)
    kinds = [TrainConfig, AGENTS[agent].settings] if isinstance(agent, str) and agent in AGENTS else [TrainConfig]
    hints = {name: hint for kind in kinds for name, hint in typing.get_type_hints(kind).items()}

    def integer(name: str, value: Any) -> Any:
        whole = isinstance(value, float) and value.is_integer() and hints.get(name) in (int, int | None)
        return int(value) if whole else value

    return {name: integer(name, value) for name, value in options.items()}


def _names(kind: type) -> set[str]:
    return {one.name for one in dataclasses.fields(kind)}
