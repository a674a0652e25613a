"""`sgqn demo`"""

from __future__ import annotations

from pathlib import Path

from sgqn.cli.command import Renderer, Shift, bars, command
from sgqn.errors import InvalidValueError

TASK = "walker-walk"


@command("demo", order=8)
def demo(
    task: str | None = None,
    agent: tuple[str, ...] = (),
    run: tuple[Path, ...] = (),
    shift: Shift | None = None,
    steps: int | None = None,
    out: Path = Path("demo"),
    seed: int = 0,
    renderer: Renderer = "auto",
) -> None:
    """Show a trained agent in the clean scene and in a distracting one, and where it looks.

    Two agents of one task play the same episodes next to each other. Needs no data and no GPU. Prints a table, and
    writes a self-contained web page, index.html, and an animation, demo.webp, to a folder.

    Args:
        task: Task of the pretrained agents; `sgqn pretrained` lists them. Default: walker-walk.
        agent: Names of one or two pretrained agents. Default: SGQN, next to another agent of the task if there is one.
        run: One or two agents of your own: runs, checkpoints, exported agents, or names such as pretrained:walker-walk.
        shift: The distracting scene. Default: the task's hardest shift.
        steps: Number of steps. Default: the whole episode, at most 250.
        out: Output folder.
        seed: Seed of the episode.
        renderer: Renderer; gl draws the benchmark's own pixels.
    """
    from sgqn import demo as showing

    if run and (task or agent):
        other = "--task" if task else "--agent"
        raise InvalidValueError(f"{other} chooses pretrained agents and --run your own: use one of them")
    task = task or TASK
    named = [f"pretrained:{task}/{name}" for name in agent] or showing.packaged(task)
    with bars() as report:
        shown = showing.demo(run or named, out, shift, steps, seed, renderer, report)
    showing.show(shown)
