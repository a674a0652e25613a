"""Agents that come with the package, by name: `sgqn/pretrained/<task>/<agent>/`, each as `sgqn export` writes it."""

from __future__ import annotations

from pathlib import Path

from sgqn.errors import InvalidValueError

ABOUT = "agent.json"
"""The file by which a folder is known as an exported agent."""
PREFIX = "pretrained:"
AGENT = "sgqn"
"""The agent that a name without one means."""
FOLDER = Path(__file__).parent


def available() -> dict[str, Path]:
    """The folder of every agent in the package by its name, `task/agent`."""
    found = sorted(path.parent for path in FOLDER.glob(f"[!.]*/[!.]*/{ABOUT}"))
    return {f"{path.parent.name}/{path.name}": path for path in found}


def of_task(task: str) -> list[str]:
    """The names of the agents of a task, `pretrained:TASK/AGENT`, with SGQN first."""
    names = [name for name in available() if name.rpartition("/")[0] == task]
    return [PREFIX + name for name in sorted(names, key=lambda name: (not name.endswith(f"/{AGENT}"), name))]


def short(name: str) -> str:
    """The name of a pretrained agent without its agent if that is SGQN."""
    return name.removesuffix(f"/{AGENT}")


def find(path: str | Path) -> Path | None:
    """The exported folder that `path` means: `pretrained:TASK`, `pretrained:TASK/AGENT`, or itself; else None."""
    text = str(path)
    if text.startswith(PREFIX):
        return named(text.removeprefix(PREFIX))
    return Path(path) if (Path(path) / ABOUT).is_file() else None


def named(name: str) -> Path:
    """The folder of the pretrained agent `TASK` or `TASK/AGENT`."""
    agents = available()
    whole = name if "/" in name else f"{name}/{AGENT}"
    if whole not in agents:
        there = f"there are {', '.join(map(short, agents))}" if agents else "this installation has none"
        raise InvalidValueError(f"no pretrained agent {name!r}: {there}")
    return agents[whole]
