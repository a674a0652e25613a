"""README, documentation, notebooks and help texts use the field's words: a list of those that they do not use."""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import sgqn
from sgqn.agents import AGENTS
from sgqn.cli import main
from sgqn.cli.command import COMMANDS
from sgqn.registry import import_submodules

ROOT = Path(sgqn.__file__).parent.parent
WORDS = re.compile(
    r"""\b(?:
        pictures? | films? | mend(?:s|ed|ing)? | riddles? | faults? | anew
      | go(?:es)?[ ]on(?![ ](?:a|the|to)\b) | went[ ]on | serves? | stands?[ ]for | in[ ]the[ ]mean[ ](?:of|over)
      | pass(?:ed|es)?[ ]over | (?:that|which)[ ](?:is|are)[ ](?:none|no[ ]picture) | beside
      | whole[ ]numbers?[ ]from | the[ ]numbers[ ]of[ ]an[ ]agent | fastest[ ]way | places[ ]of[ ]rays
      | what[ ]was[ ]looked[ ]into
    )\b""",
    re.IGNORECASE | re.VERBOSE,
)
ALLOWED = re.compile(r"mkdocs serve|`[^`]*--(?:no-)?pictures`")
"""A command of another program, and former names of options in the list of changes."""
in_repository = pytest.mark.skipif(not (ROOT / "docs").is_dir(), reason="installed without the repository")


def pages() -> list[Path]:
    found = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "docs" / "notebooks").rglob("*.py")]
    return sorted(path for path in found if "notes" not in path.relative_to(ROOT).parts)


def found_in(text: str) -> list[str]:
    return [match[0] for match in WORDS.finditer(ALLOWED.sub("", text))]


def test_the_list_finds_its_words() -> None:
    for text in ("Pictures", "a film", "it goes on", "begins anew", "with the paper's beside", "a seed that is none"):
        assert found_in(text), text
    assert found_in("in the mean of two seeds") == ["in the mean of"]
    for text in ("the server", "in the mean", "besides", "default", "observed", "an episode goes on a server"):
        assert not found_in(text), text


@in_repository
@pytest.mark.parametrize("page", pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_words_of_pages(page: Path) -> None:
    assert not found_in(page.read_text())


@in_repository
@pytest.mark.parametrize("notebook", sorted((ROOT / "examples").glob("*.ipynb")), ids=lambda path: path.name)
def test_words_of_notebooks(notebook: Path) -> None:
    def texts(value: object) -> Iterator[str]:
        if isinstance(value, str):
            yield value
        elif isinstance(value, dict):
            for name, inner in value.items():
                if not name.startswith("image/"):
                    yield from texts(inner)
        elif isinstance(value, list):
            for inner in value:
                yield from texts(inner)

    assert not found_in("\n".join(texts(json.loads(notebook.read_text())["cells"])))


def commands() -> list[list[str]]:
    import_submodules("sgqn.cli")
    return [[], *(name.split() for name in COMMANDS), *(["train", "--agent", agent] for agent in AGENTS)]


@pytest.mark.parametrize("command", commands(), ids=" ".join)
def test_words_of_help(command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with contextlib.suppress(SystemExit):
        main([*command, "--help"])
    text = capsys.readouterr().out
    assert len(text) > 100
    assert not found_in(text)
