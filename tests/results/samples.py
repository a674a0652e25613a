"""Runs with made-up numbers, as the tests of tables, figures and reports need them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from sgqn import run_folder
from sgqn.agents import AGENTS
from sgqn.config import TrainConfig, settings_for, versions
from sgqn.results.runs import RunEvaluation
from tests.helpers import TASK, untrained_run

SHIFTS = ("train", "video_easy", "video_hard")
STEPS = (300, 600)


def write_tiny(folder: Path, config: TrainConfig, with_checkpoint: bool = True) -> Path:
    """A run's folder: configuration, metrics, evaluations in three shifts after 300 and 600 steps, a checkpoint."""
    folder.mkdir(parents=True)
    if with_checkpoint:
        untrained_run(folder, config, STEPS[-1])
    run_folder.write_config(folder, config, {"device": "CPU", "path": "eager", "precision": "fp32", "note": ""})
    numbers = np.random.default_rng([sorted(AGENTS).index(config.agent), config.seed])
    for step in range(100, 700, 100):
        line = {"step": step, "updates": step, "episode/return": numbers.uniform(20, 90), "seconds": step / 10}
        run_folder.append_line(folder / run_folder.METRICS, line)
    for step in STEPS:
        for shift in SHIFTS:
            returns = tuple(float(value) for value in numbers.uniform(20, 90, size=2))
            backgrounds = "none" if shift == "train" else "generated"
            found = RunEvaluation(TASK, shift, 0, "warp", backgrounds, returns, step)
            run_folder.append_line(folder / run_folder.EVALUATIONS, {"step": step, **found.to_dict()})
    return folder


def config_of(task: str, agent: str, seed: int, rho: float | None = None, **options: Any) -> TrainConfig:
    values = {} if rho is None else {"rho": rho}
    return TrainConfig(task=task, agent=agent, seed=seed, settings=settings_for(agent, task, **values), **options)


def line(task: str, shift: str, returns: list[float], step: int = 500_000, **others: Any) -> dict[str, Any]:
    """As `sgqn evaluate` writes it."""
    result = RunEvaluation(task, shift, 0, "gl", f"dmcgb:{shift}", tuple(returns), step)
    return {"step": step, **result.to_dict(), "versions": versions(), **others}


def write_run(
    out: Path, config: TrainConfig, lines: list[dict[str, Any]] = (), metrics: list[dict[str, Any]] = ()
) -> Path:
    folder = run_folder.folder_of(config, out)
    folder.mkdir(parents=True)
    run_folder.write_config(folder, config)
    for name, content in ((run_folder.EVALUATIONS, lines), (run_folder.METRICS, metrics)):
        for values in content:
            run_folder.append_line(folder / name, values)
    return folder
