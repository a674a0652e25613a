"""The demo's video and animation."""

from __future__ import annotations

import io
from collections.abc import Iterator

import numpy as np
from PIL import Image, ImageDraw

from sgqn.demo.scene import Demo
from sgqn.inspect import Images, Report, video
from sgqn.inspect.drawing import GREY, enlarged, grey, overlaid, text

PANEL, GAP, TITLE, HEADER = 252, 8, 34, 38
INK = (24, 24, 24)
LOOP = 60
"""Frames of the animation, one for each step."""
MOST_BYTES = 3_000_000
"""Largest size of the animation."""
QUALITY = {"preset": "veryfast", "crf": "25"}


class Frames:
    """The frames of the video: a row for each scene with what the agent sees, what matters to it, what it predicts."""

    def __init__(self, demo: Demo):
        self.demo = demo
        self.titles = ["what it sees", "what matters to its value"]
        if demo.scenes[0].images.predicted is not None:
            self.titles.append("what it predicts to matter")
        self.size = (len(self.titles) * (PANEL + GAP) - GAP, TITLE + 2 * (HEADER + PANEL))
        self.columns = [i * (PANEL + GAP) for i in range(len(self.titles))]
        self._blank = self._background()
        self._sums = [np.cumsum(scene.episode.rewards) for scene in demo.scenes]

    def draw(self, step: int) -> Image.Image:
        """The frame of one step; a scene whose episode has ended keeps its last."""
        frame = self._blank.copy()
        pen = ImageDraw.Draw(frame)
        for row, scene in enumerate(self.demo.scenes):
            at = min(step, len(self._sums[row]) - 1)
            top = TITLE + row * (HEADER + PANEL)
            score = f"return {self._sums[row][at]:.0f}"
            text(pen, (self.size[0] - 2, top + HEADER - 10), score, 22, INK, anchor="rs")
            for x, panel in zip(self.columns, _panels(scene.images, at), strict=True):
                frame.paste(enlarged(panel, PANEL), (x, top + HEADER))
        return frame

    def video(self, report: Report) -> bytes | None:
        """The whole episode as H.264, which browsers play, or None where the encoder is not available."""
        if not video.has_h264():
            return None
        file = io.BytesIO()
        video.write(file, self._arrays(report), self.fps, QUALITY)
        return file.getvalue()

    def animation(self, report: Report) -> bytes:
        """A few seconds from the middle, as an animated WebP that repeats."""
        steps = self.demo.steps
        first = max(0, min(steps // 3, steps - LOOP))
        report("animation", 0, 1)
        frames = [self.draw(step) for step in range(first, min(steps, first + LOOP))]
        content = video.animated(frames, self.fps, MOST_BYTES)
        report("animation", 1, 1)
        return content

    @property
    def fps(self) -> int:
        return self.demo.scenes[0].episode.fps

    def _arrays(self, report: Report) -> Iterator[np.ndarray]:
        for step in range(self.demo.steps):
            yield np.asarray(self.draw(step))
            report("video", step + 1, self.demo.steps)

    def _background(self) -> Image.Image:
        """What is the same in every frame."""
        background = Image.new("RGB", self.size, "white")
        pen = ImageDraw.Draw(background)
        for x, title in zip(self.columns, self.titles, strict=True):
            text(pen, (x + PANEL // 2, TITLE - 8), title, 20, GREY, anchor="ms")
        for row, scene in enumerate(self.demo.scenes):
            y = TITLE + row * (HEADER + PANEL) + HEADER - 10
            text(pen, (2, y), scene.heading, 22, INK, anchor="ls")
        return background


def _panels(images: Images, at: int) -> Iterator[np.ndarray]:
    seen = images.observation[at]
    yield seen
    yield overlaid(seen, images.mask[at])
    if images.predicted is not None:
        yield grey(images.predicted[at])
