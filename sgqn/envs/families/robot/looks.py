"""How the robot's scenes look: generated textures of table, floor and wall, and the shifts that use them."""

from __future__ import annotations

import functools

import numpy as np

from sgqn.envs.shifts import Appearance, Shift

SIZE = 128
"""Pixels of a table's or floor's texture, which covers one square metre."""
SKY = 512
"""Pixels of one face of the sky, on which the wall is drawn."""
KEY_COLOR = (51, 204, 51)
"""The green that a video replaces."""

Rgb = tuple[int, int, int]


def find_shift(name: str) -> Shift:
    if name == "train":
        return Shift(name)
    if name == "video_hard":
        screens = {
            "wall": functools.partial(_plain, SKY, KEY_COLOR, sky=True),
            "floor": functools.partial(_plain, SIZE, KEY_COLOR),
        }
        return Shift(name, [Appearance(("robot", name), textures=screens)], video=name)
    images = {part: functools.partial(texture, name, part) for part in ("table", "floor", "wall")}
    return Shift(name, [Appearance(("robot", name), textures=images)], source="robot scenes")


def textures(scene: str) -> dict[str, np.ndarray]:
    """The images of a scene: uint8 (height, width, 3), the wall's with the six faces of a cube below each other."""
    return {part: texture(scene, part) for part in ("table", "floor", "wall")}


@functools.cache
def texture(scene: str, part: str) -> np.ndarray:
    size = SKY if part == "wall" else SIZE
    if scene == "train":
        image = {
            "table": lambda: _boards(size, (196, 160, 118), (168, 132, 92), 4, seed=1),
            "floor": lambda: _tiles(size, (150, 152, 156), (120, 122, 126), 4),
            "wall": lambda: _clouds(size, (178, 190, 205), (196, 205, 216), 2, seed=2),
        }[part]()
    elif scene == "test1":
        image = {
            "table": lambda: _marble(size, (30, 34, 40), (120, 132, 128), seed=3),
            "floor": lambda: _checker(size, (36, 60, 130), (214, 220, 235), 4),
            "wall": lambda: _stripes(size, (236, 150, 40), (110, 50, 120), 12),
        }[part]()
    elif scene == "test2":
        image = {
            "table": lambda: _speckles(size, (226, 224, 216), seed=4),
            "floor": lambda: _boards(size, (110, 70, 40), (84, 50, 28), 6, seed=5),
            "wall": lambda: _bricks(size, (150, 74, 56), (205, 196, 184), 16, seed=6),
        }[part]()
    else:
        image = {
            "table": lambda: _checker(size, (60, 110, 150), (190, 214, 226), 8),
            "floor": lambda: _clouds(size, (96, 60, 120), (50, 30, 76), 8, seed=7),
            "wall": lambda: _clouds(size, (44, 92, 50), (150, 176, 84), 10, seed=8),
        }[part]()
    image = np.tile(image, (6, 1, 1)) if part == "wall" else image
    image.flags.writeable = False
    return image


def _plain(size: int, color: Rgb, sky: bool = False) -> np.ndarray:
    return np.full((size * 6 if sky else size, size, 3), color, np.uint8)


def _mix(share: np.ndarray, first: Rgb, second: Rgb) -> np.ndarray:
    """From `first` where share is 0 to `second` where it is 1."""
    share = np.clip(share, 0.0, 1.0)[..., None]
    return np.round((1 - share) * np.array(first) + share * np.array(second)).astype(np.uint8)


def _grid(size: int) -> tuple[np.ndarray, np.ndarray]:
    """Row and column of every pixel, in [0, 1)."""
    line = np.arange(size) / size
    return line[:, None] + 0 * line, line + 0 * line[:, None]


def _noise(size: int, cells: tuple[int, int], seed: int) -> np.ndarray:
    """Smooth random values in [0, 1], tileable: a random grid of `cells`, interpolated."""
    values = np.random.default_rng(seed).random(cells)
    at = [np.arange(size) * count / size for count in cells]
    low = [place.astype(int) for place in at]
    share = [place - floor for place, floor in zip(at, low, strict=True)]
    share = [s * s * (3 - 2 * s) for s in share]
    high = [(floor + 1) % count for floor, count in zip(low, cells, strict=True)]
    rows = [values[index] for index in (low[0], high[0])]
    rows_mixed = (1 - share[0])[:, None] * rows[0] + share[0][:, None] * rows[1]
    return (1 - share[1]) * rows_mixed[:, low[1]] + share[1] * rows_mixed[:, high[1]]


def _clouds(size: int, first: Rgb, second: Rgb, cells: int, seed: int) -> np.ndarray:
    layers = [_noise(size, (cells * 2**k, cells * 2**k), seed + 100 * k) / 2**k for k in range(4)]
    total = np.add.reduce(layers) / 1.875
    return _mix((total - 0.3) / 0.4, first, second)


def _marble(size: int, first: Rgb, second: Rgb, seed: int) -> np.ndarray:
    y, x = _grid(size)
    bend = sum(_noise(size, (4 * 2**k, 4 * 2**k), seed + 100 * k) / 2**k for k in range(4))
    veins = np.abs(np.sin(np.pi * (2 * x + 2 * y + 2.5 * bend)))
    return _mix(1 - veins**0.35, first, second)


def _boards(size: int, first: Rgb, second: Rgb, count: int, seed: int) -> np.ndarray:
    y, _ = _grid(size)
    grain = 0.6 * _noise(size, (16 * count, 4), seed) + 0.4 * _noise(size, (48 * count, 8), seed + 1)
    tone = np.random.default_rng(seed).random(count)[(y * count).astype(int)]
    gap = (y * count) % 1 < 0.03
    return _mix(np.where(gap, 1.6, 0.6 * grain + 0.4 * tone), first, second)


def _tiles(size: int, first: Rgb, second: Rgb, count: int) -> np.ndarray:
    y, x = _grid(size)
    return _mix((((y * count) % 1 < 0.05) | ((x * count) % 1 < 0.05)).astype(float), first, second)


def _checker(size: int, first: Rgb, second: Rgb, count: int) -> np.ndarray:
    y, x = _grid(size)
    return _mix(((y * count).astype(int) + (x * count).astype(int)) % 2.0, first, second)


def _stripes(size: int, first: Rgb, second: Rgb, count: int) -> np.ndarray:
    _, x = _grid(size)
    return _mix(((x * count).astype(int)) % 2.0, first, second)


def _bricks(size: int, first: Rgb, second: Rgb, rows: int, seed: int) -> np.ndarray:
    y, x = _grid(size)
    row = (y * rows).astype(int)
    along = x * rows / 2 + 0.5 * (row % 2)
    tone = np.random.default_rng(seed).random((rows, rows // 2))[row, along.astype(int) % (rows // 2)]
    mortar = ((y * rows) % 1 < 0.12) | (along % 1 < 0.06)
    return _mix(np.where(mortar, 1.0, 0.25 * tone), first, second)


def _speckles(size: int, base: Rgb, seed: int) -> np.ndarray:
    image = _mix(_noise(size, (size // 6, size // 6), seed), base, (240, 240, 236))
    random = np.random.default_rng(seed)
    y, x = _grid(size)
    for color in ((60, 60, 64), (150, 120, 96), (110, 140, 156)):
        for row, column, radius in zip(*random.random((2, 100)), random.uniform(0.006, 0.02, 100), strict=True):
            down, right = (np.abs(at - place) for at, place in ((y, row), (x, column)))
            far = np.minimum(down, 1 - down) ** 2 + np.minimum(right, 1 - right) ** 2
            image[far < radius**2] = color
    return image
