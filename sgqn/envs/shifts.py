"""What a shift does to an episode: how the scene looks, which clip plays behind it. Pure functions of (seed, episode).

Episode k of a shift is the same for everyone who uses the same seed, whatever ran before it and however many
environments share the work.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

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


@dataclass(frozen=True)
class Shift:
    """A shift: the appearances that its episodes draw from, and the clips that replace a green screen.

    `video` names a set of clips that `sgqn.envs.backgrounds` can open; `source` says where the appearances come from.
    """

    name: str
    appearances: Sequence[Appearance] = ()
    video: str | None = None
    source: str = "none"

    def draw(self, seed: int, episode: int) -> int:
        """Index of the episode's appearance: the DMControl Generalization Benchmark's own draw."""
        return int(np.random.RandomState(seed).randint(len(self.appearances), size=episode + 1)[episode])

    def appearance(self, seed: int, episode: int) -> Appearance:
        """How the episode looks."""
        return self.appearances[self.draw(seed, episode)] if self.appearances else Appearance()

    def clip(self, episode: int, num_clips: int) -> int:
        """The benchmark moves to the next clip before it plays: the first episode has clip 1, and clip 0 comes last."""
        return (episode + 1) % num_clips
