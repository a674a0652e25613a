"""Every script under benchmarks/ and docs/ starts, has a help text and runs in a tiny size on a CPU."""

from __future__ import annotations

import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import sgqn

ROOT = Path(sgqn.__file__).parent.parent
SCRIPTS = [
    *(path for path in sorted(ROOT.glob("benchmarks/*.py")) if not path.name.startswith("_")),
    *sorted(ROOT.glob("docs/make_*.py")),
]
FAST = ("make_results", "replay_memory", "update_cost")
"""The other scripts take long even in a tiny size; their subjects have tests of their own, and their help runs."""
pytestmark = pytest.mark.skipif(not SCRIPTS, reason="installed without the repository")


def help_of(script: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    monkeypatch.setattr(sys, "argv", [str(script), "--help"])
    monkeypatch.syspath_prepend(script.parent)
    environment = dict(os.environ)
    try:
        with pytest.raises(SystemExit) as exit_:
            runpy.run_path(str(script), run_name="__main__")
    finally:
        os.environ.clear()
        os.environ.update(environment)
    assert not exit_.value.code
    return capsys.readouterr().out


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_script_has_a_help_text(
    script: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert len(help_of(script, monkeypatch, capsys).splitlines()) > 5


@pytest.mark.parametrize(
    "script",
    [path if path.stem in FAST else pytest.param(path, marks=pytest.mark.slow) for path in SCRIPTS],
    ids=lambda path: f"{path.parent.name}/{path.stem}",
)
def test_script_runs_in_a_tiny_size(
    script: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Scripts without `--tiny` must be fast as they are. Scripts with `--out` must not write anywhere else."""
    text = help_of(script, monkeypatch, capsys)
    options = [*(["--tiny"] if "--tiny" in text else []), *(["--out", str(tmp_path)] if "--out" in text else [])]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, str(script), *options]
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
