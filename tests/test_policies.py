"""Policies from elsewhere: found by name, evaluated, recorded, and shown in reports."""

from __future__ import annotations

import csv
import json
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import sgqn
from sgqn import run_folder
from sgqn.cli import main
from sgqn.policies import load_policy, record
from sgqn.results import curves, tables
from sgqn.results.report import build
from sgqn.results.runs import find_runs
from tests.helpers import TASK, fails, tiny_config
from tests.results.samples import write_tiny

PAGE = Path(sgqn.__file__).parent.parent / "docs" / "own-policy.md"
SMALL: dict[str, Any] = {"action_repeat": 250, "image_size": 24, "renderer": "warp", "episodes": 2}
OPTIONS = ["--action-repeat", "250", "--image-size", "24", "--renderer", "warp", "--episodes", "2", "--shift", "train"]

MODULE = """
import numpy as np

def act(obs):
    assert obs.dtype == np.uint8
    return np.zeros((len(obs), 1))

class Still:
    def act(self, obs):
        return act(obs)

def make():
    return act

def broken():
    raise OSError("no weights")

still, number, model = Still(), 7, type("Model", (), {"predict": act})()

def wrong(obs):
    return np.zeros((len(obs), 3))
"""


def still(obs: np.ndarray) -> np.ndarray:
    return np.zeros((len(obs), 1))


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A module in the working directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "my_policies.py").write_text(MODULE)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    for name in ("my_policies", "my_policy"):
        sys.modules.pop(name, None)


def test_what_is_recorded(tmp_path: Path) -> None:
    lines = record(still, "still", TASK, ["train", "video_hard"], out=tmp_path, **SMALL)
    folder = tmp_path / TASK / "still" / "0"
    assert sorted(path.name for path in folder.iterdir()) == [run_folder.EVALUATIONS, run_folder.POLICY]
    assert list(run_folder.read_lines(folder / run_folder.EVALUATIONS)) == lines
    assert [(line["shift"], line["step"], len(line["returns"])) for line in lines] == [
        ("train", None, 2),
        ("video_hard", None, 2),
    ]
    options = {key: value for key, value in SMALL.items() if key != "episodes"}
    assert lines[0]["returns"] == list(sgqn.evaluate(still, TASK, episodes=2, **options).returns)
    about = json.loads((folder / run_folder.POLICY).read_text())
    assert about.pop("versions")
    source = f"{__name__}:still"
    expected = {"name": "still", "task": TASK, "seed": 0, "action_repeat": 250, "image_size": 24, "frame_stack": 3}
    assert about == {**expected, "source": source, "plugins": []}

    record(still, "still", TASK, ["train"], out=tmp_path, steps=1000, policy_seed=5, **{**SMALL, "episodes": 1})
    (found,) = find_runs(tmp_path / TASK / "still" / "5").runs
    assert (found.seed, found.evaluations[0].seed, found.evaluations[0].step, found.foreign) == (5, 0, 1000, True)


@pytest.mark.parametrize("name", ["act", "Still", "make", "still", "still.act"])
def test_policies_by_name(name: str, module: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["evaluate", "--policy", f"my_policies:{name}", "--name", "mine", "--task", TASK, *OPTIONS]
    assert main([*command, "--json", "--out", "there", "--seed", "3"]) == 0
    (line,) = json.loads(capsys.readouterr().out)
    assert (line["seed"], line["shift"], line["step"]) == (3, "train", None)
    assert run_folder.read_policy(module / "there" / TASK / "mine" / "3").source == f"my_policies:{name}"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"--policy": "my_policies"}, "policy 'my_policies' must be written as package.module:name"),
        ({"--policy": "no_such:act"}, "no_such, the module of policy 'no_such:act', cannot be imported"),
        ({"--policy": "my_policies:atc"}, "unknown policy in my_policies 'atc': did you mean 'act'"),
        ({"--policy": "my_policies:number"}, "not a int: 7"),
        ({"--policy": "my_policies:model"}, "wrap it: lambda obs: model.predict"),
        ({"--policy": "my_policies:broken"}, "'my_policies:broken' could not be created: OSError: no weights"),
        ({"--policy": "my_policies:wrong"}, "asked for actions (2, 1) and gave a ndarray: the action has shape (2, 3)"),
        ({"--name": "sgqn"}, "name 'sgqn' is that of an agent of sgqn"),
        ({"--name": "a/b"}, "name 'a/b' of a policy must have letters"),
        ({"--task": "cartpole"}, "unknown task 'cartpole'"),
        ({"--shift": "test1"}, "unknown shift 'test1'"),
        ({"--image-size": "2"}, "image_size must be between 8 and 1024, not 2"),
        ({"--frame-stack": "0"}, "frame_stack must be at least 1, not 0"),
        ({"--policy-seed": "-1"}, "policy_seed must be a non-negative integer, not -1"),
    ],
)
def test_what_is_wrong_is_one_line_and_nothing_is_written(
    changes: dict[str, str], said: str, module: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = dict(zip(OPTIONS[::2], OPTIONS[1::2], strict=True))
    options = {"--policy": "my_policies:act", "--name": "mine", "--task": TASK, **given, **changes}
    line = fails(capsys, "evaluate", *(word for pair in options.items() for word in pair))
    assert said in line
    assert not (module / "runs").exists()


def test_a_run_or_a_policy(module: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "name a run to evaluate, or a policy" in fails(capsys, "evaluate")
    assert "--name mine is for --policy only" in fails(capsys, "evaluate", "runs/x", "--name", "mine")
    assert "RUN runs/x is not for --policy" in fails(capsys, "evaluate", "runs/x", "--policy", "my_policies:act")
    assert "--policy needs --name and --task" in fails(capsys, "evaluate", "--policy", "my_policies:act")


def test_names_that_are_taken(tmp_path: Path) -> None:
    config = tiny_config()
    run_folder.folder_of(config, tmp_path).parent.mkdir(parents=True)
    (tmp_path / TASK / "gone" / "1").mkdir(parents=True)
    (tmp_path / TASK / "gone" / "1" / run_folder.CONFIG).write_text("{}")  # of an agent that is not registered any more
    with pytest.raises(sgqn.InvalidValueError, match="gone/1 is a training run: choose another name"):
        record(still, "gone", TASK, ["train"], out=tmp_path, **SMALL)
    record(still, "still", TASK, ["train"], out=tmp_path, **{**SMALL, "episodes": 1})
    with pytest.raises(sgqn.InvalidValueError, match=r"another policy \(image_size is 24, not 32\): choose"):
        record(still, "still", TASK, ["train"], out=tmp_path, **{**SMALL, "image_size": 32})
    (tmp_path / TASK / "still" / "0").rename(tmp_path / TASK / "sgqn" / "0")
    with pytest.raises(sgqn.InvalidValueError, match="has results of a policy of that name"):
        sgqn.train(config, tmp_path, progress=False)


def test_load_policy_is_the_object_itself(module: Path) -> None:
    loaded = load_policy("my_policies:act")
    assert loaded is sys.modules["my_policies"].act


# In reports


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A training run, and a policy from elsewhere in one of its shifts."""
    out = tmp_path_factory.mktemp("runs")
    config = tiny_config("sgqn", action_repeat=None)
    write_tiny(run_folder.folder_of(config, out), config, with_checkpoint=False)
    folder = out / TASK / "mine" / "0"
    folder.mkdir(parents=True)
    run_folder.write_policy(folder, run_folder.PolicyRecord("mine", TASK, 0, 8, 84, 3, "a:b"))
    line = {"step": None, "task": TASK, "shift": "video_hard", "seed": 0, "renderer": "gl", "backgrounds": "generated"}
    run_folder.append_line(folder / run_folder.EVALUATIONS, {**line, "returns": [300.0, 310.0], "weights": "single"})
    return out


def test_what_is_unknown_is_said_to_be(runs: Path) -> None:
    found = find_runs(runs)
    assert not found.warnings
    mine = next(run for run in found.runs if run.agent == "mine")
    assert (mine.foreign, mine.rho, mine.weights, mine.training_return) == (True, None, None, None)
    assert not mine.other_settings
    table = tables.headline(found.runs)
    assert table is not None
    (cell,) = [cell for cell in table.cells if (cell.agent, cell.shift) == ("mine", "video_hard")]
    assert cell.ours is not None
    assert cell.ours.mean == 305
    notes = [table.footnotes[number - 1] for number in cell.notes]
    assert {"Training steps unknown: mine.", "Not trained by sgqn, settings unknown: mine."} <= set(notes)
    assert not any("steps than the paper" in note for note in notes)
    rows = list(csv.DictReader(tables.to_csv(table).splitlines()))
    assert [row["steps"] for row in rows if row["agent"] == "mine" and row["ours_mean"]] == ["unknown"]
    hours = next((table for table in tables.tables(found.runs) if table.name == "hours"), None)
    assert hours is None or "mine" not in [cell.agent for cell in hours.cells]
    ranked = next(table for table in tables.tables(found.runs) if table.name == "improvement")
    assert [row.labels for row in ranked.rows] == [("video_hard", "1", "mine"), ("video_hard", "2", "SGQN")]


def test_it_stands_in_charts_of_scores_but_has_no_curve(runs: Path) -> None:
    found = find_runs(runs).runs
    assert all(line.name != "mine" for chart in curves.shift_charts(found) for line in chart.lines)
    table = tables.headline(found)
    assert table is not None
    (chart,) = [chart for chart in curves.score_charts(table) if chart.title == "video_hard"]
    assert [row.name for row in chart.rows if row.ours] == ["SGQN", "mine"]
    alone = [run for run in found if run.foreign]
    assert curves.shift_charts(alone) == []


def test_a_report_of_nothing_else(runs: Path) -> None:
    document = build(find_runs(runs / TASK / "mine"))
    assert "unknown" in str(document)
    assert main(["report", str(runs), "--out", str(runs / "report"), "--no-images"]) == 0
    page = (runs / "report" / "report.md").read_text()
    assert "unknown for mine" in page
    assert re.search(r"\| cartpole-swingup \| mine \| 0 \| unknown \| video_hard \|", page)


def test_damaged_records_are_told(tmp_path: Path) -> None:
    for text in ("{", "[]", '{"name": "x"}', '{"name": 3, "task": "cartpole-swingup", "seed": 0}'):
        (tmp_path / run_folder.POLICY).write_text(text)
        with pytest.raises(sgqn.DataError, match=f"{run_folder.POLICY} is damaged: "):
            find_runs(tmp_path)


# The page


def test_the_page_as_printed(module: Path) -> None:
    """The lines of the page, from a model with random weights to its row in the report."""
    pytest.importorskip("stable_baselines3")
    page = PAGE.read_text()
    first, policy, recurrent = re.findall(r"(?ms)^```python\n(.*?)^```", page)
    report, evaluate = re.findall(r"(?m)^    sgqn (.*)$", page)
    assert len([*filter(None, first.splitlines()), report]) <= 5
    exec(first, {})
    (module / "my_policy.py").write_text(policy)
    assert main(shlex.split(evaluate)) == 0
    assert main(shlex.split(report)) == 0
    rows = list(csv.DictReader((module / "report" / "tables" / "headline.csv").read_text().splitlines()))
    assert {row["agent"] for row in rows if row["shift"] == "train" and row["ours_mean"]} == {"ppo-sb3", "random"}

    class Model:
        def predict(self, obs: Any, state: Any, episode_start: Any, deterministic: bool) -> Any:
            steps = np.where(episode_start, 0, 0 if state is None else state) + 1
            return (steps / 4 - 0.5)[:, None], steps

    names: dict[str, Any] = {}
    exec(recurrent, names)
    options = {"episodes": 2, "num_workers": 0, "action_repeat": 250, "image_size": 24, "renderer": "warp"}
    one, two = (sgqn.evaluate(names["Recurrent"](Model()), TASK, num_envs=envs, **options) for envs in (1, 2))
    assert one == two
