"""Colours, text and cells of the images that are drawn."""

from __future__ import annotations

import base64
import functools
import io
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

Colour = tuple[int, int, int]

BLACK, GREY, PALE = (20, 20, 20), (110, 110, 110), (235, 235, 235)
INFERNO = (0x000004, 0x210C4A, 0x57106E, 0x8A226A, 0xBC3754, 0xE45A31, 0xF98E09, 0xF9CB35, 0xFCFFA4)
"""Nine evenly spaced colours, from 0 to 1."""
TINT = np.array([255, 0, 200])
"""Magenta: no task and no scene has it."""


def inferno(values: np.ndarray) -> np.ndarray:
    """Numbers, clipped to [0, 1], as colours (..., 3) uint8 from black over red to pale yellow."""
    table = np.array([[color >> 16, color >> 8 & 255, color & 255] for color in INFERNO])
    at = np.linspace(0, 1, len(table))
    return np.stack([np.interp(values, at, table[:, i]) for i in range(3)], axis=-1).round().astype(np.uint8)


def grey(values: np.ndarray) -> np.ndarray:
    """Numbers in [0, 1] as shades (..., 3) uint8 from black to white."""
    return np.repeat((values * 255).round().astype(np.uint8)[..., None], 3, axis=-1)


def overlaid(observation: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """The image (H, W, 3) dimmed, with the mask's pixels in colour."""
    return (0.4 * observation + 0.6 * mask[..., None] * TINT).round().astype(np.uint8)


def enlarged(image: np.ndarray, size: int) -> Image.Image:
    """An image (H, W, 3) as a square of `size` pixels, without smoothing."""
    return Image.fromarray(image).resize((size, size), Image.Resampling.NEAREST)


def paste(
    sheet: Image.Image,
    image: np.ndarray | None,
    at: tuple[int, int],
    size: int,
    text_size: int = 16,
    pale: Colour = PALE,
    ink: Colour = GREY,
) -> None:
    """An enlarged image, or a placeholder where the agent has no decoder to predict one."""
    if image is not None:
        sheet.paste(enlarged(image, size), at)
        return
    pen = ImageDraw.Draw(sheet)
    x, y = at
    pen.rectangle((x, y, x + size - 1, y + size - 1), fill=pale)
    text(pen, (x + size // 2, y + size // 2), "no decoder", text_size, ink, anchor="mm")


def text(
    pen: ImageDraw.ImageDraw,
    at: tuple[int, int],
    words: str,
    size: int,
    fill: Colour = BLACK,
    anchor: str = "la",
) -> None:
    pen.text(at, words, fill=fill, font=font(size), anchor=anchor)


@functools.cache
def font(size: int) -> Any:
    return ImageFont.load_default(size)


def png(image: np.ndarray | Image.Image, **options: Any) -> bytes:
    """An image (H, W, 3) uint8, or one of Pillow, as the content of a PNG file."""
    file = io.BytesIO()
    (Image.fromarray(image) if isinstance(image, np.ndarray) else image).save(file, format="PNG", **options)
    return file.getvalue()


def data_url(content: bytes, kind: str = "image/png") -> str:
    """The content of a file as a URL that holds all of it."""
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"
