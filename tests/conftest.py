"""Tests see the built-in data only: what lies in a developer's data directory must not change a result."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

settings.register_profile("sgqn", deadline=None, max_examples=50)  # an example's time depends on the machine
settings.load_profile("sgqn")

# Tests run in parallel processes, one a core: more threads than cores would only wait for each other.
os.environ["OMP_NUM_THREADS"] = os.environ["SGQN_CPUS"] = "1"
os.environ["SGQN_DATA"] = tempfile.mkdtemp(prefix="sgqn-no-data-")


def _has_gl() -> bool:
    from sgqn.envs.opengl import gl_error

    return gl_error() is None


@pytest.fixture(params=["gl", "warp"])
def renderer(request: pytest.FixtureRequest) -> str:
    """Both renderers; OpenGL where this machine has one."""
    if request.param == "gl" and not _has_gl():
        pytest.skip("no OpenGL context on this machine")
    return request.param


@pytest.fixture
def gl() -> None:
    if not _has_gl():
        pytest.skip("no OpenGL context on this machine")


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty data directory."""
    path = tmp_path / "store"
    path.mkdir()
    monkeypatch.setenv("SGQN_DATA", str(path))
    return path


@pytest.fixture
def silent_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    """In-place operations on lists of tensors leave their versions alone, as they do on a GPU."""
    import torch

    def silently(tensors: Any, *others: Any, operation: Any = torch._foreach_lerp_) -> None:
        with torch.autograd._unsafe_preserve_version_counter(tuple(tensors)):
            operation(tensors, *others)

    monkeypatch.setattr(torch, "_foreach_lerp_", silently)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A headless chromium, where this machine has one."""
    sync_api = pytest.importorskip("playwright.sync_api")
    found = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if found is None:
        pytest.skip("no chromium on this machine")
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=found, args=["--no-sandbox"])
        yield chromium
        chromium.close()
