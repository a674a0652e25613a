"""`sgqn preview`"""

from __future__ import annotations

import functools
from pathlib import Path

from sgqn.cli.command import Renderer, Shift, bars, command


@command("preview", order=9)
def preview(
    task: str = "walker-walk",
    shift: Shift | None = None,
    out: Path = Path("preview.png"),
    renderer: Renderer = "auto",
    seed: int = 0,
    steps: int = 60,
) -> None:
    """Preview a task in a shift with random actions, as a sheet of frames (.png) or a video (.mp4).

    Args:
        task: Task to show.
        shift: Shift to show. Default: the training scene.
        out: Output file, .png or .mp4.
        renderer: Renderer; gl draws the benchmark's own pixels.
        seed: Seed of the environment and the actions.
        steps: Number of agent steps.
    """
    from sgqn.inspect.preview import preview as write

    with bars() as report:
        shown = write(task, out, shift, renderer, seed, steps, functools.partial(report, "rendering"))
    where = f"{task} under {shift}" if shift else task
    print(f"{out}: {where}, {steps} random steps, return {shown.total:.1f}")
    print(f"renderer {shown.renderer}, backgrounds {shown.backgrounds}")
