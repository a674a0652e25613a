"""Find and load trained agents: from runs, checkpoints, exported and pretrained agents."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from sgqn import checkpoint, deployment, hub, pretrained, run_folder
from sgqn.agents import Agent
from sgqn.config import TrainConfig
from sgqn.errors import DataError, SgqnError
from sgqn.pretrained import package
from sgqn.reading import integer, line
from sgqn.restore import check_fits, restore_agent

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
        return package.open_package(exported).build(device)
    return _restore(checkpoint.open_checkpoint(checkpoint.find(Path(path))), device)[0]


def _restore(opened: checkpoint.Opened, device: str | torch.device) -> tuple[Agent, TrainConfig]:
    """The agent of a checkpoint, and the configuration that it was written with."""
    folder, metadata = opened.folder, opened.metadata
    try:
        config = TrainConfig.from_dict(metadata["config"])
        if "spec" in metadata:
            spec = run_folder.read_spec(config, metadata["spec"])
        else:  # older checkpoints have the action's size alone
            spec = run_folder.spec_of(config, integer(metadata["action_dim"], "action_dim", 1, 1 << 20))
    except KeyError as error:
        raise DataError(f"{folder} was not written by a training run: it has no {error}") from error
    except (SgqnError, ValueError) as error:
        raise DataError(f"{folder}: not a training run's checkpoint ({line(error)})") from error

    def weights(agent: Agent) -> dict[str, Tensor]:
        return checkpoint.load_weights(opened, lambda stored: check_fits(stored, agent, folder))

    return restore_agent(config, spec, opened.weights.header, weights, folder, device), config


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
        packed = package.open_package(exported)
        return Trained(packed.build(device), packed.config, packed.step, None, packed.precision)
    folder = checkpoint.find(path)
    home, opened = folder.parent.parent, checkpoint.open_checkpoint(folder)
    agent, recorded = _restore(opened, device)
    config = run_folder.read_config(home)
    if other := run_folder.differences(config, recorded):
        raise DataError(f"{home / run_folder.CONFIG} does not fit {folder} ({'; '.join(other)}): restore it")
    return Trained(agent, config, checkpoint.step_of(folder), home, AS_TRAINED)
