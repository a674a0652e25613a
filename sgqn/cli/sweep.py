"""`sgqn sweep`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import tyro

from sgqn.cli.command import Flag, command


@command("sweep", order=1)
def sweep(
    file: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="FILE.toml")],
    out: str = "runs",
    ray: str | None = None,
    devices: tuple[str, ...] = (),
    dry_run: Flag = False,
    quiet: Flag = False,
) -> None:
    """Train many runs from a file, on this machine or a Ray cluster. Run it again to resume.

    Args:
        file: Sweep file: lists of tasks, agents, seeds and other options of `sgqn train`.
        out: Folder of the runs, or an fsspec URL. All machines must reach it.
        ray: Ray cluster: its address, auto for the cluster of this machine, local to start one here.
        devices: Devices of this machine, one run at a time on each: cpu, cuda:0. Default: all GPUs, or the CPU.
        dry_run: Print the runs and their progress, but do not start any.
        quiet: Hide the progress.
    """
    from sgqn.sweep import open_storage, read, survey
    from sgqn.sweep import sweep as train_all

    if not dry_run:
        for folder in train_all(file, out, ray, devices, live=not quiet):
            print(f"done: {folder}")
        return
    from rich.console import Console
    from rich.table import Table

    entries = survey(read(file), open_storage(out))
    table = Table("run", "state", "step", "cpus", "gpus")
    for entry in entries:
        state = entry.state if entry.state == "complete" or not entry.step else "partial"
        cpus, gpus = entry.run.resources.cpus, entry.run.resources.gpus
        steps = f"{entry.step:,} / {entry.run.config.steps:,}"
        table.add_row(entry.run.name, state, steps, *("auto" if one is None else f"{one:g}" for one in (cpus, gpus)))
    Console().print(table)
    print(f"{len(entries)} runs, {sum(entry.state == 'complete' for entry in entries)} complete")
