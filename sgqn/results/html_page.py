"""A report as one self-contained HTML page, with style, charts, images and the tables' files.

Here the document becomes plain data; everything that is HTML or CSS is in the templates.
"""

from __future__ import annotations

import string
from collections.abc import Iterable, Sequence
from dataclasses import fields
from itertools import pairwise
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from sgqn.inspect.drawing import data_url
from sgqn.results.document import Document, Figure, Fold, Part, Scores, Sheet, first_title
from sgqn.results.figures import GREY, GROUND, INK, ON_DARK, Chart, draw
from sgqn.results.paper import AVERAGE
from sgqn.results.tables import INCOMPLETE, NO_RUN, Cell, ResultTable
from sgqn.results.text import printable

MOST_COLUMNS = 12
"""With more columns of ours, the paper's and differences, a table has them below each other, or is set smaller."""
PAD = "\N{FIGURE SPACE}"
"""As wide as a digit."""

Data = dict[str, Any]


def to_page(document: Document) -> str:
    return (
        _environment()
        .get_template("report.html")
        .render(
            title=document.title,
            subtitle=document.subtitle,
            sections=[
                {"name": section.name, "title": section.title, "parts": [_part(part) for part in section.parts]}
                for section in document.sections
            ],
            on_dark=ON_DARK,
            colors={"ink": INK, "grey": GREY, "ground": GROUND},
        )
    )


def _environment() -> Environment:
    """Every text is escaped; only charts are markup already."""
    return Environment(
        loader=PackageLoader("sgqn.results"),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=lambda value: value if isinstance(value, Markup) else printable(value),
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _part(part: Part) -> Data:
    """Its data, and the kind that the templates know it by."""
    kind = {"kind": type(part).__name__.lower()}
    match part:
        case Scores():
            return kind | _scores(part)
        case Figure():
            return kind | _figure(part)
        case Sheet():
            return kind | _sheet(part)
        case Fold():
            inside = [_part(inner) for inner in part.parts]
            if part.parts and first_title(part) == part.title:
                inside[0]["title"] = ""
            return kind | {"title": part.title, "note": part.note, "parts": inside, "printed": part.printed}
    return kind | {field.name: getattr(part, field.name) for field in fields(part)}


# ---------------------------------------------------------------- tables


def _scores(scores: Scores) -> Data:
    table, compared = scores.table, any(cell.paper for cell in scores.table.cells)
    of_some = [number for number in range(1, len(table.footnotes) + 1) if number not in table.common_notes]
    letters = {number: _mark(place) for place, number in enumerate(of_some)}
    marks = _Marks(table, letters)
    columns = [_column(table, j, marks) for j in range(len(table.columns))]
    counts = [{cell.count_text() for cell in row.cells} - {""} for row in table.rows]
    # Stated once for the table or a row, if all of its numbers have the same number of runs.
    of_table = set.union(*counts) if counts else set()
    of_rows = len(of_table) > 1 and all(len(count) <= 1 for count in counts)
    return {
        "name": table.name,
        "title": table.title,
        "caption": table.caption,
        "csv": f"data:text/csv;charset=utf-8,{quote(scores.csv)}",
        "compared": compared,
        "counted": next(iter(of_table)) if len(of_table) == 1 else "",
        "count_in_cells": len(of_table) > 1 and not of_rows,
        "split": compared and sum(len(column["parts"]) for column in columns) <= MOST_COLUMNS,
        "wide": not compared and len(columns) > MOST_COLUMNS - len(table.headers),
        "headers": [*table.headers, *["runs"] * of_rows],
        "columns": columns,
        "rows": [
            {
                "labels": [*labels, *[{"text": "".join(count), "again": False}] * of_rows],
                "marks": marks.of_row(i),
                "average": AVERAGE in row.labels,
                "cells": [column["cells"][i] for column in columns],
            }
            for i, (row, labels, count) in enumerate(zip(table.rows, _labels(table), counts, strict=True))
        ],
        "most_marks": max(len(cell["marks"]) for column in columns for cell in column["cells"]),
        "notes": [{"mark": letter, "text": table.footnotes[number - 1]} for number, letter in letters.items()],
        "common_notes": [table.footnotes[number - 1] for number in table.common_notes],
    }


class _Marks:
    """Letters that lead to footnotes. What all numbers of a row or a column share is said at its head."""

    def __init__(self, table: ResultTable, letters: dict[int, str]):
        self._letters = letters
        self._notes = [
            [{*cell.notes} & letters.keys() if cell.ours else None for cell in row.cells] for row in table.rows
        ]
        self._rows = [_shared(row) for row in self._notes]
        self._columns = [_shared(column) for column in zip(*self._notes, strict=True)]

    def of_row(self, i: int) -> list[str]:
        return self._said(self._rows[i])

    def of_column(self, j: int) -> list[str]:
        return self._said(self._columns[j])

    def of_cell(self, i: int, j: int) -> list[str]:
        return self._said((self._notes[i][j] or set()) - self._rows[i] - self._columns[j])

    def _said(self, notes: set[int]) -> list[str]:
        return [self._letters[number] for number in sorted(notes)]


def _shared(notes: Iterable[set[int] | None]) -> set[int]:
    """The notes of all numbers, if there are several."""
    found = [of_number for of_number in notes if of_number is not None]
    return set.intersection(*found) if len(found) > 1 else set()


def _labels(table: ResultTable) -> Iterable[list[Data]]:
    """Those of each row; one that stands above already is there `again`."""
    for above, labels in pairwise([(), *(row.labels for row in table.rows)]):
        yield [{"text": text, "again": labels[: i + 1] == above[: i + 1]} for i, text in enumerate(labels)]


def _column(table: ResultTable, j: int, marks: _Marks) -> Data:
    """Its cells, with numbers that line up, and which of ours, the paper's and differences they have."""
    cells, best = [row.cells[j] for row in table.rows], table.best
    ours = _aligned([_ours(cell) for cell in cells])
    papers = _aligned([cell.paper_text() for cell in cells])
    differences = [cell.difference_text() for cell in cells]
    shown = {"ours": True, "paper": any(papers), "difference": any(differences)}
    return {
        "title": table.columns[j],
        "marks": marks.of_column(j),
        "parts": [name for name, there in shown.items() if there],
        "cells": [
            {
                "ours": _minus(ours[i]),
                "there": cell.ours is not None,
                "best": (i, j) in best,
                "marks": marks.of_cell(i, j),
                "count": cell.count_text(),
                "paper": _minus(papers[i]),
                "difference": _minus(differences[i]),
            }
            for i, cell in enumerate(cells)
        ],
    }


def _ours(cell: Cell) -> str:
    text = cell.value_text()
    return "–" if text in (NO_RUN, INCOMPLETE) else text


def _aligned(texts: Sequence[str]) -> list[str]:
    """Right-aligned, their numbers end at one place, and deviations and percentages begin at others."""
    parts = []
    for text in texts:
        both, _, percent = text.partition(", ") if text.endswith("%") else (text, "", "")
        number, _, deviation = both.partition(" ± ")
        parts.append((number, deviation and f" ± {deviation}", percent))
    widths = [max((len(part[i]) for part in parts), default=0) for i in (1, 2)]
    return [number and _filled(number, deviation, percent, *widths) for number, deviation, percent in parts]


def _filled(number: str, deviation: str, percent: str, after: int, last: int) -> str:
    """With spaces as wide as what others have; a sign with its spaces is about as wide as two digits."""
    before = PAD * (after - len(deviation) - (after > 0 and not deviation))
    if not percent:
        return number + deviation + before + PAD * (last + 1 if last else 0)
    return f"{number}{deviation},{before} {percent}{PAD * (last - len(percent))}"


def _minus(text: str) -> str:
    """With the minus of a printer."""
    return text.replace("-", "−")


def _mark(place: int) -> str:
    """A letter, because a digit next to a number would be read as part of it."""
    turn, letter = divmod(place, len(string.ascii_lowercase))
    return string.ascii_lowercase[letter] * (turn + 1)


# ---------------------------------------------------------------- figures


def _figure(figure: Figure) -> Data:
    lines: dict[str, tuple[str, bool]] = {}
    drawn = [chart for chart in figure.charts if isinstance(chart, Chart)]
    for chart in sorted(drawn, key=lambda chart: -len(chart.legend)):  # the longest has the order
        lines |= {name: look for name, look in chart.legend.items() if name not in lines}
    return {
        "name": figure.name,
        "title": figure.title,
        "caption": figure.caption,
        "across": figure.across or {1: 1, 2: 2, 4: 4}.get(len(figure.charts), 3),
        "charts": [Markup(draw(chart)) for chart in figure.charts],
        "legend": [{"name": name, "color": color, "dashed": dashed} for name, (color, dashed) in lines.items()],
    }


def _sheet(sheet: Sheet) -> Data:
    looks = [
        {
            "name": look.name,
            "about": look.about,
            "moments": [[png and data_url(png) for png in images] for images in look.images],
        }
        for look in sheet.looks
    ]
    plain = {name: getattr(sheet, name) for name in ("name", "title", "caption", "columns", "moments")}
    return plain | {"looks": looks}
