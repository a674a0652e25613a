"""MuJoCo's OpenGL renderer: the benchmark's own pixels."""

from __future__ import annotations

import atexit
import functools
import weakref

import mujoco
import numpy as np

from sgqn.envs.opengl import gl_error
from sgqn.envs.scene import texture_pixels
from sgqn.envs.shifts import Appearance
from sgqn.envs.simulation import MujocoSimulation, Renderer
from sgqn.errors import InvalidValueError, SgqnError

_MAX_GEOMS = 10_000  # as many as mujoco.Renderer takes
_SEGMENTATION = (int(mujoco.mjtRndFlag.mjRND_SEGMENT), int(mujoco.mjtRndFlag.mjRND_IDCOLOR))


class GLRenderer(Renderer):
    """Renders a simulation's camera in a separate OpenGL context; with `paints`, it also applies the appearance.

    Like `mujoco.Renderer`, which frees its textures in whichever context is current: with several that damages others.
    """

    def __init__(
        self,
        simulation: MujocoSimulation,
        size: int | tuple[int, int],
        camera: int | None = None,
        paints: bool = True,
    ):
        self._gl: mujoco.GLContext | None = None
        problem = gl_error()
        if problem is not None:
            raise SgqnError(f"no OpenGL context can be created ({problem}): use renderer='warp'")
        height, width = (size, size) if isinstance(size, int) else size
        self._simulation = simulation
        self._painter = Painter(simulation.model) if paints else None
        self._controlled = simulation.scene.controlled_objects(simulation.model)
        buffer = simulation.model.vis.global_
        buffer.offwidth, buffer.offheight = width, height  # all of it is cleared and resolved for every frame
        self._pixels = np.empty((height, width, 3), dtype=np.uint8)
        self._viewport = mujoco.MjrRect(0, 0, width, height)
        self._scene = mujoco.MjvScene(simulation.model, _MAX_GEOMS)
        self._option, self._camera = mujoco.MjvOption(), mujoco.MjvCamera()
        self._option.flags[mujoco.mjtVisFlag.mjVIS_RANGEFINDER] = False  # sensors' rays are no part of the scene
        self._camera.type = mujoco.mjtCamera.mjCAMERA_FIXED
        self._camera.fixedcamid = simulation.camera if camera is None else camera
        self._gl = mujoco.GLContext(width, height)
        self._gl.make_current()
        self._context = mujoco.MjrContext(simulation.model, mujoco.mjtFontScale.mjFONTSCALE_150)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._context)
        _close_at_exit()
        _open.add(self)

    def start(self) -> None:
        model = self._simulation.model
        self._make_current()
        painted = range(model.ntex) if self._painter is None else self._painter.paint(self._simulation.appearance)
        for texture in painted:
            mujoco.mjr_uploadTexture(model, self._context, texture)
        for terrain in range(model.nhfield):  # a task may change it at the start of an episode
            mujoco.mjr_uploadHField(model, self._context, terrain)

    def frame(self) -> np.ndarray:
        self._draw()
        return np.flipud(self._pixels).copy()

    def mask(self) -> np.ndarray:
        for flag in _SEGMENTATION:
            self._scene.flags[flag] = True
        self._draw()
        for flag in _SEGMENTATION:
            self._scene.flags[flag] = False
        red, green, blue = np.moveaxis(self._pixels.astype(np.uint32), -1, 0)
        controlled = np.zeros(self._scene.ngeom + 1, dtype=bool)  # entry 0 is the background's
        for geom in self._scene.geoms[: self._scene.ngeom]:
            if geom.segid >= 0 and geom.objtype in self._controlled:
                controlled[geom.segid + 1] = self._controlled[geom.objtype][geom.objid]
        return np.flipud(controlled[red + (green << 8) + (blue << 16)])

    def close(self) -> None:
        if self._gl is not None:
            self._make_current()
            self._context.free()
            self._gl.free()
            self._gl = None

    def __del__(self) -> None:
        self.close()

    def _draw(self) -> None:
        simulation, everything = self._simulation, mujoco.mjtCatBit.mjCAT_ALL
        mujoco.mjv_updateScene(
            simulation.model, simulation.data, self._option, None, self._camera, everything, self._scene
        )
        self._make_current()
        mujoco.mjr_render(self._viewport, self._scene, self._context)
        mujoco.mjr_readPixels(self._pixels, None, self._viewport, self._context)

    def _make_current(self) -> None:
        if self._gl is None:
            raise SgqnError("this renderer is closed")
        self._gl.make_current()


class Painter:
    """Applies an episode's appearance to a model; everything else keeps its original look."""

    def __init__(self, model: mujoco.MjModel):
        self._model = model
        self._appearance = Appearance()
        self._colors: dict[int, np.ndarray] = {}  # the first ones of what was painted since
        self._textures: dict[int, np.ndarray] = {}

    def paint(self, appearance: Appearance) -> list[int]:
        """Change the model; returns the textures that are new."""
        if appearance == self._appearance:
            return []
        self._appearance, model = appearance, self._model
        colors: dict[int, np.ndarray] = dict(self._colors)
        for name, color in appearance.materials.items():
            material = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_MATERIAL, name)
            if material >= 0:
                self._colors.setdefault(material, model.mat_rgba[material, :3].copy())
                colors[material] = np.asarray(color)
        for material, rgb in colors.items():
            model.mat_rgba[material, :3] = rgb
        images = dict(self._textures)
        for name, make in appearance.textures.items():
            texture = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_TEXTURE, name)
            if texture >= 0:
                self._textures.setdefault(texture, texture_pixels(model, texture).copy())
                images[texture] = make()
        for texture, image in images.items():
            pixels = texture_pixels(model, texture)
            if image.shape != pixels.shape:
                raise InvalidValueError(f"a texture of shape {pixels.shape} cannot be painted with {image.shape}")
            pixels[:] = image
        return list(images)


_open: weakref.WeakSet[GLRenderer] = weakref.WeakSet()


@functools.cache
def _close_at_exit() -> None:
    """Registered after MuJoCo's own exit function, so that it runs before that ends OpenGL."""

    @atexit.register
    def close_all() -> None:
        for renderer in list(_open):
            renderer.close()
