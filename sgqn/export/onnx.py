"""`sgqn export --format onnx`: one graph from observations to actions and predicted masks."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import logging
import warnings
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sgqn import deployment
from sgqn.agents import Agent
from sgqn.deployment import ACTION, MASK, MODEL, OBSERVATION, OnnxAgent
from sgqn.envs.families import find_task
from sgqn.errors import DataError, InvalidValueError, SgqnError
from sgqn.export import card
from sgqn.files import other_files, write_folder
from sgqn.inspect import Report, Subject, environment
from sgqn.inspect.episode import roll
from sgqn.pretrained.package import CARD

OPSET = 18
TOLERANCE = 1e-4
"""Largest difference of actions and masks from PyTorch's."""
CHECK_STEPS = 100
"""Steps of an episode, in the clean scene and under the hardest shift, on which graph and agent are compared."""
CHUNK = 16


class Graph(nn.Module):
    """What is exported: the deterministic action, and the predicted mask of it."""

    def __init__(self, agent: Agent):
        super().__init__()
        self.agent = agent

    def forward(self, observation: Tensor) -> tuple[Tensor, ...]:
        action = self.agent.policy(observation, deterministic=True)
        if not self.agent.predicts_masks:
            return (action,)
        return action, self.agent.mask_probabilities(observation, action)


def export_onnx(
    path: str | Path, out: str | Path, renderer: str = "auto", report: Report | None = None
) -> tuple[Path, int, dict[str, Any]]:
    """Write the agent of a run, checkpoint or exported folder as an ONNX graph, with a model card.

    Returns the folder, its size in bytes and the comparison with the agent in PyTorch. Refused if they differ.
    """
    out = Path(out)
    check_out(out)
    subject = Subject.load(path)
    if isinstance(subject.agent, OnnxAgent):
        raise InvalidValueError(f"{path} is an ONNX graph already")
    config = subject.config
    config = dataclasses.replace(config, action_repeat=find_task(config.task, config.action_repeat).action_repeat)
    graph = convert(subject.agent, deployment.metadata(config, subject.agent.spec, subject.step, _masks(subject.agent)))
    check = compare(subject, graph, renderer, report)
    if not max(check["action"], check["mask"]) <= TOLERANCE:
        raise DataError(
            f"{path} cannot be exported: the graph's actions differ by {check['action']:.2g} and its masks by "
            f"{check['mask']:.2g} from PyTorch's, more than {TOLERANCE:g}"
        )
    files: dict[str, bytes | str] = {
        MODEL: graph,
        CARD: card.write_onnx(config, subject.agent.spec, subject.step, _masks(subject.agent)),
    }
    write_folder(out, files)
    return out, sum(len(content) for content in files.values()), check


def convert(agent: Agent, texts: dict[str, str]) -> bytes:
    """The graph of an agent as the content of a file; `texts` is its metadata."""
    try:
        import onnxscript  # noqa: F401 (torch.onnx needs it)
    except ImportError:
        raise SgqnError("exporting to ONNX needs onnx and onnxscript: pip install 'sgqn[onnx]'") from None
    spec = agent.spec
    example = torch.zeros(2, spec.channels, spec.render_size, spec.render_size, dtype=torch.uint8)
    module = Graph(agent.to("cpu")).eval()
    with torch.no_grad(), _silence():
        module(example)  # constants that are computed once must not be computed while the graph is traced
        program = torch.onnx.export(
            module,
            (example,),
            dynamo=True,
            verbose=False,
            opset_version=OPSET,
            input_names=[OBSERVATION],
            output_names=[ACTION, MASK] if _masks(agent) else [ACTION],
            dynamic_shapes={"observation": {0: torch.export.Dim("batch")}},
        )
    assert program is not None
    program.model.metadata_props.update(texts)
    content: bytes = program.model_proto.SerializeToString()
    return content


@torch.no_grad()
def compare(subject: Subject, graph: bytes, renderer: str = "auto", report: Report | None = None) -> dict[str, Any]:
    """Largest differences between the graph and the agent in PyTorch, on observations that the agent meets."""
    task = find_task(subject.config.task)
    shifts = list(dict.fromkeys((task.shifts[0], task.shifts[-1])))
    seen = torch.cat([_episode(subject, shift, renderer, report) for shift in shifts])
    deployed = OnnxAgent(deployment.open_session(graph), subject.agent.spec)
    actions = masks = 0.0
    for part in seen.split(CHUNK):
        ours, theirs = subject.agent.policy(part, True), deployed.policy(part, True)
        actions = max(actions, float((ours - theirs).abs().max()))
        if _masks(subject.agent):
            difference = subject.agent.mask_probabilities(part, ours) - deployed.mask_probabilities(part, theirs)
            masks = max(masks, float(difference.abs().max()))
    return {"observations": len(seen), "shifts": shifts, "action": actions, "mask": masks}


def _episode(subject: Subject, shift: str, renderer: str, report: Report | None) -> Tensor:
    """What the environment shows to the agent, (T, C, H, W)."""
    env, shown = environment(subject, shift, renderer=renderer), []
    total = min(CHECK_STEPS, subject.config.episode_steps)
    try:
        for number, found in enumerate(islice(roll(env, subject.agent.act, seed=0), total), 1):
            shown.append(found.obs.copy())
            if report is not None:
                report(f"{subject.name}: episode", number, total)
    finally:
        env.close()
    return torch.from_numpy(np.stack(shown))


def check_out(out: Path) -> None:
    if out.suffix == ".onnx":
        raise InvalidValueError(f"--out names a folder, which gets the graph as {MODEL}: choose another than {out}")
    if out.exists() and not out.is_dir():
        raise InvalidValueError(f"{out} is not a folder: choose another --out")
    if others := other_files(out, (MODEL, CARD)):
        raise InvalidValueError(f"{out} holds something that is no exported graph, {others[0]}: choose another --out")
    if out.is_dir() and any(out.iterdir()):
        model = out / MODEL
        if not model.is_file() or deployment.VERSION.encode() not in model.read_bytes():
            raise InvalidValueError(f"{out} holds no exported graph to replace: choose another --out")


def _masks(agent: Agent) -> bool:
    return agent.predicts_masks


@contextlib.contextmanager
def _silence() -> Iterator[None]:
    """The exporter reports its progress and packages that it looked for."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    before = [one.level for one in loggers]
    try:
        for one in loggers:
            one.setLevel(logging.ERROR)
        with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    finally:
        for one, level in zip(loggers, before, strict=True):
            one.setLevel(level)
