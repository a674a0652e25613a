"""Any Gymnasium environment with pixels: `gym:<id>`, with an id as in `gymnasium.make`.

Pixels are the observations if these are images, else `render_mode="rgb_array"`. The environment needs only Gymnasium's
interface; `info["background_mask"]` adds a video shift and ground-truth masks.
"""

from __future__ import annotations

import difflib
import functools
import logging
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
from gymnasium import spaces

from sgqn import plugins
from sgqn.envs.families import Defaults, Family, Task, register_family
from sgqn.envs.filters import COLOR_JITTER, RANDOM_CONV
from sgqn.envs.shifts import Shift
from sgqn.envs.simulation import Renderer, Simulation
from sgqn.errors import InvalidValueError, SgqnError, UnknownNameError

if TYPE_CHECKING:
    from gymnasium.envs.registration import EnvSpec

log = logging.getLogger("sgqn")

PREFIX = "gym:"
RENDERER = "own"
CONTROL_STEPS = 1000
"""Steps in an episode of environments that declare no limit."""
MIN_SIZE = 16
"""Observations with fewer rows or columns are not treated as images."""
BACKGROUND, FOREGROUND = "background_mask", "foreground_mask"
SUCCESS = ("is_success", "success")
PACKAGES = {
    "ALE/": ("ale_py", "pip install 'sgqn[atari]'"),
    "MiniGrid-": ("minigrid", "pip install minigrid"),
    "BabyAI-": ("minigrid", "pip install minigrid"),
}
"""Prefixes of ids that a package registers on import, its module, and how to install it."""
PIXEL_CHANGES = {"color_jitter": COLOR_JITTER, "random_conv": RANDOM_CONV}
VIDEO = "video_hard"


class Gym(Family):
    name = "gym"
    open_tasks = "gym:<id> for any Gymnasium environment with pixels"
    packages = ("gymnasium", "ale-py")
    shift_texts = {  # noqa: RUF012
        "train": "the scene as it is",
        "color_jitter": "another brightness, contrast, saturation and hue",
        "random_conv": "a random convolution of the colours",
        VIDEO: "a video in place of the background, where the environment gives a mask of it",
    }

    def has(self, task: str) -> bool:
        return task.startswith(PREFIX) and task != PREFIX

    def shifts(self, task: str) -> tuple[str, ...]:
        return tuple(name for name in self.shift_texts if name != VIDEO or look_into(task).background)

    def defaults(self, task: str) -> Defaults:
        spec = find_spec(task)
        atari = "frameskip" in spec.kwargs
        return Defaults(
            action_repeat=4 if atari else 1,
            control_steps=spec.max_episode_steps or spec.kwargs.get("max_num_frames_per_episode") or CONTROL_STEPS,
            frame_stack=4 if atari else 3,
            evaluate_shifts=("train", *PIXEL_CHANGES),
        )

    def renderers(self, task: str) -> tuple[str, ...]:
        return (RENDERER,)

    def has_masks(self, task: str) -> bool:
        return look_into(task).masks

    def modules(self, task: str) -> tuple[str, ...]:
        """The module of the environment, where the id does not say which one registers it."""
        spec = find_spec(task)
        known = ":" in _id(task) or spec.id.startswith(tuple(PACKAGES))
        entry = spec.entry_point
        module = entry.partition(":")[0] if isinstance(entry, str) else getattr(entry, "__module__", "")
        return () if known or not module or module.partition(".")[0] in ("gymnasium", "sgqn") else (module,)

    def shift(self, task: str, name: str) -> Shift:
        return Shift(name, video=VIDEO if name == VIDEO else None, pixels=PIXEL_CHANGES.get(name))

    def load(self, task: Task, shift: Shift) -> GymSimulation:
        return GymSimulation(task, shift)


class GymSimulation(Simulation):
    """A Gymnasium environment as a simulation.

    Environments cannot save their state. A state has the actions of the episode, and `restore` replays them.
    """

    has_screen = True

    def __init__(self, task: Task, shift: Shift):
        super().__init__(task, shift)
        self._shows = shows_images(task.name)
        self.env = make_env(task.name, draw=not self._shows)
        self.action_space = _action_space(task.name, self.env.action_space)
        self.control_seconds = 1 / float(self.env.metadata.get("render_fps") or 10)
        # Atari draws some objects in every other frame only.
        self._flickers = self._shows and "frameskip" in find_spec(task.name).kwargs and task.action_repeat > 1
        self.info: dict[str, Any] = {}
        self._seen: Any = None  # the newest observation
        self._before: Any = None
        self._image: np.ndarray | None = None
        self._actions: list[Any] = []
        self._total = 0.0

    def start(self) -> None:
        seed = int(self.entropy()[0]) & 0x7FFFFFFF  # all that some environments take
        self._seen, self.info = self.env.reset(seed=seed)
        self._before, self._image = self._seen, None
        self._actions, self._total = [], 0.0

    def step(self, action: Any) -> tuple[float, bool, bool]:
        self._actions.append(np.array(action))
        return super().step(action)

    def control(self, action: Any) -> tuple[float, bool, bool]:
        self._before, self._image = self._seen, None
        self._seen, reward, terminated, truncated, self.info = self.env.step(_translate(action, self.env.action_space))
        self._total += float(reward)
        return float(reward), bool(terminated), bool(truncated)

    @property
    def success(self) -> bool | None:
        name = look_into(self.task.name).success
        return None if name is None else bool(np.all(self.info.get(name, False)))

    def image(self) -> np.ndarray:
        """The current image, uint8 (height, width, 3)."""
        if self._image is None:
            self._image = self._look()
        return self._image

    def _look(self) -> np.ndarray:
        try:
            image = np.asarray(self._seen if self._shows else self.env.render())
        except gymnasium.error.Error as error:  # a package for drawing that is missing
            raise SgqnError(f"{self.task.name} cannot be rendered: {error}") from error
        if self._flickers:
            image = np.maximum(image, self._before)
        if image.ndim == 2 or (image.ndim == 3 and image.shape[2] == 1):
            image = np.repeat(image.reshape(*image.shape[:2], 1), 3, axis=2)
        if image.ndim != 3 or image.shape[2] != 3 or image.dtype != np.uint8:
            raise SgqnError(f"{self.task.name} shows {image.dtype} {image.shape}: images are uint8 (height, width, 3)")
        return image

    def masks(self) -> dict[str, np.ndarray]:
        """The masks of `image` in `info`, by name: bool (height, width)."""
        found = {name: np.asarray(self.info[name]) for name in (BACKGROUND, FOREGROUND) if name in self.info}
        for name, mask in found.items():
            expected = self.image().shape[:2]
            if mask.dtype != np.bool_ or mask.shape != expected:
                raise SgqnError(f"{self.task.name}: {name} is {mask.dtype} {mask.shape}, not bool {expected}")
        return found

    def make_renderer(self, size: int) -> GymRenderer:
        return GymRenderer(self, size)

    def make_view(self, size: tuple[int, int], camera: int | str | None) -> GymRenderer:
        if camera is not None:
            raise InvalidValueError(f"{self.task.name} has no camera {camera!r}: its environment chooses the view")
        return GymRenderer(self, size)

    def state(self) -> dict[str, Any]:
        return {**super().state(), "actions": np.array(self._actions), "total": self._total}

    def restore(self, state: dict[str, Any]) -> None:
        self.reset(int(state["episode"]), int(state["seed"]))
        over = False
        for action in state["actions"]:
            if over:
                break
            _, terminated, truncated = self.step(np.asarray(action))
            over = terminated or truncated
        if over or (self.steps, self._total) != (int(state["steps"]), float(state["total"])):
            log.warning("%s did not reproduce an episode: the run continues, but is not bitwise equal", self.task.name)

    def close(self) -> None:
        self.env.close()


class GymRenderer(Renderer):
    """Resizes the environment's image."""

    def __init__(self, simulation: GymSimulation, size: int | tuple[int, int]):
        self._simulation, self._size = simulation, (size, size) if isinstance(size, int) else size

    def frame(self) -> np.ndarray:
        return resize(self._simulation.image(), self._size)

    def screen(self) -> np.ndarray:
        found = self._simulation.masks()
        if BACKGROUND not in found:
            raise SgqnError(f"{self._simulation.task.name} has no info[{BACKGROUND!r}], which {VIDEO} needs")
        return self._resized(found[BACKGROUND])

    def mask(self) -> np.ndarray:
        found = self._simulation.masks()
        if not found:
            return super().mask()
        return self._resized(found[FOREGROUND] if FOREGROUND in found else ~found[BACKGROUND])

    def _resized(self, mask: np.ndarray) -> np.ndarray:
        """The mask at the centres of the frame's pixels."""
        sides = zip(self._size, mask.shape, strict=True)
        rows, columns = (((np.arange(new) + 0.5) * old / new).astype(int) for new, old in sides)
        return mask[np.ix_(rows, columns)]


def resize(image: np.ndarray, size: int | tuple[int, int]) -> np.ndarray:
    """uint8 (height, width, 3) -> (*size, 3), an array of its own: averaged where it shrinks, else bilinear."""
    height, width = (size, size) if isinstance(size, int) else size
    if image.shape[:2] == (height, width):
        return image.copy()
    from PIL import Image

    shrinks = image.shape[0] >= height and image.shape[1] >= width
    how = Image.Resampling.BOX if shrinks else Image.Resampling.BILINEAR
    return np.array(Image.fromarray(image).resize((width, height), how))


@dataclass(frozen=True)
class Facts:
    """Properties of an environment that its registration does not declare."""

    background: bool
    masks: bool
    success: str | None


@functools.cache
def look_into(task: str) -> Facts:
    """Run two steps of an environment, once per process; raise an error if it cannot be a task."""
    played = [_play(task) for _ in range(2)]
    (image, total, info), (image_again, total_again, _) = played
    if total != total_again or not np.array_equal(image, image_again) or find_spec(task).nondeterministic:
        log.warning("%s does not reproduce episodes of a seed: results vary, and a resumed run differs", task)
    success = next((name for name in SUCCESS if name in info), None)
    return Facts(BACKGROUND in info, BACKGROUND in info or FOREGROUND in info, success)


def _play(task: str) -> tuple[np.ndarray, float, dict[str, Any]]:
    simulation = GymSimulation(Task(task, _family, 1, _family.defaults(task)), Shift("train"))
    try:
        simulation.reset(0)
        info = simulation.info
        simulation.action_space.seed(0)
        total, _, _ = simulation.step(simulation.action_space.sample())
        simulation.masks()
        return simulation.image(), total, {**info, **simulation.info}
    finally:
        simulation.close()


@functools.cache
def shows_images(task: str) -> bool:
    """Whether the observations are images; an environment without pixels is an error."""
    env = make_env(task, draw=False)
    try:
        if _is_image(env.observation_space):
            return True
        if "rgb_array" in (env.metadata.get("render_modes") or ()):
            return False
        raise InvalidValueError(
            f"{task} has no pixels: its observations are {_short(env.observation_space)}, "
            'and it has no render mode "rgb_array"'
        )
    finally:
        env.close()


def _is_image(space: spaces.Space[Any]) -> bool:
    if not isinstance(space, spaces.Box) or space.dtype != np.uint8 or len(space.shape) not in (2, 3):
        return False
    return space.shape[2:] in ((), (1,), (3,)) and min(space.shape[:2]) >= MIN_SIZE


def make_env(task: str, draw: bool) -> gymnasium.Env[Any, Any]:
    """The environment of a task; `draw`: with `render_mode="rgb_array"`."""
    spec = find_spec(task)
    options: dict[str, Any] = {"render_mode": "rgb_array"} if draw else {}
    if "frameskip" in spec.kwargs:
        options["frameskip"] = 1  # the action repeat is ours
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # ignore warnings about newer versions
            return gymnasium.make(spec, disable_env_checker=True, **options)
    except Exception as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        raise SgqnError(f"{task} cannot be created: {reason}") from error


def find_spec(task: str) -> EnvSpec:
    """The Gymnasium spec of a task; imports the module that registers it."""
    module, _, name = _id(task).rpartition(":")
    if module:
        plugins.import_module(module, f"the module of {task!r}")
    for start, (package, how) in PACKAGES.items():
        if name.startswith(start) and name not in gymnasium.registry:
            try:
                __import__(package)
            except ImportError as error:
                raise SgqnError(f"{task!r} needs {package} ({error}): {how}") from error
    if name not in gymnasium.registry:
        raise _unknown(name, list(gymnasium.registry))
    return gymnasium.registry[name]


def _unknown(name: str, known: Sequence[str]) -> SgqnError:
    stem = name.rpartition("-v")[0] or name
    near = [one for one in known if one.rpartition("-v")[0] == stem] or difflib.get_close_matches(name, known, n=3)
    if near:
        return UnknownNameError("Gymnasium environment", name, near)
    return InvalidValueError(
        f"unknown Gymnasium environment {name!r}: name the module that registers it, as in {PREFIX}my_module:{name}"
    )


def _id(task: str) -> str:
    return task.removeprefix(PREFIX)


def _action_space(task: str, space: spaces.Space[Any]) -> spaces.Box | spaces.Discrete:
    """The action space of agents: integers from 0, or numbers in [-1, 1]."""
    if isinstance(space, spaces.Discrete):
        return spaces.Discrete(int(space.n))
    if isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating) and space.is_bounded():
        return Simulation.box(int(np.prod(space.shape)))
    raise InvalidValueError(
        f"{task} takes actions {_short(space)}; supported are Discrete and bounded Box spaces of floats: "
        "register the environment with a wrapper that changes them"
    )


def _translate(action: Any, space: spaces.Space[Any]) -> Any:
    """An agent's action in the environment's format."""
    if isinstance(space, spaces.Discrete):
        return space.start + action
    assert isinstance(space, spaces.Box)
    scaled = np.reshape((np.asarray(action, dtype=np.float64) + 1) / 2, space.shape)
    low, high = space.low.astype(np.float64), space.high.astype(np.float64)
    return np.clip(low + scaled * (high - low), low, high).astype(space.dtype)


def _short(space: object) -> str:
    text = " ".join(str(space).split())
    return text if len(text) < 80 else text[:77] + "..."


if "sgqn/Catch-v0" not in gymnasium.registry:
    gymnasium.register("sgqn/Catch-v0", "sgqn.envs.toy:Catch", max_episode_steps=100)
_family = Gym()
register_family(_family)
