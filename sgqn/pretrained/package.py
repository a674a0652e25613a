"""An agent packed for sharing: the weights for actions and explanations, in half precision or 8 bits.

    weights.safetensors    names as in the module; where a matrix is 8-bit, NAME.scale has the factor of each row
    agent.json             configuration, shapes, step, versions, returns, learning curve; SHA-256 of the weights and of
                           itself
    README.md              the model card

Weights that only training needs are left out: target networks, optimizers, SODA's projections, and the second critic
unless the attribution reads it. A loaded agent has copies in their place. An agent that was made from one of the
package's may leave out the weights that both have; agent.json then names this base.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import safetensors.torch
import torch
from torch import Tensor

from sgqn import pretrained, reading, run_folder
from sgqn.agents import Agent, Spec
from sgqn.config import TrainConfig
from sgqn.device import total_memory
from sgqn.errors import DataError, InvalidValueError, SgqnError
from sgqn.reading import TensorFile, TensorInfo, described, line
from sgqn.restore import Stored, restore_agent

FORMAT = 1
WEIGHTS, ABOUT, CARD = "weights.safetensors", pretrained.ABOUT, "README.md"
BASE = "base"
"""The entry of agent.json that names the base, with the checksum of its weights."""

T = TypeVar("T")
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
        return _build(self, described(self.weights), lambda: self.weights, device)

    def base(self) -> Opened | None:
        """The agent that has the rest of the weights, None if all of them are here."""
        if BASE not in self.about:
            return None
        about = self.about[BASE]
        try:
            found = open_package(pretrained.named(about["name"].removeprefix(pretrained.PREFIX)))
        except InvalidValueError as error:
            raise DataError(f"{self.origin} lacks weights that it shares with {about['name']} ({error})") from error
        if BASE in found.about or found.file.checksum != about["sha256"]:
            raise DataError(f"{self.origin} lacks weights that it shares with another version of {about['name']}")
        return found

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


@dataclass(frozen=True)
class Opened(Package):
    """An exported agent whose weights have not been read yet: of these, only the header is known."""

    file: TensorFile = None  # type: ignore[assignment]  # `open_package` sets it

    def build(self, device: str | torch.device = "cpu") -> Agent:
        with _advised():
            return _build(self, self.file.header, self.file.load, device)


def read(folder: Path) -> Package:
    """The exported agent in a folder; a missing, damaged or altered file is a `DataError` that names it."""
    opened = open_package(folder)
    with _advised():
        weights = opened.file.load()
    return Package(opened.config, opened.spec, opened.step, weights, opened.about, opened.origin)


def open_package(folder: Path) -> Opened:
    """The exported agent in a folder, without its weights, which `build` reads if they fit the agent."""
    about = read_about(folder)
    expected = about.pop("weights")
    file = TensorFile(folder / WEIGHTS, folder, expected["size"], expected["sha256"])
    if file.size > (limit := total_memory(torch.device("cpu")) // 4):
        raise DataError(f"{file.path}: {file.size} bytes, where at most {limit} belong")
    try:
        config = TrainConfig.from_dict(about.pop("config"))
        spec = run_folder.read_spec(config, about.pop("spec"))
    except (SgqnError, ValueError) as error:
        raise DataError(f"{folder}: not an exported agent that this version reads ({line(error)})") from error
    return Opened(config, spec, about.pop("step"), {}, about, str(folder), file)


def read_about(folder: Path) -> dict[str, Any]:
    """agent.json, checked against its own checksum, with what other modules read of it."""
    path = folder / ABOUT
    with _advised():
        about = reading.read_json(path, folder, nan=True)
    try:
        about = reading.mapping(about, "an exported agent")
        if about["format"] != FORMAT or isinstance(about["format"], bool):
            raise DataError(f"{path}: format {about['format']!r}, this version reads {FORMAT}")
        if about.pop("sha256") != _digest(about):
            raise DataError(f"{path}: altered, its checksum differs; install or export the agent again")
        reading.integer(about["step"], "step")
        for name, keys in (("config", None), ("spec", None), ("weights", ("size", "sha256"))):
            reading.mapping(about[name], name, keys)
        reading.integer(about["weights"]["size"], "the size of the weights")
        reading.sha256(about["weights"]["sha256"], "the checksum of the weights")
        if BASE in about:
            base = reading.mapping(about[BASE], "the base", ("name", "sha256"))
            reading.sha256(base["sha256"], "the checksum of the base")
            if not isinstance(base["name"], str) or not base["name"].startswith(pretrained.PREFIX):
                raise ValueError(f"the base must be a pretrained agent, not {base['name']!r}")
        if about.get("precision", PRECISIONS[0]) not in PRECISIONS:
            raise ValueError(f"precision must be one of {', '.join(PRECISIONS)}")
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path}: truncated or not an exported agent's ({line(error)})") from error
    return about


@contextmanager
def _advised() -> Iterator[None]:
    try:
        yield
    except DataError as error:
        raise DataError(f"{error}; install or export the agent again") from error


def _build(packed: Package, stored: Stored, read: Callable[[], Mapping[str, Tensor]], device: Any) -> Agent:
    """The agent of a package; the dtypes and shapes of its weights are checked before they are read."""

    base = packed.base()
    whole = stored if base is None else _over(stored, base.file.header)

    def weights(agent: Agent) -> dict[str, Tensor]:
        if wrong := _difference(whole, agent):
            raise DataError(f"{packed.origin}: the weights do not fit the configuration: {wrong}")
        own = read()
        found = completed(unpacked(own if base is None else _over(own, base.file.load())), agent)
        reading.check_finite(found, packed.origin)
        return found

    return restore_agent(packed.config, packed.spec, whole, weights, packed.origin, device)


def _over(own: Mapping[str, T], base: Mapping[str, T]) -> dict[str, T]:
    """What belongs to an agent, and to its base where the agent has no such weights."""
    return {**{name: value for name, value in base.items() if name.removesuffix(SCALE) not in own}, **own}


def _difference(stored: Stored, agent: Agent) -> str | None:
    """The first difference between stored weights and those that an agent needs, None if they fit."""
    expected, left_out = described(agent.state_dict()), agent.left_out()
    scales = {name + SCALE for name, info in stored.items() if info.dtype == torch.int8}
    if more := stored.keys() - expected.keys() - scales:
        return f"{min(more)} does not belong there"
    for name, info in expected.items():
        found = stored.get(name)
        if found is None:
            if name not in left_out or (left_out[name] is not None and left_out[name] not in stored):
                return f"{name} is missing"
            continue
        dtypes: tuple[Any, ...] = (info.dtype,)
        if info.dtype == torch.float32:
            packed = stored.get(name + SCALE) == TensorInfo(torch.float32, info.shape[:1])
            dtypes = (torch.float32, torch.float16, *([torch.int8] if packed and len(info.shape) == 2 else []))
        if found.shape != info.shape or found.dtype not in dtypes:
            return f"{name} is {found}, not {info}"
    return None


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


def based_on(given: Package, name: str) -> Package:
    """The agent without the weights that are also a pretrained agent's, which is then needed to load it.

    An agent that was exported before has these weights in its own precision; it gets the base's back.
    """
    if not name.startswith(pretrained.PREFIX):
        raise InvalidValueError(f"base must be a pretrained agent ({pretrained.PREFIX}NAME), not {name!r}")
    if BASE in given.about:
        raise InvalidValueError(f"{given.origin} already has a base, {given.about[BASE]['name']}: omit --base")
    base = open_package(pretrained.named(name.removeprefix(pretrained.PREFIX)))
    if BASE in base.about:
        raise InvalidValueError(f"base must be an agent with all of its weights, not {name}")
    theirs, ours = unpacked(base.file.load()), unpacked(given.weights)
    rounded = unpacked(pack(theirs, "int8" if given.precision == "int8" else "half"))
    same = {
        key
        for key, tensor in ours.items()
        if key in theirs and any(torch.equal(tensor, known[key]) for known in (theirs, rounded))
    }
    if not same:
        raise InvalidValueError(f"{given.origin} has no weights of {name}: it was not made from it")
    weights = {key: tensor for key, tensor in given.weights.items() if key.removesuffix(SCALE) not in same}
    about = {**given.about, BASE: {"name": name, "sha256": base.file.checksum}}
    return dataclasses.replace(given, weights=weights, about=about)


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
