"""`sgqn report`"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import tyro

from sgqn.cli.command import Flag, Renderer, Shift, bars, command


@command("report", order=4)
def report(
    paths: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="RUNS [RUNS ...]")],
    out: Path = Path("report"),
    shift: tuple[Shift, ...] = (),
    saliency: Flag = False,
    no_pictures: Flag = False,
    seed: int = 0,
    renderer: Renderer = "auto",
    device: str = "cpu",
) -> None:
    """Write a page about any set of runs: tables next to the paper's, learning curves, where the agents look.

    OUT/index.html needs no other file; OUT/report.md is the same as Markdown, OUT/tables has every table as CSV.

    Args:
        paths: Folders with runs in them, at any depth.
        out: A new or empty folder, or one with an earlier report, which is replaced.
        shift: Shifts of the images, and of --saliency. Default: the training scene and the hardest evaluated shift.
        saliency: Measure the saliency of runs where it is not recorded yet; takes minutes.
        no_pictures: Leave out the images of what the agents look at, which need checkpoints.
        seed: Seed of the episodes that are shown and measured.
        renderer: Renderer of the images. gl draws the benchmark's own pixels.
        device: Device of the networks.
    """
    from sgqn.results.report import report as write

    options: dict[str, Any] = {"pictures": not no_pictures, "saliency": saliency, "seed": seed}
    with bars() as advance:
        made = write(paths, out, shift, renderer=renderer, device=device, on_part=advance, **options)
    for warning in made.warnings:
        print(f"warning: {' '.join(warning.split())}", file=sys.stderr)
    print(f"{made.page}: {made.runs} run{'s' * (made.runs != 1)}")
