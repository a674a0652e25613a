"""Saliency measured by the command, kept in the run's folder, read back and shown."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sgqn
from sgqn import run_folder
from sgqn.cli import main
from sgqn.results import looking
from sgqn.results.runs import Run, RunSaliency, find_runs
from tests.helpers import TASK, fails, tiny_config
from tests.results.samples import config_of, write_tiny


@pytest.fixture(scope="module")
def brief(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose episodes have 20 steps."""
    config = tiny_config("sgqn")
    return write_tiny(tmp_path_factory.mktemp("brief") / "run", config)


def lines_of(folder: Path) -> list[dict[str, Any]]:
    return list(run_folder.read_lines(folder / run_folder.SALIENCY))


# ---------------------------------------------------------------- the command


def test_the_command_measures_what_the_library_does_and_keeps_it(
    brief: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = len(lines_of(brief))
    options = ["--episodes", "2", "--every", "5", "--renderer", "warp", "--seed", "3"]
    assert main(["saliency", str(brief), "--shift", "train", *options, "--json"]) == 0
    (shown,) = json.loads(capsys.readouterr().out)
    assert lines_of(brief)[before:] == [shown]
    agent = sgqn.load_agent(brief)
    settings = {"action_repeat": 50, "every": 5, "num_workers": 0}
    found = sgqn.saliency.measure(agent, TASK, "train", 2, 3, "warp", **settings)
    assert {name: shown[name] for name in found.to_dict()} == json.loads(json.dumps(found.to_dict()))
    assert (shown["step"], shown["rho"], shown["method"]) == (600, 0.98, "guided_backprop")
    assert shown["versions"]["torch"]

    (run,), warnings = find_runs(brief)
    assert warnings == []
    (last,) = run.saliency[before:]
    assert (last.step, last.seed, last.episodes, last.returns) == (600, 3, 2, found.returns)
    for name, mean in found.means.items():
        assert last.means[name] == pytest.approx(mean, nan_ok=True)
    assert last.curves == {name: pytest.approx(values, nan_ok=True) for name, values in found.curves.items()}

    assert main(["saliency", str(brief), "--method", "gradient", "--rho", "0.5", "--no-curves", *options]) == 0
    table = capsys.readouterr().out
    train, hard = lines_of(brief)[before + 1 :]
    assert (train["shift"], hard["shift"], hard["method"], hard["rho"], hard["curves"]) == (
        *("train", "video_hard", "gradient", 0.5),
        {},
    )
    assert f"{hard['means']['mass_share']:.3f}" in table
    assert "IoU ceiling" in table
    assert "deletion" not in table


def test_bad_input_is_one_line_and_records_nothing(
    brief: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = lines_of(brief)

    def says(*args: str) -> str:
        message = fails(capsys, "saliency", *args)
        assert lines_of(brief) == before
        return message

    assert "did you mean 'video_hard'" in says(str(brief), "--shift", "train", "video_hart")
    assert "did you mean 'rise'" in says(str(brief), "--method", "rice")
    assert "rho must lie in [0, 1)" in says(str(brief), "--rho", "1")
    assert "episodes" in says(str(brief), "--episodes", "0")
    assert "every" in says(str(brief), "--every", "0")
    assert "at least one shift" in says(str(brief), "--shift")
    assert "no such folder" in says(str(tmp_path / "none"))
    run = write_tiny(tmp_path / "run", tiny_config("sac"), with_checkpoint=False)
    assert "no checkpoint" in says(str(run))
    monkeypatch.setitem(sys.modules, "captum", None)
    assert "needs Captum" in says(str(brief), "--method", "gradient", "occlusion")


def test_a_report_measures_what_is_missing_once(brief: Path, tmp_path: Path) -> None:
    folder = write_tiny(tmp_path / "run", tiny_config("sac"))
    (run,), _ = find_runs(folder)
    assert looking.missing(run, ("train", "video_hard")) == ["train", "video_hard"]
    arguments = [
        "report",
        str(folder),
        "--out",
        str(tmp_path / "out"),
        "--shift",
        "train",
        "--saliency",
        "--no-images",
    ]
    for _ in range(2):
        assert main([*arguments, "--renderer", "warp"]) == 0
        (line,) = lines_of(folder)
    assert (line["shift"], line["episodes"], line["every"]) == ("train", looking.EPISODES, looking.EVERY)
    text = (tmp_path / "out" / "report.md").read_text()
    assert f"{line['means']['mass_share']:.3f} ± {line['errors']['mass_share']:.3f}" in text
    (run,), _ = find_runs(folder)
    assert looking.missing(run, ("train", "video_hard")) == ["video_hard"]


# ---------------------------------------------------------------- reading and showing


def look(shift: str = "train", step: int = 100, rho: float = 0.95, **means: float) -> RunSaliency:
    curves = dict.fromkeys(("shown", *looking.CURVES), (0.0, 0.5, 1.0))
    errors = dict.fromkeys(means, 0.01)
    names = ("gl", "none", "guided_backprop", rho, "mean", 10, 30)
    return RunSaliency("walker-walk", shift, 0, *names, (1.0, 2.0), means, errors, curves, step)


def run_with(agent: str, seed: int, *looks: RunSaliency) -> Run:
    return Run(Path(f"{agent}-{seed}"), config_of("walker-walk", agent, seed), saliency=looks)


def test_table_by_hand() -> None:
    nan = math.nan
    runs = [
        run_with("sgqn", 0, look(mass_share=0.2, iou=0.1, pointing=nan), look(step=200, mass_share=0.3, iou=0.2)),
        run_with("sgqn", 1, look(step=200, mass_share=0.5, iou=0.4)),
        run_with("sac", 0, look(mass_share=0.1, pointing=nan), look("video_hard", mass_share=0.05)),
    ]
    table = looking.saliency_table(runs)
    assert table is not None
    labels = [row.labels for row in table.rows]
    assert labels == [
        ("walker-walk", "train", "SAC", "1 × 2"),
        ("walker-walk", "train", "SGQN", "2 × 2"),
        ("walker-walk", "video_hard", "SAC", "1 × 2"),
    ]
    assert "Attribution by guided_backprop, ρ 0.95." in table.caption
    cells = {(row.labels[1:3], cell.column): cell for row in table.rows for cell in row.cells}
    sgqn_mass = cells[("train", "SGQN"), "mass_share"].ours
    assert sgqn_mass is not None
    assert sgqn_mass.mean == pytest.approx(0.4)  # of the newest of each seed
    assert sgqn_mass.error == pytest.approx(np.std([0.3, 0.5], ddof=1) / math.sqrt(2))
    sac_mass = cells[("train", "SAC"), "mass_share"]
    assert sac_mass.ours_text() == "0.100 ± 0.010"  # one run: the error over its episodes
    assert cells[("train", "SAC"), "pointing"].ours_text() == "–"
    assert cells[("train", "SAC"), "iou"].ours_text() == "–"
    assert table.footnotes == ("Fewer steps than the paper's 500,000: 100, 200.",)
    assert looking.saliency_table([run_with("sac", 0)]) is None


def test_ways_of_attribution_are_told_apart() -> None:
    table = looking.saliency_table([run_with("sgqn", 0, look(iou=0.1), look(rho=0.9, iou=0.2))])
    assert table is not None
    assert [row.labels[3:] for row in table.rows] == [("ρ 0.95",), ("ρ 0.9",)]
    assert "Attribution by guided_backprop." in table.caption
    assert "Runs × episodes: 1 × 2." in table.caption


def test_curves_run_from_the_whole_picture_or_from_nothing() -> None:
    charts = looking.saliency_charts([run_with("sgqn", 0, look(iou=0.1)), run_with("sgqn", 1, look(iou=0.1))])
    ((title, (deletion, insertion, most, least)),) = charts.items()
    assert title == "walker-walk, train, guided_backprop, ρ 0.95"
    for chart in (deletion, most, least):
        assert chart.lines[0].x == [1.0, 0.5, 0.0]  # the share removed, of the share shown
    assert insertion.lines[0].x == [0.0, 0.5, 1.0]
    assert insertion.lines[0].y == [0.0, 0.5, 1.0]
    assert len(insertion.lines[0].low) == 3


@pytest.mark.parametrize(
    "wrong",
    [
        {"means": None},
        {"means": {}},
        {"means": {"iou": "much"}},
        {"errors": 3},
        {"curves": {"deletion": [1.0]}},
        {"curves": {"shown": [0.0, 1.0], "deletion": [1.0]}},
        {"step": None},
        {"task": "finger-spin"},
        {"rho": "high"},
        {"returns": [None]},
    ],
)
def test_a_wrong_line_is_left_out_and_told(tmp_path: Path, wrong: dict[str, Any]) -> None:
    folder = write_tiny(tmp_path / "run", tiny_config("sac"), with_checkpoint=False)
    good = {**look(iou=0.5).to_dict(), "task": TASK}
    run_folder.append_line(folder / run_folder.SALIENCY, good)
    run_folder.append_line(folder / run_folder.SALIENCY, {**good, **wrong})
    (run,), (warning,) = find_runs(folder)
    assert [found.means for found in run.saliency] == [{"iou": 0.5}]
    assert "saliency.jsonl: 1 line passed over" in warning


def test_a_resumed_run_forgets_what_was_measured_later(tmp_path: Path) -> None:
    folder = write_tiny(tmp_path / "run", tiny_config("sac"), with_checkpoint=False)
    for step in (300, 600):
        run_folder.append_line(folder / run_folder.SALIENCY, {**look(step=step, iou=0.5).to_dict(), "task": TASK})

    from sgqn.training import Trainer

    trainer = Trainer.__new__(Trainer)
    trainer.folder, trainer.step = folder, 300
    trainer.rewind_logs()
    assert [line["step"] for line in lines_of(folder)] == [300]
