"""Time for one action from one observation: PyTorch and onnxruntime, with and without the predicted mask.

    python benchmarks/onnx_latency.py                        # pretrained:walker-walk on 1 and 2 threads
    python benchmarks/onnx_latency.py RUN --threads 1 4
    python benchmarks/onnx_latency.py --tiny                 # check that the script works, in seconds

Both are timed in turns within each round; the median over rounds is shown, and its ratio to PyTorch's.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any

import numpy as np
import onnxruntime
import torch
import tyro
from rich.console import Console
from rich.table import Table

import sgqn
from sgqn.agents import Agent, Spec, build_agent
from sgqn.agents.registry import AGENTS
from sgqn.deployment import ACTION, MASK, OBSERVATION
from sgqn.export.onnx import convert


@dataclass
class Options:
    """What to measure."""

    path: tyro.conf.Positional[str] = "pretrained:walker-walk"
    """Anything that `sgqn.load_agent` takes, except a graph."""
    threads: list[int] = field(default_factory=lambda: [1, 2])
    rounds: int = 30
    calls: int = 20
    """Calls of each kind in a round."""
    json: Annotated[bool, tyro.conf.arg(help="Print JSON instead of a table.")] = False
    tiny: bool = False
    """A small fresh agent and few calls, to check that the script works."""


def main(options: Options) -> None:
    agent = sgqn.load_agent(options.path)
    if options.tiny:
        settings = AGENTS["sgqn"].settings(encoder_layers=2, encoder_filters=4, hidden_dim=8, decoder_filters=(4, 4))
        agent = build_agent("sgqn", Spec(2, image_size=24, render_size=24), settings, seed=0).eval()
        options.rounds, options.calls, options.threads = 2, 2, [1]
    graph, rows = convert(agent, {}), []
    for threads in options.threads:
        rows += measure(agent, graph, threads, options)
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    table = Table("threads", "output", "PyTorch, ms", "onnxruntime, ms", "ratio")
    for row in rows:
        numbers = (f"{row['torch']:.2f}", f"{row['onnx']:.2f}", f"{row['torch'] / row['onnx']:.1f}")
        table.add_row(str(row["threads"]), row["output"], *numbers)
    Console().print(table)


def measure(agent: Agent, graph: bytes, threads: int, options: Options) -> list[dict[str, Any]]:
    torch.set_num_threads(threads)
    choices = onnxruntime.SessionOptions()
    choices.intra_op_num_threads = threads
    session = onnxruntime.InferenceSession(graph, choices)
    only_needed = onnxruntime.RunOptions()
    only_needed.only_execute_path_to_fetches = True
    spec = agent.spec
    shape = (1, spec.channels, spec.render_size, spec.render_size)
    obs = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)

    def with_torch(mask: bool) -> None:
        with torch.inference_mode():
            shown = torch.from_numpy(obs)
            action = agent.policy(shown, True)
            if mask:
                agent.mask_probabilities(shown, action)

    def with_onnx(mask: bool) -> None:
        session.run([ACTION, MASK] if mask else [ACTION], {OBSERVATION: obs}, only_needed)

    rows = []
    for mask in (False, True) if agent.predicts_masks else (False,):
        times: dict[str, list[float]] = {"torch": [], "onnx": []}
        for number in range(options.rounds + 1):
            for name, call in (("torch", with_torch), ("onnx", with_onnx)):
                found = _time(call, mask, options.calls)
                if number:  # the first round warms up
                    times[name].append(found)
        medians = {name: 1000 * statistics.median(found) for name, found in times.items()}
        rows.append({"threads": threads, "output": "action and mask" if mask else "action", **medians})
    return rows


def _time(call: Callable[[bool], None], mask: bool, count: int) -> float:
    start = time.perf_counter()
    for _ in range(count):
        call(mask)
    return (time.perf_counter() - start) / count


if __name__ == "__main__":
    main(tyro.cli(Options))
