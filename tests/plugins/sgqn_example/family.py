"""A small MuJoCo scene of its own: slide a red block onto a green mark."""

import mujoco
import numpy as np

import sgqn
from sgqn.envs import Appearance, Defaults, Family, MujocoSimulation, Shift

SCENE = """
<mujoco>
  <asset>
    <material name="table" rgba=".5 .4 .3 1"/>
    <material name="block" rgba=".9 .1 .1 1"/>
  </asset>
  <worldbody>
    <light pos="0 -1 3" dir="0 .3 -1"/>
    <camera name="front" pos="0 -1.6 .8" xyaxes="1 0 0 0 .45 .9"/>
    <geom type="plane" size="2 2 .1" material="table"/>
    <geom name="mark" type="box" size=".08 .3 .005" pos=".4 0 0" rgba="0 .6 0 1" contype="0" conaffinity="0"/>
    <body pos="0 0 .1">
      <joint name="slide" type="slide" axis="1 0 0" damping="2"/>
      <geom type="box" size=".1 .1 .1" mass="1" material="block"/>
    </body>
  </worldbody>
  <actuator><motor joint="slide" gear="4"/></actuator>
</mujoco>
"""
DARK = Appearance("tabletop-dark", {"table": (0.1, 0.1, 0.25), "block": (0.9, 0.6, 0.1)})


class Tabletop(Family):
    name = "tabletop"
    tasks = ("tabletop-slide",)
    shift_texts = {"train": "the scene as it is", "dark": "a dark table and an orange block"}

    def defaults(self, task):
        returns = (0.0, 60.0)
        return Defaults(action_repeat=3, control_steps=60, frame_stack=2, camera="front", rho=0.9, returns=returns)

    def shift(self, task, name):
        return Shift(name, [DARK], source="one setting") if name == "dark" else Shift(name)

    def load(self, task, shift):
        return Slide(task, shift)


class Slide(MujocoSimulation):
    control_seconds = 0.02

    def __init__(self, task, shift):
        spec = mujoco.MjSpec.from_string(SCENE)
        super().__init__(task, shift, spec.compile(), spec=spec)
        self.action_space = self.box(1)

    def start(self):
        mujoco.mj_resetData(self.model, self.data)
        self.data.qpos[0] = np.random.default_rng(self.entropy()).uniform(-0.6, 0.2)
        mujoco.mj_forward(self.model, self.data)

    def control(self, action):
        self.data.ctrl[0] = action[0]
        self.advance(10)
        distance = abs(float(self.data.qpos[0]) - 0.4)
        return float(np.exp(-5 * distance)), False, False


sgqn.register_family(Tabletop())
