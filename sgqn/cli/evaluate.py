"""`sgqn evaluate`"""

from __future__ import annotations

import json as jsonlib

from sgqn.cli.command import Flag, Renderer, Run, Shift, bars, command


@command("evaluate", order=1)
def evaluate(
    path: Run,
    shift: tuple[Shift, ...] | None = None,
    episodes: int = 30,
    seed: int = 0,
    renderer: Renderer = "auto",
    device: str = "cpu",
    json: Flag = False,
) -> None:
    """Play whole episodes with a trained agent, by the benchmark's protocol, in one or several shifts.

    Results are appended to the run's evaluations.jsonl; those of an exported or pretrained agent are printed only.

    Args:
        path: Run, checkpoint or exported agent, or a name such as pretrained:walker-walk.
        shift: Shifts to evaluate in. Default: those that the task is tested in.
        episodes: Episodes in each shift.
        seed: Seed of the episodes: the same for everyone.
        renderer: Renderer of the images. gl draws the benchmark's own pixels.
        device: Device of the networks.
        json: Print JSON instead of a table.
    """
    from rich.console import Console
    from rich.table import Table

    from sgqn.evaluation import record

    with bars("steps/s") as report:
        lines = record(path, shift, episodes, seed, renderer, device, report)
    if json:
        print(jsonlib.dumps(lines, indent=1))
        return
    has_success = any("success_rate" in line for line in lines)
    table = Table("shift", "return", *(["success"] if has_success else []), "episodes", "renderer", "backgrounds")
    for line in lines:
        shown = f"{line['mean']:.1f} ± {line['std']:.1f}"
        success = [f"{line['success_rate']:.0%}"] if has_success else []
        table.add_row(line["shift"], shown, *success, str(len(line["returns"])), line["renderer"], line["backgrounds"])
    Console().print(table)
