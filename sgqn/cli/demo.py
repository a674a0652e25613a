"""`sgqn demo`"""

from __future__ import annotations

from pathlib import Path

from sgqn.cli.command import Renderer, Shift, bars, command
from sgqn.errors import InvalidValueError


@command("demo", order=8)
def demo(
    task: str | None = None,
    agent: str | None = None,
    run: Path | None = None,
    shift: Shift | None = None,
    steps: int | None = None,
    out: Path = Path("demo"),
    seed: int = 0,
    renderer: Renderer = "auto",
) -> None:
    """Show a trained agent in the clean scene and in a distracting one, and where it looks.

    Needs no data and no GPU. Prints a table, and writes a self-contained web page, index.html, and an animation,
    demo.webp, to a folder.

    Args:
        task: Task of the pretrained agent; `sgqn pretrained` lists them. Default: walker-walk.
        agent: Name of the pretrained agent. Default: sgqn.
        run: Your own agent: a run, a checkpoint or an exported agent.
        shift: The distracting scene. Default: the task's hardest shift.
        steps: Number of steps. Default: the whole episode, at most 250.
        out: Output folder.
        seed: Seed of the episode.
        renderer: Renderer; gl draws the benchmark's own pixels.
    """
    from sgqn import demo as showing

    for option, value in (("--task", task), ("--agent", agent)):
        if run is not None and value is not None:
            raise InvalidValueError(f"{option} {value} is not for --run, whose task and agent are its own")
    path = f"pretrained:{task or 'walker-walk'}/{agent or 'sgqn'}" if run is None else run
    with bars() as report:
        shown = showing.demo(path, out, shift, steps, seed, renderer, report)
    showing.show(shown)
