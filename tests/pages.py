"""A web page read with the standard library: its elements, and what is wrong with their nesting."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

EMPTY = {"br", "img", "link", "meta", "wbr", "hr", "input"}
"""Elements without an end tag."""


@dataclass
class Element:
    tag: str
    attributes: dict[str, str]
    parent: Element | None = None
    children: list[Element | str] = field(default_factory=list)

    def __iter__(self) -> Iterator[Element]:
        """Itself and all elements below, in order."""
        yield self
        for child in self.children:
            if isinstance(child, Element):
                yield from child

    def all(self, tag: str = "", of_class: str = "") -> list[Element]:
        return [e for e in self if tag in ("", e.tag) and (not of_class or of_class in e.classes)]

    def first(self, tag: str = "", of_class: str = "") -> Element | None:
        return next(iter(self.all(tag, of_class)), None)

    @property
    def classes(self) -> list[str]:
        return self.attributes.get("class", "").split()

    @property
    def text(self) -> str:
        """On one line, with the minus of a keyboard, without marks of footnotes and spaces that only align numbers."""
        return " ".join(self._raw.split()).replace("−", "-")

    @property
    def _raw(self) -> str:
        shown = (child for child in self.children if isinstance(child, str) or child.tag != "sup")
        return "".join(child if isinstance(child, str) else child._raw for child in shown)

    def inside(self, *tags: str) -> bool:
        above = self.parent
        return above is not None and (above.tag in tags or above.inside(*tags))


class _Reader(HTMLParser):
    def __init__(self) -> None:
        super().__init__(convert_charrefs=True)
        self.root = self.open = Element("", {})
        self.troubles: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        if len(names) != len(set(names)):
            self.troubles.append(f"<{tag}> has an attribute twice")
        made = Element(tag, {name: value or "" for name, value in attrs}, self.open)
        self.open.children.append(made)
        if tag not in EMPTY:
            self.open = made

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in EMPTY:
            self.open = self.open.parent or self.root

    def handle_endtag(self, tag: str) -> None:
        if tag != self.open.tag:
            self.troubles.append(f"</{tag}> at {self.getpos()} closes <{self.open.tag}>")
        self.open = self.open.parent or self.root

    def handle_data(self, data: str) -> None:
        self.open.children.append(data)


NOT_IN_P = {"div", "p", "table", "ul", "ol", "dl", "h1", "h2", "h3", "h4", "figure", "section", "details"}
PARENTS = {
    "li": {"ul", "ol"},
    "tr": {"thead", "tbody"},
    "td": {"tr"},
    "th": {"tr"},
    "thead": {"table"},
    "tbody": {"table"},
    "summary": {"details"},
    "figcaption": {"figure"},
    "dt": {"div", "dl"},
    "dd": {"div", "dl"},
}


def parse(path: Path) -> tuple[Element, list[str]]:
    """The page, and all that is wrong with it."""
    reader = _Reader()
    reader.feed(path.read_text())
    troubles = reader.troubles
    if reader.open is not reader.root:
        troubles.append(f"<{reader.open.tag}> is not closed")
    for element in reader.root:
        if element.tag in PARENTS and (element.parent is None or element.parent.tag not in PARENTS[element.tag]):
            troubles.append(f"<{element.tag}> in <{element.parent and element.parent.tag}>")
        if element.tag in NOT_IN_P and element.inside("p"):
            troubles.append(f"<{element.tag}> in <p>")
        if element.tag == "table":
            troubles += [f"rows of {widths} cells: {element.text[:80]}" for widths in _widths(element)]
    ids = [element.attributes["id"] for element in reader.root if "id" in element.attributes]
    troubles += [f"id {name} {ids.count(name)} times" for name in sorted(set(ids)) if ids.count(name) > 1]
    return reader.root, troubles


def _widths(table: Element) -> list[set[int]]:
    """How many columns the rows have, if not all as many."""
    taken: dict[int, int] = {}
    for number, row in enumerate(table.all("tr")):
        for cell in (child for child in row.children if isinstance(child, Element)):
            across, down = (int(cell.attributes.get(name, 1)) for name in ("colspan", "rowspan"))
            for below in range(number, number + down):
                taken[below] = taken.get(below, 0) + across
    found = set(taken.values())
    return [found] if len(found) > 1 else []
