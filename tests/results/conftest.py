"""Runs of all nine agents that take no training: untrained checkpoints that load, and logs with made-up numbers."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sgqn import checkpoint
from sgqn import run as folders
from sgqn.agents import AGENTS, build_agent
from sgqn.config import TrainConfig, preset
from sgqn.results.runs import RunEvaluation

TASK = "cartpole-swingup"
SHIFTS = ("train", "video_easy", "video_hard")
STEPS = (300, 600)


def tiny(agent: str, seed: int = 0, **changes: Any) -> TrainConfig:
    config = preset("tiny", TASK)
    small = {"encoder_layers": 2, "encoder_filters": 4, "hidden_dim": 16, "embedding_dim": 8, "decoder_filters": (4, 4)}
    settings = dataclasses.replace(config.settings, **small)
    return dataclasses.replace(config, agent=agent, seed=seed, image_size=24, settings=settings, **changes)


def write_tiny(folder: Path, config: TrainConfig, with_checkpoint: bool = True) -> Path:
    """A run's folder: configuration, metrics, evaluations in three shifts after 300 and 600 steps, a checkpoint."""
    folder.mkdir(parents=True)
    folders.write_config(folder, config, {"device": "CPU", "path": "eager", "precision": "fp32", "note": ""})
    numbers = np.random.default_rng([sorted(AGENTS).index(config.agent), config.seed])
    for step in range(100, 700, 100):
        line = {"step": step, "updates": step, "episode/return": numbers.uniform(20, 90), "seconds": step / 10}
        folders.append_line(folder / folders.METRICS, line)
    for step in STEPS:
        for shift in SHIFTS:
            returns = tuple(float(value) for value in numbers.uniform(20, 90, size=2))
            backgrounds = "none" if shift == "train" else "generated"
            found = RunEvaluation(TASK, shift, 0, "warp", backgrounds, returns, step)
            folders.append_line(folder / folders.EVALUATIONS, {"step": step, **found.to_dict()})
    if with_checkpoint:
        weights = build_agent(config.agent, folders.spec_of(config, 1), config.settings, seed=config.seed).state_dict()
        metadata = {"config": config.to_dict(), "action_dim": 1}
        checkpoint.save(folder, STEPS[-1], weights=weights, state={}, metadata=metadata)
    return folder


@pytest.fixture(scope="session")
def nine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All nine agents, SGQN and SAC with two seeds; the saliency of two runs is measured. Leave them as they are."""
    from sgqn.results import looking

    out = tmp_path_factory.mktemp("nine") / "runs"
    for agent in AGENTS:
        for seed in range(2 if agent in ("sac", "sgqn") else 1):
            config = tiny(agent, seed)
            write_tiny(folders.folder_of(config, out), config)
    for agent in ("sac", "sgqn"):
        looking.record(out / TASK / agent / "0", ["train", "video_hard"], episodes=2, renderer="warp", every=40)
    return out
