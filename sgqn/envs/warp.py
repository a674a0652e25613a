"""MuJoCo Warp's batched ray caster, configured to match MuJoCo's OpenGL; on CPU (all cores) or GPU."""

from __future__ import annotations

import functools
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import pairwise
from typing import Any

import mujoco
import numpy as np
import torch
from torch import Tensor

from sgqn.envs.scene import SceneLayout, texture_pixels
from sgqn.envs.shifts import Appearance, Color
from sgqn.envs.simulation import MujocoSimulation, Renderer
from sgqn.errors import SgqnError

logger = logging.getLogger(__name__)

SAMPLES = ((0.375, 0.125), (0.875, 0.375), (0.125, 0.625), (0.625, 0.875))
"""Sample positions within a pixel, from its upper left corner: OpenGL's four samples. No two are in one row or column,
so axis-aligned edges are resolved to a quarter of a pixel, with MuJoCo Warp's own 2 x 2 grid to a half."""

SHADOW_LIGHT = 0.0
"""Share of a light that reaches a shadowed point: none, as in OpenGL."""

SKY_REDUCTION = 4
"""OpenGL reads the 800-pixel sky through mipmaps: at 84 pixels an image, through a reduction of about four."""


@functools.cache
def _warp() -> tuple[Any, Any]:
    """Warp and MuJoCo Warp, imported without their banners."""
    import warp

    warp.config.log_level = warp.LOG_ERROR
    if torch.cuda.is_available():
        warp.init()
    else:
        with _no_stderr():  # Warp's library reports the missing CUDA driver past Python
            warp.init()
    import mujoco_warp

    return warp, mujoco_warp


@contextmanager
def _no_stderr() -> Iterator[None]:
    sys.stderr.flush()
    kept = os.dup(2)
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 2)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nowhere)


def unsupported(model: mujoco.MjModel) -> str | None:
    """What MuJoCo Warp does not support in this model, or None."""
    if model.nskin:
        return "a skin"
    visible = model.geom_group < 3
    if (visible & (model.geom_type == int(mujoco.mjtGeom.mjGEOM_HFIELD))).any():
        return "a terrain that changes with every episode"
    return None


class WarpRenderer:
    """Renders one camera of many scenes at once. On a CPU, the worlds are distributed over one thread per core."""

    name = "warp"

    def __init__(
        self,
        simulation: MujocoSimulation,
        num_worlds: int,
        size: int | tuple[int, int],
        device: torch.device,
        masks: bool = False,
        layout: SceneLayout | None = None,
        sky_reduction: int = SKY_REDUCTION,
    ):
        simulation.reset(0)  # tasks set sizes and colours there
        model, layout = simulation.model, layout or simulation.scene
        shape = (size, size) if isinstance(size, int) else size
        problem = unsupported(model)
        if problem is not None:
            raise SgqnError(f"the Warp renderer does not support {problem}, which this task needs: use renderer='gl'")
        logger.info("preparing the Warp renderer (kernels are compiled once, which takes a few seconds)")
        threads = 1 if device.type == "cuda" else min(num_worlds, num_cores())
        bounds = np.linspace(0, num_worlds, threads + 1).astype(int)
        self._spans = [slice(start, stop) for start, stop in pairwise(bounds.tolist())]
        drawn = layout.render_model(model, simulation.make_spec)
        controlled = layout.controlled(model)
        self._parts = [
            _Part(drawn, layout, controlled, span.stop - span.start, shape, device, masks, sky_reduction)
            for span in self._spans
        ]
        self._pool = ThreadPoolExecutor(threads, "sgqn-warp") if threads > 1 else None
        self._scope = self._parts[0].scope
        with self._scope():
            for part in self._parts:  # one after the other: Warp's compiler is not made for threads
                part.draw(np.zeros((part.num_worlds, layout.size), dtype=np.float32))

    def set_appearances(self, worlds: Sequence[int], appearances: Sequence[Appearance]) -> None:
        """Change how some worlds look."""
        with self._scope():
            for part, span in zip(self._parts, self._spans, strict=True):
                part.set_appearances(
                    {
                        world - span.start: appearance
                        for world, appearance in zip(worlds, appearances, strict=True)
                        if span.start <= world < span.stop
                    }
                )

    def frames(self, rows: np.ndarray) -> Tensor:
        """Draw the scenes `rows` (num_worlds, layout.size): uint8 (num_worlds, size, size, 3) on the device."""
        with self._scope():
            if self._pool is None:
                return self._parts[0].draw(rows)
            drawn = self._pool.map(lambda part, span: part.draw(rows[span]), self._parts, self._spans)
            return torch.cat(list(drawn))

    def masks(self) -> Tensor:
        """Which pixels of the last frames show the controlled system: bool (num_worlds, size, size)."""
        with self._scope():
            return torch.cat([part.mask() for part in self._parts])

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown()
        self._parts = []


class WarpView(Renderer):
    """Draws one simulation at any size from any camera of its model, on the CPU."""

    def __init__(self, simulation: MujocoSimulation, size: tuple[int, int], camera: int):
        self._simulation = simulation
        self._layout = SceneLayout(simulation.model, camera, simulation.controlled_bodies())
        # OpenGL's mipmaps reduce the sky less in larger images.
        reduction = next((n for n in (SKY_REDUCTION, SKY_REDUCTION // 2) if n * min(size) <= 100 * SKY_REDUCTION), 1)
        self._renderer = WarpRenderer(
            simulation, 1, size, torch.device("cpu"), layout=self._layout, sky_reduction=reduction
        )
        self._rows = np.zeros((1, self._layout.size), dtype=np.float32)

    def start(self) -> None:
        self._renderer.set_appearances([0], [self._simulation.appearance])

    def frame(self) -> np.ndarray:
        self._layout.write(self._simulation.model, self._simulation.data, self._rows[0])
        return self._renderer.frames(self._rows)[0].numpy()

    def close(self) -> None:
        self._renderer.close()


class _Part:
    """One render context and the worlds it draws."""

    def __init__(
        self,
        model: mujoco.MjModel,
        layout: SceneLayout,
        controlled: np.ndarray,
        num_worlds: int,
        shape: tuple[int, int],
        device: torch.device,
        masks: bool,
        sky_reduction: int,
    ):
        warp, mujoco_warp = _warp()
        height, width = shape
        self._sky_reduction = sky_reduction
        self._model, self._device, self.num_worlds = model, device, num_worlds
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None
        with self.scope():
            self._warp_model = mujoco_warp.put_model(model)
            self._warp_data = mujoco_warp.make_data(model, nworld=num_worlds)
            view = {"nworld": num_worlds, "cam_res": (width, height), "cam_active": [layout.camera]}
            view["render_depth"] = False
            self._context = mujoco_warp.create_render_context(
                model,
                **view,
                render_rgb=True,
                # The textures are ours (reduced sky, one set a world): switched on below.
                use_textures=False,
                render_skybox=False,
                use_shadows=True,
                shadow_light_fraction=SHADOW_LIGHT,
                samples_per_pixel=2,
            )
            _place_samples(warp.to_torch(self._context.ray).view(2, 2, height, width, 3))
            self._make_worlds_independent(warp)
            self._make_textures(warp)
            self._inputs = self._input_views(warp, layout)
            self._floor_columns = layout.slices()["floor_light"][0]
            self._colors = warp.to_torch(self._warp_model.mat_rgba)[..., :3]  # (num_worlds, materials, 3)
            self._floor_material = layout.floor.material
            self._floor_color = self._colors[:, self._floor_material].clone() if self._floor_material >= 0 else None
            self._pixels = warp.to_torch(self._context.rgb_data).view(torch.uint8).view(num_worlds, height, width, 4)
            self._contexts = [self._context]
            if masks:
                # Its own context, with one ray through the centre of each pixel: only the first of several would count.
                seen = mujoco_warp.create_render_context(model, **view, render_rgb=False, render_seg=True)
                self._contexts.append(seen)
                self._segmentation = warp.to_torch(seen.seg_data).view(num_worlds, height, width, 2)
                # Shifted by one: entry 0 answers for the background, whose id is -1.
                self._controlled = torch.from_numpy(np.concatenate([[False], controlled])).to(device)
        self._graph: Any = None
        self._appearances = [Appearance()] * num_worlds
        self._staging = torch.empty(num_worlds, layout.size, pin_memory=self._stream is not None)
        self._copied = torch.cuda.Event() if self._stream is not None else None
        self._rgb = torch.tensor([2, 1, 0], device=device)  # pixels are stored as B, G, R, A
        self._rows = torch.empty(num_worlds, layout.size, device=device)

    @contextmanager
    def scope(self) -> Iterator[None]:
        """Warp's and torch's launches go to this device; on a GPU to a stream of the renderer's own, in order with
        the caller's (the default stream cannot be captured)."""
        warp, _ = _warp()
        if self._stream is None:
            with warp.ScopedDevice("cpu"):
                yield
            return
        caller = torch.cuda.current_stream(self._device)
        self._stream.wait_stream(caller)
        with torch.cuda.stream(self._stream), warp.ScopedStream(warp.stream_from_torch(self._stream)):
            yield
        caller.wait_stream(self._stream)

    def draw(self, rows: np.ndarray) -> Tensor:
        """uint8 (num_worlds, size, size, 3), a copy."""
        if self._copied is not None:
            self._copied.synchronize()  # the last copy out of pinned memory has to be over before it is written
        self._staging.copy_(torch.from_numpy(rows))
        self._rows.copy_(self._staging, non_blocking=True)
        if self._copied is not None:
            self._copied.record(self._stream)
        for target, columns in self._inputs:
            target.copy_(self._rows[:, columns].view_as(target))
        if self._floor_color is not None:
            floor = self._colors[:, self._floor_material]
            torch.mul(self._floor_color, self._rows[:, self._floor_columns], out=floor)
        self._launch()
        return self._pixels.index_select(3, self._rgb)

    def mask(self) -> Tensor:
        return self._controlled[self._segmentation[..., 0].long() + 1]

    def set_appearances(self, appearances: dict[int, Appearance]) -> None:
        changed = {world: new for world, new in appearances.items() if self._appearances[world] != new}
        if not changed:
            return
        warp, _ = _warp()
        if self._stream is not None:
            self._stream.synchronize()  # the old textures may still be read
        made: dict[tuple[Appearance, int], Any] = {}  # worlds of one appearance share its textures
        for world, new in changed.items():
            old, self._appearances[world] = self._appearances[world], new
            for name in {**old.materials, **new.materials}:
                self._set_color(world, name, new.materials.get(name))
            for name in {**old.textures, **new.textures}:
                texture = mujoco.mj_name2id(self._model, mujoco.mjtObj.mjOBJ_TEXTURE, name)
                if texture < 0:
                    continue
                if name in new.textures and (new, texture) not in made:
                    made[new, texture] = _texture(warp, _painted(new, name, self._reduction(texture)))
                own = made[new, texture] if name in new.textures else self._textures[texture]
                self._textures[self._slot(texture) + world] = own
        # In place: a captured graph holds the array's address.
        warp.copy(self._context.textures, warp.array(self._textures, dtype=warp.Texture2D))

    def _set_color(self, world: int, name: str, color: Color | None) -> None:
        """Give a material a colour, or the model's own again."""
        material = mujoco.mj_name2id(self._model, mujoco.mjtObj.mjOBJ_MATERIAL, name)
        if material < 0:
            return
        rgb = torch.tensor(self._model.mat_rgba[material, :3] if color is None else color)
        self._colors[world, material] = rgb
        if self._floor_color is not None and material == self._floor_material:
            self._floor_color[world] = rgb

    def _reduction(self, texture: int) -> int:
        """How many pixels of a texture become one, each way."""
        return self._sky_reduction if _is_sky(self._model, texture) else 1

    def _slot(self, texture: Any) -> Any:
        """Where the worlds' own versions of a texture begin."""
        return self._model.ntex + texture * self.num_worlds

    def _launch(self) -> None:
        """Draw; on a GPU replay the captured launches."""
        warp, mujoco_warp = _warp()

        def launches() -> None:
            for context in self._contexts:
                mujoco_warp.refit_bvh(self._warp_model, self._warp_data, context)
                mujoco_warp.render(self._warp_model, self._warp_data, context)

        if self._stream is None:
            launches()
            return
        if self._graph is None:
            launches()  # compiles
            self._stream.synchronize()
            with warp.ScopedCapture() as capture:
                launches()
            self._graph = capture.graph
        warp.capture_launch(self._graph)

    def _make_worlds_independent(self, warp: Any) -> None:
        """Give every world its own geom sizes, material colours and textures; MuJoCo Warp shares them by default."""
        model, worlds = self._model, self.num_worlds

        def per_world(values: np.ndarray, dtype: Any) -> Any:
            return warp.array(np.repeat(values[None], worlds, axis=0), dtype=dtype)

        self._warp_model.geom_size = per_world(model.geom_size.astype(np.float32), warp.vec3)
        self._warp_model.mat_rgba = per_world(model.mat_rgba.astype(np.float32), warp.vec4)
        self._warp_model.mat_texid = per_world(model.mat_texid.astype(np.int32), int)

    def _make_textures(self, warp: Any) -> None:
        """The model's textures, then one of each for every world to paint."""
        model, worlds, context = self._model, self.num_worlds, self._context
        own = [_texture(warp, _reduced(texture_pixels(model, i), self._reduction(i))) for i in range(model.ntex)]
        self._textures = [*own, *(texture for texture in own for _ in range(worlds))]
        ids = self._warp_model.mat_texid.numpy()
        places = self._slot(ids) + np.arange(worlds)[:, None, None]
        self._warp_model.mat_texid = warp.array(np.where(ids < 0, ids, places).astype(np.int32), dtype=int)
        context.textures = warp.array(self._textures, dtype=warp.Texture2D)
        context.textures_registry = self._textures
        context.use_textures = bool(own)
        sky = next((i for i in range(model.ntex) if _is_sky(model, i)), None)
        context.render_skybox = sky is not None
        if sky is not None:
            context.skybox_tex_id = warp.array((self._slot(sky) + np.arange(worlds)).astype(np.int32), dtype=int)
            context.skybox_face_width = warp.array(np.full(worlds, own[sky].width, dtype=np.int32), dtype=int)

    def _input_views(self, warp: Any, layout: SceneLayout) -> list[tuple[Tensor, slice]]:
        """The renderer's inputs as torch views, each with its columns in a scene's row."""
        data = self._warp_data
        camera = slice(layout.camera, layout.camera + 1)
        targets = {
            "geom_pos": warp.to_torch(data.geom_xpos),
            "geom_mat": warp.to_torch(data.geom_xmat),
            "geom_size": warp.to_torch(self._warp_model.geom_size),
            "cam_pos": warp.to_torch(data.cam_xpos)[:, camera],
            "cam_mat": warp.to_torch(data.cam_xmat)[:, camera],
            "light_pos": warp.to_torch(data.light_xpos),
            "light_dir": warp.to_torch(data.light_xdir),
        }
        return [(targets[name], columns) for name, (columns, _) in layout.slices().items() if name in targets]


def _place_samples(rays: Tensor) -> None:
    """Turn the rays of a 2 x 2 grid in each pixel, (row, column, size, size, 3), to SAMPLES, in place."""
    plane = rays / rays[..., 2:].neg()  # on the plane one unit ahead rays are as far apart as in the image
    right, down = 2 * (plane[0, 1] - plane[0, 0]), 2 * (plane[1, 0] - plane[0, 0])  # a pixel's width and height
    corner = plane[0, 0] - (right + down) / 4
    placed = torch.stack([corner + x * right + y * down for x, y in SAMPLES])
    rays.copy_(torch.nn.functional.normalize(placed, dim=-1).view_as(rays))


def _is_sky(model: mujoco.MjModel, texture: int) -> bool:
    return int(model.tex_type[texture]) == int(mujoco.mjtTexture.mjTEXTURE_SKYBOX)


@functools.lru_cache(maxsize=256)
def _painted(appearance: Appearance, name: str, reduction: int) -> np.ndarray:
    """A texture of an appearance; making one may take a fifth of a second."""
    return _reduced(appearance.textures[name](), reduction)


def _reduced(pixels: np.ndarray, n: int) -> np.ndarray:
    """A box filter over blocks of n x n pixels."""
    height, width, channels = pixels.shape
    if n == 1 or height % n or width % n:
        return pixels
    # Sums of strided slices: several times faster than a mean over two axes.
    rows = np.add.reduce([pixels[i::n].astype(np.uint16) for i in range(n)])
    blocks = rows.reshape(height // n, width // n, n, channels)
    total = np.add.reduce([blocks[:, :, i] for i in range(n)])
    return ((total + n * n // 2) // (n * n)).astype(np.uint8)


def _texture(warp: Any, pixels: np.ndarray) -> Any:
    height, width, channels = pixels.shape
    rgba = np.full((height, width, 4), 255, dtype=np.uint8)
    rgba[..., :channels] = pixels
    return warp.Texture2D(rgba, filter_mode=warp.TextureFilterMode.LINEAR)


def num_cores() -> int:
    """Cores this process may use; the environment variable SGQN_CPUS lowers their number."""
    found = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    limit = os.environ.get("SGQN_CPUS", "")
    return min(found, int(limit)) if limit.isdecimal() and int(limit) else found
