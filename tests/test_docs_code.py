"""What the documentation names exists, and its Python code runs as written."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path
from typing import Any

import pytest
import torch

import sgqn
from sgqn import pretrained
from sgqn.agents import AGENTS
from sgqn.augmentations import center_crop
from tests.helpers import tiny_config, untrained_run

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
    for line in text.splitlines():
        for agent in re.findall(r"--agent[ =](\w+)", line):
            if "demo" in line or page.name == "demo.md":
                task = re.search(r"--task[ =]([\w-]+)", line)
                assert pretrained.find(f"pretrained:{task[1] if task else 'walker-walk'}/{agent}") is not None, line
            else:
                assert agent in (*AGENTS, *EXAMPLES) or agent.isupper(), line


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
