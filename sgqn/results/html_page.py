"""A report as one HTML page that needs nothing else: style, charts, pictures and tables' files are all in it."""

from __future__ import annotations

import base64
import re
from importlib import resources
from urllib.parse import quote

from sgqn.results.document import (
    Bullets,
    Definitions,
    Document,
    Figure,
    Grid,
    Paragraph,
    Part,
    Picture,
    Scores,
    Section,
)
from sgqn.results.figures import Chart, draw
from sgqn.results.paper import AVERAGE
from sgqn.results.tables import OF_ALL, Cell, ResultRow, ResultTable
from sgqn.results.text import in_html

LONG = 32
"""Characters: a longer text of a plain table is broken into lines."""
POLICY = "default-src 'none'; style-src 'unsafe-inline'; img-src data:"
"""Nothing is loaded from anywhere, and no script runs, whatever the runs' folders are called."""


def to_page(document: Document) -> str:
    style = resources.files("sgqn.results").joinpath("report.css").read_text()
    sections = "\n".join(map(_section, document.sections))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{POLICY}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<link rel="icon" href="data:,">
<title>{in_html(document.title)}</title>
<style>
{style}</style>
</head>
<body>
<nav aria-label="Contents"><div class="contents"><a class="home" href="#top">{in_html(document.title)}</a>
{_contents(document)}
</div></nav>
<main id="top">
<header><h1>{in_html(document.title)}</h1><p class="subtitle">{in_html(document.subtitle)}</p></header>
{sections}
</main>
</body>
</html>
"""


def _contents(document: Document) -> str:
    lines = []
    for section in document.sections:
        lines.append(f'<a href="#{section.name}">{in_html(section.title)}</a>')
        for part in section.parts:
            if isinstance(part, Scores):
                lines.append(f'<a class="sub" href="#table-{part.table.name}">{in_html(part.table.title)}</a>')
    return "\n".join(lines)


def _section(section: Section) -> str:
    parts = "\n".join(map(_part, section.parts))
    return f'<section id="{section.name}">\n<h2>{in_html(section.title)}</h2>\n{parts}\n</section>'


def _part(part: Part) -> str:
    match part:
        case Paragraph():
            return _heading(part.title) + f"<p>{in_html(part.text)}</p>"
        case Bullets():
            items = "".join(f"<li>{in_html(item)}</li>" for item in part.items)
            return f'<ul class="{"warnings" if part.warning else "plain"}">{items}</ul>'
        case Definitions():
            items = "".join(f"<div><dt>{_theta(term)}</dt><dd>{_theta(text)}</dd></div>" for term, text in part.items)
            return f"<dl>{items}</dl>"
        case Grid():
            return _grid(part)
        case Scores():
            return _scores(part)
        case Figure():
            return _figure(part)
        case Picture():
            return _picture(part)


def _heading(title: str) -> str:
    return f"<h3>{in_html(title)}</h3>\n" if title else ""


# ---------------------------------------------------------------- tables


def _grid(grid: Grid) -> str:
    kinds = ["number" if header in grid.numbers else "words" for header in grid.headers]
    head = "".join(f'<th class="{kind}">{in_html(text)}</th>' for kind, text in zip(kinds, grid.headers, strict=True))
    rows = [
        "".join(
            f'<td class="{"long" if len(text) > LONG else kind}">{_breakable(text)}</td>'
            for kind, text in zip(kinds, row, strict=True)
        )
        for row in grid.rows
    ]
    body = "".join(f"<tr>{row}</tr>" for row in rows)
    table = f'<table class="grid"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    return _heading(grid.title) + _scrolling(table)


def _scores(scores: Scores) -> str:
    table = scores.table
    head = [f'<th class="label">{in_html(text)}</th>' for text in table.headers]
    head += [f'<th class="number">{_theta(text)}</th>' for text in table.columns]
    rows, before = [], ResultRow((), ())
    for row in table.rows:
        rows.append(_row(table, row, before))
        before = row
    body = f"<table><thead><tr>{''.join(head)}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    link = f'<a download="{table.name}.csv" href="data:text/csv;charset=utf-8,{quote(scores.csv)}">CSV</a>'
    compared = any(cell.paper for cell in table.cells)
    key = _KEY if compared else ""
    return (
        f'<div class="result{"" if compared else " alone"}" id="table-{table.name}">\n<h3>{in_html(table.title)}</h3>\n'
        f'<p class="caption">{_theta(table.caption)}</p>\n<p class="key">{key}{link}</p>\n'
        f"{_scrolling(body)}\n{_footnotes(table)}</div>"
    )


_KEY = (
    '<span class="ours">ours</span> <span class="paper">the paper’s</span> <span class="difference">difference</span>'
)


def _row(table: ResultTable, row: ResultRow, before: ResultRow) -> str:
    labels = []
    for i, text in enumerate(row.labels):
        again = row.labels[: i + 1] == before.labels[: i + 1]
        labels.append(f'<th scope="row" class="label{" again" * again}">{in_html(text)}</th>')
    cells = "".join(_cell(table, cell) for cell in row.cells)
    kind = ' class="average"' if AVERAGE in row.labels else ""
    return f"<tr{kind}>{''.join(labels)}{cells}</tr>"


def _cell(table: ResultTable, cell: Cell) -> str:
    kind = "ours" if cell.ours else "none"
    counted = f' <span class="count">{in_html(cell.count_text())}</span>' if cell.count_text() else ""
    lines = [f'<span class="{kind}">{_number(cell.value_text())}</span>{_marks(table, cell)}{counted}']
    if printed := cell.paper_text():
        difference = cell.difference_text()
        beside = f' <span class="difference">{_number(difference)}</span>' if difference else ""
        lines.append(f'<span class="paper">{_number(printed)}</span>{beside}')
    return f'<td class="number">{"<br>".join(lines)}</td>'


def _number(text: str) -> str:
    """With the minus of a printer."""
    return in_html(text).replace("-", "−")


def _marks(table: ResultTable, cell: Cell) -> str:
    notes = [number for number in cell.notes if number not in table.common_notes]
    links = [f'<a href="#note-{table.name}-{number}">{number}</a>' for number in notes]
    return f"<sup>{','.join(links)}</sup>" if links else ""


def _footnotes(table: ResultTable) -> str:
    items = [
        f'<li id="note-{table.name}-{number}">{in_html(text)}{f" {OF_ALL}" * (number in table.common_notes)}</li>'
        for number, text in enumerate(table.footnotes, 1)
    ]
    return f'<ol class="notes">{"".join(items)}</ol>\n' if items else ""


def _scrolling(content: str) -> str:
    """Wider than the page, it scrolls in its own box, by keyboard too."""
    return f'<div class="scroll" tabindex="0">{content}</div>'


def _breakable(text: str) -> str:
    """A long path may be broken after its slashes."""
    return in_html(text).replace("/", "/<wbr>")


def _theta(text: str) -> str:
    return re.sub("M_θ", "M<sub>θ</sub>", in_html(text))


# ---------------------------------------------------------------- pictures


def _figure(figure: Figure) -> str:
    charts = "\n".join(f'<div class="chart">{draw(chart)}</div>' for chart in figure.charts)
    return (
        f'<figure id="figure-{figure.name}">\n<h3>{in_html(figure.title)}</h3>\n'
        f"<figcaption>{in_html(figure.caption)}</figcaption>\n{_legend(figure)}\n"
        f'<div class="charts of-{len(figure.charts)}">{charts}</div>\n</figure>'
    )


def _legend(figure: Figure) -> str:
    """One for all charts of a figure."""
    lines: dict[str, tuple[str, bool]] = {}
    for chart in figure.charts:
        lines |= chart.legend if isinstance(chart, Chart) else {}
    if not lines:
        return f'<p class="legend">{_DOTS}</p>'
    entries = [f"<span>{_swatch(color, dashed)}{in_html(name)}</span>" for name, (color, dashed) in lines.items()]
    return f'<p class="legend">{"".join(entries)}</p>'


_DOTS = (
    '<span><svg width="14" height="12"><circle cx="7" cy="6" r="4.6" fill="#1d2129"/></svg>these runs</span>'
    '<span><svg width="14" height="12"><path d="M7,1.2l4.8,4.8l-4.8,4.8l-4.8,-4.8z" fill="#fff" stroke="#68707d" '
    'stroke-width="1.4"/></svg>the paper</span>'
)


def _swatch(color: str, dashed: bool) -> str:
    dash = ' stroke-dasharray="5 3"' if dashed else ""
    return f'<svg width="22" height="10"><path d="M1,5h20" stroke="{color}" stroke-width="3"{dash}/></svg>'


def _picture(picture: Picture) -> str:
    data = base64.b64encode(picture.png).decode()
    width, height = (size // 2 for size in picture.size)
    image = f'<img alt="{in_html(picture.title)}" width="{width}" height="{height}" src="data:image/png;base64,{data}">'
    return (
        f'<figure id="figure-{picture.name}">\n<h4>{in_html(picture.title)}</h4>\n'
        f"<figcaption>{in_html(picture.caption)}</figcaption>\n{_scrolling(image)}\n</figure>"
    )
