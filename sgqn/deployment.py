"""ONNX graphs of `sgqn export --format onnx`, run by onnxruntime and usable like agents.

    observation   uint8 (batch, channels, size, size), stacked frames as returned by the environment
    action        float32 (batch, action_dim) in [-1, 1], or int64 (batch,) for discrete actions
    mask          float32 (batch, channels, size, size): the predicted mask of that action, if the agent predicts masks

`METADATA` says in which keys of the file's metadata the rest is found.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

import sgqn
from sgqn import reading, run_folder
from sgqn.agents import Agent, Spec
from sgqn.config import TrainConfig
from sgqn.errors import DataError, SgqnError

MODEL = "model.onnx"
"""The graph's file in an exported folder."""
FORMAT = 1
OBSERVATION, ACTION, MASK = "observation", "action", "mask"
COARSE = "occlusion:window=12,stride=12"
"""The method that explains a graph unless another is asked for: 49 passes for an image of 84 pixels."""
LIMIT = 1 << 30
"""Bytes of a graph; that of the paper's agent has fifteen million."""
EXTERNAL = b"\x08location"
"""In a graph whose weights are in other files: the key of their path."""
METADATA, VERSION = "sgqn", "sgqn_version"
"""Keys of the metadata: what `load` needs, as JSON, and who wrote it. The others are for people and programs."""


def metadata(config: TrainConfig, spec: Spec, step: int, predicts_masks: bool) -> dict[str, str]:
    """The metadata of a graph: strings by key."""
    about = {"format": FORMAT, "config": config.to_dict(), "spec": dataclasses.asdict(spec), "step": step}
    size, frames = spec.render_size, spec.channels // 3
    actions = f"one of 0 to {spec.action_dim - 1}" if spec.discrete else f"{spec.action_dim} numbers from -1 to 1"
    texts = {
        "task": config.task,
        "agent": config.agent,
        "seed": str(config.seed),
        "step": str(step),
        "action": actions,
        "action_repeat": str(config.action_repeat),
        "frame_stack": str(frames),
        "image_size": str(size),
        "observation": f"{frames} RGB frames of {size}x{size}, oldest first; bytes from 0 to 255",
        "normalization": "inside the graph",
        VERSION: sgqn.__version__,
        METADATA: json.dumps(about),
    }
    return texts | ({"mask": "probability that a pixel decides the action's value"} if predicts_masks else {})


class OnnxAgent(Agent):
    """A graph that acts, and predicts masks if its agent does. It cannot learn and has no gradients.

    Its actions are always deterministic. Masks are those of its own actions.
    """

    def __init__(self, session: Any, spec: Spec):
        super().__init__(spec)
        self.session = session
        self.outputs = [output.name for output in session.get_outputs()]
        import onnxruntime

        self.only_needed = onnxruntime.RunOptions()
        self.only_needed.only_execute_path_to_fetches = True  # without the decoder if only an action is requested

    def __deepcopy__(self, memo: dict[int, Any]) -> OnnxAgent:
        """A session has no state: copies share it."""
        twin = OnnxAgent(self.session, self.spec)
        twin.task, twin.action_repeat = self.task, self.action_repeat
        return twin

    def run(self, output: str, obs: Tensor) -> Tensor:
        """One output of the graph for observations (B, C, H, W)."""
        rim = (self.spec.render_size - obs.shape[-1]) // 2  # the graph crops: what is cropped already gets a rim again
        shown = F.pad(obs.detach().cpu().round().to(torch.uint8), (rim,) * 4)
        given = np.ascontiguousarray(shown.numpy())
        (found,) = self.session.run([output], {OBSERVATION: given}, self.only_needed)
        return torch.from_numpy(found)

    def policy(self, obs: Tensor, deterministic: bool) -> Tensor:
        del deterministic
        return self.run(ACTION, obs)

    def value(self, obs: Tensor, action: Tensor) -> Tensor:
        """How close the chosen action is to `action`: the graph has neither a critic nor gradients."""
        if obs.requires_grad and torch.is_grad_enabled():
            raise SgqnError("an ONNX graph has no gradients: choose a method without, occlusion or rise")
        if self.spec.discrete:
            return (self.policy(obs, True) == action).float()
        return super().value(obs, action)

    @property
    def explained_by(self) -> str:
        return COARSE if importlib.util.find_spec("captum") else "rise"

    @property
    def predicts_masks(self) -> bool:
        return MASK in self.outputs

    def mask_probabilities(self, obs: Tensor, action: Tensor) -> Tensor:
        return self.run(MASK, obs) if self.predicts_masks else super().mask_probabilities(obs, action)

    @property
    def device(self) -> torch.device:
        return torch.device("cpu")


class Deployed(NamedTuple):
    """A graph, and where it comes from."""

    agent: OnnxAgent
    config: TrainConfig
    step: int


def find(path: str | Path) -> Path | None:
    """The graph's file that `path` means: itself, or the one in an exported folder; else None."""
    path = Path(path)
    if path.suffix == ".onnx" and not path.is_dir():
        return path
    return path / MODEL if (path / MODEL).is_file() else None


def load(path: Path, device: str | torch.device = "cpu") -> Deployed:
    """The agent of a file that `sgqn export --format onnx` wrote."""
    if torch.device(device).type != "cpu":
        raise SgqnError(f"an ONNX graph is computed on the CPU here, not on {device}: leave out the device")
    session = open_session(path)
    inputs, outputs = ({one.name: one for one in found} for found in (session.get_inputs(), session.get_outputs()))
    text = session.get_modelmeta().custom_metadata_map.get(METADATA)
    if text is None:
        raise DataError(f"{path}: not written by `sgqn export --format onnx`, its metadata has no {METADATA!r}")
    try:
        about = reading.mapping(reading.parse_json(text), "the metadata")
        if about["format"] != FORMAT or isinstance(about["format"], bool):
            raise DataError(f"{path}: format {about['format']!r}, this version reads {FORMAT}")
        config = TrainConfig.from_dict(about["config"])
        spec, step = run_folder.read_spec(config, about["spec"]), reading.integer(about["step"], "step")
        _check_graph(inputs, outputs, spec)
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path}: its metadata is damaged ({reading.line(error)})") from error
    agent = OnnxAgent(session, spec)
    agent.task, agent.action_repeat = config.task, config.action_repeat
    return Deployed(agent, config, step)


def _check_graph(inputs: dict[str, Any], outputs: dict[str, Any], spec: Spec) -> None:
    """Compare inputs and outputs with what the agent sees and does; `ValueError` if they differ."""
    pixels = [spec.channels, spec.render_size, spec.render_size]
    action = ("tensor(int64)", []) if spec.discrete else ("tensor(float)", [spec.action_dim])
    expected = {OBSERVATION: ("tensor(uint8)", pixels), ACTION: action, MASK: ("tensor(float)", None)}
    if inputs.keys() != {OBSERVATION} or outputs.keys() - {MASK} != {ACTION}:
        raise ValueError(f"a graph from {', '.join(inputs)} to {', '.join(outputs)}")
    for name, found in (inputs | outputs).items():
        kind, shape = expected[name]
        if found.type != kind or (shape is not None and list(found.shape[1:]) != shape):
            raise ValueError(f"{name} is {found.type} {found.shape}, not {kind} {shape}")


def open_session(graph: Path | bytes) -> Any:
    """An onnxruntime session of a file, or of its content."""
    try:
        import onnxruntime
    except ImportError:
        raise SgqnError("ONNX graphs need onnxruntime: pip install 'sgqn[onnx]'") from None
    content = _read(graph) if isinstance(graph, Path) else graph
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    try:
        return onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's errors have no base of their own
        name = graph if isinstance(graph, Path) else "the graph"
        raise DataError(f"{name}: not an ONNX model ({reading.line(error)})") from error


def _read(path: Path) -> bytes:
    """The content of a graph, which has all its weights in it: files that it names elsewhere are not read."""
    try:
        content = reading.read_bytes(path, path.parent, LIMIT)
    except reading.MissingFileError as error:
        raise DataError(f"{path} does not exist") from error
    if EXTERNAL in content:
        raise DataError(
            f"{path}: its weights are in other files; `sgqn export --format onnx` writes them into the graph"
        )
    return content
