"""What users install: wheel and source distribution, built, checked and tried."""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
pytest.importorskip("build")
pytest.importorskip("hatchling")
pytestmark = pytest.mark.skipif(not (ROOT / "pyproject.toml").exists(), reason="installed without the repository")


def _run(*command: str, **environment: str) -> str:
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, env={**os.environ, **environment}
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


@pytest.fixture(scope="module")
def dist(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("dist")
    _run(sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT))  # the wheel from the sdist
    return out


def test_both_pass_the_checks_of_the_index(dist: Path) -> None:
    pytest.importorskip("twine")
    said = _run(sys.executable, "-m", "twine", "check", "--strict", *map(str, dist.iterdir()))
    assert said.count("PASSED") == 2


def test_the_wheel_has_all_data_of_the_package(dist: Path) -> None:
    with zipfile.ZipFile(next(dist.glob("*.whl"))) as wheel:
        names = set(wheel.namelist())
    tracked = _run("git", "ls-files", "sgqn").split() if (ROOT / ".git").exists() else []
    assert not [name for name in tracked if name not in names]


def test_the_sdist_has_what_its_tests_and_docs_need(dist: Path) -> None:
    with tarfile.open(next(dist.glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"README.md", "CHANGELOG.md", "CITATION.cff", "LICENSE", "mkdocs.yml", "sweeps/paper.toml"} <= names
    for folder in ("tests", "docs", "examples", "benchmarks", "results"):
        assert any(name.startswith(folder + "/") for name in names)


def test_the_installed_wheel_works(dist: Path, tmp_path: Path) -> None:
    """With the dependencies of this environment, from another folder."""
    wheel, target = next(dist.glob("*.whl")), tmp_path / "installed"
    install = ["install", "--quiet", "--no-deps", "--target", str(target), str(wheel)]
    _run(sys.executable, "-m", "pip", "--disable-pip-version-check", *install)
    code = (
        "import sgqn; assert 'installed' in sgqn.__file__; env = sgqn.make('cartpole-swingup', renderer='warp');"
        "agent = sgqn.load_agent('pretrained:cartpole-swingup'); obs, _ = env.reset(); print(agent.act(obs).shape)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(target)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "(1,)"
