from __future__ import annotations

from pathlib import Path

from sgqn import checkpoint
from sgqn.inspect import Subject
from tests.helpers import tiny_config, untrained_run


def test_method_and_rho_are_the_agents_own(tmp_path: Path) -> None:
    config = tiny_config(settings={"rho": 0.7, "attribution": "gradient"}, seed=3)
    subject = Subject.load(untrained_run(tmp_path, config, step=1000))
    assert (subject.method, subject.rho) == ("gradient", 0.7)
    assert subject.name == "sgqn, run 3, 1,000 steps"
    assert (subject.folder, subject.home) == (checkpoint.find(tmp_path), tmp_path)


def test_an_agent_without_rho_has_the_tasks(subjects: dict[str, Subject]) -> None:
    assert subjects["sac"].agent.rho is None
    assert subjects["sac"].rho == 0.98
