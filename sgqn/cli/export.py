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
    precision: Literal["half", "int8"] | None = None,
    runs: Path | None = None,
    renderer: Renderer = "auto",
) -> None:
    """Pack a run's agent for sharing: weights in half precision, agent.json, a model card.

    `sgqn evaluate`, `explain` and the others take the folder in place of a run. Before anything is written, the packed
    agent is compared with the given one, on the observations of that one in two shifts.

    Args:
        path: Run (its newest checkpoint), checkpoint or exported agent.
        out: Folder to write; an agent exported there before is replaced.
        precision: int8 stores large matrices in 8 bits. Default: half, or that of an exported agent.
        runs: Folder of kept runs: the card gets its records from there and lists the agent's other seeds.
        renderer: Renderer of the comparison.
    """
    from sgqn.export import export as pack

    with bars() as report:
        done = pack(path, out, precision, renderer, report, runs)
    check = done.check
    print(f"{done.folder}: {done.size / 1e6:.1f} MB")
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
