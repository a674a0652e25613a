"""Runs of the paper's agents that take no training: untrained checkpoints that load, and logs with made-up numbers."""

from __future__ import annotations

from pathlib import Path

import pytest

from sgqn import run_folder
from sgqn.agents import AGENTS
from tests.helpers import TASK, tiny_config
from tests.results.samples import write_tiny


@pytest.fixture(scope="session")
def nine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The paper's nine agents, SGQN and SAC with two seeds; two runs' saliency is measured. Leave them as they are."""
    from sgqn.results import looking, paper

    out = tmp_path_factory.mktemp("nine") / "runs"
    for agent in paper.TITLES:
        for seed in range(2 if agent in ("sac", "sgqn") else 1):
            config = tiny_config(agent, seed=seed, action_repeat=None)
            write_tiny(run_folder.folder_of(config, out), config)
    for agent in ("sac", "sgqn"):
        looking.record(out / TASK / agent / "0", ["train", "video_hard"], episodes=2, renderer="warp", every=40)
    return out


@pytest.fixture
def _agents_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """Agents that the paper does not have."""
    for name in ("my_agent", "my|<agent>"):
        monkeypatch.setitem(AGENTS._things, name, AGENTS["sgqn"])
        monkeypatch.setitem(AGENTS._origins, name, "sgqn.agents")
