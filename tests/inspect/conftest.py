from __future__ import annotations

from pathlib import Path

import pytest

from sgqn.inspect import Subject
from tests.helpers import tiny_config, untrained_run


@pytest.fixture(scope="module")
def subjects(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Subject]:
    """Untrained agents: with a decoder, without one, one that crops, one with a soft mask."""
    out: Path = tmp_path_factory.mktemp("runs")
    configs = {name: tiny_config(name) for name in ("sgqn", "sac", "soda")}
    configs["soft"] = tiny_config(settings={"mask": "soft"})
    return {name: Subject.load(untrained_run(out / name, config)) for name, config in configs.items()}
