"""Draws the galleries of the documentation: `python docs/make_gallery.py` writes docs/images/*.png.

With the benchmark's data in the data directory the backgrounds are its own, else generated ones.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont
from rich.progress import track

import sgqn
from sgqn.envs import PAPER_TASKS, SHIFTS

IMAGES = Path(__file__).parent / "images"
SCALE = 2
SIDE = 84 * SCALE
MARGIN = 150
HEADER = 30


def frame(task: str, shift: str, renderer: str, masks: bool = False) -> np.ndarray:
    """The newest frame after some steps of a fixed episode, enlarged; or its ground-truth mask."""
    env = sgqn.make(task, shift=shift, renderer=renderer, masks=masks, seed=0)
    random = np.random.RandomState(1)
    env.reset(seed=0, options={"episode": 2})
    for _ in range(12):
        obs, _, _, _, info = env.step(random.uniform(-1, 1, env.action_space.shape))
    env.close()
    picture = obs[-3:].transpose(1, 2, 0)
    if masks:
        picture = np.where(info["mask"][-1][..., None], picture, picture // 5)
    return picture.repeat(SCALE, 0).repeat(SCALE, 1)


def sheet(rows: list[tuple[str, list[np.ndarray]]], columns: list[str]) -> Image.Image:
    """Pictures in rows and columns, with their names."""
    font = ImageFont.load_default(size=15)
    gap = 4
    width = MARGIN + len(columns) * (SIDE + gap)
    image = Image.new("RGB", (width, HEADER + len(rows) * (SIDE + gap)), "white")
    draw = ImageDraw.Draw(image)
    for x, name in enumerate(columns):
        draw.text((MARGIN + x * (SIDE + gap) + SIDE / 2, HEADER / 2), name, "black", font, anchor="mm")
    for y, (name, pictures) in enumerate(rows):
        top = HEADER + y * (SIDE + gap)
        draw.text((MARGIN - 8, top + SIDE / 2), name, "black", font, anchor="rm", align="right")
        for x, picture in enumerate(pictures):
            image.paste(Image.fromarray(picture), (MARGIN + x * (SIDE + gap), top))
    return image


def main() -> None:
    IMAGES.mkdir(exist_ok=True)
    rows = []
    cases = [(task, renderer) for task in PAPER_TASKS for renderer in ("gl", "warp")]
    for task, renderer in track(cases, description="shifts"):
        rows.append((f"{task}\n{renderer}", [frame(task, shift, renderer) for shift in SHIFTS]))
    sheet(rows, list(SHIFTS)).quantize(192).save(IMAGES / "gallery.png", optimize=True)

    rows = []
    for task in track(PAPER_TASKS, description="renderers"):
        gl, warp = (frame(task, "train", renderer) for renderer in ("gl", "warp"))
        difference = np.clip(np.abs(gl.astype(int) - warp) * 4, 0, 255).astype(np.uint8)
        masks = [frame(task, "train", renderer, masks=True) for renderer in ("gl", "warp")]
        rows.append((task, [gl, warp, difference, *masks]))
    names = ["gl", "warp", "difference x 4", "mask, gl", "mask, warp"]
    sheet(rows, names).quantize(192).save(IMAGES / "renderers.png", optimize=True)


if __name__ == "__main__":
    main()
