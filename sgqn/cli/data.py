"""`sgqn data` and `sgqn data get`"""

from __future__ import annotations

import dataclasses
import json as jsonlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from sgqn.cli.command import Flag, command
from sgqn.errors import DataError

if TYPE_CHECKING:
    from rich.console import Console

    from sgqn.data import Entry


@command("data", order=10)
def data(json: Flag = False) -> None:
    """Show which data is installed, and how to get the rest (`sgqn data get`).

    Args:
        json: Print JSON instead of a table.
    """
    from sgqn import data as store
    from sgqn.envs.families import families

    directory, entries = store.data_dir(), store.inventory()
    missing = {family.name: family.missing() for family in families()}
    if json:
        rows = [dataclasses.asdict(entry) | {"path": str(entry.path)} for entry in entries]
        print(jsonlib.dumps({"directory": str(directory), "sets": rows, "missing": missing}, indent=2))
    else:
        _print_inventory(directory, entries, missing)


@command("data get", order=11)
def data_get(
    kind: tyro.conf.Positional[Literal["dmcgb", "overlay"]],
    source: Annotated[str | None, tyro.conf.arg(name="from", metavar="PATH_OR_URL")] = None,
) -> None:
    """Install clips and colours (dmcgb) or images (overlay): from the web, a folder or an archive.

    Files are found anywhere in the source, verified, and copied to the data directory. Existing files are skipped. An
    interrupted download resumes when the command is run again.

    Args:
        kind: dmcgb: the benchmark's video_easy/*.mp4, video_hard/*.mp4, color_easy and color_hard;
            overlay: every image of the source.
        source: A folder (such as a clone of the benchmark's repository), a .zip or .tar archive, or an
            http(s) URL of one. Default: the benchmark's repository; the validation set of Places365, 525 MB.
    """
    from sgqn import data as store

    result = store.get(kind, source)
    print(f"{len(result.installed)} files installed, {len(result.skipped)} were there already")
    print(f"data directory: {result.directory}")
    if result.bad:
        for name, reason in result.bad.items():
            print(f"not installed: {name} {reason}", file=sys.stderr)
        names = list(result.bad)
        more = f" and {len(names) - 5} more" if len(names) > 5 else ""
        raise DataError(f"{len(names)} damaged files were not installed: {', '.join(names[:5])}{more}")


def _print_inventory(directory: Path, entries: list[Entry], missing_of: dict[str, str | None]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    origin = "from SGQN_DATA" if os.environ.get("SGQN_DATA") else "the default; set SGQN_DATA to use another"
    console = Console(highlight=False)
    console.print(Text(f"Data directory: {directory} ({origin})"), soft_wrap=True)
    table = Table("set", "found", "state", "in use", box=box.SIMPLE_HEAD)
    colors = {"complete": "green", "incomplete": "yellow", "missing": "yellow", "damaged": "red"}
    for entry in entries:
        found = f"{entry.found} of {entry.expected}" if entry.expected else str(entry.found)
        used = "these files" if entry.found else "generated, not the benchmark"
        where = entry.path.relative_to(directory).as_posix()
        table.add_row(where, found, Text(entry.state, style=colors[entry.state]), used)
    console.print(table)
    for problem in (problem for entry in entries for problem in entry.problems):
        console.print(Text(f"damaged: {problem}", style="red"), soft_wrap=True)
    if missing := [entry.instead for entry in entries if not entry.found]:
        used = f"Built-in {', '.join(dict.fromkeys(missing))} are used for what is missing; results say so."
        console.print(Text(used), soft_wrap=True)
    _print_how_to_get(console, entries, missing_of)


def _print_how_to_get(console: Console, entries: list[Entry], missing_of: dict[str, str | None]) -> None:
    from rich.text import Text

    from sgqn.data import BENCHMARK, HOW_TO_GET

    lacking = {entry.how for entry in entries if entry.state != "complete"}
    lines = []
    if HOW_TO_GET["dmcgb"] in lacking:
        lines += [
            "",
            f"Clips and colours: the benchmark's repository, {BENCHMARK},",
            "from the web, or from a clone or a downloaded archive:",
            f"  {HOW_TO_GET['dmcgb']}",
            "  sgqn data get dmcgb --from dmcontrol-generalization-benchmark",
        ]
    if HOW_TO_GET["overlay"] in lacking:
        lines += ["", "Overlay images: Places365 (525 MB), or any folder of images:", f"  {HOW_TO_GET['overlay']}"]
        lines += ["  sgqn data get overlay --from FOLDER"]
    for name, missing in missing_of.items():
        if missing is not None:
            lines += ["", f"Tasks of the family {name}: {missing}"]
    for line in lines or ["Everything is there."]:
        console.print(Text(line), soft_wrap=True)
