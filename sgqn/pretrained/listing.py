"""What `sgqn pretrained` shows."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from sgqn import pretrained
from sgqn.envs.families import find_task
from sgqn.pretrained import package


def entries() -> list[dict[str, Any]]:
    """Name, training and returns of every agent in the package."""
    found = []
    for name, folder in pretrained.available().items():
        about = package.read_about(folder)
        config = about["config"]
        found.append(
            {
                "name": pretrained.PREFIX + pretrained.short(name),
                "task": config["task"],
                "agent": config["agent"],
                "seed": config["seed"],
                "steps": about["step"],
                "bytes": sum(path.stat().st_size for path in folder.iterdir()),
                "returns": about["returns"],
            }
        )
    return found


def by_shifts(found: list[dict[str, Any]]) -> dict[tuple[str, ...], list[dict[str, Any]]]:
    """The entries by the shifts that agents of their tasks are tested in."""
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for entry in found:
        groups.setdefault(find_task(entry["task"]).test_shifts, []).append(entry)
    return groups


def show(found: list[dict[str, Any]]) -> None:
    """The entries as tables: the mean return in each shift, of the newest weights and the most episodes."""
    console = Console(highlight=False)
    if not found:
        console.print("This installation has no pretrained agents.")
        return
    generated = False
    for shifts, of in by_shifts(found).items():
        table = Table(box=box.SIMPLE_HEAD, collapse_padding=True, pad_edge=False)
        table.add_column(pretrained.PREFIX, no_wrap=True)
        for title in ("steps", *shifts):
            table.add_column(title, justify="right")
        for entry in of:
            returns = [_shown(entry["returns"], shift) for shift in shifts]
            generated |= any("*" in shown for shown in returns)
            name = entry["name"].removeprefix(pretrained.PREFIX)
            table.add_row(name, f"{entry['steps']:,}", *returns)
        console.print(table)
    if generated:
        console.print("* with generated backgrounds, not the benchmark's clips")
    console.print(
        f'sgqn.load_agent("{found[0]["name"]}"), or in place of RUN: sgqn evaluate {found[0]["name"]}', soft_wrap=True
    )


def _shown(returns: list[dict[str, Any]], shift: str) -> str:
    lines = [line for line in returns if line["shift"] == shift]
    if not lines:
        return ""
    best = max(lines, key=_rank)
    return f"{find_task(best['task']).return_text(best['mean'])}{'*' if best['backgrounds'] == 'generated' else ''}"


def _rank(line: dict[str, Any]) -> tuple[int, int, int, bool]:
    """The newest and most precise weights, the most episodes, OpenGL."""
    rounding = package.PRECISIONS.index(line.get("weights", package.PRECISIONS[0]))
    return line["step"], -rounding, line["episodes"], line["renderer"] == "gl"
