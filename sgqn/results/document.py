"""What a report consists of, before it becomes HTML or Markdown."""

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
    """Charts beside each other under one caption."""

    name: str
    title: str
    caption: str
    charts: tuple[Chart | DotChart, ...]


@dataclass(frozen=True)
class Picture:
    """A PNG, drawn at twice the size at which it is shown."""

    name: str
    title: str
    caption: str
    png: bytes
    size: tuple[int, int]


Part: TypeAlias = Paragraph | Bullets | Definitions | Grid | Scores | Figure | Picture


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
        return (part for section in self.sections for part in section.parts)


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
