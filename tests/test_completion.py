"""Completion in a real shell, and that it knows every option."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from sgqn import cli
from sgqn.cli import main
from sgqn.cli.completion import options_of
from sgqn.registry import import_submodules

import_submodules("sgqn.cli")


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import contextlib
    import io

    file, text = tmp_path_factory.mktemp("shell") / "completion.sh", io.StringIO()
    with contextlib.redirect_stdout(text):
        assert main(["completion", "bash"]) == 0
    file.write_text(text.getvalue())
    return file


@pytest.mark.skipif(not shutil.which("bash"), reason="no bash")
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("sgqn sw", {"sweep"}),
        ("sgqn evaluate run --shift train video_", {"video_easy", "video_hard"}),
        ("sgqn train --task walker-w", {"walker-walk"}),
        ("sgqn train --agent sgd", {"sgdqn", "sgdrqv2"}),
        ("sgqn train --epsilon-s", {"--epsilon-steps"}),
        ("sgqn train --attribution guided_b", {"guided_backprop"}),
        ("sgqn sweep file.toml --dry", {"--dry-run"}),
        ("sgqn completion fi", set()),
    ],
)
def test_words_are_completed(script: Path, line: str, expected: set[str]) -> None:
    words = " ".join(f"'{word}'" for word in line.split())
    code = (
        f"source {script}; COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _sgqn; echo ${{COMPREPLY[*]}}"
    )
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True)
    assert not done.stderr
    assert set(done.stdout.split()) == expected


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_option_in_the_help_is_known(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([*name.split(), "--help"])
    shown = re.findall(r"^(?:│ |  )(?:-\w, )?(--[a-z][\w-]*)", capsys.readouterr().out, re.MULTILINE)
    assert shown
    assert set(shown) <= options_of(name).keys()


def test_fish_gets_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "fish"]) == 0
    text = capsys.readouterr().out
    for name in cli.COMMANDS:
        assert f"-a {name.split()[0]}\n" in text
    assert "-l rho" in text
