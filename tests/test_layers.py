"""Which modules may import which."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import sgqn

PACKAGE = Path(sgqn.__file__).parent
TESTS = Path(__file__).parent


def imported(path: Path) -> set[str]:
    """The modules that a file imports, also within functions."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


@pytest.mark.parametrize("path", sorted((PACKAGE / "inspect").glob("*.py")), ids=lambda path: path.name)
def test_the_inspection_layer_does_not_import_its_users(path: Path) -> None:
    users = ("results", "watch", "demo", "explain", "saliency", "pretrained", "cli", "logs", "training")
    names = {name.split(".")[1] for name in imported(path) if name.startswith("sgqn.")}
    assert names.isdisjoint(users)


def test_no_test_module_imports_another() -> None:
    for path in TESTS.rglob("*.py"):
        others = [name for name in imported(path) if name.startswith("tests.") and ".test_" in name]
        assert not others, (path, others)
