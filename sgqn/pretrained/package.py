"""An agent packed for sharing: the weights for actions and explanations, in half precision or 8 bits.

    weights.safetensors    names as in the module; where a matrix is 8-bit, NAME.scale has the factor of each row
    agent.json             configuration, shapes, step, versions, returns, learning curve; SHA-256 of the weights and of
                           itself
    README.md              the model card

Weights that only training needs are left out: target networks, optimizers, SODA's projections, and the second critic
unless the attribution reads it. A loaded agent has copies in their place.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Container, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, get_args

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from sgqn.agents import Agent, Spec
from sgqn.config import TrainConfig
from sgqn.errors import DataError, SgqnError
from sgqn.restore import restore_agent

FORMAT = 1
WEIGHTS, ABOUT, CARD = "weights.safetensors", "agent.json", "README.md"

Precision = Literal["half", "int8"]
PRECISIONS = ("single", *get_args(Precision))
"""From the weights as they were trained to the smallest."""
LARGE = 1 << 16
"""Minimum number of elements of matrices that are stored in 8 bits, with int8."""
SCALE = ".scale"


@dataclass(frozen=True)
class Package:
    """An agent as it is stored, and what is known about it."""

    config: TrainConfig
    spec: Spec
    step: int
    weights: dict[str, Tensor]
    about: dict[str, Any]
    """The rest of agent.json: precision, versions, returns ..."""
    origin: str = "the package"

    @property
    def precision(self) -> str:
        """How the weights are stored: one of `PRECISIONS`, single before they are packed."""
        return str(self.about.get("precision", PRECISIONS[0]))

    def build(self, device: str | torch.device = "cpu") -> Agent:
        """The agent, in single precision, ready to act."""
        return restore_agent(self.config, self.spec, partial(completed, unpacked(self.weights)), self.origin, device)

    def files(self, card: str) -> dict[str, bytes | str]:
        """The folder's files."""
        weights = safetensors.torch.save(self.weights, metadata={"format": "pt"})
        about = {
            "format": FORMAT,
            "step": self.step,
            "spec": dataclasses.asdict(self.spec),
            "config": self.config.to_dict(),
            **self.about,
            "weights": {"size": len(weights), "sha256": hashlib.sha256(weights).hexdigest()},
        }
        about["sha256"] = _digest(about)
        return {WEIGHTS: weights, ABOUT: json.dumps(about, indent=1) + "\n", CARD: card}


def read(folder: Path) -> Package:
    """The exported agent in a folder; a missing, damaged or altered file is a `DataError` that names it."""
    about = read_about(folder)
    path = folder / WEIGHTS
    try:
        data = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror}); install or export the agent again") from error
    expected = about.pop("weights")
    if len(data) != expected["size"] or hashlib.sha256(data).hexdigest() != expected["sha256"]:
        raise DataError(f"{path}: damaged, its checksum differs from {ABOUT}'s; install or export the agent again")
    try:
        config, spec = TrainConfig.from_dict(about.pop("config")), Spec(**about.pop("spec"))
        return Package(config, spec, int(about.pop("step")), safetensors.torch.load(data), about, str(folder))
    except (SafetensorError, SgqnError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"{folder}: not an exported agent that this version reads ({error})") from error


def read_about(folder: Path) -> dict[str, Any]:
    """agent.json, checked against its own checksum."""
    path = folder / ABOUT
    try:
        about: dict[str, Any] = json.loads(path.read_text())
        if about["format"] != FORMAT:
            raise DataError(f"{path}: format {about['format']!r}, this version reads {FORMAT}")
        if about.pop("sha256") != _digest(about):
            raise DataError(f"{path}: altered, its checksum differs; install or export the agent again")
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise DataError(f"{path}: truncated or not an exported agent's") from error
    return about


def _digest(about: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()


# Weights


def pack(
    weights: Mapping[str, Tensor], precision: Precision = "half", left_out: Container[str] = ()
) -> dict[str, Tensor]:
    """The weights that an agent needs, matrices in half precision, or large ones in 8 bits with a factor for each row.

    Vectors and what half precision cannot hold stay as they are.
    """
    packed: dict[str, Tensor] = {}
    needed = {name: tensor.detach().cpu() for name, tensor in weights.items() if name not in left_out}
    for name, tensor in needed.items():
        if precision == "int8" and tensor.ndim == 2 and tensor.numel() >= LARGE:
            scale = tensor.abs().amax(dim=1, keepdim=True).clamp(min=1e-12) / 127
            packed[name] = (tensor / scale).round().to(torch.int8)
            packed[name + SCALE] = scale[:, 0].contiguous()
        else:
            packed[name] = _halved(tensor).contiguous()
    return packed


def unpacked(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The stored weights as numbers in single precision."""
    return {
        name: tensor.float() * weights[name + SCALE][:, None] if tensor.dtype == torch.int8 else tensor.float()
        for name, tensor in weights.items()
        if not name.endswith(SCALE)
    }


def completed(weights: Mapping[str, Tensor], agent: Agent) -> dict[str, Tensor]:
    """The weights, and for those that were left out the copies that replace them."""
    whole, fresh = dict(weights), agent.state_dict()
    for name, source in agent.left_out().items():
        if name not in whole and (source is None or source in weights):
            whole[name] = fresh[name] if source is None else weights[source]
    return whole


def _halved(tensor: Tensor) -> Tensor:
    if tensor.ndim < 2 or not tensor.is_floating_point():
        return tensor
    half = tensor.half()
    return half if half.isfinite().all() else tensor
