"""Configurations, evaluations and folders of runs."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from sgqn import run as run_folder
from sgqn.config import TrainConfig, preset, versions
from sgqn.results.runs import RunEvaluation


def config_of(task: str, agent: str, seed: int, rho: float | None = None, **options: Any) -> TrainConfig:
    config = preset("paper", task)
    chosen = config.settings if rho is None else dataclasses.replace(config.settings, rho=rho)
    return dataclasses.replace(config, agent=agent, seed=seed, settings=chosen, **options)


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
