"""Charts as SVG: lines with bands over seeds, and our scores next to the paper's. Text and shapes only, no style sheet.

The same chart goes into a page, where the page has one legend for several charts, and into a file of its own, which
has its legend below. An agent has one colour wherever it appears.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from sgqn.results import paper
from sgqn.results.text import in_xml

_PALETTE = ("#7a7f87", "#45a5dd", "#0b8f69", "#c76a9c", "#0a63a8", "#6a55b5", "#b98a06", "#7d4b3a", "#d4520a")
COLORS = dict(zip(paper.TITLES, _PALETTE, strict=True))
OTHERS = ("#1f7a8c", "#9a031e", "#5f7a1f", "#3d348b", "#a35200")
"""For agents that are not in the paper."""

INK, GREY, PALE, GRID, GROUND = "#1d2129", "#68707d", "#8f97a3", "#e7e9ed", "#fff"
_DARK_PALETTE = ("#9aa1ab", "#8fd0f5", "#2fbf95", "#e08bb8", "#4a97e6", "#a08df0", "#dcb03c", "#c08a74", "#f47c3c")
_DARK_OTHERS = ("#4db5c9", "#f0637a", "#a3c04f", "#8a80e8", "#dd8a3a")
ON_DARK = dict(
    zip(
        (INK, GREY, PALE, GRID, GROUND, *_PALETTE, *OTHERS),
        ("#e6e8ec", "#a2aab6", "#727b88", "#2b313a", "#14171c", *_DARK_PALETTE, *_DARK_OTHERS),
        strict=True,
    )
)
"""Each colour of a chart -> the one that a dark page shows instead."""

FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, Helvetica, Arial, sans-serif"
WIDTH, PLOT, LEFT, RIGHT, TOP, BOTTOM = 300, 160, 40, 16, 32, 36
ROW, NAMES = 19, 146
"""Height of a row of a dot chart, and the width of its names."""
MOST_POINTS = 15
"""Lines with more points than these are drawn without dots."""


def color_of(agent: str) -> str:
    return COLORS.get(agent) or OTHERS[zlib.crc32(agent.encode(errors="replace")) % len(OTHERS)]


@dataclass(frozen=True)
class Line:
    """A curve; NaN interrupts it. The band, where there is one, lies between `low` and `high`."""

    name: str
    color: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float] = ()
    high: Sequence[float] = ()
    dashed: bool = False


@dataclass(frozen=True)
class Mark:
    """A score of the paper's, at the right edge."""

    name: str
    color: str
    y: float


@dataclass(frozen=True)
class Chart:
    """Lines over one axis, which includes 0 unless a range is given; what lies outside of a range is cut off."""

    title: str
    x_label: str
    y_label: str
    lines: tuple[Line, ...]
    marks: tuple[Mark, ...] = ()
    x_range: tuple[float, float] | None = None
    y_range: tuple[float, float] | None = None

    @property
    def legend(self) -> dict[str, tuple[str, bool]]:
        """Name -> colour, and whether dashed."""
        return {line.name: (line.color, line.dashed) for line in self.lines}


@dataclass(frozen=True)
class Dot:
    """A score with its deviation."""

    mean: float
    std: float = 0.0


@dataclass(frozen=True)
class DotRow:
    name: str
    color: str
    ours: Dot | None = None
    paper: Dot | None = None
    group: str = ""
    """In front of the name."""


@dataclass(frozen=True)
class DotChart:
    """A row for each agent: a disc for our score, a diamond for the paper's, with whiskers of one deviation.

    A row without scores is a heading.
    """

    title: str
    x_label: str
    rows: tuple[DotRow, ...]
    x_range: tuple[float, float] | None = None


def with_equal_axes(charts: Iterable[Chart]) -> list[Chart]:
    """The charts with a common range, so that they can be compared; known ranges take precedence."""
    charts = list(charts)
    x_range = _union(chart.x_range for chart in charts) or _range(v for chart in charts for v in _x_values(chart))
    y_range = _union(chart.y_range for chart in charts) or _range(v for chart in charts for v in (0, *_y_values(chart)))
    return [replace(chart, x_range=x_range, y_range=y_range) for chart in charts]


def _union(ranges: Iterable[tuple[float, float] | None]) -> tuple[float, float] | None:
    known = [found for found in ranges if found]
    return (min(low for low, _ in known), max(high for _, high in known)) if known else None


def _range(values: Iterable[float]) -> tuple[float, float]:
    """From one whole tick to another."""
    found = scale(values, 0, 1)
    return found.low, found.high


def _x_values(chart: Chart) -> list[float]:
    return [v for line in chart.lines for v in line.x]


def _y_values(chart: Chart) -> list[float]:
    heights = [v for line in chart.lines for part in (line.y, line.low, line.high) for v in part]
    return [*heights, *(mark.y for mark in chart.marks)]


def draw(chart: Chart | DotChart, legend: bool = False) -> str:
    """A chart as an `<svg>` element, which is a whole file too."""
    return _draw_lines(chart, legend) if isinstance(chart, Chart) else _draw_dots(chart, legend)


# ---------------------------------------------------------------- scales


@dataclass(frozen=True)
class Scale:
    """From values to pixels, with round ticks."""

    low: float
    high: float
    start: float
    end: float
    ticks: tuple[float, ...]

    def __call__(self, value: float) -> float:
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


def scale(
    values: Iterable[float], start: float, end: float, given: tuple[float, float] | None = None, most: int = 6
) -> Scale:
    """A scale over the finite values, widened to whole ticks; or over the given range."""
    finite = [value for value in values if math.isfinite(value)] or [0.0, 1.0]
    low, high = given or (min(finite), max(finite))
    if high - low <= 1e-9 * max(1.0, abs(low), abs(high)):  # all alike
        low, high = (0.0, 1.0) if abs(low) <= 1e-9 else (min(0.0, 2 * low), max(0.0, 2 * low))
    step = _round_step((high - low) / (most - 1))
    if given is None:
        low, high = math.floor(low / step + 1e-9) * step, math.ceil(high / step - 1e-9) * step
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return Scale(low, high, start, end, tuple(i * step for i in range(first, last + 1)))


def _round_step(rough: float) -> float:
    """The smallest of 1, 2, 2.5 and 5 times a power of ten that is not below."""
    power = 10.0 ** math.floor(math.log10(rough))
    return next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * (1 - 1e-9))


def tick_text(value: float) -> str:
    """Short: 0.25, 1,000, 50k, 1.5M."""
    for size, suffix in ((1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if suffix == 'k' else size):g}{suffix}"
    return f"{value + 0.0:,.10g}"


# ---------------------------------------------------------------- lines


def _draw_lines(chart: Chart, legend: bool) -> str:
    bottom = TOP + PLOT
    right = RIGHT + 8 * bool(chart.marks)
    x = scale(_x_values(chart), LEFT, WIDTH - right, chart.x_range, most=5)
    y = scale([0.0, *_y_values(chart)], bottom, TOP, chart.y_range)
    name = f"plot-{zlib.crc32(repr(chart).encode(errors='replace')):08x}"
    parts = [
        *_heading(chart.title, chart.y_label),
        *_y_axis(y, WIDTH - right),
        *_x_axis(x, bottom, chart.x_label),
        f'<clipPath id="{name}"><rect x="{LEFT - 3}" y="{TOP - 3}" width="{WIDTH - right - LEFT + 6}" '
        f'height="{PLOT + 6}"/></clipPath>',
        f'<g clip-path="url(#{name})">',
        *(_band(line, x, y) for line in chart.lines if len(line.low)),
        *(part for line in chart.lines for part in _line(line, x, y)),
        "</g>",
        *(_triangle(mark, WIDTH - right + 2, y(mark.y)) for mark in chart.marks if y.low <= mark.y <= y.high),
    ]
    height: float = bottom + BOTTOM
    if legend:
        entries = [(text, _stroke(color, dashed)) for text, (color, dashed) in chart.legend.items()]
        parts += _legend(entries, height)
        height += _legend_height(entries)
    return _svg(height, f"{chart.title}: {chart.y_label} over {chart.x_label}", parts)


def _line(line: Line, x: Scale, y: Scale) -> Iterator[str]:
    title = f"<title>{in_xml(line.name)}</title>"
    for points in _pieces(line.x, line.y):
        path = "M" + "L".join(f"{_px(x(a))},{_px(y(b))}" for a, b in points)
        dash = ' stroke-dasharray="5 3"' if line.dashed else ""
        look = f'stroke="{line.color}" stroke-width="1.8" stroke-linejoin="round" stroke-linecap="round"{dash}'
        yield f'<path d="{path}" fill="none" {look}>{title}</path>'
    if len(line.x) <= MOST_POINTS:
        for a, b in (point for points in _pieces(line.x, line.y) for point in points):
            told = f"<title>{in_xml(line.name)}: {_short(b)} at {tick_text(a)}</title>"
            yield f'<circle cx="{_px(x(a))}" cy="{_px(y(b))}" r="2.8" fill="{line.color}">{told}</circle>'


def _band(line: Line, x: Scale, y: Scale) -> str:
    edges = [(a, b) for a, b in zip(line.x, line.low, strict=True) if math.isfinite(b)]
    back = [(a, b) for a, b in zip(line.x, line.high, strict=True) if math.isfinite(b)]
    points = " ".join(f"{_px(x(a))},{_px(y(b))}" for a, b in [*edges, *reversed(back)])
    return f'<polygon points="{points}" fill="{line.color}" fill-opacity="0.14"/>'


def _pieces(x: Sequence[float], y: Sequence[float]) -> Iterator[list[tuple[float, float]]]:
    """The segments between NaNs."""
    piece: list[tuple[float, float]] = []
    for point in zip(x, y, strict=True):
        if math.isfinite(point[1]):
            piece.append(point)
        elif piece:
            yield piece
            piece = []
    if piece:
        yield piece


def _triangle(mark: Mark, x: float, y: float) -> str:
    title = f"<title>{in_xml(mark.name)}: {_short(mark.y)} in the paper</title>"
    return f'<path d="M{_px(x)},{_px(y)}l8,-4.5v9z" fill="{mark.color}" fill-opacity="0.85">{title}</path>'


# ---------------------------------------------------------------- dots


def _draw_dots(chart: DotChart, legend: bool) -> str:
    bottom: float = TOP + ROW * len(chart.rows) + 6
    dots = [dot for row in chart.rows for dot in (row.ours, row.paper) if dot]
    ends = [end for dot in dots for end in (dot.mean - dot.std, dot.mean + dot.std)]
    x = scale([0.0, *ends], NAMES, WIDTH - RIGHT, chart.x_range, most=5)
    parts = [*_heading(chart.title, ""), *_x_axis(x, bottom, chart.x_label, top=TOP - 4)]
    for i, row in enumerate(chart.rows):
        at = TOP + ROW * i + ROW / 2
        if not (row.ours or row.paper):
            parts.append(_text(2, at + 4, row.name, fill=GREY))
            continue
        parts += [_text(2, at + 4, row.group)] if row.group else []
        parts.append(_text(NAMES - 10, at + 4, row.name, anchor="end", fill=INK if row.ours else PALE))
        if row.paper:
            parts.append(_whisker(row.paper, x, at, PALE))
            parts.append(_diamond(x(row.paper.mean), at, f"{row.name}: {_said(row.paper)} in the paper"))
        if row.ours:
            parts.append(_whisker(row.ours, x, at, row.color))
            parts.append(_disc(x(row.ours.mean), at, row.color, f"{row.name}: {_said(row.ours)} in these runs"))
    height: float = bottom + BOTTOM
    if legend:
        entries = [("these runs", _disc(11, 0, INK, "")), ("the paper", _diamond(11, 0, ""))]
        parts += _legend(entries, height)
        height += _legend_height(entries)
    return _svg(height, f"{chart.title}: {chart.x_label} of these runs and of the paper's", parts)


def _whisker(dot: Dot, x: Scale, y: float, color: str) -> str:
    if not dot.std:
        return ""
    low, high = max(x.low, dot.mean - dot.std), min(x.high, dot.mean + dot.std)
    ends = f'x1="{_px(x(low))}" x2="{_px(x(high))}"'
    return f'<line {ends} y1="{_px(y)}" y2="{_px(y)}" stroke="{color}" stroke-width="1.6" stroke-opacity="0.7"/>'


def _disc(x: float, y: float, color: str, title: str) -> str:
    told = f"<title>{in_xml(title)}</title>" if title else ""
    return (
        f'<circle cx="{_px(x)}" cy="{_px(y)}" r="4.6" fill="{color}" stroke="{GROUND}" stroke-width="1">{told}</circle>'
    )


def _diamond(x: float, y: float, title: str) -> str:
    told = f"<title>{in_xml(title)}</title>" if title else ""
    look = f'fill="{GROUND}" stroke="{GREY}" stroke-width="1.4"'
    return f'<path d="M{_px(x)},{_px(y - 4.8)}l4.8,4.8l-4.8,4.8l-4.8,-4.8z" {look}>{told}</path>'


def _said(dot: Dot) -> str:
    return _short(dot.mean) + (f" ± {_short(dot.std)}" if dot.std else "")


# ---------------------------------------------------------------- around the data


def _heading(title: str, about: str) -> Iterator[str]:
    yield _text(2, 16, title, size=13, fill=INK, weight=600, after=about)


def _y_axis(y: Scale, right: float) -> Iterator[str]:
    for tick in y.ticks:
        at = _px(y(tick))
        color = PALE if tick == 0 else GRID
        yield f'<line x1="{LEFT}" x2="{_px(right)}" y1="{at}" y2="{at}" stroke="{color}"/>'
        yield _text(LEFT - 7, y(tick) + 4, tick_text(tick), anchor="end")


def _x_axis(x: Scale, bottom: float, label: str, top: float | None = None) -> Iterator[str]:
    """Ticks below; with `top`, lines up to there."""
    if top is None:
        yield f'<line x1="{_px(x.start)}" x2="{_px(x.end)}" y1="{bottom}" y2="{bottom}" stroke="{PALE}"/>'
    for tick in x.ticks:
        at = _px(x(tick))
        color = PALE if top is None or tick == 0 else GRID
        yield f'<line x1="{at}" x2="{at}" y1="{bottom if top is None else top}" y2="{bottom + 4}" stroke="{color}"/>'
        yield _text(x(tick), bottom + 17, tick_text(tick), anchor="middle")
    yield _text(x.end, bottom + 32, label, anchor="end")


def _legend(entries: Sequence[tuple[str, str]], top: float) -> Iterator[str]:
    """Names next to their signs, as many in a line as fit."""
    for (name, sign), (column, row) in zip(entries, _legend_places(entries), strict=True):
        yield f'<g transform="translate({_px(column)},{_px(top + 10 + 18 * row)})">{sign}{_text(26, 4, name)}</g>'


def _legend_places(entries: Sequence[tuple[str, str]]) -> list[tuple[float, int]]:
    places, x, row = [], 2.0, 0
    for name, _ in entries:
        width = 40 + 6.4 * len(name)
        if x > 2 and x + width > WIDTH:
            x, row = 2.0, row + 1
        places.append((x, row))
        x += width
    return places


def _legend_height(entries: Sequence[tuple[str, str]]) -> float:
    return 18.0 * (1 + max((row for _, row in _legend_places(entries)), default=0)) + 6


def _stroke(color: str, dashed: bool) -> str:
    dash = ' stroke-dasharray="5 3"' if dashed else ""
    return f'<line x1="2" x2="20" y1="0" y2="0" stroke="{color}" stroke-width="2.6"{dash}/>'


def _text(
    x: float,
    y: float,
    text: str,
    *,
    size: int = 11,
    fill: str = GREY,
    anchor: str = "start",
    weight: int = 400,
    after: str = "",
) -> str:
    more = f'<tspan font-size="11" font-weight="400" fill="{GREY}" dx="8">{in_xml(after)}</tspan>' if after else ""
    look = f'font-size="{size}" fill="{fill}" text-anchor="{anchor}" font-weight="{weight}"'
    return f'<text x="{_px(x)}" y="{_px(y)}" {look}>{in_xml(text)}{more}</text>'


def _svg(height: float, label: str, parts: Iterable[str]) -> str:
    size = f'width="{WIDTH}" height="{_px(height)}" viewBox="0 0 {WIDTH} {_px(height)}"'
    head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-label="{in_xml(label)}"'
    return f'{head} font-family="{FONT}">{"".join(parts)}</svg>'


def _px(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _short(value: float) -> str:
    """Three digits or more: 0.123, 45.6, 789, 1,234."""
    digits = 0 if abs(value) >= 100 else 1 if abs(value) >= 10 else 3
    return f"{value:,.{digits}f}"
