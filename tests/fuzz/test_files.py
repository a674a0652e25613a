"""Damaged and hostile files are refused with one line, or read as they were. See `tests/fuzz/files.py`."""

from __future__ import annotations

import collections
import os

import pytest
from hypothesis import HealthCheck, Phase, given, settings

from tests.fuzz import files
from tests.fuzz.files import ANOTHER, NEW, NEW_REPLAY, REFUSED, SPECIAL, TRAPS, UNCHANGED, Case

pytestmark = pytest.mark.xdist_group("fuzz")  # one process makes the originals
ALLOWED = (REFUSED, UNCHANGED, ANOTHER)
EXAMPLES = int(os.environ.get("SGQN_FUZZ_FILES", "40"))


@settings(
    max_examples=EXAMPLES,
    database=None,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
@given(files.cases())
def test_damaged_files_are_refused_or_read_as_they_were(case: Case) -> None:
    said: list[str] = []
    assert files.judge(case, said.append) in ALLOWED, said


@pytest.mark.parametrize("reader", ["load_agent", "load", "report", "resume"])
def test_without_damage_everything_is_read(reader: str) -> None:
    """The judge itself: what is not damaged is accepted, unchanged."""
    case = Case("flip", "run/config.json", reader)
    home = files.originals()
    assert files._same(files.READERS[reader](home, "run"), files._original(reader, "run")), case


def test_the_judge_sees_changed_content() -> None:
    """Other weights with checksums that fit are another agent; found without them, they would be a failure."""
    file = f"{NEW}/weights.safetensors"
    assert files.judge(Case("tensor", file, "load_agent", value=8, forged=True)) == ANOTHER
    assert files.judge(Case("tensor", file, "load_agent", value=8)) == REFUSED


@pytest.mark.parametrize("what", SPECIAL[:8])
@pytest.mark.parametrize(
    ("file", "reader"),
    [
        ("run/config.json", "report"),
        ("run/metrics.jsonl", "report"),
        ("run/metrics.jsonl", "resume"),
        (f"{NEW}/manifest.json", "load_agent"),
        (f"{NEW}/state.json", "load_agent"),
        (f"{NEW}/weights.safetensors", "load_agent"),
        (f"{NEW}/state.safetensors", "resume"),
        (NEW_REPLAY, "resume"),
        ("run/replay/frames", "resume"),
        ("agent/agent.json", "load_agent"),
        ("agent/weights.safetensors", "load_agent"),
    ],
)
def test_only_regular_files_of_the_folder_are_opened(what: str, file: str, reader: str) -> None:
    """Pipes never hang, devices and links out of the folder are not followed."""
    said: list[str] = []
    outcome = files.judge(Case("special", file, reader, value=SPECIAL.index(what)), said.append)
    older = what == "missing" and file.endswith("manifest.json")  # an incomplete checkpoint: the one before it is used
    tolerant = reader == "report" and file.endswith(".jsonl")  # a report goes on without a log, and says so
    optional = what in ("missing", "loop") and file.endswith(".jsonl")  # no log yet
    assert outcome == REFUSED or (outcome != "hang" and (older or tolerant or optional)), (outcome, said)
    assert outcome in ALLOWED, said


@pytest.mark.parametrize("trap", TRAPS)
def test_no_link_makes_a_resumed_run_write_elsewhere(trap: str) -> None:
    said: list[str] = []
    for place in (0, 1):  # to a file, to a name without a file
        case = Case("trap", "run/config.json", "resume", place=place, value=TRAPS.index(trap))
        assert files.judge(case, said.append) in (REFUSED, UNCHANGED), said


@pytest.mark.parametrize("size", [1, 3])
@pytest.mark.parametrize("name", files.SIZES)
@pytest.mark.parametrize("file", ["run/config.json", "agent/agent.json"])
def test_a_huge_agent_is_refused_before_memory_is_allocated(name: str, size: int, file: str) -> None:
    said: list[str] = []
    place = files.SIZES.index(name)
    case = Case("enlarge", file, "load_agent", place=place, value=size, forged=True)
    builds = name not in ("num_envs", "replay_capacity", "batch_size")  # those are of training alone
    assert files.judge(case, said.append) in ([REFUSED] if builds else [REFUSED, UNCHANGED]), said


@pytest.mark.parametrize("pair", range(8))
@pytest.mark.parametrize("forged", [False, True])
@pytest.mark.parametrize("reader", ["load", "resume"])
def test_files_of_other_steps_are_refused(pair: int, forged: bool, reader: str) -> None:
    """A checkpoint, its weights, state and replay belong together and to the step in the folder's name."""
    said: list[str] = []
    outcome = files.judge(Case("swap", "run/config.json", reader, place=pair, forged=forged), said.append)
    weights = forged and pair in (2, 3, 4)  # weights or state of another step, with checksums that fit
    unused = reader == "load" and pair in (1, 3, 4)  # replay and state, which evaluations do not need
    assert outcome == REFUSED or (outcome == ANOTHER and weights) or (outcome == UNCHANGED and unused), (outcome, said)


REGRESSIONS = [
    # A manifest that is no regular file was taken for an incomplete checkpoint, and an older agent loaded silently.
    *(
        Case("special", f"{NEW}/manifest.json", reader, value=value)
        for reader in ("load", "resume")
        for value in (0, 1, 4)
    ),
    # The number of control steps of an episode was compared with its number of agent steps.
    Case("grow", "run/metrics.jsonl", "resume"),
    # Links to a device and sparse files, with checksums computed again.
    Case("special", "run/replay/frames", "resume", value=4, forged=True),
    Case("special", "agent/weights.safetensors", "load", value=8, forged=True),
    Case("special", f"{NEW}/state.safetensors", "resume", value=8, forged=True),
]
"""Failures that the fuzzer has found, also in itself."""


@pytest.mark.parametrize("case", REGRESSIONS, ids=str)
def test_failures_that_were_found(case: Case) -> None:
    said: list[str] = []
    assert files.judge(case, said.append) in ALLOWED, said


def test_outcomes_counts_every_case() -> None:
    found = files.outcomes(5, seed=1)
    assert isinstance(found, collections.Counter)
    assert found.total() == 5
