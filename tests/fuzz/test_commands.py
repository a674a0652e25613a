"""No command line ends in a traceback, hangs, takes a gigabyte, or changes files that are not its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.fuzz import commands
from tests.fuzz.commands import PASSED

ROOT = Path(__file__).parents[2]


def judged(*lines: list[str]) -> list[str]:
    """What command lines do, each as in the fuzzing; this process may have threads, which a fork would not survive."""
    code = (
        "import json, sys; from tests.fuzz.commands import run_all\nprint(json.dumps(run_all(json.loads(sys.argv[1]))))"
    )
    environment = os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", code, json.dumps(lines)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, check=True)
    return [kind for kind, *_ in json.loads(done.stdout.splitlines()[-1])]


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs Linux's /proc")
def test_random_command_lines() -> None:
    counted = commands.outcomes(500, seed=0, seconds=10)
    assert counted.keys() <= set(PASSED), counted
    assert counted.total() >= 1


def test_command_lines_repeat() -> None:
    first, again = commands.command_lines(3), commands.command_lines(3)
    lines = [next(first) for _ in range(200)]
    assert lines == [next(again) for _ in range(200)]
    assert {line[0] for line in lines if line} >= {name.split()[0] for name in commands.VALID}


@pytest.mark.parametrize(
    ("code", "errors", "kind"),
    [
        (2, "error: no such folder", "refused"),
        (2, "warning: no images\nerror: no such folder", "refused"),
        (2, "", "traceback"),
        (2, "error: ", "traceback"),
        (2, "something\nerror: no such folder", "traceback"),
        (1, "error: no such folder", "traceback"),
        (-11, "", "traceback"),
        (0, "Traceback (most recent call last):", "traceback"),
        (130, "interrupted", "ran"),
        (0, "", "ran"),
    ],
)
def test_how_command_lines_are_judged(code: int, errors: str, kind: str) -> None:
    assert commands._judged(code, errors) == kind
