from __future__ import annotations

import dataclasses
import inspect
import json
import logging
import os
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

import sgqn
from sgqn import cli, data
from sgqn.agents.sgqn import SGQNSettings
from sgqn.cli import main
from sgqn.cli.command import Command, to_integer
from sgqn.config import TrainConfig, TrainOptions
from sgqn.envs.families.robot import Robot
from sgqn.errors import InvalidValueError
from sgqn.registry import import_submodules
from tests.helpers import fails, write_clip, write_colors, write_image

import_submodules("sgqn.cli")  # which fills COMMANDS

# The command as such


def test_help_lists_every_command_and_loads_nothing_heavy() -> None:
    code = (
        "import sys; from sgqn.cli import main; main(['--help']); "
        "print([m for m in ('torch', 'mujoco', 'dm_control', 'av', 'PIL', 'warp') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    for name in cli.COMMANDS:
        assert f"  {name} " in done.stdout


@pytest.mark.parametrize("args", [[], ["-h"], ["--help"]])
def test_help_of_the_command(capsys: pytest.CaptureFixture[str], args: list[str]) -> None:
    assert main(args) == 0
    assert "usage: sgqn" in capsys.readouterr().out


def test_every_command_has_help(capsys: pytest.CaptureFixture[str]) -> None:
    for name in cli.COMMANDS:
        with pytest.raises(SystemExit) as stop:
            main([*name.split(), "--help"])
        assert stop.value.code == 0
        assert f"usage: sgqn {name}" in capsys.readouterr().out


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_option_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([*name.split(), "--help"])
    texts = option_texts(capsys.readouterr().out)
    assert "-h, --help" in texts
    options = inspect.signature(cli.COMMANDS[name].function).parameters if name != "train" else config_fields()
    assert len(texts) == 1 + len(options)
    assert [option for option, text in texts.items() if not text] == []


def option_texts(page: str) -> dict[str, str]:
    """What a page of help says about each option, defaults left out."""
    texts: dict[str, str] = {}
    option = ""
    for line in page.splitlines():
        if line[:2] in ("│ ", "  ") and line.strip(" │"):  # in a box, or on a terminal that has none
            name, _, text = line[2:].rstrip(" │").partition("  ")
            if name and option.count("{") > option.count("}"):  # choices that take several lines
                name = option + name
                del texts[option]
            option = name or option  # a line that is indented goes on with the option before
            texts[option] = " ".join((texts.get(option, "") + " " + text).split())
    options = [name for name in texts if re.match(r"--?[a-z]|\{|[A-Z]{2}", name)]  # not a box's heading
    return {option: re.sub(r"\((required|default: .*)\)$", "", texts[option]).strip() for option in options}


def config_fields() -> list[str]:
    """The options of `sgqn train`: the fields of its nested configuration."""
    nested = {"config": TrainConfig, "settings": SGQNSettings}
    fields = [field.name for kind in (TrainOptions, *nested.values()) for field in dataclasses.fields(kind)]
    return [name for name in fields if name not in nested]


def test_an_option_without_help_is_found(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def command(told: int = 1, an_option_with_a_name_so_long_that_it_has_a_line: int = 2, untold: int = 3) -> None:
        """Do it.

        Args:
            told: What it is (or was).
            an_option_with_a_name_so_long_that_it_has_a_line: Told, too.
        """

    monkeypatch.setitem(cli.COMMANDS, "command", Command(command, 0))
    with pytest.raises(SystemExit):
        main(["command", "--help"])
    _, *texts = option_texts(capsys.readouterr().out).values()
    assert texts == ["What it is (or was).", "Told, too.", ""]


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"sgqn {sgqn.__version__}\n"


def test_bad_arguments_are_one_line(capsys: pytest.CaptureFixture[str], store: Path) -> None:
    assert "did you mean 'preview'" in fails(capsys, "preveiw")
    assert "--steps" in fails(capsys, "preview", "--steps", "many")
    assert "--bogus" in fails(capsys, "preview", "--bogus", "1")
    assert "'places'" in fails(capsys, "data", "get", "places", "--from", "x")
    assert "sgqn data --help" in fails(capsys, "data", "what")


@pytest.mark.parametrize(("text", "number"), [("5e5", 500_000), ("1.5e3", 1500), ("500_000", 500_000), ("-2", -2)])
def test_integers_in_scientific_notation(text: str, number: int) -> None:
    assert to_integer(text) == number


@pytest.mark.parametrize("text", ["1.5", "15e-1", "1e999", "1e3x", "nan", ""])
def test_what_is_no_integer(capsys: pytest.CaptureFixture[str], text: str) -> None:
    assert f"{text!r} is not an integer" in fails(capsys, "train", "--steps", text)


def test_steps_in_scientific_notation(capsys: pytest.CaptureFixture[str]) -> None:
    assert "steps must be above 1008, not 1000" in fails(capsys, "train", "--steps", "1e3")


def test_as_a_module() -> None:
    done = subprocess.run([sys.executable, "-m", "sgqn", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"sgqn {sgqn.__version__}\n"


def test_log_lines_are_plain(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Whatever another package has set up for the root logger, each line is printed once, without its origin."""

    def say() -> None:
        logging.getLogger("sgqn.envs").info("a detail")
        logging.getLogger("sgqn.envs").warning("no\nclips")

    monkeypatch.setattr(logging.getLogger(), "handlers", [logging.StreamHandler(sys.stderr)])
    monkeypatch.setitem(cli.COMMANDS, "data", Command(say, 0))
    assert main(["data"]) == 0
    assert capsys.readouterr().err == "warning: no clips\n"
    assert main(["data", "--log-level", "info"]) == 0
    assert capsys.readouterr().err == "a detail\nwarning: no clips\n"
    assert main(["--log-level=error", "data"]) == 0
    assert capsys.readouterr().err == ""
    assert logging.getLogger("sgqn").propagate
    assert "unknown log level 'loud'" in fails(capsys, "data", "--log-level", "loud")
    assert "--log-level needs one of debug, info" in fails(capsys, "data", "--log-level")


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (InvalidValueError("rho is\n2"), 2, "error: rho is 2"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (PermissionError(13, "Permission denied", "x"), 2, "error: [Errno 13] Permission denied: 'x'"),
    ],
)
def test_errors_become_exit_codes(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    error: BaseException,
    code: int,
    line: str,
) -> None:
    def broken() -> None:
        """Fail."""
        raise error

    monkeypatch.setitem(cli.COMMANDS, "broken", Command(broken, 0))
    assert main(["broken"]) == code
    assert capsys.readouterr().err == f"{line}\n"


def test_bugs_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> None:
        raise ValueError("a bug")

    monkeypatch.setitem(cli.COMMANDS, "broken", Command(broken, 0))
    with pytest.raises(ValueError, match="a bug"):
        main(["broken"])


def test_a_reader_that_leaves_is_no_error(store: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    for args in (["data"], ["data", "--json"], ["--help"]):
        command = [sys.executable, "-m", "sgqn.cli", *args]
        done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
        assert done.stderr == ""
        assert done.returncode in (1, 141)
    os.close(writer)


# sgqn data


def test_data_shows_what_is_there_and_how_to_get_the_rest(capsys: pytest.CaptureFixture[str], store: Path) -> None:
    write_clip(store / "dmcgb" / "video_easy" / "video0.mp4")
    (store / "dmcgb" / "video_easy" / "video1.mp4").touch()
    write_colors(store / "dmcgb" / "color_hard.json", count=100)
    assert main(["data"]) == 0
    out = capsys.readouterr().out
    rows = {line.split()[0]: " ".join(line.split()[1:]) for line in out.splitlines() if line.strip()}
    assert f"Data directory: {store} (from SGQN_DATA)" in out
    assert rows["dmcgb/video_easy"] == "1 of 10 damaged these files"
    assert rows["dmcgb/video_hard"] == "0 of 100 missing generated, not the benchmark"
    assert rows["dmcgb/color_hard.json"] == "100 of 100 complete these files"
    assert "damaged: video1.mp4 is empty (0 bytes)" in out
    assert "Built-in generated backgrounds" in out
    assert data.HOW_TO_GET["dmcgb"] in out
    assert data.HOW_TO_GET["overlay"] in out
    assert "Places365" in out


def test_data_with_everything_there(
    capsys: pytest.CaptureFixture[str], store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data, "EXPECTED", dict.fromkeys(data.EXPECTED, 1))
    for kind in data.VIDEO_KINDS:
        write_clip(store / "dmcgb" / kind / "video0.mp4")
    for kind in data.COLOR_KINDS:
        write_colors(store / "dmcgb" / f"{kind}.json")
    write_image(store / "overlay" / "a.png")
    monkeypatch.setattr(Robot, "missing", lambda self: "no arm: buy one")
    assert main(["data"]) == 0
    out = capsys.readouterr().out
    assert "Everything is there." not in out
    assert "robot: no arm: buy one" in out
    monkeypatch.setattr(Robot, "missing", lambda self: None)
    assert main(["data"]) == 0
    out = capsys.readouterr().out
    assert "Everything is there." in out
    assert "not the benchmark" not in out


def test_data_as_json(capsys: pytest.CaptureFixture[str], store: Path) -> None:
    write_image(store / "overlay" / "a.png")
    assert main(["data", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["directory"] == str(store)
    assert shown["missing"]["suite"] is None
    assert "robot" in shown["missing"]
    rows = {row["name"]: row for row in shown["sets"]}
    assert rows.keys() == {"video_easy", "video_hard", "color_easy", "color_hard", "overlay"}
    assert rows["overlay"]["found"] == 1
    assert rows["video_hard"] == {
        "name": "video_hard",
        "path": str(store / "dmcgb" / "video_hard"),
        "found": 0,
        "expected": 100,
        "state": "missing",
        "instead": "generated backgrounds",
        "how": data.HOW_TO_GET["dmcgb"],
        "problems": [],
    }


def test_data_in_a_directory_that_is_none(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGQN_DATA", "/no/such/[folder]")
    assert "'/no/such/[folder]' is not a directory" in fails(capsys, "data")


def test_data_get(capsys: pytest.CaptureFixture[str], store: Path, tmp_path: Path) -> None:
    write_clip(tmp_path / "clone" / "video_easy" / "video0.mp4")
    command = ["data", "get", "dmcgb", "--from", str(tmp_path / "clone")]
    assert main(command) == 0
    assert "1 files installed, 0 were there already" in capsys.readouterr().out
    assert main(command) == 0
    assert "0 files installed, 1 were there already" in capsys.readouterr().out
    assert [clip.name for clip in data.video_clips("video_easy")] == ["video0.mp4"]


def test_data_get_names_the_bad_files_and_fails(
    capsys: pytest.CaptureFixture[str], store: Path, tmp_path: Path
) -> None:
    write_clip(tmp_path / "clone" / "video_easy" / "video0.mp4")
    (tmp_path / "clone" / "video_easy" / "video1.mp4").write_bytes(b"not a video")
    assert main(["data", "get", "dmcgb", "--from", str(tmp_path / "clone")]) == 2
    shown = capsys.readouterr()
    assert "1 files installed" in shown.out
    assert shown.err.splitlines()[-1].startswith("error: 1 damaged files were not installed: video_easy/video1.mp4")
    assert [clip.name for clip in data.video_clips("video_easy")] == ["video0.mp4"]


def test_data_get_from_nowhere(capsys: pytest.CaptureFixture[str], store: Path) -> None:
    assert "'/no/where' is neither" in fails(capsys, "data", "get", "overlay", "--from", "/no/where")


def test_a_resumed_run_keeps_its_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    line = fails(capsys, "train", "--resume", str(tmp_path), "--steps", "800", "--rho=0.9", "--seed", "1", "--quiet")
    assert "--rho, --seed cannot be changed" in line
    assert "nowhere is not a run" in fails(capsys, "train", "--resume", "nowhere")


def test_what_an_attribution_needs_is_missed_before_a_run_is_made(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "captum", None)
    options = ("--preset", "tiny", "--attribution", "occlusion", "--out", str(tmp_path))
    assert "needs Captum" in fails(capsys, "train", *options)
    assert not list(tmp_path.iterdir())


def test_a_folder_above_a_run_is_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made = tmp_path / "0" / "checkpoints" / "step_000000100"
    made.mkdir(parents=True)
    (made / "manifest.json").write_text("{}")
    assert f"did you mean {tmp_path / '0'}?" in fails(capsys, "evaluate", str(tmp_path))


def test_demo_of_a_run_takes_no_task(capsys: pytest.CaptureFixture[str]) -> None:
    for option, value in (("--task", "walker-walk"), ("--agent", "sgqn")):
        assert f"{option} chooses pretrained agents" in fails(capsys, "demo", "--run", "run", option, value)


@pytest.mark.parametrize(
    "command",
    ["train", "demo", "report .", "export pretrained:walker-walk", "explain pretrained:walker-walk", "preview"],
)
def test_an_output_path_that_is_a_loop_of_links(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loop = tmp_path / "loop.png"
    loop.symlink_to(loop)
    for out in (loop, loop / "a.png"):
        line = fails(capsys, *command.split(), "--out", str(out))
        assert line == f"error: cannot write {str(out)!r}: Too many levels of symbolic links"


def test_a_seed_that_is_too_large(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("demo", "preview", "evaluate pretrained:walker-walk", "explain pretrained:walker-walk"):
        assert f"seed must be at most {2**32 - 1}" in fails(capsys, *command.split(), "--seed", str(2**64))


def test_devices_that_do_not_exist(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("evaluate", "explain", "saliency", "watch"):
        for device in ("cpu:99", "cuda:-1"):
            assert device in fails(capsys, command, "pretrained:walker-walk", "--device", device)


# Found by tests/fuzz/commands.py


def test_an_output_path_that_is_not_text(capsys: pytest.CaptureFixture[str]) -> None:
    """TensorBoard cannot write to it; on a command line, such a name is bytes that are not UTF-8."""
    assert "surrogates not allowed" in fails(capsys, "train", "--preset", "tiny", "--out", "\udcff")


def test_sizes_that_do_not_fit_into_memory(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "a_policy", types.SimpleNamespace(act=lambda obs: [0] * len(obs)))
    policy = ("evaluate", "--policy", "a_policy:act", "--name", "p", "--task", "gym:sgqn/Catch-v0")
    assert "not enough memory" in fails(capsys, *policy, "--frame-stack", "1e12")


def test_a_task_whose_images_need_a_missing_package(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "pygame", None)
    preview = ("preview", "--task", "gym:CartPole-v1", "--steps", "1", "--out", str(tmp_path / "a.png"))
    assert "gym:CartPole-v1 cannot be rendered: " in fails(capsys, *preview)


@pytest.mark.parametrize("name", ["pipe", "zero", "folder", "nested"])
def test_sweep_files_that_are_no_files(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "pipe")  # reading it would wait for ever
    (tmp_path / "zero").symlink_to("/dev/zero")
    (tmp_path / "folder").mkdir()
    (tmp_path / "nested").write_text("a = " + "[" * 100_000)
    assert " is not a " in fails(capsys, "sweep", str(tmp_path / name))


def test_a_run_with_a_pipe_for_a_configuration(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo(tmp_path / "config.json")
    assert "no checkpoint here" in fails(capsys, "evaluate", str(tmp_path))


@pytest.mark.parametrize("command", ["evaluate", "saliency"])
def test_more_episodes_than_fit_into_an_array(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert "episodes must be at most 1,000,000" in fails(
        capsys, command, "pretrained:walker-walk", "--episodes", "1e40"
    )
