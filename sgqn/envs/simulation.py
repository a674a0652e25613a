"""One dm_control task without pixels: physics and rewards are dm_control's own, the scene is left to a renderer."""

from __future__ import annotations

import os
import tempfile
import threading
from typing import Any

import mujoco
import numpy as np

from sgqn.envs import shifts
from sgqn.envs.scene import SceneLayout
from sgqn.envs.suite import suite
from sgqn.envs.tasks import CONTROL_STEPS, Task
from sgqn.errors import InvalidValueError

_LOADING = threading.Lock()  # MuJoCo remembers one last XML per process
_STATE = mujoco.mjtState.mjSTATE_INTEGRATION


class Simulation:
    """A task under a shift: `reset` to an episode, `step` with an action, read the scene.

    Episode k depends on (seed, k) alone, so that any number of simulations can share the episodes of one seed.
    """

    def __init__(self, task: Task, shift: shifts.Shift, seed: int = 0, paint: bool = True):
        self.task = task
        self.shift = shift
        self.seed = seed
        self.episode = -1
        self.steps = 0  # control steps of this episode
        self.painted: tuple[str, ...] = ()  # textures that the last reset changed
        self._paint = paint
        with _LOADING:
            self.env = suite().load(task.domain, task.task, task_kwargs={"random": seed})
            self.scene = SceneLayout(self.model)
            self.xml = _last_xml(self.model) if self.scene.num_extras else ""
        spec = self.env.action_spec()
        self._low, self._high = np.asarray(spec.minimum), np.asarray(spec.maximum)
        self.action_dim: int = int(np.prod(spec.shape))

    @property
    def physics(self) -> Any:
        return self.env.physics

    @property
    def model(self) -> mujoco.MjModel:
        return self.env.physics.model.ptr

    @property
    def data(self) -> mujoco.MjData:
        return self.env.physics.data.ptr

    @property
    def agent_step_seconds(self) -> float:
        return float(self.env.control_timestep()) * self.task.action_repeat

    def reset(self, episode: int, seed: int | None = None) -> None:
        """Start episode `episode` of the seed."""
        if seed is not None:
            self.seed = seed
        self.episode = episode
        self.steps = 0
        # dm_control's tasks hold a legacy RandomState: give it a stream of its own for each episode.
        entropy = np.random.SeedSequence([self.seed, episode]).generate_state(4)
        self.env.task.random.seed(entropy)
        self._apply_colors()
        self.env.reset()

    def step(self, action: np.ndarray) -> tuple[float, bool, bool]:
        """Repeat `action` (in [-1, 1]); returns the summed reward, terminated, truncated."""
        scaled = self._low + (np.clip(action, -1.0, 1.0) + 1.0) * 0.5 * (self._high - self._low)
        reward = 0.0
        terminated = False
        for _ in range(self.task.action_repeat):
            timestep = self.env.step(scaled)
            reward += timestep.reward or 0.0
            self.steps += 1
            if timestep.last():
                terminated = timestep.discount == 0.0
                break
            if self.steps >= CONTROL_STEPS:
                break
        return reward, terminated, not terminated and self.steps >= CONTROL_STEPS

    def write_scene(self, out: np.ndarray) -> None:
        """Write where everything visible is into `out`, a float32 row of `scene.size`."""
        self.scene.write(self.model, self.data, out)

    def state(self) -> dict[str, Any]:
        """All that `restore` needs to continue bit for bit, as plain numbers and arrays."""
        physics = np.empty(mujoco.mj_stateSize(self.model, _STATE))
        mujoco.mj_getState(self.model, self.data, physics, _STATE)
        _, keys, position, has_gauss, gauss = self.env.task.random.get_state()
        return {
            "seed": self.seed,
            "episode": self.episode,
            "steps": self.steps,
            "physics": physics,
            "random_keys": np.asarray(keys),
            "random_position": int(position),
            "random_has_gauss": int(has_gauss),
            "random_gauss": float(gauss),
        }

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state`: the episode starts again (tasks may change the model there), then jumps ahead."""
        self.reset(int(state["episode"]), int(state["seed"]))
        self.steps = self.env._step_count = int(state["steps"])
        mujoco.mj_setState(self.model, self.data, np.asarray(state["physics"], dtype=np.float64), _STATE)
        mujoco.mj_step1(self.model, self.data)  # where dm_control leaves the data between control steps
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

    def _apply_colors(self) -> None:
        colors = self.shift.colors(self.seed, self.episode)
        if not self._paint or (self.shift.is_video and self.painted):
            return
        model = self.model
        if "self_rgb" in colors:
            body = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_MATERIAL, "self")
            if body >= 0:
                model.mat_rgba[body, :3] = colors["self_rgb"]
        pixels = shifts.textures(colors)
        for name, image in pixels.items():
            texture = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_TEXTURE, name)
            start = model.tex_adr[texture]
            model.tex_data[start : start + image.size] = image.ravel()
        self.painted = tuple(pixels)


def check_action(action: Any, shape: tuple[int, ...]) -> np.ndarray:
    """`action` as float64 of the right shape, or an error that says what is wrong with it."""
    if hasattr(action, "detach"):
        action = action.detach().cpu()
    array = np.asarray(action, dtype=np.float64)
    if array.shape != shape:
        raise InvalidValueError(f"the action has shape {array.shape}; this environment takes {shape}")
    if not np.isfinite(array).all():
        raise InvalidValueError(f"the action holds NaN or infinity: {array.tolist()}")
    return array


def _last_xml(model: mujoco.MjModel) -> str:
    """The XML of the model that was loaded last, with all includes resolved."""
    handle, path = tempfile.mkstemp(suffix=".xml")
    os.close(handle)
    try:
        mujoco.mj_saveLastXML(path, model)
        with open(path, encoding="utf-8") as file:
            return file.read()
    finally:
        os.unlink(path)
