"""A preview of a task in a shift: random actions, as a sheet of frames (.png) or a video (.mp4)."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from sgqn.attribution import OnStep
from sgqn.envs.env import make
from sgqn.envs.families import find_task
from sgqn.errors import InvalidValueError
from sgqn.files import written_atomically
from sgqn.inspect import video
from sgqn.inspect.drawing import enlarged
from sgqn.inspect.episode import roll

MOST, PER_ROW = 12, 4
"""Frames on a sheet, and in one row of it."""


class Preview(NamedTuple):
    """Summary of a preview."""

    total: float
    """The summed reward."""
    renderer: str
    backgrounds: str


def preview(
    task: str,
    out: Path,
    shift: str | None = None,
    renderer: str = "auto",
    seed: int = 0,
    steps: int = 60,
    on_step: OnStep | None = None,
) -> Preview:
    """Play `steps` random actions and write the frames to `out`, in the format of its suffix."""
    sheet = out.suffix.lower() == ".png"
    if not sheet and out.suffix.lower() != ".mp4":
        raise InvalidValueError(f"cannot write {str(out)!r}: the name must end in .png or .mp4")
    if out.is_dir() or not out.absolute().parent.is_dir():
        raise InvalidValueError(f"cannot write {str(out)!r}: it is a folder, or its folder does not exist")
    if steps < 1:
        raise InvalidValueError(f"steps must be at least 1, not {steps}")
    env = make(task, shift or find_task(task).shifts[0], seed, renderer)
    frames, total = [], 0.0
    try:
        for frame, reward in random_frames(env, steps, seed):
            frames.append(frame)
            total += reward
            if on_step is not None:
                on_step(len(frames) - 1, steps)
        about = env.metadata
    finally:
        env.close()
    with written_atomically(out) as temporary:
        if sheet:
            draw_sheet(frames).save(temporary, format="PNG")
        else:
            large = (np.asarray(enlarged(frame, 4 * len(frame))) for frame in frames)
            video.write(temporary, large, about.get("render_fps", 15))
    return Preview(total, about["renderer"], about["backgrounds"])


def random_frames(env: Any, steps: int, seed: int) -> Iterator[tuple[np.ndarray, float]]:
    """The newest frame (H, W, 3) and the reward: at the start, then after each random step, over several episodes."""
    env.action_space.seed(seed)
    left = steps
    for episode in itertools.count():
        found = roll(env, lambda obs: env.action_space.sample(), seed if episode == 0 else None)
        for number, seen in enumerate(found):
            if number > 0 or episode == 0:
                yield seen.obs[-3:].transpose(1, 2, 0), float(seen.reward)
                left -= number > 0
            if left == 0:
                return


def draw_sheet(frames: list[np.ndarray]) -> Image.Image:
    """Evenly spaced frames at three times their size."""
    picked = [frames[i] for i in np.linspace(0, len(frames) - 1, min(MOST, len(frames))).round().astype(int)]
    size, columns = 3 * len(picked[0]), min(PER_ROW, len(picked))
    sheet = Image.new("RGB", (columns * size, -(-len(picked) // columns) * size))
    for i, frame in enumerate(picked):
        sheet.paste(enlarged(frame, size), (i % columns * size, i // columns * size))
    return sheet
