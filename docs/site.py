"""Hooks of mkdocs: the README is the first page, links to files outside of docs/ lead to copies of these, and formulas
are written as MathML, which browsers display without a script."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterator
from html import unescape
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
PAGES = {"index.md": "README.md", "changes.md": "CHANGELOG.md"}
"""Pages that are files of the repository."""
SOURCE = "source"
LINK = re.compile(r"(\]\()([^)\s#:]+)(#[^)]*)?(\))")
FORMULA = re.compile(r'<(?:span|div) class="arithmatex">\\[(\[](.*?)\\([)\]])</(?:span|div)>', re.DOTALL)
LANGUAGES = {".py": "python", ".toml": "toml", ".json": "json", ".yml": "yaml"}


def on_files(files: Files, config: Any) -> Files:
    for page, path in PAGES.items():
        files.append(File.generated(config, page, content=_relinked((ROOT / path).read_text(), "", page)))
    known = [file for file in files if file.src_uri.endswith(".md")]
    for path in sorted({path for file in known for path in _outside(file)}):
        files.append(File.generated(config, _copy(path), content=_shown(path)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    if page.file.src_uri in PAGES or page.file.src_uri.startswith(SOURCE):
        return markdown
    return _relinked(markdown, posixpath.join("docs", page.file.src_uri), page.file.src_uri)


def on_page_content(html: str, **_: Any) -> str:
    return FORMULA.sub(
        lambda match: convert(unescape(match[1]), display="block" if match[2] == "]" else "inline"), html
    )


def _outside(file: File) -> Iterator[str]:
    """The repository's files outside of docs/ that a page links to."""
    origin = PAGES.get(file.src_uri, posixpath.join("docs", file.src_uri))
    for match in LINK.finditer(file.content_string if file.src_uri not in PAGES else (ROOT / origin).read_text()):
        target = posixpath.normpath(posixpath.join(posixpath.dirname(origin), match[2]))
        if not target.startswith(("docs/", "..")) and target not in PAGES.values() and (ROOT / target).exists():
            yield target


def _relinked(markdown: str, origin: str, page: str) -> str:
    """A page's text with links that work on the site; `origin` is its place in the repository, `page` on the site."""

    def link(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(origin), match[2]))
        if target.startswith("docs/"):
            found = target.removeprefix("docs/")
        elif target in PAGES.values():
            found = next(page for page, path in PAGES.items() if path == target)
        elif (ROOT / target).exists():
            found = _copy(target)
        else:
            return match[0]
        return f"{match[1]}{posixpath.relpath(found, posixpath.dirname(page) or '.')}{match[3] or ''}{match[4]}"

    return LINK.sub(link, markdown)


def _copy(path: str) -> str:
    """Where the site has a file or folder of the repository."""
    whole = ROOT / path
    if whole.suffix in (".png", ".webp", ".svg"):
        return f"{SOURCE}/{path}"
    return f"{SOURCE}/{path.removesuffix('.md').replace('README', 'readme')}{'/index' if whole.is_dir() else ''}.md"


def _shown(path: str) -> Any:
    whole = ROOT / path
    if whole.is_dir():
        found = sorted(os.path.relpath(file, ROOT) for file in whole.rglob("*") if file.is_file())
        return f"# {path}\n\n" + "\n".join(f"- `{file}`" for file in found if "__pycache__" not in file)
    if whole.suffix in (".png", ".webp", ".svg"):
        return whole.read_bytes()
    text = whole.read_text()
    if whole.suffix == ".md":
        plain = LINK.sub(lambda match: match[0].partition("](")[0] + "](#)", text)
        return re.sub(r"\A---\n.*?\n---\n", "", plain, flags=re.DOTALL)
    return f"# {path}\n\n````{LANGUAGES.get(whole.suffix, 'text')}\n{text}\n````\n"
