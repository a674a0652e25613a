"""Options from a file are those of the command line, which come on top."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch

from sgqn import checkpoint, config_file, run_folder, training
from sgqn.cli import main
from sgqn.cli import train as command
from sgqn.config import RENAMED, TrainConfig, configure, preset
from sgqn.errors import SgqnError
from tests.helpers import fails, tiny_config


def asked(*args: str) -> TrainConfig:
    """The configuration that a command line asks for."""
    found: list[TrainConfig] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sgqn.training.train", lambda config, *_: found.append(config) or Path())
        assert main(["train", *args]) == 0
    return found[0]


@pytest.fixture
def toml(tmp_path: Path) -> str:
    path = tmp_path / "mine.toml"
    path.write_text(
        'task = "cartpole-swingup"\nagent = "svea"\npreset = "tiny"\nsteps = 2e3\nlearning-rate = 1e-4\nseed = 4\n'
        'evaluate_shifts = ["train", "video_easy"]\n'
    )
    return str(path)


def test_a_file_and_the_command_line(toml: str) -> None:
    same = ["--task", "cartpole-swingup", "--agent", "svea", "--preset", "tiny", "--steps", "2000", "--seed", "4"]
    same += ["--learning-rate", "1e-4", "--evaluate-shifts", "train", "video_easy"]
    assert asked("--config", toml) == asked(*same)
    assert asked(f"--config={toml}", "--steps", "900", "--seed", "5") == asked(*same, "--steps", "900", "--seed", "5")
    assert asked("--config", toml, "--preset", "paper").num_envs == preset("paper", "cartpole-swingup").num_envs


def test_a_runs_own_configuration(tmp_path: Path) -> None:
    config = tiny_config("sgqn", {"rho": 0.7}, seed=3, steps=700)
    run_folder.write_config(tmp_path, config, {"device": "CPU"})
    assert asked("--config", str(tmp_path / run_folder.CONFIG)) == asked("--config", str(tmp_path)) == config
    assert asked("--config", str(tmp_path), "--rho", "0.8").settings.rho == 0.8


def test_another_agent_leaves_out_what_it_does_not_have(tmp_path: Path) -> None:
    run_folder.write_config(tmp_path, tiny_config("sgqn", {"rho": 0.7, "batch_size": 9}))
    config = asked("--config", str(tmp_path), "--agent", "sac")
    assert (config.agent, config.settings.batch_size, config.image_size) == ("sac", 9, 24)
    assert config_file.read(tmp_path, agent="sac") == config


def test_integers_of_json(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"steps": 5e5, "settings": {"batch_size": 64.0, "learning_rate": 1}}')
    assert config_file.read(tmp_path / "a.json") == configure(steps=500_000, batch_size=64, learning_rate=1)


@pytest.mark.parametrize(
    ("text", "args", "said"),
    [
        ('{"stepz": 5}', [], "FILE: unknown option of agent 'sgqn' 'stepz': did you mean 'steps'"),
        ('{"steps": 1.5}', [], "FILE: steps must be an integer, not 1.5"),
        ('{"steps": "many"}', [], "FILE: steps must be an integer, not 'many'"),
        ('{"agent": "sgqm"}', [], "FILE: unknown agent 'sgqm'"),
        ('{"agent": 7}', [], "FILE: agent must be a string, not 7"),
        ('{"settings": {"rho": 2}}', [], "FILE: rho must be at least 0"),
        ('{"settings": 3}', [], "FILE: settings must be a table"),
        ('{"plugins": ["no_such_module"]}', [], "the plugin 'no_such_module' cannot be imported"),
        ("{}", ["--agent", "nope"], "FILE with --agent nope: unknown agent 'nope'"),
        ("[1]", [], "FILE must have options by name, such as task and agent, not a list"),
        ("{", [], "FILE is not JSON: "),
    ],
)
def test_bad_files_are_one_line(
    text: str, args: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.json"
    path.write_text(text)
    assert said.replace("FILE", str(path)) in fails(capsys, "train", "--config", str(path), *args)


def test_files_that_cannot_be_used(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "gone.toml cannot be read: No such file" in fails(capsys, "train", "--config", str(tmp_path / "gone.toml"))
    (tmp_path / "bad.toml").write_text("steps = ")
    assert "bad.toml is not TOML: " in fails(capsys, "train", "--config", str(tmp_path / "bad.toml"))
    said = fails(capsys, "train", "--resume", str(tmp_path), "--config", str(tmp_path / "bad.toml"))
    assert "--config cannot be changed" in said


def test_help_shows_the_files_values(toml: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        command.parse(["--config", toml, "--help"])
    assert "(default: 2000)" in capsys.readouterr().out


# ---------------------------------------------------------------- options that have been renamed


def test_former_names_of_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "old.json").write_text('{"preset": "tiny", "pictures": 1e2, "pictures-renewed-every": 70}')
    config = asked("--config", str(tmp_path / "old.json"))
    assert (config.overlay_images, config.overlay_images_renewed_every) == (100, 70)
    assert asked("--preset", "tiny", "--pictures", "100", "--pictures-renewed-every=70") == config
    assert capsys.readouterr().err.splitlines() == [
        "warning: --pictures is now --overlay-images",
        "warning: --pictures-renewed-every is now --overlay-images-renewed-every",
    ]
    assert configure(preset="tiny", pictures=100, overlay_images_renewed_every=70) == config
    with pytest.raises(SgqnError, match="former name of 'overlay_images'"):
        configure(pictures=100, overlay_images=100)


def test_a_run_with_former_names_resumes(tmp_path: Path) -> None:
    config = tiny_config("svea", steps=30, num_envs=2, warmup_steps=10, evaluate_every=0, images_every=0)
    run = training.train(config, tmp_path, progress=False)
    former = {new: old for old, new in RENAMED.items()}
    values = json.loads((run / run_folder.CONFIG).read_text())
    assert former.keys() <= values.keys()
    old = {former.get(name, name): value for name, value in values.items()}
    (run / run_folder.CONFIG).write_text(json.dumps(old))
    assert run_folder.read_config(run) == config
    training.resume(run, progress=False, steps=34)
    assert checkpoint.step_of(checkpoint.find(run)) == 34


def test_threads_of_the_computation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # restored afterwards
    before = torch.get_num_threads()
    try:
        assert asked("--preset", "tiny", "--threads", "3") == asked("--preset", "tiny")  # not part of the configuration
        assert (torch.get_num_threads(), os.environ["OMP_NUM_THREADS"]) == (3, "3")
    finally:
        torch.set_num_threads(before)
    assert "at least 1, not 0" in fails(capsys, "train", "--threads", "0")
    assert "cannot be changed" not in fails(capsys, "train", "--resume", str(tmp_path / "none"), "--threads", "1")
