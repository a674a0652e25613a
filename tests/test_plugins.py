"""The package under tests/plugins, which is not part of sgqn: its four things work in every command, unchanged."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

import sgqn

PLUGINS = Path(__file__).parent / "plugins"
PAGE = Path(sgqn.__file__).parent.parent / "docs" / "extend.md"
SMALL = [
    *("--quiet", "--device", "cpu", "--steps", "48", "--num-envs", "2", "--warmup-steps", "8"),
    *("--image-size", "24", "--evaluate-every", "48", "--checkpoint-every", "24", "--log-every", "8"),
    *("--images-every", "16", "--overlay-images", "16"),
]
NETWORKS = ["--encoder-layers", "2", "--encoder-filters", "4", "--hidden-dim", "16", "--decoder-filters", "4", "4"]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the installed package: where SGQN_TEST_PLUGINS says, or put together here."""
    if "SGQN_TEST_PLUGINS" in os.environ:
        return Path(os.environ["SGQN_TEST_PLUGINS"])
    folder = tmp_path_factory.mktemp("site")
    (folder / "sgqn_example").symlink_to(PLUGINS / "sgqn_example")
    about = folder / "sgqn_example-0.1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: sgqn-example\nVersion: 0.1.0\n")
    points = re.search(r'\[project\.entry-points\."(.*?)"\]\n(.*)', (PLUGINS / "pyproject.toml").read_text(), re.DOTALL)
    assert points is not None
    (about / "entry_points.txt").write_text(f"[{points[1]}]\n{points[2]}".replace('"', ""))
    return folder


@pytest.fixture(scope="module")
def command(installed: Path):
    """Runs `sgqn` in another process, where the plugin is installed or merely importable."""

    def run(*args: str, cwd: Path, site: Path | None = installed, ok: bool = True) -> str:
        places = [str(Path(sgqn.__file__).parent.parent), *([str(site)] if site else [])]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(places), "COLUMNS": "200"}
        done = subprocess.run(
            [sys.executable, "-m", "sgqn.cli", *args],
            capture_output=True,
            text=True,
            cwd=cwd,
            env=environment,
            check=False,
        )
        assert (done.returncode == 0) == ok, done.stderr + done.stdout
        assert "Traceback" not in done.stderr
        return " ".join(done.stdout.replace("│", " ").split()) if "--help" in args else done.stdout or done.stderr

    return run


def commands_of_the_page() -> list[list[str]]:
    """The `sgqn` commands that docs/extend.md ends with."""
    return [shlex.split(line)[1:] for line in PAGE.read_text().splitlines() if line.startswith("sgqn ")]


@pytest.fixture(scope="module")
def runs(command, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs on the plugin's task: of its agent, and of SGQN with its attribution and its augmentation."""
    folder = tmp_path_factory.mktemp("plugins")
    training = [args for args in commands_of_the_page() if args[0] == "train"]
    assert len(training) == 2
    for args in training:
        command(*args, *SMALL, *(NETWORKS if "sgqn" in args else []), cwd=folder)
    return folder


def test_everything_appears_in_the_help(command, tmp_path: Path) -> None:
    text = command("train", "--agent", "ddpg", "--help", cwd=tmp_path)
    assert "tasks of tabletop: tabletop-slide" in text
    assert re.search(r"--agent \{.*ddpg.*\}", text)
    assert re.search(r"--noise FLOAT\s+Standard deviation of the exploration noise\.", text)
    text = command("train", "--agent", "sgqn", "--help", cwd=tmp_path)
    assert re.search(r"--attribution \{.*gradient_times_input.*\}", text)
    assert re.search(r"--augmentation \{.*channel_shuffle.*\}", text)
    assert "--noise" not in text
    text = command("explain", "--help", cwd=tmp_path)
    assert re.search(r"--shift \[?\{.*video_hard.*dark.*\}", text)
    assert re.search(r"--method \[\{.*gradient_times_input.*\}", text)


def test_configurations_record_what_they_need(runs: Path) -> None:
    config = json.loads((runs / "runs/tabletop-slide/ddpg/0/config.json").read_text())
    assert config["plugins"] == ["sgqn_example.agent", "sgqn_example.family"]
    assert (config["frame_stack"], config["settings"]) == (2, {"batch_size": 16, "learning_rate": 1e-3, "noise": 0.3})
    config = json.loads((runs / "runs/tabletop-slide/sgqn/0/config.json").read_text())
    assert config["plugins"] == [f"sgqn_example.{name}" for name in ("attribution", "augmentation", "family")]
    assert config["settings"]["rho"] == 0.9


@pytest.mark.parametrize("agent", [pytest.param("ddpg", marks=pytest.mark.slow), "sgqn"])
def test_resume_and_saliency(command, runs: Path, agent: str) -> None:
    run = f"runs/tabletop-slide/{agent}/0"
    assert "done" in command("train", "--resume", run, "--steps", "56", "--quiet", cwd=runs)
    options = ("--episodes", "1", "--renderer", "warp", "--method", "gradient_times_input", "--json")
    found = json.loads(command("saliency", run, *options, cwd=runs))
    assert [(line["shift"], line["method"]) for line in found] == [
        ("train", "gradient_times_input"),
        ("dark", "gradient_times_input"),
    ]
    assert all(0 < line["means"]["base_rate"] < 1 for line in found)


@pytest.mark.slow
def test_the_commands_of_the_page(command, runs: Path) -> None:
    others = [args for args in commands_of_the_page() if args[0] != "train"]
    assert [args[0] for args in others] == ["evaluate", "explain", "report"]
    said = [command(*args, "--renderer", "warp", cwd=runs) for args in others]
    assert "train" in said[0]
    assert "dark" in said[0]
    assert (runs / "look.png").is_file()
    page = (runs / "report" / "index.html").read_text()
    for name in ("tabletop-slide", "ddpg", "dark"):
        assert name in page


def test_watch(installed: Path, runs: Path) -> None:
    places = [str(Path(sgqn.__file__).parent.parent), str(installed)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(places), "PYTHONUNBUFFERED": "1"}
    run = str(runs / "runs/tabletop-slide/ddpg/0")
    options = ["--no-browser", "--port", "0", "--renderer", "warp"]
    with subprocess.Popen(
        [sys.executable, "-m", "sgqn.cli", "watch", run, *options], stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        try:
            assert process.stdout is not None
            url = next(found[0] for line in process.stdout if (found := re.search(r"http://\S+", line)))
            with urllib.request.urlopen(url.rstrip("/") + "/state?after=0", timeout=60) as answer:
                state = json.loads(answer.read())
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(timeout=30)
    text = json.dumps(state)
    assert "dark" in text
    assert "gradient_times_input" in text


def test_a_plugin_that_is_only_named(command, tmp_path: Path) -> None:
    """`--plugin` finds a module in the working directory; without it the name is unknown."""
    (tmp_path / "mine.py").write_text(
        "import sgqn\n\n\n@sgqn.register_attribution('mine')\ndef mine(q, obs, action):\n    return obs.float()\n"
    )
    assert "mine" in command("--plugin", "mine", "explain", "--help", cwd=tmp_path, site=None)
    assert "mine" not in command("explain", "--help", cwd=tmp_path, site=None)
    error = command("explain", "x", "--plugin", "not_there", cwd=tmp_path, site=None, ok=False)
    assert error.startswith("error: the plugin 'not_there' cannot be imported (ModuleNotFoundError")
    assert error.count("\n") == 1


def test_what_a_run_needs_can_be_named_in_options(command, runs: Path) -> None:
    """The plugin is importable but not installed: the run on the command line says what to import."""
    run = "runs/tabletop-slide/sgqn/0"
    options = ("--method", "gradient_times_input", "--shift", "dark", "--renderer", "warp", "--frames", "1")
    command("explain", run, *options, "--out", "named.png", cwd=runs, site=PLUGINS)
    assert (runs / "named.png").is_file()


def test_other_configurations_are_not_read(command, tmp_path: Path) -> None:
    """A file of that name in the working directory, which no argument names, imports nothing."""
    (tmp_path / "config.json").write_text(json.dumps({"plugins": ["harmful"]}))
    (tmp_path / "harmful.py").write_text("raise SystemExit('imported')\n")
    assert "usage" in command("--help", cwd=tmp_path, site=None)
    assert "no such folder" in command("evaluate", "nowhere", "--seed", "1", cwd=tmp_path, site=None, ok=False)


def test_a_run_whose_plugin_is_missing_says_so(command, runs: Path) -> None:
    error = command("evaluate", "runs/tabletop-slide/ddpg/0", cwd=runs, site=None, ok=False)
    assert "sgqn_example.agent" in error
    assert error.count("\n") == 1


def test_the_page_shows_the_package_as_it_is() -> None:
    """docs/extend.md, whose code is what the tests above have run."""
    shown = dict(re.findall(r"^`([\w/]+\.\w+)`:\n\n```\w*\n(.*?)^```$", PAGE.read_text(), re.DOTALL | re.MULTILINE))
    files = [path for path in PLUGINS.rglob("*") if path.suffix in (".py", ".toml")]
    assert shown == {path.relative_to(PLUGINS).as_posix(): path.read_text() for path in files}
