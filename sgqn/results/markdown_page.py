"""A report as Markdown, with its images as files in the same folder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sgqn.results.document import (
    Bullets,
    Definitions,
    Document,
    Figure,
    Fold,
    Grid,
    Paragraph,
    Part,
    Scores,
    Sheet,
    distinct_slugs,
    first_title,
)
from sgqn.results.figures import Chart, DotChart, draw
from sgqn.results.tables import to_markdown
from sgqn.results.text import in_markdown

IMAGES, TABLES = "images", "tables"
"""Folders next to the page."""


def to_page(document: Document) -> str:
    lines = [f"# {in_markdown(document.title)}", "", in_markdown(document.subtitle), ""]
    for section in document.sections:
        lines += [f"## {in_markdown(section.title)}", ""]
        for part in section.parts:
            lines += [_part(part), ""]
    return "\n".join(lines).rstrip() + "\n"


def files_of(document: Document) -> dict[str, bytes]:
    """The files that the page links to, by path: a PNG for each gallery, an SVG for each chart, a CSV for each
    table."""
    files: dict[str, bytes] = {}
    for part in document.parts:
        if isinstance(part, Sheet):
            files[f"{IMAGES}/{part.name}.png"] = part.png
        elif isinstance(part, Figure):
            files |= {path: draw(chart, legend=True).encode() for path, chart in _charts(part)}
        elif isinstance(part, Scores):
            files[_csv(part)] = part.csv.encode()
    return files


def _part(part: Part) -> str:
    match part:
        case Paragraph():
            return _heading(part.title) + in_markdown(part.text)
        case Bullets():
            return "\n".join(f"- {in_markdown(item)}" for item in part.items)
        case Definitions():
            return "\n".join(f"- **{in_markdown(term)}**: {in_markdown(text)}" for term, text in part.items)
        case Grid():
            return _grid(part)
        case Scores():
            return f"{to_markdown(part.table)}\n[{part.table.name}.csv]({_csv(part)})"
        case Figure():
            images = [f"![{in_markdown(chart.title)}]({path})" for path, chart in _charts(part)]
            caption = f"{in_markdown(part.caption)}\n\n" if part.caption else ""
            return _heading(part.title) + caption + "\n".join(images)
        case Sheet():
            shown = f"![{in_markdown(part.title)}]({IMAGES}/{part.name}.png)"
            return f"{_heading(part.title)}{in_markdown(part.caption)}\n\n{shown}"
        case Fold():
            return _fold(part)


def _fold(fold: Fold) -> str:
    if not fold.parts:
        return f"{in_markdown(fold.title)}: {in_markdown(fold.note)}."
    own = fold.title != first_title(fold)  # a table has the same heading
    return _heading(fold.title) * own + "\n\n".join(map(_part, fold.parts))


def _heading(title: str) -> str:
    return f"### {in_markdown(title)}\n\n" if title else ""


def _grid(grid: Grid) -> str:
    rule = ["---:" if header in grid.numbers else "---" for header in grid.headers]
    lines = [map(in_markdown, grid.headers), rule, *(map(in_markdown, row) for row in grid.rows)]
    return _heading(grid.title) + "\n".join(map(_row, lines))


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _charts(figure: Figure) -> Iterator[tuple[str, Chart | DotChart]]:
    """Each chart and the path of its file."""
    for name, chart in zip(distinct_slugs(chart.title for chart in figure.charts), figure.charts, strict=True):
        yield f"{IMAGES}/{figure.name}-{name}.svg", chart


def _csv(scores: Scores) -> str:
    return f"{TABLES}/{scores.table.name}.csv"
