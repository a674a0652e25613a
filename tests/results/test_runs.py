from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sgqn import run_folder
from sgqn.agents import AGENTS
from sgqn.config import preset, versions
from sgqn.errors import DataError, InvalidValueError
from sgqn.results.runs import Run, RunEvaluation, by_seed, find_runs, scores, with_settings
from tests.results.samples import config_of, line, write_run


def evaluated(step: int, episodes: int, renderer: str = "gl", mean: float = 1.0) -> RunEvaluation:
    return RunEvaluation("walker-walk", "video_hard", 0, renderer, "generated", (mean,) * episodes, step)


# ---------------------------------------------------------------- finding and reading


def test_runs_come_back_as_they_were_written(tmp_path: Path):
    config = config_of("walker-walk", "sgqn", 3)
    metrics = [
        {"step": 1000, "updates": 0, "seconds": 2.5},
        {"step": 2000, "updates": 1000, "episode/return": 31.5, "seconds": 5.0},
        {"step": 3000, "updates": 2000, "episode/return": 40.0, "seconds": 7.5},
        {"step": 4000, "updates": 3000, "seconds": 10.0},
    ]
    folder = write_run(tmp_path, config, [line("walker-walk", "train", [1.0, 3.0], 4000)], metrics)
    for given_path in (tmp_path, str(tmp_path), folder, [tmp_path, folder], tmp_path / "walker-walk" / ".."):
        (run,), warnings = find_runs(given_path)
        assert warnings == []
        assert run.config == config
        assert run.curve.steps == (2000, 3000)
        assert run.curve.returns == (31.5, 40.0)
        assert run.curve.seconds == (5.0, 7.5)
        assert (run.steps, run.seconds) == (4000, 10.0)
        assert run.evaluations == (RunEvaluation("walker-walk", "train", 0, "gl", "dmcgb:train", (1.0, 3.0), 4000),)
        assert scores([run], "train") == {"walker-walk": {"sgqn": {3: 2.0}}}
        assert scores([run], "video_hard") == {}


def test_an_agent_that_another_one_acts_for_has_no_learning_curve(tmp_path: Path):
    name = next(name for name in AGENTS if AGENTS[name].copies)
    metrics = [{"step": 2000, "updates": 1000, "episode/return": 31.5, "seconds": 5.0}]
    write_run(tmp_path, config_of("walker-walk", name, 0), (), metrics)
    (run,), warnings = find_runs(tmp_path)
    assert warnings == []
    assert run.curve.steps == ()
    assert run.training_return is None
    assert (run.steps, run.seconds) == (2000, 5.0)


def test_folders_within_a_run_are_its_own(tmp_path: Path):
    folder = write_run(tmp_path, config_of("walker-walk", "sac", 0))
    inner = folder / "checkpoints" / "step_000000001"
    inner.mkdir(parents=True)
    (inner / "config.json").write_text("{}")
    assert [run.path for run in find_runs(tmp_path).runs] == [folder]


def test_a_half_written_line_is_passed_over(tmp_path: Path):
    folder = write_run(tmp_path, config_of("walker-walk", "sac", 0), [line("walker-walk", "train", [5.0])])
    for name in (run_folder.EVALUATIONS, run_folder.METRICS):
        with open(folder / name, "a") as file:
            file.write('{"step": 10, "ret')
    (run,), warnings = find_runs(tmp_path)
    assert len(run.evaluations) == 1
    assert run.steps == 0
    told = "1 line passed over: half-written, or not JSON"
    assert warnings == [f"{folder / name}: {told}" for name in (run_folder.METRICS, run_folder.EVALUATIONS)]
    run_folder.append_line(folder / run_folder.EVALUATIONS, line("walker-walk", "train", [9.0], 600_000))
    (run,), again = find_runs(tmp_path)
    assert [found.mean for found in run.evaluations] == [5.0, 9.0]  # the broken line does not swallow the next
    assert again == warnings


@pytest.mark.parametrize(
    "wrong",
    [
        {"returns": []},
        {"returns": [1.0, float("nan")]},
        {"returns": "many"},
        {"returns": None},
        {"step": None},
        {"task": "finger-spin"},
    ],
)
def test_a_wrong_evaluation_is_left_out_and_told(tmp_path: Path, wrong: dict[str, Any]):
    lines = [line("walker-walk", "train", [5.0]), {**line("walker-walk", "train", [7.0], 600_000), **wrong}]
    folder = write_run(tmp_path, config_of("walker-walk", "sac", 0), lines)
    (run,), (warning,) = find_runs(tmp_path)
    assert [evaluation.mean for evaluation in run.evaluations] == [5.0]
    assert str(folder / "evaluations.jsonl") in warning
    assert "1 line " in warning


# ---------------------------------------------------------------- damaged input


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b'{"task": ', b"[]", b"[1, 2]", b"3", b"{}", b'{"settings": 3}'),
        *(b"\xff\xfe\x00", "{}".encode("utf-16"), "{}".encode("utf-32"), b"[" * 100_000, b'{"a":' * 100_000),
    ],
    ids=lambda content: repr(content[:8]),
)
def test_a_damaged_configuration_is_one_line(tmp_path: Path, content: bytes):
    bad = tmp_path / "bad"
    bad.mkdir()
    (bad / "config.json").write_bytes(content)
    with pytest.raises(DataError) as error:
        find_runs(tmp_path)
    assert str(bad) in str(error.value)
    assert "\n" not in str(error.value)
    good = write_run(tmp_path, config_of("walker-walk", "sac", 0))
    runs, (warning,) = find_runs(tmp_path)
    assert [run.path for run in runs] == [good]
    assert warning == str(error.value)


@pytest.mark.parametrize("change", [{"agent": ["sac"]}, {"seed": 0.5}, {"task": "walker-fly"}, {"steps": "many"}])
def test_a_configuration_with_a_wrong_value_is_one_line(tmp_path: Path, change: dict[str, Any]):
    values = {**config_of("walker-walk", "sac", 0).to_dict(), **change}
    (tmp_path / "config.json").write_text(json.dumps(values))
    with pytest.raises(DataError, match=r"config\.json is damaged"):
        find_runs(tmp_path)


def test_paths_without_runs(tmp_path: Path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    cases = {"empty": "no run in", "gone": "does not exist", "file": "is not a folder"}
    for name, what in cases.items():
        with pytest.raises(DataError, match=what) as error:
            find_runs(tmp_path / name)
        assert str(tmp_path / name) in str(error.value)
    with pytest.raises(DataError, match=r"and 2 more"):
        find_runs([tmp_path / name for name in cases])
    with pytest.raises(InvalidValueError, match="no folder"):
        find_runs([])
    write_run(tmp_path / "good", config_of("walker-walk", "sac", 0))
    runs, warnings = find_runs([tmp_path / name for name in ("good", *cases)])
    assert len(runs) == 1
    assert len(warnings) == 3
    for (name, what), warning in zip(cases.items(), warnings, strict=True):
        assert what in warning
        assert name in warning


def test_a_damaged_log_leaves_the_run(tmp_path: Path):
    folder = write_run(tmp_path, config_of("walker-walk", "sac", 0), [line("walker-walk", "train", [5.0])])
    (folder / "metrics.jsonl").write_bytes(b'\xff\xff\n{"step": 7, "seconds": 1}\n' + b"[" * 100_000)
    (run,), (warning,) = find_runs(tmp_path)
    assert run.steps == 7
    assert len(run.evaluations) == 1
    assert warning.startswith(f"{folder / 'metrics.jsonl'}: 2 lines passed over")


def test_machine_and_versions_come_from_beside_the_configuration(tmp_path: Path):
    config = config_of("walker-walk", "sac", 0)
    folder = write_run(tmp_path, config)
    (run,), _ = find_runs(tmp_path)
    assert (run.machine, run.versions) == ({}, versions())
    run_folder.write_config(folder, config, {"device": "NVIDIA H200", "path": "kernels"})
    (run,), _ = find_runs(tmp_path)
    assert run.machine == {"device": "NVIDIA H200", "path": "kernels"}
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**values, "machine": None, "versions": {}}))
    (run,), warnings = find_runs(tmp_path)
    assert (run.machine, run.versions, warnings) == ({}, {}, [])
    (folder / "config.json").write_text(json.dumps({**values, "machine": "fast"}))
    with pytest.raises(DataError, match="damaged"):
        find_runs(tmp_path)


def test_only_agents_that_mask_have_a_rho():
    with_rho = {name for name in AGENTS if Run(Path("run"), config_of("walker-walk", name, 0)).rho is not None}
    assert with_rho == {name for name in AGENTS if AGENTS[name].masks}
    assert {"sgqn", "sgdqn"} <= with_rho
    assert not {"sac", "svea"} & with_rho


# ---------------------------------------------------------------- choosing


def test_the_newest_step_then_the_most_episodes_then_gl_then_the_latest():
    def chosen(*evaluations: RunEvaluation) -> RunEvaluation | None:
        return Run(Path("run"), config_of("walker-walk", "sgqn", 0), evaluations).evaluation("video_hard")

    assert chosen() is None
    old, new, longer = evaluated(100, 30), evaluated(200, 5), evaluated(200, 30, "warp")
    assert chosen(new, old) is new
    assert chosen(longer, new, old) is longer
    in_gl = evaluated(200, 30)
    assert chosen(in_gl, longer) is in_gl
    again = evaluated(200, 30, mean=2.0)
    assert chosen(in_gl, again, old) is again


@settings(max_examples=50, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 4), st.integers(1, 4), st.sampled_from(["gl", "warp"])), min_size=1))
def test_the_choice_is_the_plain_one(made: list[tuple[int, int, str]]):
    evaluations = tuple(evaluated(step, episodes, renderer, i) for i, (step, episodes, renderer) in enumerate(made))
    left = [e for e in evaluations if e.step == max(step for step, _, _ in made)]
    left = [e for e in left if e.episodes == max(e.episodes for e in left)]
    left = [e for e in left if e.renderer == "gl"] or left
    assert Run(Path("run"), config_of("walker-walk", "sgqn", 0), evaluations).evaluation("video_hard") is left[-1]


def test_of_two_runs_of_a_seed_the_later_counts(tmp_path: Path):
    config = config_of("walker-walk", "sac", 1)
    write_run(tmp_path / "a", config, [line("walker-walk", "train", [1.0], 100), line("walker-walk", "test", [1.0])])
    second = write_run(tmp_path / "b", config, [line("walker-walk", "train", [2.0], 200)])
    runs, (warning,) = find_runs(tmp_path)
    assert "same task, agent and seed" in warning
    assert by_seed(runs, "walker-walk", "sac", "train")[1].path == second
    assert scores(runs, "train") == scores(runs[::-1], "train") == {"walker-walk": {"sac": {1: 2.0}}}
    assert scores(runs, "test") == {"walker-walk": {"sac": {1: 1.0}}}


def test_settings_decide_which_runs_go_together():
    def run(task: str, agent: str, **options: Any) -> Run:
        return Run(Path(f"{task}-{agent}-{options}"), config_of(task, agent, 0, **options))

    own = run("cartpole-swingup", "sgqn")
    spelled = run("cartpole-swingup", "sgqn", action_repeat=8)
    four = run("cartpole-swingup", "sgqn", action_repeat=4)
    loose = run("cartpole-swingup", "sgqn", rho=0.95)
    no_mask = run("cartpole-swingup", "sac", rho=0.95)  # SAC has no use for rho
    walker = run("walker-walk", "sgqn")
    runs = [own, spelled, four, loose, no_mask, walker]
    assert with_settings(runs) == [own, spelled, no_mask, walker]
    assert with_settings(runs, action_repeat=4) == [four, walker]
    assert with_settings(runs, rho=0.95) == [loose, no_mask, walker]
    assert with_settings(runs, rho=0.98) == [own, spelled, no_mask]


def test_other_settings_are_named():
    assert Run(Path("run"), config_of("finger-spin", "sgqn", 5, steps=10, rho=0.5)).other_settings == {}
    tiny = Run(Path("run"), preset("tiny", "finger-spin")).other_settings
    assert {"image_size", "replay_capacity", "encoder_filters", "batch_size"} <= set(tiny)
    assert tiny["batch_size"] == (16, 128)
    assert "rho" not in tiny


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(content=st.binary(max_size=60) | st.text('{}[]",:019 stepraun', max_size=60).map(str.encode))
def test_no_content_of_a_log_stops_the_reading(tmp_path: Path, content: bytes):
    folder = tmp_path / "walker-walk" / "sac" / "0"
    if not folder.exists():
        write_run(tmp_path, config_of("walker-walk", "sac", 0))
    for name in ("evaluations.jsonl", "metrics.jsonl", "saliency.jsonl"):
        (folder / name).write_bytes(content)
    (run,), warnings = find_runs(tmp_path)
    assert run.evaluations == run.saliency == ()
    assert all("\n" not in warning for warning in warnings)


def test_evaluations_of_packed_weights_count_only_without_others(tmp_path: Path):
    write_run(
        tmp_path,
        config_of("walker-walk", "sgqn", 0),
        [
            line("walker-walk", "train", [1.0], 4000),
            line("walker-walk", "train", [2.0, 2.0], 4000, weights="int8"),
            line("walker-walk", "video_hard", [3.0, 3.0], 4000, weights="int8"),
            line("walker-walk", "video_hard", [4.0], 4000, weights="half"),
            line("walker-walk", "video_hard", [5.0], 4000, weights="quarter"),
        ],
    )
    (run,), warnings = find_runs(tmp_path)
    assert "1 line passed over" in warnings[0]
    assert [run.evaluation(shift).weights for shift in ("train", "video_hard")] == ["single", "half"]
    assert scores([run], "train") == {"walker-walk": {"sgqn": {0: 1.0}}}
