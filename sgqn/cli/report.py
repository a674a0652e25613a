"""`sgqn report`"""

from __future__ import annotations

import contextlib
import re
import sys
import tempfile
from collections.abc import Iterable, Iterator
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
    no_images: Flag = False,
    seed: int = 0,
    renderer: Renderer = "auto",
    device: str = "cpu",
) -> None:
    """Write a report about runs: tables next to the paper's, learning curves, what the agents look at.

    OUT/index.html is self-contained, OUT/report.md is the same as Markdown, OUT/tables has every table as CSV.

    Args:
        paths: Folders that contain runs, at any depth, or the URL of a sweep's storage.
        out: Output folder: new, empty, or with an earlier report, which is replaced.
        shift: Shifts of the gallery and of --saliency. Default: the training scene and the hardest evaluated shift.
        saliency: Measure saliency where it is not recorded yet. Takes minutes.
        no_images: Skip the gallery of images, which needs checkpoints.
        seed: Seed of the episodes in the gallery and of --saliency.
        renderer: Renderer; gl draws the benchmark's own pixels.
        device: Device to run the networks on.
    """
    from sgqn.results.report import report as write

    options: dict[str, Any] = {"images": not no_images, "saliency": saliency, "seed": seed}
    with bars() as advance, _downloaded(paths) as folders:
        made = write(folders, out, shift, renderer=renderer, device=device, on_part=advance, **options)
    for warning in made.warnings:
        print(f"warning: {' '.join(warning.split())}", file=sys.stderr)
    print(f"{made.page}: {made.runs} run{'s' * (made.runs != 1)}")


@contextlib.contextmanager
def _downloaded(paths: Iterable[Path]) -> Iterator[list[Path]]:
    """The paths, with local copies of URLs, of which pathlib has kept one slash."""
    with contextlib.ExitStack() as stack:
        folders = []
        for path in paths:
            url = re.fullmatch(r"([a-z][a-z0-9+.-]+):/(.*)", str(path))
            if url and not path.exists():
                from sgqn.sweep.storage import Remote

                target = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="sgqn-")))
                Remote(f"{url[1]}://{url[2]}").download_records(target)
                folders.append(target)
            else:
                folders.append(path)
        yield folders
