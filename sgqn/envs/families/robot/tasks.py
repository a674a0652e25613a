"""The robot tasks as simulations. An action moves the end effector of the arm; the goal changes in every episode.

Inverse kinematics turns an action into set-points of the arm's own joint servos. A mocap body welded to the hand would
be simpler, but nothing limits the force of a weld: the servos have torque limits, so contacts stay shallow.
"""

from __future__ import annotations

from typing import Any, ClassVar

import mujoco
import numpy as np

from sgqn.envs.families import Task
from sgqn.envs.families.robot import model as scene
from sgqn.envs.shifts import Shift
from sgqn.envs.simulation import MujocoSimulation

SUBSTEPS = 20
STEP = 0.05
"""Metres from the end effector to the servos' set-point, per unit of action."""
CLOSE = 0.05
"""Metres in the plane of the table within which the disc is reached, or the peg is over the box."""

START, START_SPREAD = np.array([0.24, 0.0]), np.array([0.02, 0.05])
GOAL, GOAL_SPREAD = np.array([0.46, 0.0]), np.array([0.05, 0.10])
LOW, HIGH = np.array([0.20, -0.20]), np.array([0.58, 0.20])
"""Where set-points may be, in the plane of the table."""


class RobotSimulation(MujocoSimulation):
    """An arm whose gripper points down at a table, and a goal on the table."""

    control_seconds = scene.TIMESTEP * SUBSTEPS
    dims: ClassVar[int]
    """Coordinates of the end effector that an action moves."""
    heights: ClassVar[tuple[float, float, float]]
    """Lowest, first and highest position of the fingertips."""

    def __init__(self, task: Task, shift: Shift):
        super().__init__(task, shift, scene.compile_scene(task.name))
        self.action_space = self.box(self.dims)
        self._tcp = mujoco.mj_name2id(self.model, mujoco.mjtObj.mjOBJ_SITE, "arm/link_tcp")
        self._scratch = mujoco.MjData(self.model)
        self.goal = np.zeros(2)
        """Where the goal is, in the plane of the table."""

    def controlled_bodies(self) -> np.ndarray:
        """The arm, what it holds, and the goal: every body but the world."""
        return np.arange(self.model.nbody) > 0

    @property
    def fingertips(self) -> np.ndarray:
        return self.data.site_xpos[self._tcp].copy()

    @property
    def distance(self) -> float:
        """From the end effector to the goal, in the plane of the table."""
        return float(np.linalg.norm(self.fingertips[:2] - self.goal))

    def start(self) -> None:
        random = np.random.default_rng(self.entropy())
        first = START + random.uniform(-START_SPREAD, START_SPREAD)
        self.goal = GOAL + random.uniform(-GOAL_SPREAD, GOAL_SPREAD)
        mujoco.mj_resetData(self.model, self.data)
        self.data.mocap_pos[0, :2] = self.goal
        self.data.qpos[:] = self._solve(np.array(scene.HOME), np.array([*first, self.heights[1]]), iterations=100)
        self.data.ctrl[:] = self.data.qpos
        mujoco.mj_forward(self.model, self.data)

    def control(self, action: Any) -> tuple[float, bool, bool]:
        low, high = np.array([*LOW, self.heights[0]]), np.array([*HIGH, self.heights[2]])
        target = self.fingertips
        target[: self.dims] += STEP * np.asarray(action)
        if self.dims == 2:
            target[2] = self.heights[1]
        self.data.ctrl[:] = self._solve(self.data.qpos, np.clip(target, low, high))
        self.advance(SUBSTEPS)
        return self.reward(float(np.square(action).sum())), False, False

    @property
    def success(self) -> bool:
        raise NotImplementedError

    def reward(self, effort: float) -> float:
        """The reward of the state that an action of this squared norm led to."""
        raise NotImplementedError

    def expert(self) -> np.ndarray:
        """An action that solves the task, from the simulator's state."""
        raise NotImplementedError

    def _solve(self, angles: np.ndarray, target: np.ndarray, iterations: int = 4) -> np.ndarray:
        """Joint angles near `angles` that bring the fingertips to `target`, pointing down: damped least squares."""
        model, data = self.model, self._scratch
        data.qpos[:] = angles
        jacobian, error, turn = np.empty((6, model.nv)), np.empty(6), np.empty(4)
        for _ in range(iterations):
            mujoco.mj_kinematics(model, data)
            mujoco.mj_comPos(model, data)
            mujoco.mj_jacSite(model, data, jacobian[:3], jacobian[3:], self._tcp)
            error[:3] = target - data.site_xpos[self._tcp]
            mujoco.mju_mat2Quat(turn, (_DOWN @ data.site_xmat[self._tcp].reshape(3, 3).T).ravel())
            mujoco.mju_quat2Vel(error[3:], turn, 1.0)
            rest = 0.1 * (scene.HOME - data.qpos)  # there are seven joints for six numbers: stay near the home pose
            inverse = jacobian.T @ np.linalg.inv(jacobian @ jacobian.T + _DAMPING)
            change = rest + inverse @ (error - jacobian @ rest)
            data.qpos[:] = np.clip(data.qpos + change, model.jnt_range[:, 0], model.jnt_range[:, 1])
        return data.qpos.copy()


_DOWN = np.diag([-1.0, 1.0, -1.0])
_DAMPING = 1e-4 * np.eye(6)


class Reach(RobotSimulation):
    """Move the gripper over a red disc on the table."""

    dims = 2
    heights = (0.06, 0.06, 0.06)

    @property
    def success(self) -> bool:
        return self.distance <= CLOSE

    def reward(self, effort: float) -> float:
        return 1.0 if self.success else -3.0 * self.distance - 0.5 * effort

    def expert(self) -> np.ndarray:
        return np.clip((self.goal - self.fingertips[:2]) / STEP, -1.0, 1.0)


class PegInBox(RobotSimulation):
    """Put the peg that the gripper holds into a box that is open at the top."""

    dims = 3
    heights = (0.02 + scene.PEG_TIP, 0.16 + scene.PEG_TIP, 0.18 + scene.PEG_TIP)
    depth = 0.03
    """Height of the target inside the box, for the tip of the peg."""

    @property
    def tip(self) -> np.ndarray:
        """Where the lower end of the peg is."""
        peg = self.data.body("arm/peg")
        return peg.xpos + peg.xmat.reshape(3, 3)[:, 2] * scene.PEG_LENGTH / 2

    @property
    def distance(self) -> float:
        return float(np.linalg.norm(self.tip[:2] - self.goal))

    @property
    def success(self) -> bool:
        """Whether the tip is inside the box."""
        inside = np.abs(self.tip[:2] - self.goal) <= scene.BOX_INSIDE
        return bool(inside.all() and self.tip[2] < scene.BOX_HEIGHT - 0.02)

    def reward(self, effort: float) -> float:
        total = -effort - 4.0 * self.distance
        if self.distance <= CLOSE:
            total += 10.0 - 20.0 * float(np.linalg.norm(self.tip - [*self.goal, self.depth]))
        return total

    def expert(self) -> np.ndarray:
        """Over the box first, then down."""
        above = self.distance <= 0.5 * (scene.BOX_INSIDE - scene.PEG_RADIUS)
        target = np.array([*self.goal, self.depth if above else max(self.tip[2], scene.BOX_HEIGHT + 0.04)])
        return np.clip((target - self.tip) / STEP, -1.0, 1.0)


SIMULATIONS = {"robot-reach": Reach, "robot-peg_in_box": PegInBox}
