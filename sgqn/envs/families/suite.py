"""The dm_control suite with the shifts of the DMControl Generalization Benchmark. A task is called `domain-task`.

The tasks are written out so that listing them is fast; a test compares the list with `suite.ALL_TASKS`.
"""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import re
import tempfile
import threading
import warnings
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import numpy as np

from sgqn import data
from sgqn.envs.families import Defaults, Family, Task, register_family
from sgqn.envs.shifts import Appearance, Color, Shift
from sgqn.envs.simulation import MujocoSimulation

if TYPE_CHECKING:
    import mujoco

TASKS = {
    "acrobot": ("swingup", "swingup_sparse"),
    "ball_in_cup": ("catch",),
    "cartpole": ("balance", "balance_sparse", "swingup", "swingup_sparse", "two_poles", "three_poles"),
    "cheetah": ("run",),
    "dog": ("stand", "walk", "trot", "run", "fetch"),
    "finger": ("spin", "turn_easy", "turn_hard"),
    "fish": ("upright", "swim"),
    "hopper": ("stand", "hop"),
    "humanoid": ("stand", "walk", "run", "run_pure_state"),
    "humanoid_CMU": ("stand", "walk", "run"),
    "lqr": ("lqr_2_1", "lqr_6_2"),
    "manipulator": ("bring_ball", "bring_peg", "insert_ball", "insert_peg"),
    "pendulum": ("swingup",),
    "point_mass": ("easy", "hard"),
    "quadruped": ("walk", "run", "escape", "fetch"),
    "reacher": ("easy", "hard"),
    "stacker": ("stack_2", "stack_4"),
    "swimmer": ("swimmer6", "swimmer15"),
    "walker": ("stand", "walk", "run"),
}
ACTION_REPEAT = {"cartpole": 8, "finger": 2}  # elsewhere 4
RHO = {"cartpole": 0.98, "ball_in_cup": 0.98}  # elsewhere 0.95
SETTINGS: dict[str, dict[str, Any]] = {
    # With the paper's 1e-4, SGQN stays in a local optimum at 620 of 1000.
    "finger-spin": {"temperature_learning_rate": 1e-3},
}

Colors = dict[str, Color]

KEY_COLOR: Color = (0.2, 0.8, 0.2)
"""The green of areas that the benchmark replaces by a video."""

# Texture and attribute of the suite's XML that each colour of a setting replaces; `self_rgb` is a material's.
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
SCREENS: dict[str, Colors] = {"video_easy": _SKY, "video_hard": _SKY | _FLOOR}
SPREADS = {"color_easy": 0.1, "color_hard": 0.18}  # of generated colours
NUM_GENERATED_COLORS = 100


class Suite(Family):
    name = "suite"
    order = 0
    packages = ("mujoco", "dm_control", "mujoco-warp", "warp-lang")
    tasks = tuple(f"{domain}-{task}" for domain, tasks in TASKS.items() for task in tasks)
    shift_texts = {  # noqa: RUF012
        "train": "the scene as it is",
        "color_easy": "other colours of body, floor and sky",
        "color_hard": "very different colours of body, floor and sky",
        "video_easy": "a video in place of the sky",
        "video_hard": "a video in place of the sky and the floor",
    }

    def defaults(self, task: str) -> Defaults:
        domain = task.partition("-")[0]
        return Defaults(
            action_repeat=ACTION_REPEAT.get(domain, 4),
            control_steps=1000,
            rho=RHO.get(domain, 0.95),
            settings=SETTINGS.get(task, {}),
            evaluate_shifts=("train", "video_easy", "video_hard"),
            test_shifts=("train", "color_hard", "video_easy", "video_hard"),
            returns=(0.0, 1000.0),
        )

    def shift(self, task: str, name: str) -> Shift:
        return find_shift(name)

    def load(self, task: Task, shift: Shift) -> SuiteSimulation:
        return SuiteSimulation(task, shift)


@functools.cache
def suite() -> Any:
    """The module `dm_control.suite`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # GLFW complains where there is no display
        from dm_control import suite as module
    logging.getLogger("absl").setLevel(logging.ERROR)  # deprecations inside dm_control's own models
    return module


_LOADING = threading.Lock()  # MuJoCo remembers one last XML per process


class SuiteSimulation(MujocoSimulation):
    """A task with dm_control's own physics and rewards."""

    def __init__(self, task: Task, shift: Shift):
        domain, _, name = task.name.partition("-")
        with _LOADING:
            self.env = suite().load(domain, name, task_kwargs={"random": 0})  # lqr draws its model there
            super().__init__(task, shift, self.env.physics.model.ptr, self.env.physics.data.ptr)
            self._xml = _last_xml(self.model) if self.scene.num_extras else ""
        spec = self.env.action_spec()
        self._low, self._range = np.asarray(spec.minimum), np.asarray(spec.maximum) - np.asarray(spec.minimum)
        self.action_space = self.box(int(np.prod(spec.shape)))
        self.control_seconds = float(self.env.control_timestep())

    def start(self) -> None:
        # dm_control's tasks hold a legacy RandomState: give it a stream of its own for each episode.
        self.env.task.random.seed(self.entropy())
        physics = self.env.physics
        kept, physics._contexts = physics._contexts, _NoContexts()
        self.env.reset()
        physics._contexts = kept

    def control(self, action: Any) -> tuple[float, bool, bool]:
        timestep = self.env.step(self._low + (action + 1.0) * 0.5 * self._range)
        terminated = timestep.last() and timestep.discount == 0.0
        return timestep.reward or 0.0, terminated, timestep.last() and not terminated

    def make_spec(self) -> mujoco.MjSpec:
        import mujoco

        return mujoco.MjSpec.from_string(self._xml)

    def state(self) -> dict[str, Any]:
        _, keys, position, has_gauss, gauss = self.env.task.random.get_state()
        return {
            **super().state(),
            "random_keys": np.asarray(keys),
            "random_position": int(position),
            "random_has_gauss": int(has_gauss),
            "random_gauss": float(gauss),
        }

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        self.env._step_count = self.steps
        self.env.task.random.set_state(
            (
                "MT19937",
                np.asarray(state["random_keys"], dtype=np.uint32),
                int(state["random_position"]),
                int(state["random_has_gauss"]),
                float(state["random_gauss"]),
            )
        )

    def close(self) -> None:
        self.env.close()
        self.env.physics.free()


class _NoContexts:
    """In place of dm_control's OpenGL contexts, to which quadruped-escape would send its terrain."""

    ptr = None

    def __init__(self) -> None:
        self.gl = self.mujoco = self

    def make_current(self) -> contextlib.nullcontext[_NoContexts]:
        return contextlib.nullcontext(self)

    def call(self, *_: Any) -> None:
        pass


def _last_xml(model: mujoco.MjModel) -> str:
    """The XML of the model that was loaded last, with all includes resolved."""
    import mujoco

    handle, path = tempfile.mkstemp(suffix=".xml")
    os.close(handle)
    try:
        mujoco.mj_saveLastXML(path, model)
        with open(path, encoding="utf-8") as file:
            return file.read()
    finally:
        os.unlink(path)


@functools.cache
def find_shift(name: str) -> Shift:
    """The shift called `name`, with the data directory's colour settings or generated ones."""
    if name in SCREENS:
        return Shift(name, [appearance(SCREENS[name])], video=name)
    if name not in SPREADS:
        return Shift(name)
    file = data.color_settings_file(name)
    if file is None:
        return Shift(name, [appearance(colors) for colors in generated_colors(name)], source="generated")
    settings = [appearance(colors) for colors in data.load_colors(file)]
    return Shift(name, settings, source=f"dmcgb:{name} ({len(settings)} settings)")


def appearance(colors: Colors) -> Appearance:
    """A colour setting of the benchmark as an appearance; its textures are made by MuJoCo's own generator."""
    items = tuple(sorted(colors.items()))
    changed = sorted({_TEXTURE_COLORS[name][0] for name in colors if name in _TEXTURE_COLORS})
    return Appearance(
        key=("suite", items),
        materials={"self": colors["self_rgb"]} if "self_rgb" in colors else {},
        textures={name: functools.partial(_texture, name, items) for name in changed},
    )


def generated_colors(name: str) -> list[Colors]:
    """Generated colour settings: dm_control's own colours with Gaussian noise."""
    spread = SPREADS[name]
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


register_family(Suite())
