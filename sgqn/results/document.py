"""The parts of a report, before they become HTML or Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import count
from typing import TypeAlias

from sgqn.results.figures import Chart, DotChart
from sgqn.results.tables import ResultTable


@dataclass(frozen=True)
class Paragraph:
    text: str
    title: str = ""


@dataclass(frozen=True)
class Bullets:
    """Short lines; as warnings they stand out."""

    items: tuple[str, ...]
    warning: bool = False


@dataclass(frozen=True)
class Definitions:
    items: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Grid:
    """A table of plain text; the columns named in `numbers` are right-aligned."""

    headers: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    numbers: tuple[str, ...] = ()
    title: str = ""


@dataclass(frozen=True)
class Scores:
    """A table of results; `csv` is what its file has."""

    table: ResultTable
    csv: str


@dataclass(frozen=True)
class Figure:
    """Charts next to each other under one caption."""

    name: str
    title: str
    caption: str
    charts: tuple[Chart | DotChart, ...]
    across: int = 0
    """How many stand in a row, if that means something."""


@dataclass(frozen=True)
class Look:
    """Images of one agent: for each time step a PNG for each column, None if there is no such image."""

    name: str
    about: str
    images: tuple[tuple[bytes | None, ...], ...]


@dataclass(frozen=True)
class Sheet:
    """Images of agents below each other; `png` has all of them on one sheet, with their labels."""

    name: str
    title: str
    caption: str
    png: bytes
    columns: tuple[str, ...]
    moments: tuple[str, ...]
    looks: tuple[Look, ...]
    training: bool = False
    """Whether they show the training scene."""


@dataclass(frozen=True)
class Fold:
    """Parts behind one line that opens them, or the line alone; on paper they are open if `printed`."""

    title: str
    note: str
    parts: tuple[Part, ...]
    printed: bool = True


Part: TypeAlias = "Paragraph | Bullets | Definitions | Grid | Scores | Figure | Sheet | Fold"


@dataclass(frozen=True)
class Section:
    name: str
    title: str
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Document:
    title: str
    subtitle: str
    sections: tuple[Section, ...]

    @property
    def parts(self) -> Iterator[Part]:
        """All of them; a fold is followed by its own."""
        return (part for section in self.sections for part in _unfolded(section.parts))


def first_title(fold: Fold) -> str:
    """The heading of the first of its parts."""
    match fold.parts[:1]:
        case (Scores(table),):
            return table.title
        case (Paragraph() | Grid() | Figure() | Sheet() | Fold() as part,):
            return part.title
    return ""


def _unfolded(parts: Iterable[Part]) -> Iterator[Part]:
    for part in parts:
        yield part
        if isinstance(part, Fold):
            yield from _unfolded(part.parts)


def slug(text: str) -> str:
    """A name for files and links: letters, digits and hyphens, not too many."""
    return re.sub(r"[^a-z0-9]+", "-", text.lower())[:80].strip("-") or "other"


def distinct_slugs(texts: Iterable[str]) -> list[str]:
    """A slug for each text; what was taken by an earlier one gets a number."""
    taken: list[str] = []
    for name in map(slug, texts):
        tries = (name if i == 1 else f"{name}-{i}" for i in count(1))
        taken.append(next(one for one in tries if one not in taken))
    return taken
