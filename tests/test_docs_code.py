"""What the documentation names exists, and its Python code runs as written."""

from __future__ import annotations

import inspect
import re
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch

import sgqn.agents.sgqn
from sgqn import pretrained
from sgqn.agents import AGENTS
from sgqn.augmentations import center_crop
from tests.agents.small import batch_for, small
from tests.helpers import MICRO, tiny_config, untrained_run

ROOT = Path(sgqn.__file__).parent.parent
EXAMPLES = ("mine", "ddpg")
"""Agents that pages register."""
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def code(page: str) -> list[str]:
    """The indented blocks of a page."""
    text = (ROOT / "docs" / page).read_text()
    blocks = re.findall(r"(?:^|\n\n)((?: {4}[^\n]*\n|\n(?= {4}))+)", text)
    return [textwrap.dedent(block) for block in blocks]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_agents_named_in_the_docs_exist(page: Path) -> None:
    text = page.read_text()
    for name in re.findall(r"pretrained:[\w-]+(?:/\w+)?", text):
        assert pretrained.find(name) is not None, name
    if page.name == "extend.md":  # its agents are its own
        return
    for line in text.splitlines():
        if "--plugin" in line:
            continue
        for agent in re.findall(r"--agent[ =](\w+)", line):
            if "demo" in line or page.name == "demo.md":
                task = re.search(r"--task[ =]([\w-]+)", line)
                assert pretrained.find(f"pretrained:{task[1] if task else 'walker-walk'}/{agent}") is not None, line
            else:
                assert agent in (*AGENTS, *EXAMPLES) or agent.isupper(), line


def test_the_algorithm_next_to_the_code_of_sgqn() -> None:
    page = (ROOT / "docs" / "agents" / "sgqn.md").read_text()
    _, rows = re.split(r"\| algorithm \| code \|\n\|---\|---\|\n", page)
    table = rows[: rows.index("\n\n")].splitlines()
    cells = [re.fullmatch(r"\| .+ \| (?:`(.+)` )?\|", row) for row in table]
    assert all(cells)
    shown = [cell[1].replace(r"\|", "|") for cell in cells if cell and cell[1]]
    lines = iter(line.strip() for line in inspect.getsource(sgqn.agents.sgqn).splitlines())
    for line in shown:
        assert line in lines, f"{line}: not a line of sgqn/agents/sgqn.py, or not in this order"  # consumes up to it


def test_the_agent_of_the_readme_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AGENTS, "_things", dict(AGENTS))
    monkeypatch.setattr(AGENTS, "_origins", {name: AGENTS.origin(name) for name in AGENTS})
    (block,) = re.findall(r"(?ms)^```python\n(.*?)^```", (ROOT / "README.md").read_text())
    exec(block, {"__name__": "my_agents"})
    agent = small("huber")
    assert agent.update(batch_for(agent)).keys() >= {"loss/critic", "loss/consistency", "loss/mask"}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder that the pages' code runs in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_for(here: Path, agent: str, **changes: Any) -> dict[str, Any]:
    """The run that the pages name, of any agent; observations and actions for it."""
    folder = here / "runs" / "walker-walk" / "sgqn" / "0"
    untrained_run(folder, tiny_config(agent, task="walker-walk", action_repeat=250, **changes), action_dim=6)
    obs = torch.randint(0, 256, (2, 9, 24, 24), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    return {"obs": center_crop(obs, 24), "action": torch.zeros(2, 6)}


@pytest.mark.parametrize("agent", ["sgqn", "sac", "drq", "rad", "svea"])
def test_attribution_code(here: Path, agent: str) -> None:
    names = run_for(here, agent)
    (block,) = [block for block in code("attribution.md") if "load_agent" in block]
    exec(block, names)
    assert names["heat"].shape == names["mask"].shape == names["obs"].shape
    assert names["mask"].dtype == torch.bool


def test_the_environment_of_the_page_is_a_task(here: Path) -> None:
    page = (ROOT / "docs" / "gym.md").read_text()
    (module,) = re.findall(r"(?ms)^```python\n(.*?)^```", page)
    (commands,) = re.findall(r"(?ms)^```\n(sgqn.*?)^```", page)
    (here / "my_env.py").write_text(module)
    for line in commands.splitlines():
        args = shlex.split(line)[1:]
        small = [*MICRO[4:], "--action-repeat", "1"] if args[0] == "train" else []
        command = [sys.executable, "-P", "-m", "sgqn.cli", *args, *small]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    assert {file.name for file in here.iterdir()} >= {"preview.png", "runs", "look.png"}


def test_saliency_code(here: Path) -> None:
    names = run_for(here, "sgqn")
    for block in code("saliency.md"):
        if "import" in block:
            exec(block, names)
    assert names["found"].episodes == 5
    assert names["curve"].values.shape == (2, 21)


def test_explain_code(here: Path) -> None:
    names = run_for(here, "sgqn")
    (block,) = [block for block in code("explain.md") if "import" in block]
    exec(block, names)
    assert (here / "look.png").is_file()
    assert len(names["look"].attribution) == 4  # of the episode's four steps


@pytest.mark.parametrize(
    ("section", "library"),
    [
        ("Rendering", "gymnasium"),
        ("Gymnasium", "gymnasium"),
        ("Stable-Baselines3", "stable_baselines3"),
        ("torchrl", "torchrl"),
    ],
)
def test_environments_code(section: str, library: str) -> None:
    pytest.importorskip(library)
    page = (ROOT / "docs" / "environments.md").read_text()
    _, text = re.split(rf"(?m)^## {section}$", page)
    (block,) = re.findall(r"(?ms)^```python\n(.*?)^```", text.partition("\n## ")[0])
    for written, used in (
        ("n_steps=64", "n_steps=8, batch_size=8, n_epochs=1"),
        ("learn(10_000)", "learn(32)"),
        ("4, renderer=", "2, num_workers=0, action_repeat=250, renderer="),
        ("episodes=4", "episodes=1, action_repeat=250"),
        ("rollout(10,", "rollout(5,"),
    ):
        block = block.replace(written, used)
    names: dict[str, Any] = {}
    exec(block, names)
    if "image" in names:
        assert names["image"].shape == (360, 480, 3)
