"""A trained agent with its configuration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sgqn import loading
from sgqn.agents import Agent
from sgqn.config import TrainConfig
from sgqn.envs.families import find_task
from sgqn.errors import InvalidValueError


@dataclass(frozen=True)
class Subject:
    """A trained agent to inspect."""

    agent: Agent
    config: TrainConfig
    step: int
    folder: Path | None = None
    """Where its weights come from: a checkpoint or an exported agent."""
    home: Path | None = None
    """The run's folder, where results are kept; None for an exported agent."""
    precision: str = loading.AS_TRAINED
    """How the weights were stored."""

    @classmethod
    def load(cls, path: str | Path, device: str = "cpu") -> Subject:
        """Load anything that `sgqn.load_agent` accepts: a run, a checkpoint, an exported agent, a pretrained name."""
        folder = loading.find(path)
        trained = loading.load(folder, device)
        return cls(trained.agent, trained.config, trained.step, folder, trained.run, trained.precision)

    @property
    def name(self) -> str:
        return f"{self.config.agent}, run {self.config.seed}, {self.step:,} steps"

    @property
    def method(self) -> str:
        """The attribution method of the agent."""
        return self.agent.explained_by

    @property
    def rho(self) -> float:
        """The quantile of the agent's mask, or the task's default for agents that learn without one."""
        return find_task(self.config.task).defaults.rho if self.agent.rho is None else self.agent.rho


def check_comparable(subjects: Sequence[Subject]) -> None:
    """Raise an error unless the agents can play the same episodes: those of one task and one action repeat."""
    first = subjects[0].config
    for other in (subject.config for subject in subjects[1:]):
        if other.task != first.task:
            raise InvalidValueError(f"the runs are of different tasks, {first.task} and {other.task}: compare one task")
        if other.episode_steps != first.episode_steps:
            raise InvalidValueError(
                f"the runs have different action repeats, with {first.episode_steps} and {other.episode_steps} steps "
                "in an episode: compare runs of one action repeat"
            )
