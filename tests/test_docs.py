"""Links in Markdown files work, and the documentation keeps no files that no page refers to."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote

import pytest

import sgqn

ROOT = Path(sgqn.__file__).parent.parent
FOLDERS = ("docs", "examples", "sgqn", "benchmarks", "tests")
PAGES = sorted(
    path.relative_to(ROOT)
    for path in [*ROOT.glob("*.md"), *(path for name in FOLDERS for path in (ROOT / name).rglob("*.md"))]
)
pytestmark = pytest.mark.skipif(not (ROOT / "docs").is_dir(), reason="installed without the repository")


def links_of(page: Path) -> list[str]:
    """Targets of links and images within the repository."""
    text = (ROOT / page).read_text()
    text = re.sub(r"(?ms)^```.*?^```", "", text)  # code, in which brackets are not links
    text = re.sub(r"(?m)^    .*$|`[^`\n]*`", "", text)
    found = re.findall(r"""\]\(\s*([^)\s]+)[^)]*\)|(?:src|href)="([^"]+)\"""", text)
    return [link for pair in found for link in pair if link and not re.match(r"[a-z][a-z0-9+.-]*:", link)]


def anchors_of(page: Path) -> set[str]:
    """Anchors of headings as GitHub generates them."""
    anchors = set()
    for heading in re.findall(r"(?m)^#+ +(.+?) *$", page.read_text()):
        plain = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).lower()
        anchors.add(re.sub(r"[^\w\- ]", "", plain).replace(" ", "-"))
    return anchors


@pytest.mark.parametrize("page", PAGES, ids=str)
def test_links_work(page: Path) -> None:
    for link in links_of(page):
        target, _, anchor = unquote(link).partition("#")
        path = (ROOT / page).parent / target if target else ROOT / page
        assert path.exists(), f"{page} links to {link}, which does not exist"
        if anchor and path.suffix == ".md":
            assert anchor in anchors_of(path), f"{page} links to {link}: no such heading"


@pytest.mark.parametrize("folder", ["docs/images", "docs/results"])
def test_every_file_is_on_a_page(folder: str) -> None:
    linked = {((ROOT / page).parent / link.partition("#")[0]).resolve() for page in PAGES for link in links_of(page)}
    unused = [path for path in (ROOT / folder).rglob("*") if path.is_file() and path.resolve() not in linked]
    assert not unused, f"no page refers to {', '.join(str(path.relative_to(ROOT)) for path in unused)}"
