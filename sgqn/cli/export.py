"""`sgqn export` and `sgqn pretrained`"""

from __future__ import annotations

import json as jsonlib
from pathlib import Path
from typing import Literal

from sgqn.cli.command import Flag, Renderer, Run, bars, command


@command("export", order=6)
def export(
    path: Run,
    out: Path,
    format: Literal["safetensors", "onnx"] = "safetensors",
    precision: Literal["half", "int8"] | None = None,
    runs: Path | None = None,
    base: str | None = None,
    unchecked: Flag = False,
    renderer: Renderer = "auto",
) -> None:
    """Export an agent for sharing: weights, agent.json and a model card; or an ONNX graph.

    `sgqn evaluate`, `explain` and the others accept the folder instead of a run. Before anything is written, the
    exported agent is compared with the original one on observations of two shifts.

    Args:
        path: Run (its newest checkpoint), checkpoint or exported agent.
        out: Folder to write; an agent exported there before is replaced, other files are refused.
        format: safetensors for this package. onnx: a graph from observations to actions and predicted masks, for
            onnxruntime; needs the extra onnx.
        precision: int8 stores large matrices in 8 bits. Default: half, or that of an exported agent.
        runs: Folder of runs: the model card takes its records from there and lists the agent's other seeds.
        base: Pretrained agent from which this one was made, such as pretrained:walker-walk: weights that both have
            are left out, and loading the exported agent needs the other one.
        unchecked: Skip the comparison, which plays episodes: for machines that are busy or cannot render.
        renderer: Renderer of the comparison.
    """
    from sgqn.errors import InvalidValueError
    from sgqn.export import export as pack
    from sgqn.export.onnx import export_onnx

    if format == "onnx":
        if any(option is not None for option in (precision, runs, base)) or unchecked:
            raise InvalidValueError(
                "--precision, --runs, --base and --unchecked are for --format safetensors, not for a graph"
            )
        with bars() as report:
            folder, size, found = export_onnx(path, out, renderer, report)
        print(f"{folder}: {size / 1e6:.1f} MB")
        print(
            f"the graph's actions differ from PyTorch's by {found['action']:.1g} at most, its masks by "
            f"{found['mask']:.1g}, on {found['observations']} observations"
        )
        return
    with bars() as report:
        done = pack(path, out, precision, renderer, report, runs, base, unchecked)
    check = done.check
    print(f"{done.folder}: {done.size / 1e6:.1f} MB")
    if check is None:
        print("the packed agent was not compared with the original one")
        return
    print(
        f"packing changed actions by {check['mean']:.2g} on average and {check['largest']:.2g} at most "
        f"on {check['observations']} observations; masks: IoU {check['masks']:.3f}"
    )


@command("pretrained", order=7)
def pretrained(json: Flag = False) -> None:
    """List the trained agents that come with the package.

    Args:
        json: Print JSON instead of a table.
    """
    from sgqn.pretrained import listing

    found = listing.entries()
    print(jsonlib.dumps(found, indent=1)) if json else listing.show(found)
