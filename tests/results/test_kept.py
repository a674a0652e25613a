"""The documentation's numbers are those of the runs that the repository keeps."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

import sgqn
from sgqn import pretrained
from sgqn.pretrained import listing
from sgqn.results.report import report
from sgqn.results.runs import find_runs
from sgqn.results.tables import headline

ROOT = Path(sgqn.__file__).parent.parent
pytestmark = pytest.mark.skipif(not (ROOT / "results").is_dir(), reason="installed without the repository")


@pytest.fixture
def at_home(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


@pytest.mark.usefixtures("at_home")
def test_the_page_has_the_numbers_of_the_kept_runs() -> None:
    script = runpy.run_path("docs/make_results.py")
    found = find_runs("results")
    assert not found.warnings
    text = Path("docs/results.md").read_text()
    assert script["page"](text, found.runs) == text, "run `python docs/make_results.py`"


@pytest.mark.usefixtures("at_home")
def test_the_tables_are_those_that_a_report_makes(tmp_path: Path) -> None:
    report(["results"], tmp_path / "report", pictures=False)
    made, kept = (
        {p.name: p.read_text() for p in (home / "tables").iterdir()}
        for home in (tmp_path / "report", Path("docs/results"))
    )
    assert made == kept, "run `python docs/make_results.py --report`"


def test_every_pretrained_agent_has_its_run_here() -> None:
    """With its returns, by the benchmark's own pixels, in the shifts of the paper and more."""
    runs = [run for run in find_runs(ROOT / "results").runs if run.weights is not None]
    assert {run.weights for run in runs} == set(pretrained.available().values())
    for entry in listing.entries():
        shifts = {line["shift"] for line in entry["returns"] if line["renderer"] == "gl" and line["episodes"] >= 30}
        assert shifts >= {"train", "color_hard", "video_easy", "video_hard"}, entry["name"]


@pytest.mark.usefixtures("at_home")
def test_other_pages_repeat_the_same_numbers() -> None:
    readme, shared = Path("README.md").read_text(), Path("docs/pretrained.md").read_text()
    table = headline(find_runs("results").runs)
    assert table is not None
    for entry in listing.entries():
        paper = {cell.shift: cell.paper for cell in table.cells if cell.paper and cell.task == entry["task"]}
        own = {line["shift"]: f"{line['mean']:.0f}" for line in entry["returns"] if line["renderer"] == "gl"}
        if entry["agent"] == "sgqn":
            both = (f"{own[shift]} ({paper[shift].mean:.0f})" for shift in ("train", "video_easy", "video_hard"))
            assert f"| {entry['task']} | {' | '.join(both)} |" in readme
        row = " | ".join(own[shift] for shift in listing.SHIFTS)
        assert f"`{entry['name']}` | {entry['steps']:,}, {entry['seed']} | {row} |" in shared
