"""A run's folder: its configuration, its logs, its agent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from sgqn import checkpoint
from sgqn.agents import Agent, Spec, build_agent, find_agent
from sgqn.config import TrainConfig, versions
from sgqn.envs.vector import check_device
from sgqn.errors import DataError, SgqnError
from sgqn.files import write_atomically

CONFIG, METRICS, EVALUATIONS, REPLAY = "config.json", "metrics.jsonl", "evaluations.jsonl", "replay"


def folder_of(config: TrainConfig, out: Path) -> Path:
    return out / config.task / config.agent / str(config.seed)


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
    """One line of JSON, in one write."""
    with open(path, "a") as file:
        file.write(json.dumps(values) + "\n")


def read_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The whole lines of a log; a half-written last one is passed over."""
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


def spec_of(config: TrainConfig, action_dim: int) -> Spec:
    """Shapes of the run's agent. Those that crop are shown pictures of 100 where the networks see 84."""
    size = config.image_size
    rendered = size * 100 // 84 if find_agent(config.agent).crops else size
    return Spec(action_dim, 3 * config.frame_stack, size, rendered)


def load_agent(path: str | Path, device: str | torch.device = "cpu") -> Agent:
    """The trained agent of a run (its newest checkpoint) or of a checkpoint's folder, ready to act."""
    folder = checkpoint.find(Path(path))
    loaded = checkpoint.load(folder)
    try:
        config = TrainConfig.from_dict(loaded.metadata["config"])
        spec = spec_of(config, int(loaded.metadata["action_dim"]))
    except KeyError as error:
        raise DataError(f"{folder} was not written by a training run: it has no {error}") from error
    agent = build_agent(config.agent, spec, config.settings, seed=config.seed, device=check_device(device))
    try:
        agent.load_state_dict(loaded.weights)
    except RuntimeError as error:
        raise DataError(f"{folder}: the weights do not fit the configuration: {str(error).splitlines()[0]}") from error
    agent.eval()
    return agent
