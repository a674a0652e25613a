"""Find and load trained agents: from runs, checkpoints, exported and pretrained agents."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch

from sgqn import checkpoint, deployment, hub, pretrained, run_folder
from sgqn.agents import Agent, Spec
from sgqn.config import TrainConfig
from sgqn.errors import DataError
from sgqn.pretrained import package
from sgqn.restore import restore_agent

AS_TRAINED = package.PRECISIONS[0]
"""The precision of weights that were not packed."""


def load_agent(path: str | Path, device: str | torch.device = "cpu") -> Agent:
    """Load a trained agent, ready to act.

    `path` is a run (its latest checkpoint is used), a checkpoint, an exported agent, also one as an ONNX graph, or a
    name such as "pretrained:walker-walk" or, on the Hugging Face Hub, "hf:user/name".
    """
    path = hub.find(path) or path
    if (graph := deployment.find(path)) is not None:
        return deployment.load(graph, device).agent
    exported = pretrained.find(path)
    if exported is not None:
        return package.read(exported).build(device)
    folder = checkpoint.find(Path(path))
    loaded = checkpoint.load(folder)
    try:
        config = TrainConfig.from_dict(loaded.metadata["config"])
        about = loaded.metadata.get("spec")  # older checkpoints have the action's size alone
        spec = Spec(**about) if about else run_folder.spec_of(config, int(loaded.metadata["action_dim"]))
    except KeyError as error:
        raise DataError(f"{folder} was not written by a training run: it has no {error}") from error
    return restore_agent(config, spec, lambda agent: loaded.weights, folder, device)


def find(path: str | Path) -> Path:
    """What holds the weights: the folder of an exported agent, of a checkpoint or of a run's newest checkpoint, or the
    file of an ONNX graph."""
    path = hub.find(path) or path
    return deployment.find(path) or pretrained.find(path) or checkpoint.find(path)


class Trained(NamedTuple):
    """A trained agent, and where it comes from."""

    agent: Agent
    config: TrainConfig
    step: int
    run: Path | None
    """The run's folder, where results are kept; None for an exported agent."""
    precision: str
    """One of `package.PRECISIONS`: how the weights were stored."""


def load(path: str | Path, device: str | torch.device = "cpu") -> Trained:
    """Like `load_agent`, with the configuration, the training step and the run's folder."""
    path = hub.find(path) or path
    if (graph := deployment.find(path)) is not None:
        return Trained(*deployment.load(graph, device), None, AS_TRAINED)
    exported = pretrained.find(path)
    if exported is not None:
        packed = package.read(exported)
        return Trained(packed.build(device), packed.config, packed.step, None, packed.precision)
    folder = checkpoint.find(path)
    home = folder.parent.parent
    agent, config = load_agent(folder, device), run_folder.read_config(home)
    return Trained(agent, config, checkpoint.step_of(folder), home, AS_TRAINED)
