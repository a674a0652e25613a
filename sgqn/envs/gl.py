"""MuJoCo's OpenGL renderer: the benchmark's own pixels."""

from __future__ import annotations

import mujoco
import numpy as np

from sgqn.envs.simulation import Simulation
from sgqn.envs.suite import gl_error
from sgqn.errors import SgqnError


class GLRenderer:
    """Draws camera 0 of one simulation through dm_control."""

    name = "gl"

    def __init__(self, simulation: Simulation, size: int):
        problem = gl_error()
        if problem is not None:
            raise SgqnError(f"no OpenGL context can be made here ({problem}): use renderer='warp'")
        from dm_control.mujoco import engine

        self._simulation = simulation
        buffer = simulation.model.vis.global_
        buffer.offwidth = buffer.offheight = size  # all of it is cleared and resolved for every frame
        self._camera = engine.Camera(simulation.physics, size, size, camera_id=0)
        self._controlled = simulation.scene.controlled_objects(simulation.model)
        self._size = size

    def upload(self) -> None:
        """Send the textures that the last reset painted to the graphics context."""
        physics = self._simulation.physics
        for name in self._simulation.painted:
            texture = mujoco.mj_name2id(self._simulation.model, mujoco.mjtObj.mjOBJ_TEXTURE, name)
            with physics.contexts.gl.make_current() as context:
                context.call(mujoco.mjr_uploadTexture, self._simulation.model, physics.contexts.mujoco.ptr, texture)

    def frame(self) -> np.ndarray:
        """uint8 (size, size, 3)."""
        return self._camera.render().copy()  # the next render would overwrite it

    def mask(self) -> np.ndarray:
        """Which pixels show the controlled system: bool (size, size)."""
        segmentation = self._camera.render(segmentation=True)
        ids, kinds = segmentation[..., 0], segmentation[..., 1]
        mask = np.zeros(ids.shape, dtype=bool)
        for kind, controlled in self._controlled.items():
            shown = kinds == kind
            if len(controlled):
                mask |= shown & controlled[np.where(shown, ids, 0)]
        return mask
