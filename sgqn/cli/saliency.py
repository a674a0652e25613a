"""`sgqn saliency`"""

from __future__ import annotations

import json as jsonlib
from pathlib import Path

from sgqn.cli.command import Flag, Method, Renderer, Run, Shift, bars, command


@command("saliency", order=3)
def saliency(
    path: Run,
    shift: tuple[Shift, ...] | None = None,
    episodes: int = 5,
    method: tuple[Method, ...] = (),
    rho: float | None = None,
    every: int = 10,
    no_curves: Flag = False,
    seed: int = 0,
    renderer: Renderer = "auto",
    device: str = "cpu",
    json: Flag = False,
    out: Path | None = None,
) -> None:
    """Compare an agent's attributions with the simulator's mask of the controlled system.

    Results are appended to the run's saliency.jsonl, which `sgqn report` reads. Those of an exported or pretrained
    agent are only printed, or with --out kept in OUT/<task>/<agent>/<seed>.

    Args:
        path: Run, checkpoint or exported agent, or a name such as pretrained:walker-walk.
        shift: Shifts to measure in. Default: the training scene and the hardest shift.
        episodes: Episodes in each shift.
        method: Attribution methods, optionally with arguments (smoothgrad:samples=64). Default: the run's own.
        rho: Quantile below which pixels are masked. Default: the run's own.
        every: Measure every n-th observation.
        no_curves: Skip deletion and insertion, which take most of the time.
        seed: Seed of the episodes.
        renderer: Renderer; gl draws the benchmark's own pixels.
        device: Device to run the networks on.
        json: Print JSON instead of a table.
        out: Folder of runs to keep the results of an exported agent in.
    """
    from rich.console import Console

    from sgqn.results import looking

    with bars() as advance:
        options = (seed, renderer, device, every, not no_curves, advance, out)
        lines = looking.record(path, shift, episodes, method, rho, *options)
    if json:
        print(jsonlib.dumps(lines, indent=1))
    else:
        Console().print(looking.printed(lines))
