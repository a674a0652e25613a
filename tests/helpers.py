"""Helpers that several test modules share."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from sgqn import data
from sgqn.cli import main

MICRO = [
    *("--task", "cartpole-swingup", "--preset", "tiny", "--quiet", "--device", "cpu"),
    *("--steps", "60", "--warmup-steps", "20", "--num-envs", "2", "--action-repeat", "50", "--image-size", "24"),
    *("--encoder-layers", "2", "--encoder-filters", "4", "--hidden-dim", "16", "--embedding-dim", "8"),
    *("--decoder-filters", "4", "4", "--batch-size", "8", "--soda-batch-size", "8", "--pictures", "16"),
    *("--pictures-renewed-every", "32", "--log-every", "10", "--images-every", "20", "--evaluate-every", "30"),
    *("--evaluate-shifts", "train", "--checkpoint-every", "20", "--replay-capacity", "50"),
]
"""Options of `sgqn train` for a run that takes seconds."""

SETTING = {key: [0.1, 0.2, 0.3] for key in data.COLOR_KEYS}
"""A valid colour setting."""


def fails(capsys: pytest.CaptureFixture[str], *args: str) -> str:
    """Run a command that must fail with exit code 2 and one line on stderr; returns the line."""
    assert main(args) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("error: ")
    return lines[0]


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


def write_image(path: Path, size: int = 16) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(size).integers(0, 256, (size, size, 3), dtype=np.uint8)
    Image.fromarray(noise).save(path)
    return path


def write_colors(path: Path, count: int = 2) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps([SETTING] * count))
    return path
