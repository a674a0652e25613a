"""What several test modules share: failing commands, tiny configurations, untrained runs, data files."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from sgqn import checkpoint, data, run_folder, training
from sgqn.agents import build_agent
from sgqn.cli import main
from sgqn.config import TINY_SETTINGS, TrainConfig, preset, settings_for
from sgqn.errors import Interrupted

TASK = "cartpole-swingup"
SETTING = {key: [0.1, 0.2, 0.3] for key in data.COLOR_KEYS}

MICRO = [
    *("--task", "cartpole-swingup", "--preset", "tiny", "--quiet", "--device", "cpu"),
    *("--steps", "60", "--warmup-steps", "20", "--num-envs", "2", "--action-repeat", "50", "--image-size", "24"),
    *("--encoder-layers", "2", "--encoder-filters", "4", "--hidden-dim", "16", "--embedding-dim", "8"),
    *("--batch-size", "8", "--overlay-images", "16"),
    *("--overlay-images-renewed-every", "32", "--log-every", "10", "--images-every", "20", "--evaluate-every", "30"),
    *("--evaluate-shifts", "train", "--checkpoint-every", "20", "--replay-capacity", "50"),
]
"""Options of `sgqn train` for a run of seconds."""


def fails(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    """Run a command that must fail with exit code 2 and one line on stderr; returns the line."""
    assert main(args) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    return lines[0]


def tiny_config(agent: str = "sgqn", settings: dict[str, Any] | None = None, **changes: Any) -> TrainConfig:
    """Networks as small as they can be, images of 24 pixels, episodes of 20 steps."""
    small = {"encoder_layers": 2, "encoder_filters": 4, "hidden_dim": 16, "embedding_dim": 8, "decoder_filters": (4, 4)}
    task = changes.get("task", TASK)
    chosen = settings_for(agent, task, **{**TINY_SETTINGS, **small, **(settings or {})})
    options = {"image_size": 24, "action_repeat": 50, "settings": chosen, **changes}
    return dataclasses.replace(preset("tiny", task, agent), **options)


def untrained_run(folder: Path, config: TrainConfig | None = None, step: int = 24, action_dim: int = 1) -> Path:
    """The folder of a run whose checkpoint has the weights of a fresh agent."""
    config = config or tiny_config()
    agent = build_agent(config.agent, run_folder.spec_of(config, action_dim), config.settings, seed=config.seed)
    metadata = {"config": config.to_dict(), "action_dim": action_dim}
    checkpoint.save(folder, step, weights=agent.state_dict(), state={}, metadata=metadata)
    run_folder.write_config(folder, config)
    return folder


def write_clip(path: Path, frames: int = 6, faststart: bool = False) -> Path:
    """A small real video of noise."""
    import av

    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(frames).integers(0, 256, (frames, 32, 32, 3), dtype=np.uint8)
    options = {"movflags": "faststart"} if faststart else {}
    with av.open(str(path), "w", format="mp4", options=options) as container:
        stream = container.add_stream("mpeg4", rate=10)
        stream.width, stream.height, stream.pix_fmt = 32, 32, "yuv420p"
        for frame in noise:
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())
    return path


def keep_frames(path: Path, count: int) -> None:
    """Overwrite the frames of a video after the first `count` with zeros; the file keeps its size and its index."""
    import av

    with av.open(str(path)) as container:
        positions = sorted(packet.pos for packet in container.demux(video=0) if packet.size and packet.pos is not None)
    content = bytearray(path.read_bytes())
    content[positions[count] : positions[-1]] = bytes(positions[-1] - positions[count])
    path.write_bytes(content)


def write_image(path: Path, size: int = 16) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(size).integers(0, 256, (size, size, 3), dtype=np.uint8)
    Image.fromarray(noise).save(path)
    return path


def write_colors(path: Path, count: int = 2) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([SETTING] * count))
    return path


def stopped_and_resumed(config: TrainConfig, out: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a run that was stopped in the middle and resumed."""
    original = training.Trainer._iterate

    def iterate(self: training.Trainer) -> None:
        original(self)
        if self.step == 30:
            self._stop = training.signal.SIGTERM

    with monkeypatch.context() as patch:
        patch.setattr(training.Trainer, "_iterate", iterate)
        with pytest.raises(Interrupted):
            training.train(config, out, progress=False)
    return training.resume(run_folder.folder_of(config, out), progress=False)


def same_weights(one: Path, other: Path) -> bool:
    first, second = (checkpoint.load(checkpoint.find(folder)).weights for folder in (one, other))
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
