"""Writing video: MP4 files and animated WebP images."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

import av
import numpy as np
from PIL import Image

H264 = "libx264"


def has_h264() -> bool:
    """Whether PyAV can encode H.264, which browsers play."""
    return H264 in av.codecs_available


def write(
    out: str | Path | BinaryIO, frames: Iterable[np.ndarray], fps: int, options: Mapping[str, str] | None = None
) -> None:
    """Write frames (H, W, 3) uint8 as MP4: H.264 where the encoder is available, else MPEG-4.

    `options` are the encoder's. Odd sizes are rounded up, as both encoders need even ones.
    """
    target = out if hasattr(out, "write") else str(out)
    with av.open(target, "w", format="mp4") as container:
        codec = H264 if has_h264() else "mpeg4"
        stream = container.add_stream(codec, rate=fps, options=dict(options or {}))
        assert isinstance(stream, av.VideoStream)
        stream.pix_fmt = "yuv420p"
        for number, frame in enumerate(frames):
            if number == 0:
                stream.height, stream.width = (side + side % 2 for side in frame.shape[:2])
            container.mux(stream.encode(av.VideoFrame.from_ndarray(frame, format="rgb24")))
        container.mux(stream.encode())


def animated(frames: Sequence[Image.Image], fps: int, most_bytes: int) -> bytes:
    """An animated WebP that repeats; its quality is lowered until it fits into `most_bytes`."""
    content = b""
    for quality in (70, 50, 30, 10):
        file = io.BytesIO()
        options = {"duration": 1000 // fps, "loop": 0, "quality": quality, "method": 2}
        frames[0].save(file, format="WEBP", save_all=True, append_images=frames[1:], **options)
        content = file.getvalue()
        if len(content) <= most_bytes:
            break
    return content
