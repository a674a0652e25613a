"""Input of the batched renderer: the pose and size of everything visible in a simulation, as one row of floats.

MuJoCo draws geoms, sites and tendons; MuJoCo Warp draws geoms only. So the scene lists the model's geoms and, as
further geoms, its visible sites and the segments of its tendons, with positions from MuJoCo's own visualiser.
"""

from __future__ import annotations

from collections.abc import Callable

import mujoco
import numpy as np

from sgqn.envs.floor import FloorLight

_VISIBLE_GROUPS = 3  # groups 0..2 are drawn by default
_SEGMENTS = 32  # capsules kept for one tendon: MuJoCo draws a slack one as a curve of 28
_AWAY = (0.0, 0.0, -1e4)  # where unused segments lie


class SceneLayout:
    """Where in the row each quantity lies, and which objects belong to the controlled system."""

    def __init__(self, model: mujoco.MjModel, camera: int, controlled_bodies: np.ndarray):
        self.camera = camera
        self.sites = np.flatnonzero((model.site_group < _VISIBLE_GROUPS) & (_alpha(model, "site") > 0))
        spatial = np.array([_is_spatial(model, i) for i in range(model.ntendon)], dtype=bool)
        shown = (model.tendon_group < _VISIBLE_GROUPS) & (_alpha(model, "tendon") > 0)
        self.tendons = np.flatnonzero(spatial & shown & (model.tendon_width > 0))
        self.num_segments = _SEGMENTS * len(self.tendons)
        self.num_extras = len(self.sites) + self.num_segments
        self.num_static = int((model.geom_bodyid == 0).sum())  # the world's own geoms come first
        self.num_geoms = model.ngeom + self.num_extras
        self.num_lights = model.nlight
        self._shapes = {
            "geom_pos": (self.num_geoms, 3),
            "geom_mat": (self.num_geoms, 3, 3),
            "geom_size": (self.num_geoms, 3),
            "cam_pos": (1, 3),
            "cam_mat": (1, 3, 3),
            "light_pos": (self.num_lights, 3),
            "light_dir": (self.num_lights, 3),
            "floor_light": (1,),
        }
        sizes = [int(np.prod(shape)) for shape in self._shapes.values()]
        self._starts = dict(zip(self._shapes, np.cumsum([0, *sizes[:-1]]).tolist(), strict=True))
        self.size = sum(sizes)
        # A site or geom takes its place behind the world's geoms and sites, in front of the bodies' geoms.
        self._extra = slice(self.num_static, self.num_static + self.num_extras)
        self._behind = slice(self.num_static + self.num_extras, self.num_geoms)
        self._bodies = controlled_bodies  # bool (nbody,)
        self.floor = FloorLight(model, camera)
        self._tendon_scene: mujoco.MjvScene | None = None

    def views(self, rows: np.ndarray) -> dict[str, np.ndarray]:
        """The quantities inside `rows` (..., size), as views of shape (..., *shape)."""
        lead = rows.shape[:-1]
        return {
            name: rows[..., self._starts[name] : self._starts[name] + int(np.prod(shape))].reshape(*lead, *shape)
            for name, shape in self._shapes.items()
        }

    def slices(self) -> dict[str, tuple[slice, tuple[int, ...]]]:
        """Name -> (columns, shape), for readers that hold rows in other array types."""
        return {
            name: (slice(self._starts[name], self._starts[name] + int(np.prod(shape))), shape)
            for name, shape in self._shapes.items()
        }

    def write(self, model: mujoco.MjModel, data: mujoco.MjData, out: np.ndarray) -> None:
        """Write the scene of `data` into the float32 row `out`."""
        view = self.views(out)
        front, behind = slice(0, self.num_static), self._behind
        for name, source in (
            ("geom_pos", data.geom_xpos),
            ("geom_mat", data.geom_xmat.reshape(-1, 3, 3)),
            ("geom_size", model.geom_size),
        ):
            view[name][front] = source[: self.num_static]
            view[name][behind] = source[self.num_static :]
        view["cam_pos"][0] = data.cam_xpos[self.camera]
        view["cam_mat"][0] = data.cam_xmat[self.camera].reshape(3, 3)
        view["light_pos"][:] = data.light_xpos
        view["light_dir"][:] = data.light_xdir
        view["floor_light"][0] = self.floor.factor(model, data)
        if self.num_extras:
            extra = {name: view[name][self._extra] for name in ("geom_pos", "geom_mat", "geom_size")}
            self._write_sites(model, data, extra)
            if self.num_segments:
                self._write_tendons(model, data, {k: v[len(self.sites) :] for k, v in extra.items()})

    def render_model(self, model: mujoco.MjModel, make_spec: Callable[[], mujoco.MjSpec]) -> mujoco.MjModel:
        """The model whose geoms are this scene's geoms: the given one, or one recompiled with the further geoms."""
        if not self.num_extras:
            return model
        spec = make_spec()
        for site in self.sites:
            rgba, material = _looks(model, "site", int(site))
            spec.worldbody.add_geom(
                type=mujoco.mjtGeom(int(model.site_type[site])),
                size=model.site_size[site],
                rgba=rgba,
                material=material,
                **_GHOST,
            )
        for tendon in self.tendons:
            rgba, material = _looks(model, "tendon", int(tendon))
            radius = float(model.tendon_width[tendon])
            for _ in range(_SEGMENTS):
                spec.worldbody.add_geom(
                    type=mujoco.mjtGeom.mjGEOM_CAPSULE,
                    size=[radius, radius, 0],
                    pos=_AWAY,
                    rgba=rgba,
                    material=material,
                    **_GHOST,
                )
        compiled = spec.compile()
        assert compiled.ngeom == self.num_geoms
        compiled.tex_data[:] = model.tex_data
        compiled.mat_rgba[:] = model.mat_rgba
        return compiled

    def controlled(self, model: mujoco.MjModel) -> np.ndarray:
        """For each geom of the scene, whether it belongs to the controlled system: bool (num_geoms,)."""
        geoms = self._bodies[model.geom_bodyid]
        sites = self._bodies[model.site_bodyid[self.sites]]
        segments = np.ones(self.num_segments, dtype=bool)
        return np.concatenate([geoms[: self.num_static], sites, segments, geoms[self.num_static :]])

    def controlled_objects(self, model: mujoco.MjModel) -> dict[int, np.ndarray]:
        """Per mjtObj type, whether each object belongs to the controlled system: for MuJoCo's own segmentation."""
        return {
            int(mujoco.mjtObj.mjOBJ_GEOM): self._bodies[model.geom_bodyid],
            int(mujoco.mjtObj.mjOBJ_SITE): self._bodies[model.site_bodyid],
            int(mujoco.mjtObj.mjOBJ_TENDON): np.ones(model.ntendon, dtype=bool),
            int(mujoco.mjtObj.mjOBJ_SKIN): np.ones(model.nskin, dtype=bool),
        }

    def _write_sites(self, model: mujoco.MjModel, data: mujoco.MjData, out: dict[str, np.ndarray]) -> None:
        count = len(self.sites)
        out["geom_pos"][:count] = data.site_xpos[self.sites]
        out["geom_mat"][:count] = data.site_xmat[self.sites].reshape(-1, 3, 3)
        out["geom_size"][:count] = model.site_size[self.sites]

    def _write_tendons(self, model: mujoco.MjModel, data: mujoco.MjData, out: dict[str, np.ndarray]) -> None:
        if self._tendon_scene is None:
            self._tendon_scene = mujoco.MjvScene(model, self.num_segments + 64)
            self._option = mujoco.MjvOption()
            self._option.geomgroup[:] = 0
            self._option.sitegroup[:] = 0
            self._camera = mujoco.MjvCamera()
        scene = self._tendon_scene
        everything = int(mujoco.mjtCatBit.mjCAT_ALL)
        mujoco.mjv_updateScene(model, data, self._option, None, self._camera, everything, scene)
        out["geom_pos"][:] = _AWAY
        out["geom_mat"][:] = np.eye(3)
        slot = 0
        for i in range(scene.ngeom):
            geom = scene.geoms[i]
            if geom.objtype == mujoco.mjtObj.mjOBJ_TENDON and slot < self.num_segments:
                out["geom_pos"][slot] = geom.pos
                out["geom_mat"][slot] = geom.mat
                out["geom_size"][slot] = geom.size[0], geom.size[2], 0.0
                slot += 1


_GHOST = {"contype": 0, "conaffinity": 0, "mass": 0.0, "group": 0}


def _alpha(model: mujoco.MjModel, kind: str) -> np.ndarray:
    """Opacity of every site or tendon: its material's where its own colour is the default."""
    count = {"site": model.nsite, "tendon": model.ntendon}[kind]
    return np.array([_color(model, kind, i)[3] for i in range(count)], dtype=float)


def _color(model: mujoco.MjModel, kind: str, index: int) -> np.ndarray:
    rgba = getattr(model, f"{kind}_rgba")[index]
    material = getattr(model, f"{kind}_matid")[index]
    if material >= 0 and np.array_equal(rgba, np.array([0.5, 0.5, 0.5, 1.0], dtype=rgba.dtype)):
        return model.mat_rgba[material]
    return rgba


def _looks(model: mujoco.MjModel, kind: str, index: int) -> tuple[list[float], str]:
    material = getattr(model, f"{kind}_matid")[index]
    name = mujoco.mj_id2name(model, mujoco.mjtObj.mjOBJ_MATERIAL, material) if material >= 0 else ""
    return [float(c) for c in getattr(model, f"{kind}_rgba")[index]], name or ""


def _is_spatial(model: mujoco.MjModel, tendon: int) -> bool:
    return int(model.wrap_type[model.tendon_adr[tendon]]) != int(mujoco.mjtWrap.mjWRAP_JOINT)


def texture_pixels(model: mujoco.MjModel, texture: int) -> np.ndarray:
    """A texture of the model, a view of shape (height, width, channels)."""
    shape = (model.tex_height[texture], model.tex_width[texture], model.tex_nchannel[texture])
    start = model.tex_adr[texture]
    return model.tex_data[start : start + int(np.prod(shape))].reshape(shape)
