"""A run's folder: its configuration, its logs, its agent."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from sgqn import checkpoint, pretrained
from sgqn.agents import AGENTS, Agent, Spec
from sgqn.config import TrainConfig, versions
from sgqn.errors import DataError, SgqnError
from sgqn.files import write_atomically
from sgqn.pretrained import package
from sgqn.trained import trained_agent

CONFIG, METRICS, EVALUATIONS, REPLAY = "config.json", "metrics.jsonl", "evaluations.jsonl", "replay"
SALIENCY = "saliency.jsonl"


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
    """One line of JSON, in one write; it does not go on with a line that a kill left half-written."""
    with open(path, "ab+") as file:
        size = file.seek(0, 2)
        file.seek(max(0, size - 1))
        start = "\n" if size and file.read(1) != b"\n" else ""
        file.write((start + json.dumps(values) + "\n").encode())


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


def render_size(config: TrainConfig) -> int:
    """Size of the images that the run's agent is shown: those that crop are shown 100 where the networks see 84."""
    return config.image_size * 100 // 84 if AGENTS[config.agent].crops else config.image_size


def spec_of(config: TrainConfig, action_dim: int, discrete: bool = False) -> Spec:
    """What the run's agent is built for."""
    return Spec(action_dim, 3 * config.frame_stack, config.image_size, render_size(config), discrete)


def load_agent(path: str | Path, device: str | torch.device = "cpu") -> Agent:
    """The trained agent of a run (its newest checkpoint), of a checkpoint's folder, of an exported one, or of a name
    such as "pretrained:walker-walk": ready to act."""
    exported = pretrained.find(path)
    if exported is not None:
        return package.read(exported).build(device)
    folder = checkpoint.find(Path(path))
    loaded = checkpoint.load(folder)
    try:
        config = TrainConfig.from_dict(loaded.metadata["config"])
        about = loaded.metadata.get("spec")  # older checkpoints have the action's size alone
        spec = Spec(**about) if about else spec_of(config, int(loaded.metadata["action_dim"]))
    except KeyError as error:
        raise DataError(f"{folder} was not written by a training run: it has no {error}") from error
    return trained_agent(config, spec, lambda agent: loaded.weights, folder, device)


def find(path: str | Path) -> Path:
    """The folder whose weights `path` means: an exported agent's, or a checkpoint's, of a run the newest."""
    return pretrained.find(path) or checkpoint.find(path)


class Trained(NamedTuple):
    """A trained agent, and where it comes from."""

    agent: Agent
    config: TrainConfig
    step: int
    run: Path | None
    """The run's folder, where results are kept; None for an exported agent."""


def load(path: str | Path, device: str | torch.device = "cpu") -> Trained:
    """What `load_agent` loads, with all that is known about it."""
    exported = pretrained.find(path)
    if exported is not None:
        packed = package.read(exported)
        return Trained(packed.build(device), packed.config, packed.step, None)
    folder = checkpoint.find(path)
    home = folder.parent.parent
    return Trained(load_agent(folder, device), read_config(home), checkpoint.step_of(folder), home)
