"""Two families as a user would write them: a MuJoCo scene with discrete actions, and tasks that draw themselves."""

from __future__ import annotations

from typing import Any

import mujoco
import numpy as np
from gymnasium import spaces

from sgqn.envs import Appearance, Defaults, Family, MujocoSimulation, Renderer, Shift, Simulation, Task, register_family

GREEN = (0.2, 0.8, 0.2)
SCENE = """
<mujoco>
  <asset>
    <texture name="wood" type="2d" builtin="checker" rgb1=".5 .3 .1" rgb2=".6 .4 .2" width="32" height="32"/>
    <material name="table" texture="wood" texrepeat="4 4"/>
    <material name="puck" rgba=".9 .1 .1 1"/>
    <material name="wall" rgba=".6 .6 .7 1"/>
  </asset>
  <worldbody>
    <light pos="0 -1 3" dir="0 .3 -1"/>
    <camera name="top" pos="0 0 2"/>
    <camera name="front" pos="0 -1.6 .8" xyaxes="1 0 0 0 .45 .9"/>
    <geom name="table" type="plane" size="2 2 .1" material="table"/>
    <geom type="box" size="2 .05 2" pos="0 .5 0" material="wall"/>
    <site name="goal" pos=".7 0 .02" size=".05" rgba="0 0 1 1"/>
    <body pos="0 0 .1">
      <joint name="slide" type="slide" axis="1 0 0" damping=".5"/>
      <geom type="sphere" size=".1" mass="1" material="puck"/>
    </body>
  </worldbody>
  <actuator><motor joint="slide" gear="4"/></actuator>
</mujoco>
"""


class Push(Family):
    """A puck to push to the right, with three actions: left, nothing, right."""

    name = "push"
    tasks = ("push-right",)
    shift_texts = {  # noqa: RUF012
        "train": "the scene as it is",
        "other": "another colour of the puck, another table",
        "video": "a video in place of the wall",
    }

    def defaults(self, task: str) -> Defaults:
        return Defaults(action_repeat=2, control_steps=40, frame_stack=2, camera="front", evaluate_shifts=("other",))

    def shift(self, task: str, name: str) -> Shift:
        if name == "other":
            look = Appearance("push-other", {"puck": (0.1, 0.9, 0.9)}, {"wood": _stripes})
            return Shift(name, [look], source="stripes")
        if name == "video":
            return Shift(name, [Appearance("push-video", {"wall": GREEN})], video="video_easy")
        return Shift(name)

    def load(self, task: Task, shift: Shift) -> PushSimulation:
        return PushSimulation(task, shift)


def _stripes() -> np.ndarray:
    stripes = np.zeros((32, 32, 3), np.uint8)
    stripes[:16] = 60, 60, 160
    return stripes


class PushSimulation(MujocoSimulation):
    action_space = spaces.Discrete(3)
    control_seconds = 0.02

    def __init__(self, task: Task, shift: Shift):
        spec = mujoco.MjSpec.from_string(SCENE)
        super().__init__(task, shift, spec.compile(), spec=spec)

    def start(self) -> None:
        mujoco.mj_resetData(self.model, self.data)
        self.data.qpos[0] = np.random.default_rng(self.entropy()).uniform(-0.5, 0.5)
        mujoco.mj_forward(self.model, self.data)

    def control(self, action: Any) -> tuple[float, bool, bool]:
        self.data.ctrl[0] = action - 1
        self.advance(10)
        place = float(self.data.qpos[0])
        return -abs(place - 0.7), abs(place) > 1, False


class Dots(Family):
    """Open-ended: `dots:5` is a dot on a row of five places; an action says by how much it moves."""

    name = "dots"
    shift_texts = {"train": "black", "grey": "a grey background"}  # noqa: RUF012

    def has(self, task: str) -> bool:
        return task.startswith("dots:") and task[5:].isdigit()

    def defaults(self, task: str) -> Defaults:
        return Defaults(control_steps=6)

    def renderers(self, task: str) -> tuple[str, ...]:
        return ("own",)

    def load(self, task: Task, shift: Shift) -> DotsSimulation:
        return DotsSimulation(task, shift)


class DotsSimulation(Simulation):
    def __init__(self, task: Task, shift: Shift):
        super().__init__(task, shift)
        self.count = int(task.name[5:])
        self.action_space = self.box(1)
        self.place = 0

    def start(self) -> None:
        self.place = int(self.entropy()[0]) % self.count

    def control(self, action: Any) -> tuple[float, bool, bool]:
        self.place = (self.place + round(float(action[0]))) % self.count
        return float(self.place == 0), False, False

    def state(self) -> dict[str, Any]:
        return {**super().state(), "place": self.place}

    def restore(self, state: dict[str, Any]) -> None:
        super().restore(state)
        self.place = state["place"]

    def make_renderer(self, size: int) -> Renderer:
        return DotsRenderer(self, size)


class DotsRenderer(Renderer):
    def __init__(self, simulation: DotsSimulation, size: int):
        self._simulation, self._size = simulation, size

    def frame(self) -> np.ndarray:
        frame = np.full((self._size, self._size, 3), 128 if self._simulation.shift.name == "grey" else 0, np.uint8)
        frame[:, self._simulation.place * self._size // self._simulation.count] = 255
        return frame


register_family(Push())
register_family(Dots())
