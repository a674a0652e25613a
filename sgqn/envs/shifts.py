"""What a shift does to an episode: which colours, which clip. Pure functions of (seed, episode).

Episode k of a shift is the same for everyone who uses the same seed, whatever ran before it and however many
environments share the work.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, field
from xml.etree import ElementTree

import numpy as np

from sgqn import data
from sgqn.envs.suite import suite

Color = tuple[float, float, float]
Colors = dict[str, Color]

KEY_COLOR: Color = (0.2, 0.8, 0.2)
"""The green that the benchmark paints over what a video replaces."""

# Texture attribute that each colour of a setting stands for: (texture, attribute).
_TEXTURE_COLORS = {
    "grid_rgb1": ("grid", "rgb1"),
    "grid_rgb2": ("grid", "rgb2"),
    "grid_markrgb": ("grid", "markrgb"),
    "skybox_rgb": ("skybox", "rgb1"),
    "skybox_rgb2": ("skybox", "rgb2"),
    "skybox_markrgb": ("skybox", "markrgb"),
}
_SKY = dict.fromkeys(("skybox_rgb", "skybox_rgb2", "skybox_markrgb"), KEY_COLOR)
_FLOOR = dict.fromkeys(("grid_rgb1", "grid_rgb2", "grid_markrgb"), KEY_COLOR)
NUM_GENERATED_COLORS = 100


@dataclass(frozen=True)
class Shift:
    """One shift of the benchmark: the colour settings it draws from, or the green screen it needs."""

    name: str
    settings: list[Colors] = field(default_factory=list)
    screen: Colors = field(default_factory=dict)
    source: str = "none"

    @property
    def is_video(self) -> bool:
        return bool(self.screen)

    def color_index(self, seed: int, episode: int) -> int | None:
        """Index of the episode's colour setting: the benchmark's own draw of episode `episode`."""
        if not self.settings:
            return None
        return int(np.random.RandomState(seed).randint(len(self.settings), size=episode + 1)[episode])

    def colors(self, seed: int, episode: int) -> Colors:
        """Colours of the episode: empty where the shift leaves the model as it is."""
        index = self.color_index(seed, episode)
        return self.screen if index is None else self.settings[index]

    @staticmethod
    def clip(episode: int, num_clips: int) -> int:
        """The benchmark moves on before it plays: the first episode has clip 1, and clip 0 comes last."""
        return (episode + 1) % num_clips


@functools.cache
def find_shift(name: str) -> Shift:
    """The shift called `name`, with the data directory's colour settings or generated ones."""
    if name.startswith("color"):
        file = data.color_settings_file(name)
        if file is None:
            return Shift(name, settings=_generated_colors(name), source="generated")
        settings = data.load_colors(file)
        return Shift(name, settings=settings, source=f"dmcgb:{name} ({len(settings)} settings)")
    if name == "video_easy":
        return Shift(name, screen=_SKY)
    if name == "video_hard":
        return Shift(name, screen=_SKY | _FLOOR)
    return Shift(name)


def _generated_colors(name: str) -> list[Colors]:
    """Stand-ins for the benchmark's settings: dm_control's own colours with Gaussian noise."""
    spread = {"color_easy": 0.1, "color_hard": 0.18}[name]
    random = np.random.RandomState({"color_easy": 1, "color_hard": 2}[name])
    settings: list[Colors] = []
    for _ in range(NUM_GENERATED_COLORS):
        grid, body, sky = (
            np.clip(np.array(base) + random.normal(0, spread, 3), 0, 1)
            for base in ((0.1, 0.2, 0.3), (0.7, 0.5, 0.3), (0.4, 0.6, 0.8))
        )
        grid = np.minimum(grid, 0.9)
        named = {"grid_rgb1": grid, "grid_rgb2": grid + 0.1, "self_rgb": body, "skybox_rgb": sky}
        settings.append({key: (float(c[0]), float(c[1]), float(c[2])) for key, c in named.items()})
    return settings


def textures(colors: Colors) -> dict[str, np.ndarray]:
    """The textures that `colors` change, as uint8 (height, width, 3), made by MuJoCo's own generator."""
    changed = {_TEXTURE_COLORS[name][0] for name in colors if name in _TEXTURE_COLORS}
    return {name: _texture(name, tuple(sorted(colors.items()))) for name in sorted(changed)}


@functools.lru_cache(maxsize=4)
def _texture(texture: str, colors: tuple[tuple[str, Color], ...]) -> np.ndarray:
    import mujoco

    element = ElementTree.fromstring(_definition(texture))
    for name, color in colors:
        owner, attribute = _TEXTURE_COLORS.get(name, ("", ""))
        if owner == texture:
            element.set(attribute, " ".join(map(str, color)))
    xml = f"<mujoco><asset>{ElementTree.tostring(element, encoding='unicode')}</asset><worldbody/></mujoco>"
    model = mujoco.MjModel.from_xml_string(xml)
    shape = (model.tex_height[0], model.tex_width[0], model.tex_nchannel[0])
    pixels = np.array(model.tex_data[: int(np.prod(shape))]).reshape(shape)
    pixels.flags.writeable = False
    return pixels


def _definition(texture: str) -> str:
    """The XML element by which dm_control's suite defines a texture."""
    suite()
    from dm_control.suite import common

    file = {"grid": "./common/materials.xml", "skybox": "./common/skybox.xml"}[texture]
    text = common.ASSETS[file]
    text = text.decode() if isinstance(text, bytes) else text
    found = re.search(rf'<texture\s+name="{texture}".*?/>', text, re.DOTALL)
    assert found, f"dm_control has no texture {texture!r}"
    return found.group(0)
