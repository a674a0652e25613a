"""Text from files, made safe for a page: names of folders, shifts, agents and versions may be anything."""

from __future__ import annotations

import html
import re

_NO_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")
_MARKDOWN = re.compile(r"[\\`*\[\]|~]|(?<![^\W_])_|_(?![^\W_])")


def printable(text: object) -> str:
    """Without what neither XML nor UTF-8 can hold, such as the bytes of an undecodable file name."""
    return _NO_XML.sub("\N{REPLACEMENT CHARACTER}", str(text))


def clean(text: object) -> str:
    """The same on one line."""
    return " ".join(printable(text).split())


def in_xml(text: object) -> str:
    """For SVG, between tags or in a quoted attribute."""
    return html.escape(clean(text))


def in_markdown(text: object) -> str:
    """For Markdown: nothing ends a table's cell, becomes HTML or a link, or switches the type."""
    return _MARKDOWN.sub(lambda found: "\\" + found[0], html.escape(clean(text), quote=False))
