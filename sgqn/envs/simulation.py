"""A task without pixels: the interface for environments, worker processes and renderers.

A family for a MuJoCo scene subclasses `MujocoSimulation`; one that draws itself subclasses `Simulation` and `Renderer`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from sgqn.envs.families import Task
from sgqn.envs.shifts import Appearance, Shift
from sgqn.errors import InvalidValueError, SgqnError

if TYPE_CHECKING:
    import mujoco


class Renderer:
    """Draws one simulation as it is now."""

    def start(self) -> None:
        """A new episode has begun: change to its appearance."""

    def frame(self) -> np.ndarray:
        """uint8 (size, size, 3), an array of its own."""
        raise NotImplementedError

    def screen(self) -> np.ndarray:
        """Which pixels of the frame the clips of a video shift replace: bool (size, size)."""
        raise NotImplementedError

    def mask(self) -> np.ndarray:
        """Which pixels of the frame show the controlled system: bool (size, size)."""
        raise SgqnError("masks of the controlled system are not available for this task")

    def close(self) -> None:
        pass


class Simulation:
    """A task in a shift: `reset` to an episode, `step` with an action.

    Episode k depends on (seed, k) alone, so that any number of simulations can share the episodes of one seed.
    Subclasses set `action_space` and `control_seconds` and implement `start` and `control`.
    """

    action_space: spaces.Box | spaces.Discrete
    control_seconds: float = 0.1
    """Time that one control step takes."""
    has_screen: bool = False
    """Whether its renderer's `screen` says where clips show; else they show where frames are green."""

    def __init__(self, task: Task, shift: Shift):
        self.task, self.shift = task, shift
        self.seed, self.episode = 0, -1
        self.steps = 0  # control steps of this episode

    def start(self) -> None:
        """Start episode `self.episode` of `self.seed`, with randomness only from `self.entropy()`."""
        raise NotImplementedError

    def control(self, action: Any) -> tuple[float, bool, bool]:
        """One control step with an array in [-1, 1] or an int; returns the reward, terminated, truncated."""
        raise NotImplementedError

    @property
    def success(self) -> bool | None:
        """Whether the task is solved at the current step; None if it cannot be solved. Environments report it in
        `info`."""
        return None

    def make_renderer(self, size: int) -> Renderer:
        """The renderer of this simulation, if simulations are rendered one at a time."""
        raise NotImplementedError

    def make_view(self, size: tuple[int, int], camera: int | str | None) -> Renderer:
        """The renderer for `render`, at (height, width) and from a camera; None is the task's own camera."""
        raise SgqnError(f"{self.task.name} can only render the observation: leave out width, height and camera")

    def close(self) -> None:
        pass

    def reset(self, episode: int, seed: int | None = None) -> None:
        """Start episode `episode` of the seed."""
        if seed is not None:
            self.seed = seed
        self.episode, self.steps = episode, 0
        self.start()

    def step(self, action: Any) -> tuple[float, bool, bool]:
        """Repeat `action`; returns the summed reward, terminated, truncated."""
        action = int(action) if isinstance(self.action_space, spaces.Discrete) else np.clip(action, -1.0, 1.0)
        total, terminated, truncated = 0.0, False, False
        for _ in range(self.task.action_repeat):
            reward, terminated, truncated = self.control(action)
            total += reward
            self.steps += 1
            truncated = truncated or (not terminated and self.steps >= self.task.defaults.control_steps)
            if terminated or truncated:
                break
        return total, bool(terminated), bool(truncated)

    def state(self) -> dict[str, Any]:
        """The state for `restore` to continue bit for bit, as plain numbers and arrays."""
        return {"seed": self.seed, "episode": self.episode, "steps": self.steps}

    def restore(self, state: dict[str, Any]) -> None:
        """Continue from `state`: the episode starts again (that may change the model), then jumps ahead."""
        self.reset(int(state["episode"]), int(state["seed"]))
        self.steps = int(state["steps"])

    def entropy(self) -> np.ndarray:
        """uint32 (4,) to seed the episode's randomness with."""
        return np.random.SeedSequence([self.seed, self.episode]).generate_state(4)

    @property
    def appearance(self) -> Appearance:
        """How this episode looks."""
        return self.shift.appearance(self.seed, self.episode)

    @property
    def action_dim(self) -> int:
        """Size of a continuous action, or the number of discrete ones."""
        return action_dim(self.action_space)

    @property
    def agent_step_seconds(self) -> float:
        return self.control_seconds * self.task.action_repeat

    @staticmethod
    def box(size: int) -> spaces.Box:
        """The action space of `size` numbers in [-1, 1]."""
        return spaces.Box(-1.0, 1.0, (size,), dtype=np.float32)


class MujocoSimulation(Simulation):
    """A task with a MuJoCo model, which both renderers support.

    `spec` is what the model was compiled from: the Warp renderer extends it by visible sites and tendons.
    """

    def __init__(
        self,
        task: Task,
        shift: Shift,
        model: mujoco.MjModel,
        data: mujoco.MjData | None = None,
        spec: mujoco.MjSpec | None = None,
    ):
        import mujoco

        from sgqn.envs.scene import SceneLayout

        super().__init__(task, shift)
        self.model, self._spec = model, spec
        self.data = mujoco.MjData(model) if data is None else data
        self.camera = self.find_camera(task.defaults.camera)
        self.scene = SceneLayout(model, self.camera, self.controlled_bodies())

    def controlled_bodies(self) -> np.ndarray:
        """Which bodies are the controlled system, bool (nbody,): those that can move against the world."""
        model = self.model
        moving = np.zeros(model.nbody, dtype=bool)
        for body in range(1, model.nbody):
            moving[body] = model.body_dofnum[body] > 0 or moving[model.body_parentid[body]]
        return moving

    def advance(self, substeps: int = 1) -> None:
        """Integrate for some timesteps; positions and velocities that follow from the state are up to date then."""
        import mujoco

        mujoco.mj_step(self.model, self.data, substeps)
        mujoco.mj_step1(self.model, self.data)

    def make_spec(self) -> mujoco.MjSpec:
        """The model's specification, to be changed by the caller."""
        if self._spec is None:
            raise SgqnError(f"{self.task.name} has visible sites or tendons and no spec for the Warp renderer")
        return self._spec.copy()

    def make_renderer(self, size: int) -> Renderer:
        from sgqn.envs.gl import GLRenderer

        return GLRenderer(self, size)

    def make_view(self, size: tuple[int, int], camera: int | str | None) -> Renderer:
        from sgqn.envs.gl import GLRenderer

        return GLRenderer(self, size, self.find_camera(camera), paints=False)

    def find_camera(self, camera: int | str | None) -> int:
        """The index of a camera in the model; None is the task's own."""
        import mujoco

        if camera is None:
            return self.camera
        kind = mujoco.mjtObj.mjOBJ_CAMERA
        index = mujoco.mj_name2id(self.model, kind, camera) if isinstance(camera, str) else camera
        if not 0 <= index < self.model.ncam:
            names = [mujoco.mj_id2name(self.model, kind, i) or "unnamed" for i in range(self.model.ncam)]
            known = ", ".join(f"{i} ({name})" for i, name in enumerate(names))
            raise InvalidValueError(f"{self.task.name} has no camera {camera!r}: choose one of {known}")
        return int(index)

    def write_scene(self, out: np.ndarray) -> None:
        """Write where everything visible is into `out`, a float32 row of `scene.size`."""
        self.scene.write(self.model, self.data, out)

    def state(self) -> dict[str, Any]:
        import mujoco

        kind = mujoco.mjtState.mjSTATE_INTEGRATION
        physics = np.empty(mujoco.mj_stateSize(self.model, kind))
        mujoco.mj_getState(self.model, self.data, physics, kind)
        return {**super().state(), "physics": physics}

    def restore(self, state: dict[str, Any]) -> None:
        import mujoco

        super().restore(state)
        physics = np.asarray(state["physics"], dtype=np.float64)
        mujoco.mj_setState(self.model, self.data, physics, mujoco.mjtState.mjSTATE_INTEGRATION)
        mujoco.mj_step1(self.model, self.data)  # where `advance` and dm_control leave the data


def action_dim(space: spaces.Box | spaces.Discrete) -> int:
    """Size of a continuous action, or the number of discrete ones."""
    return int(space.n) if isinstance(space, spaces.Discrete) else int(np.prod(space.shape))
