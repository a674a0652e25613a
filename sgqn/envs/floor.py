"""The brightness of floors in OpenGL.

OpenGL lights a plane at the corners of its grid's cells and interpolates between them. A grid has at most 200 cells
each way, so on walker's floor of 500 metres a spotlight may fall between corners and hardly be seen; a ray caster
lights every point. The ratio of the two over the visible part of the floor makes a ray caster's floor look like
OpenGL's.
"""

from __future__ import annotations

import mujoco
import numpy as np

_FINE = 0.6  # metres: cells too small for a spotlight to fall between their corners
_MAX_CELLS = 200  # MuJoCo's limit of a plane's grid, each way
_RAYS = np.linspace(-0.9, 0.9, 5)  # a coarse grid over the image


class FloorLight:
    """The brightness factor of a model's floor: its first textured plane of finite size.

    `material` is -1 where no factor is needed.
    """

    def __init__(self, model: mujoco.MjModel, camera: int):
        self.material, self._camera = -1, camera
        floors = (model.geom_type == int(mujoco.mjtGeom.mjGEOM_PLANE)) & (model.geom_matid >= 0)
        floors &= (model.geom_size[:, :2] > 0).all(axis=1) & (model.geom_group < 3)
        if not floors.any() or not model.nlight:
            return
        self._geom = int(np.flatnonzero(floors)[0])
        self._size = model.geom_size[self._geom, :2].copy()
        spacing = float(model.geom_size[self._geom, 2])  # of the grid that a plane is drawn as
        self._cells = np.clip(np.ceil(2 * self._size / spacing), 1, _MAX_CELLS).astype(int)
        if (2 * self._size / self._cells < _FINE).all():
            return
        self.material = int(model.geom_matid[self._geom])
        slope = np.tan(np.radians(model.cam_fovy[camera]) / 2)
        x, y = np.meshgrid(_RAYS * slope, _RAYS * slope)
        self._rays = np.stack([x.ravel(), y.ravel(), np.full(x.size, -1.0)], axis=1)
        head = model.vis.headlight
        self._ambient = float(np.mean(head.ambient)) if head.active else 0.0
        self._head = float(np.mean(head.diffuse)) if head.active else 0.0

    def factor(self, model: mujoco.MjModel, data: mujoco.MjData) -> float:
        """OpenGL's brightness of the visible floor over the ray caster's."""
        if self.material < 0:
            return 1.0
        centre, frame = data.geom_xpos[self._geom], data.geom_xmat[self._geom].reshape(3, 3)
        eye, camera = data.cam_xpos[self._camera], data.cam_xmat[self._camera].reshape(3, 3)
        normal = frame[:, 2]
        rays = self._rays @ camera.T
        downward = rays @ normal
        rays = rays[downward < -1e-6]
        points = eye + rays * ((centre - eye) @ normal / (rays @ normal))[:, None]
        local = (points - centre) @ frame[:, :2]
        inside = (np.abs(local) <= self._size).all(axis=1)
        if not inside.any():
            return 1.0
        points, local = points[inside], local[inside]
        everywhere = self._ambient + self._head * max(0.0, float(normal @ camera[:, 2]))
        cast = everywhere + _light(model, data, points, normal)
        drawn = everywhere + self._interpolated(model, data, local, centre, frame)
        return float(drawn.sum() / cast.sum()) if cast.sum() > 0 else 1.0

    def _interpolated(
        self, model: mujoco.MjModel, data: mujoco.MjData, local: np.ndarray, centre: np.ndarray, frame: np.ndarray
    ) -> np.ndarray:
        """The light at points of the floor, bilinear between the corners of their grid cells."""
        width = 2 * self._size / self._cells
        place = (local + self._size) / width
        low = np.clip(place.astype(int), 0, self._cells - 1)
        share = place - low
        steps = np.array([[0, 0], [0, 1], [1, 0], [1, 1]])
        corners = (low[:, None] + steps) * width - self._size  # (points, 4, 2)
        world = centre + corners.reshape(-1, 2) @ frame[:, :2].T
        light = _light(model, data, world, frame[:, 2]).reshape(-1, 4)
        weights = np.where(steps, share[:, None], 1 - share[:, None]).prod(axis=2)  # (points, 4)
        return (light * weights).sum(axis=1)


def _light(model: mujoco.MjModel, data: mujoco.MjData, points: np.ndarray, normal: np.ndarray) -> np.ndarray:
    """Diffuse light of the model's lamps on points of a plane, by OpenGL's formula."""
    total = np.zeros(len(points))
    for i in range(model.nlight):
        if not model.light_active[i]:
            continue
        direction = data.light_xdir[i]
        strength = float(model.light_diffuse[i].mean())
        if int(model.light_type[i]) == int(mujoco.mjtLightType.mjLIGHT_DIRECTIONAL):
            total += strength * max(0.0, float(-direction @ normal))
            continue
        towards = data.light_xpos[i] - points
        towards /= np.linalg.norm(towards, axis=1, keepdims=True)
        light = strength * np.maximum(towards @ normal, 0)
        if int(model.light_type[i]) == int(mujoco.mjtLightType.mjLIGHT_SPOT):
            cosine = -(towards @ direction)
            inside = cosine >= np.cos(np.radians(float(model.light_cutoff[i])))
            light *= np.where(inside, np.maximum(cosine, 0) ** float(model.light_exponent[i]), 0)
        total += light
    return total
