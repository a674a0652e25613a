from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch

from sgqn import memory
from sgqn.agents import AGENTS, build_agent
from sgqn.config import TrainConfig, configure, preset
from sgqn.errors import InvalidValueError, WorkerError
from sgqn.run_folder import spec_of
from tests.helpers import MICRO, fails

BILLION = "1000000000"


@pytest.mark.parametrize(
    "options",
    [
        ["--overlay-images", BILLION],
        ["--hidden-dim", BILLION],
        ["--encoder-filters", BILLION],
        ["--embedding-dim", BILLION],
        ["--frame-stack", BILLION],
        ["--batch-size", BILLION],
        ["--num-envs", BILLION],
        ["--image-size", BILLION],
        ["--decoder-filters", BILLION, "4"],
        ["--replay-capacity", BILLION, "--steps", BILLION],
        ["--soda-batch-size", BILLION, "--agent", "soda"],
        ["--rollout-steps", BILLION, "--agent", "ppo"],
        ["--epochs", BILLION, "--agent", "ppo"],
    ],
    ids=lambda options: options[0],
)
def test_huge_sizes_are_refused_with_the_memory_they_need(
    options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    line = fails(capsys, "train", *MICRO, "--out", str(tmp_path / "runs"), *options)
    name = options[0].removeprefix("--").replace("-", "_")
    assert line.startswith(f"error: {name} 1,000,000,000")
    assert " GB of memory, this machine has " in line
    assert line.endswith(f"choose a smaller {options[0]}")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("agent", AGENTS)
@pytest.mark.parametrize("name", ["paper", "tiny"])
def test_the_bound_is_below_the_weights_of_every_agent(agent: str, name: str) -> None:
    config = dataclasses.replace(preset(name, "walker-walk", agent), frame_stack=5)
    discrete = AGENTS[agent].actions == "discrete"
    built = build_agent(agent, spec_of(config, 6, discrete), config.settings)
    weights = sum(parameter.numel() for parameter in built.parameters() if parameter.requires_grad)
    assert 0.2 * weights < memory._weights(config) <= weights


def test_the_papers_run_needs_ten_gigabytes() -> None:
    frames = 500_000 * 3 * 84**2
    assert frames < memory.least(TrainConfig()) < 1.1 * frames
    assert memory.least(preset("tiny", "walker-walk")) < 1e8


def test_a_replay_beyond_the_steps_takes_nothing() -> None:
    small, large = (configure(preset="tiny", replay_capacity=size) for size in (600, 10**12))
    assert memory.least(small) == memory.least(large)


def test_the_default_size_on_a_small_machine_names_the_replay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "total_memory", lambda device: 10**9)
    with pytest.raises(InvalidValueError, match=r"replay_capacity 500,000: .* at least 11 GB of memory, .* has 1 GB"):
        memory.check(TrainConfig(), torch.device("cpu"))


def test_an_allocation_that_fails_is_one_line() -> None:
    with pytest.raises(InvalidValueError, match="not enough memory") as caught, memory.enough():
        torch.empty(2**60)
    assert "\n" not in str(caught.value)
    for error in (RuntimeError("a bug"), WorkerError("cannot allocate memory")):
        with pytest.raises(type(error), match=str(error)), memory.enough():
            raise error
