"""The demo's video and animation."""

from __future__ import annotations

import io
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw

from sgqn.demo.scene import Demo, Scene
from sgqn.envs.families import find_task
from sgqn.inspect import Images, Report, video
from sgqn.inspect.drawing import GREY, enlarged, grey, overlaid, text

PANEL, GAP, TITLE, HEADER = 252, 8, 34, 38
APART = 28
"""Distance between two agents."""
INK = (24, 24, 24)
LOOP = 60
"""Frames of the animation, one for each step."""
MOST_BYTES = 3_000_000
"""Largest size of the animation."""
QUALITY = {"preset": "veryfast", "crf": "25"}


class Sizes(NamedTuple):
    """Sizes of the text, larger where two agents make the frame wider."""

    title: int
    heading: int
    name: int


class Block(NamedTuple):
    """The panels of one agent, from `left` on."""

    left: int
    titles: list[str]
    scenes: tuple[Scene, Scene]

    @property
    def width(self) -> int:
        return len(self.titles) * (PANEL + GAP) - GAP

    @property
    def columns(self) -> list[int]:
        return [self.left + i * (PANEL + GAP) for i in range(len(self.titles))]


class Frames:
    """The frames of the video: a row for each scene with what the agent sees, what matters to it, what it predicts.

    Two agents are next to each other, without their predictions.
    """

    def __init__(self, demo: Demo):
        self.demo = demo
        self._task = find_task(demo.subject.config.task)
        self.blocks: list[Block] = []
        self.two = len(demo.agents) > 1
        self.sizes = Sizes(26, 28, 32) if self.two else Sizes(20, 22, 26)
        left = 0
        for agent in demo.agents:
            titles = ["what it sees", "what matters to it" if self.two else "what matters to its value"]
            if not self.two and agent.scenes[0].images.predicted is not None:
                titles.append("what it predicts to matter")
            self.blocks.append(Block(left, titles, agent.scenes))
            left += self.blocks[-1].width + APART
        self.top = TITLE + (HEADER if self.two else 0)
        self.size = (left - APART, self.top + 2 * (HEADER + PANEL))
        self._blank = self._background()
        self._sums = [[np.cumsum(scene.episode.rewards) for scene in agent.scenes] for agent in demo.agents]

    def draw(self, step: int) -> Image.Image:
        """The frame of one step; a scene whose episode has ended keeps its last."""
        frame = self._blank.copy()
        pen = ImageDraw.Draw(frame)
        for block, sums in zip(self.blocks, self._sums, strict=True):
            for row, scene in enumerate(block.scenes):
                at = min(step, len(sums[row]) - 1)
                score = f"return {self._task.return_text(sums[row][at])}"
                right = block.left + block.width - 2
                text(pen, (right, self.panels(row) - 10), score, self.sizes.heading, INK, anchor="rs")
                for x, panel in zip(block.columns, _panels(scene.images, at), strict=False):
                    frame.paste(enlarged(panel, PANEL), (x, self.panels(row)))
        return frame

    def panels(self, row: int) -> int:
        """The top of the panels of a scene."""
        return self.top + row * (HEADER + PANEL) + HEADER

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
        for name, block in zip(self.demo.names, self.blocks, strict=True):
            if self.two:
                text(pen, (block.left + 2, HEADER - 10), name, self.sizes.name, INK, anchor="ls")
            for x, title in zip(block.columns, block.titles, strict=True):
                text(pen, (x + PANEL // 2, self.top - 8), title, self.sizes.title, GREY, anchor="ms")
            for row, scene in enumerate(block.scenes):
                heading = scene.name if self.two else scene.heading
                text(pen, (block.left + 2, self.panels(row) - 10), heading, self.sizes.heading, INK, anchor="ls")
        return background


def _panels(images: Images, at: int) -> Iterator[np.ndarray]:
    seen = images.observation[at]
    yield seen
    yield overlaid(seen, images.mask[at])
    if images.predicted is not None:
        yield grey(images.predicted[at])
