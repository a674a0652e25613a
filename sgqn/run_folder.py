"""A run's folder: its configuration and its logs."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sgqn.agents import AGENTS, Spec
from sgqn.config import TrainConfig, versions
from sgqn.errors import DataError, SgqnError
from sgqn.files import write_atomically

CONFIG, METRICS, EVALUATIONS, REPLAY = "config.json", "metrics.jsonl", "evaluations.jsonl", "replay"
SALIENCY = "saliency.jsonl"


def folder_of(config: TrainConfig, out: Path) -> Path:
    """Where a run lies. Other characters of a task than letters, digits, '.', '_' and '-' become one '-'."""
    return out / re.sub(r"[^\w.-]+", "-", config.task) / config.agent / str(config.seed)


def write_config(run: Path, config: TrainConfig, machine: dict[str, str] | None = None) -> None:
    """Everything needed to repeat the run, with versions and what the machine does with it."""
    values = {**config.to_dict(), "versions": versions(), "machine": machine or {}}
    write_atomically(run / CONFIG, json.dumps(values, indent=1) + "\n")


def read_config(run: Path) -> TrainConfig:
    path = run / CONFIG
    try:
        values = json.loads(path.read_text())
        about_the_machine = ("versions", "machine")
        return TrainConfig.from_dict({name: values[name] for name in values if name not in about_the_machine})
    except FileNotFoundError as error:
        raise DataError(f"{run} is not a run: it has no {CONFIG}") from error
    except (ValueError, TypeError, SgqnError) as error:
        raise DataError(f"{path} is damaged: {error}") from error


def append_line(path: Path, values: dict[str, Any]) -> None:
    """One line of JSON, in one write; it does not go on with a line that a kill left half-written."""
    with open(path, "ab+") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - 1))
        start = "\n" if size and file.read(1) != b"\n" else ""
        file.write((start + json.dumps(values) + "\n").encode())


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The whole lines of a log; an incomplete last one is skipped."""
    if not path.exists():
        return
    with open(path) as file:
        for line in file:
            try:
                values = json.loads(line)
            except json.JSONDecodeError:
                continue
            if isinstance(values, dict):
                yield values


def rewind(path: Path, step: int) -> None:
    """Drop what a log says about steps after `step`: a resumed run will say it again."""
    if path.exists():
        kept = [json.dumps(line) + "\n" for line in read_lines(path) if line.get("step", 0) <= step]
        write_atomically(path, "".join(kept))


def render_size(config: TrainConfig) -> int:
    """Size of the images that the run's agent is shown: those that crop are shown 100 where the networks see 84."""
    return config.image_size * 100 // 84 if AGENTS[config.agent].crops else config.image_size


def spec_of(config: TrainConfig, action_dim: int, discrete: bool = False) -> Spec:
    """What the run's agent is built for."""
    return Spec(action_dim, 3 * config.frame_stack, config.image_size, render_size(config), discrete)
