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
    """Show where agents look: moments of an episode as a sheet (.png), or all of it as a video (.mp4).

    There is one block of images for each shift, run, method and rho. On a sheet all agents are shown the same moments,
    of the episode that the first one plays in the first shift; in a video each plays its own.

    Args:
        paths: Runs of one task, checkpoints, exported agents, or names such as pretrained:walker-walk.
        shift: Shifts of the episode. Default: the task's hardest.
        out: File to write; its suffix, .png or .mp4, decides the format.
        method: Attribution methods. Default: the run's own.
        rho: Quantiles below which pixels are masked. Default: the run's own.
        frames: Moments in each block of a sheet (default 4; with several shifts 2), or steps of a video (default: all).
        seed: Seed of the episode: the same for everyone.
        renderer: Renderer of the images. gl draws the benchmark's own pixels.
        device: Device of the networks.
    """
    from sgqn import explain as explaining

    with bars() as report:
        episode = explaining.explain(paths, out, shift, method, rho, frames, seed, renderer, device, report)
    print(f"{out}: return of the first agent {episode.rewards.sum():.1f} in {len(episode.rewards)} steps")
    print(f"renderer {episode.renderer}, backgrounds {episode.backgrounds}")
