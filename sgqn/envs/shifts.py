"""Shifts: the appearance of an episode's scene, the clip in its background, and changes of its pixels.

All of them are pure functions of (seed, episode). Episode k of a shift is the same for the same seed, regardless of
earlier episodes and of the number of environments.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np

if TYPE_CHECKING:
    from torch import Tensor

Color = tuple[float, float, float]
MakeTexture = Callable[[], np.ndarray]


@dataclass(frozen=True)
class Appearance:
    """How a MuJoCo scene looks: colours by material name, textures by texture name. The rest stays as in the model.

    `key` identifies it: appearances with equal keys look the same, whatever family they come from. A texture is made
    when it is needed, as uint8 (height, width, channels) of the model's own size. Names that a model lacks are ignored.
    """

    key: Hashable = None
    materials: Mapping[str, Color] = field(default_factory=dict, compare=False)
    textures: Mapping[str, MakeTexture] = field(default_factory=dict, compare=False)


class PixelChange(Protocol):
    """Changes the pixels of rendered frames, differently in each episode. Needs no access to the simulator."""

    def draw(self, random: np.random.Generator) -> np.ndarray:
        """The parameters of an episode: float32, of one shape for all episodes."""
        ...

    def apply(self, frames: Tensor, parameters: Tensor) -> Tensor:
        """New frames of the same shape, uint8 (N, size, size, 3); `parameters` has a row for each frame."""
        ...


@dataclass(frozen=True)
class Shift:
    """A shift: the appearances that its episodes draw from, the clips that replace a background, a change of pixels.

    `video` names a set of clips that `sgqn.envs.backgrounds` can open; `source` says where the appearances come from.
    Clips are shown where the renderer says so, else where the frame is green; `pixels` changes the result.
    """

    name: str
    appearances: Sequence[Appearance] = ()
    video: str | None = None
    source: str = "none"
    pixels: PixelChange | None = None

    def draw(self, seed: int, episode: int) -> int:
        """Index of the episode's appearance: the DMControl Generalization Benchmark's own draw."""
        return int(np.random.RandomState(seed).randint(len(self.appearances), size=episode + 1)[episode])

    def appearance(self, seed: int, episode: int) -> Appearance:
        """How the episode looks."""
        return self.appearances[self.draw(seed, episode)] if self.appearances else Appearance()

    def clip(self, episode: int, num_clips: int) -> int:
        """The benchmark moves to the next clip before it plays: the first episode has clip 1, and clip 0 comes last."""
        return (episode + 1) % num_clips

    def pixel_parameters(self, seed: int, episode: int) -> np.ndarray | None:
        """The parameters of the episode's change of pixels, from a stream that nothing else draws from."""
        if self.pixels is None:
            return None
        return self.pixels.draw(np.random.default_rng([seed, episode, _PIXELS]))


_PIXELS = 0x706978
