"""The documentation site builds without a warning, and has what the repository has."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
pytest.importorskip("mkdocs")
pytestmark = pytest.mark.skipif(not (ROOT / "mkdocs.yml").exists(), reason="installed without the repository")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(out)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return out


def test_every_page_of_the_documentation_is_there(site: Path) -> None:
    pages = [path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md") if "notebooks" not in path.parts]
    missing = [page for page in pages if not (site / _address(page)).exists()]
    assert not missing


def test_the_reference_has_the_public_functions(site: Path) -> None:
    text = (site / "api" / "index.html").read_text()
    for name in ("sgqn.make", "sgqn.evaluate", "sgqn.load_agent", "sgqn.register_agent", "sgqn.agents.Agent"):
        assert f'id="{name}"' in text


def test_the_first_page_is_the_readme(site: Path) -> None:
    text = (site / "index.html").read_text()
    assert "demo.webp" in text
    assert 'href="training/"' in text


def _address(page: Path) -> Path:
    return page.parent / "index.html" if page.name == "README.md" else page.with_suffix("") / "index.html"


def test_formulas_are_written_for_browsers(site: Path) -> None:
    text = (site / "agents" / "sgqn" / "index.html").read_text()
    assert text.count("<math") > 10
    assert "arithmatex" not in text
