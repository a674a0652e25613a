"""Make the notebooks of examples/ from the pages of docs/notebooks, and run them.

    python docs/make_notebooks.py
    python docs/make_notebooks.py --tiny --out FOLDER     # without running them

In a page, each block of Python is a cell, and the text between two blocks is a cell too. A block that begins with
"```python gym.md:1" also contains the first block of docs/gym.md: code of the documentation is not repeated.
Needs nbclient and ipykernel, which `sgqn[dev]` installs.
"""

from __future__ import annotations

import argparse
import re
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook
from rich.progress import track

DOCS = Path(__file__).resolve().parent
FENCE = re.compile(r"(?ms)^```(\w*)(?: (\S+\.md):(\d+))?\n(.*?)^```$\n?")
TIMEOUT = 300
"""Seconds for one cell."""


def pages() -> list[Path]:
    return sorted((DOCS / "notebooks").glob("*.md"))


def blocks(page: str) -> list[str]:
    """The blocks of code of a page of the documentation."""
    return [body for *_, body in FENCE.findall((DOCS / page).read_text())]


def make(page: Path) -> Any:
    """The notebook of a page, not run."""
    text, cells, start = page.read_text(), [], 0
    prose = ""
    for fence in FENCE.finditer(text):
        language, source, number, body = fence.groups()
        if source:
            body += blocks(source)[int(number) - 1]
        prose += text[start : fence.start()]
        start = fence.end()
        if language == "python":
            cells += [*_text(prose), new_code_cell(body.rstrip())]
            prose = ""
        else:
            prose += f"```{language}\n{body}```\n"
    cells += _text(prose + text[start:])
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"  # the same each time
    metadata = {"kernelspec": {"name": "python3", "display_name": "Python 3"}, "language_info": {"name": "python"}}
    return new_notebook(cells=cells, metadata=metadata)


def _text(markdown: str) -> list[Any]:
    """A cell of text, unless it is empty. Links are relative to docs/notebooks in the page, and to examples here."""
    return [new_markdown_cell(markdown.strip().replace("](../", "](../docs/"))] if markdown.strip() else []


def run(notebook: Any) -> Any:
    """The notebook with the outputs of its cells, run in an empty folder. An error of a cell is raised."""
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(
            notebook, timeout=TIMEOUT, record_timing=False, resources={"metadata": {"path": folder}}
        )
        done = client.execute()
    done["metadata"]["language_info"] = {"name": "python"}  # not the version of this Python
    return done


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=DOCS.parent / "examples", help="folder of the notebooks")
    parser.add_argument("--tiny", action="store_true", help="do not run them")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for page in track(pages(), "notebooks"):
        notebook = make(page)
        if not options.tiny:
            notebook = run(notebook)
        nbformat.validate(notebook)
        nbformat.write(notebook, options.out / f"{page.stem}.ipynb")


if __name__ == "__main__":
    main()
