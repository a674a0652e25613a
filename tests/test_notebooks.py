"""The notebooks of examples/ are those of docs/notebooks, and run."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

import sgqn

pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")
import nbformat

ROOT = Path(sgqn.__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
LARGEST = 300_000
"""Bytes of a notebook with its outputs."""
pytestmark = pytest.mark.skipif(not NOTEBOOKS, reason="installed without the repository")
each = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("make_notebooks", ROOT / "docs" / "make_notebooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def sources(notebook: nbformat.NotebookNode) -> list[tuple[str, str]]:
    return [(cell.cell_type, cell.source) for cell in notebook.cells]


def test_every_page_has_its_notebook(script: ModuleType) -> None:
    assert [page.stem for page in script.pages()] == [path.stem for path in NOTEBOOKS]


@each
def test_the_notebook_is_that_of_the_page(script: ModuleType, path: Path) -> None:
    """If not, run docs/make_notebooks.py."""
    assert sources(nbformat.read(path, as_version=4)) == sources(
        script.make(ROOT / "docs" / "notebooks" / f"{path.stem}.md")
    )


@each
def test_the_notebook_has_valid_outputs_and_runs(script: ModuleType, path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert path.stat().st_size < LARGEST
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert all(cell.execution_count for cell in cells), "a cell was not run"
    outputs = [output for cell in cells for output in cell.outputs]
    assert sum("image/png" in output.get("data", {}) for output in outputs) >= 3
    texts = "".join(output.get("text", "") + output.get("data", {}).get("text/plain", "") for output in outputs)
    assert not re.search(r"(?<!\w)/(home|root|tmp|Users)/", texts), "an absolute path of the machine"
    done = script.run(notebook)
    assert sources(done) == sources(nbformat.read(path, as_version=4))
