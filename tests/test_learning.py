"""SGQN learns and looks at the right pixels, and killed runs resume. Takes minutes, hence marked slow."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"


def benchmark(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"benchmark_{name}", BENCHMARKS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.slow
def test_sgqn_learns_and_looks_at_the_square() -> None:
    learning = benchmark("learning")
    first, *_, last = learning.train(learning.Options(updates=900, every=300))
    assert first["return_train"] < 0.6
    assert last["return_train"] > 0.9
    assert last["return_unseen"] > 0.85  # never seen: random actions get about a third
    assert last["return_random"] < 0.45
    assert last["on_square_unseen"] > 8 * last["square"]


@pytest.mark.slow
def test_killed_runs_resume_to_the_same_end() -> None:
    command = [sys.executable, str(BENCHMARKS / "kill_and_resume.py"), "--kills", "6", "--starts", "3"]
    result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    assert result.returncode == 0, result.stdout + result.stderr
