"""`sgqn explain`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from sgqn.cli.command import Method, Renderer, Shift, bars, command


@command("explain", order=2)
def explain(
    paths: Annotated[tyro.conf.Positional[tuple[Path, ...]], tyro.conf.arg(metavar="RUN [RUN ...]")],
    shift: tuple[Shift, ...] = (),
    out: Path = Path("explain.png"),
    method: tuple[Method, ...] = (),
    rho: tuple[float, ...] = (),
    frames: int | None = None,
    seed: int = 0,
    renderer: Renderer = "auto",
    device: str = "cpu",
) -> None:
    """Show where agents look: frames of an episode as a sheet (.png), or the whole episode as a video (.mp4).

    There is one block of images for each shift, run, method and rho. On a sheet, all blocks show the same time steps of
    the episode that the first agent plays in the first shift. In a video, each agent plays its own episode.

    Args:
        paths: Runs of one task, checkpoints, exported agents, or names such as pretrained:walker-walk.
        shift: Shifts of the episode. Default: the task's hardest shift.
        out: Output file, .png or .mp4.
        method: Attribution methods, optionally with arguments (smoothgrad:samples=64). Default: the run's own.
        rho: Quantiles below which pixels are masked. Default: the run's own.
        frames: Time steps in a block of a sheet (default: 4, or 2 with several shifts) or in a video (default: all).
        seed: Seed of the episode.
        renderer: Renderer; gl draws the benchmark's own pixels.
        device: Device to run the networks on.
    """
    from sgqn import explain as explaining

    with bars() as report:
        episode = explaining.explain(paths, out, shift, method, rho, frames, seed, renderer, device, report)
    print(f"{out}: return of the first agent {episode.rewards.sum():.1f} in {len(episode.rewards)} steps")
    print(f"renderer {episode.renderer}, backgrounds {episode.backgrounds}")
