"""Pictures and numbers as the page takes them."""

from __future__ import annotations

import base64
import io
import math

import numpy as np
from PIL import Image


def png(picture: np.ndarray) -> str:
    """A picture (H, W, 3) uint8 as a data URL, at its own size: the page enlarges it."""
    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, format="PNG", compress_level=3)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def finite(number: float) -> float | None:
    """For JSON, which has no NaN."""
    return number if math.isfinite(number) else None
