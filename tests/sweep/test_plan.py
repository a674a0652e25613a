"""Sweep files and the runs they ask for."""

from __future__ import annotations

from pathlib import Path

import pytest

from sgqn.cli import main
from sgqn.errors import SgqnError
from sgqn.sweep import plan, read
from tests.helpers import fails
from tests.sweep.sweeps import QUICK

REPOSITORY = Path(__file__).parents[2]


def test_lists_span_a_grid() -> None:
    runs = plan({"task": ["walker-walk", "finger-spin"], "agent": ["sgqn", "sac"], "seed": [0, 3], "steps": 7000})
    assert [run.name for run in runs] == [
        f"{task}/{agent}/{seed}"
        for task in ("walker-walk", "finger-spin")
        for agent in ("sgqn", "sac")
        for seed in (0, 3)
    ]
    assert {run.config.steps for run in runs} == {7000}


def test_other_options_that_vary_name_a_folder_above() -> None:
    runs = plan({"task": "walker-walk", "rho": [0.9, 0.95], "learning-rate": [1e-3]})
    assert [run.name for run in runs] == [
        "rho=0.9,learning_rate=0.001/walker-walk/sgqn/0",
        "rho=0.95,learning_rate=0.001/walker-walk/sgqn/0",
    ]
    assert [run.config.settings.rho for run in runs] == [0.9, 0.95]


def test_a_list_is_the_value_of_an_option_that_takes_one() -> None:
    (run,) = plan({"task": "walker-walk", "evaluate_shifts": ["train", "color_hard"], "decoder_filters": [32, 16]})
    assert run.config.evaluate_shifts == ("train", "color_hard")
    assert run.config.settings.decoder_filters == (32, 16)
    two = plan({"task": "walker-walk", "decoder_filters": [[32, 16], [16, 8]]})
    assert [one.config.settings.decoder_filters for one in two] == [(32, 16), (16, 8)]
    assert [one.variant for one in two] == ["decoder_filters=32+16", "decoder_filters=16+8"]


def test_single_runs_share_the_options_that_are_not_lists() -> None:
    single = {"task": "finger-spin", "agent": "sac", "seed": 5, "steps": 9000, "resources": {"cpus": 3}}
    runs = plan({"task": ["walker-walk"], "warmup_steps": 500, "resources": {"gpus": 0.5}, "run": [single]})
    assert [run.name for run in runs] == ["walker-walk/sgqn/0", "finger-spin/sac/5"]
    assert [run.config.warmup_steps for run in runs] == [500, 500]
    assert runs[1].config.steps == 9000
    assert (runs[0].resources.gpus, runs[1].resources.cpus) == (0.5, 3)


def test_without_a_grid_there_are_single_runs_alone() -> None:
    runs = plan({"preset": "tiny", "run": [{"task": "finger-spin"}, {"task": "finger-spin", "rho": 0.5}]})
    assert [run.name for run in runs] == ["finger-spin/sgqn/0", "rho=0.5/finger-spin/sgqn/0"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('agent = ["nope"]', "unknown agent 'nope'"),
        ('task = ["walker-wlak"]', "did you mean 'walker-walk'"),
        ('agent = "sac"\nrho = 0.9', "unknown option of agent 'sac' 'rho'"),
        ("seed = []", "seed is an empty list"),
        ("steps = 'many'", "steps must be an integer, not 'many'"),
        ("seed = [0, 0]", "asked for twice"),
        ("[run]\ntask = 'walker-walk'", "two brackets"),
        ("[resources]\ngpus = 2", "gpus must be from 0 to 1, not 2"),
        ("[resources]\nnodes = 2", "resources are gpus and cpus"),
        ("seed = ", "not a TOML file"),
        ('device = ["cpu", 3]', "device must be a string, not 3"),
    ],
)
def test_what_is_wrong_is_one_line_with_the_file(
    text: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "sweep.toml"
    file.write_text(text)
    line = fails(capsys, "sweep", str(file), "--out", str(tmp_path / "runs"))
    assert str(file) in line
    assert message in line
    assert not (tmp_path / "runs").exists()


def test_dry_run_starts_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "sweep.toml"
    file.write_text('task = ["walker-walk", "finger-spin"]\nseed = [0, 1]\n[resources]\ngpus = 0.25\n')
    assert main(["sweep", str(file), "--dry-run", "--out", str(tmp_path / "runs")]) == 0
    said = capsys.readouterr().out
    assert "walker-walk/sgqn/1" in said
    assert "4 runs, 0 complete" in said
    assert "0.25" in said
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize("file", sorted((REPOSITORY / "sweeps").glob("*.toml")), ids=lambda file: file.stem)
def test_committed_sweeps_can_be_read(file: Path) -> None:
    runs = read(file)
    if file.stem == "paper":
        assert len(runs) == 150
    steps = {run.config.steps for run in runs}
    short = {"sgac": {100_000}, "restored": {20_000}}  # pilots, and an agent that starts from a trained one
    assert steps == short[file.stem] if file.stem in short else steps <= {250_000, 500_000}


def test_the_options_of_the_tests_are_valid() -> None:
    assert plan(QUICK)[0].config.steps == 60
    with pytest.raises(SgqnError):
        plan({**QUICK, "unknown": 1})
