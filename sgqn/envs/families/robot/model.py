"""The scene as a MuJoCo model: Menagerie's xArm7 on a table, with a disc, or with a peg in its gripper and a box.

The gripper neither opens nor closes in these tasks, so its joints are removed and its fingers fixed in place. The arm's
meshes have 95,000 triangles for an image of 84 x 84 pixels; they are simplified when the model is loaded.
"""

from __future__ import annotations

import functools
from pathlib import Path

import mujoco
import numpy as np

from sgqn.envs.families.robot import looks
from sgqn.envs.families.robot.menagerie import find_arm
from sgqn.envs.scene import texture_pixels
from sgqn.errors import DataError

TIMESTEP = 0.002
HOME = (0.0, -0.247, 0.0, 0.909, 0.0, 1.15644, 0.0)
"""Joint angles of Menagerie's home pose: the gripper points down."""

DISC_RADIUS = 0.05
PEG_LENGTH, PEG_RADIUS = 0.13, 0.018
PEG_TIP = 0.10
"""Metres from the fingertips to the tip of the peg."""
BOX_INSIDE, BOX_WALL, BOX_HEIGHT = 0.045, 0.012, 0.10
"""Half the inner width, the thickness of a wall, the height."""

FLOOR = -0.7
"""Height of the floor; the top of the table is at 0."""
CELL = 0.004
"""Metres; details of the arm's meshes below this size are dropped. A pixel is about 12 mm wide."""
CLOSED, HOLDING = 0.84, 0.55
"""Angles of the gripper's knuckles."""

_DRIVEN = {  # bodies of the gripper and the sign of their rotation about x
    "left_outer_knuckle": 1,
    "left_finger": -1,
    "left_inner_knuckle": 1,
    "right_outer_knuckle": -1,
    "right_finger": 1,
    "right_inner_knuckle": -1,
}
_TOUCHING = {"contype": 1, "conaffinity": 1, "solref": [0.005, 1.0], "solimp": [0.95, 0.99, 0.001, 0.5, 2.0]}
_VISIBLE = {"contype": 0, "conaffinity": 0}


def compile_scene(task: str) -> mujoco.MjModel:
    """The model of a task, with the textures of the training scene."""
    model = _compose(task).compile()
    for name, image in looks.textures("train").items():
        texture = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_TEXTURE, name)
        texture_pixels(model, texture)[:] = image
    return model


def _compose(task: str) -> mujoco.MjSpec:
    spec = mujoco.MjSpec()
    spec.modelname = task
    spec.option.timestep = TIMESTEP
    spec.option.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    _add_room(spec)
    has_peg = task == "robot-peg_in_box"
    arm = _arm(HOLDING if has_peg else CLOSED)
    if has_peg:
        _add_peg(arm)
    base = arm.body("link_base")
    base.pos = [0.0, 0.0, 0.0]  # Menagerie's stands on a block
    spec.worldbody.add_frame().attach_body(base, "arm/", "")
    if has_peg:
        _add_box(spec)
    else:
        disc = spec.worldbody.add_body(name="goal", mocap=True)
        disc.add_geom(
            name="disc",
            type=mujoco.mjtGeom.mjGEOM_CYLINDER,
            size=[DISC_RADIUS, 0.002, 0],
            pos=[0, 0, 0.002],
            rgba=[0.9, 0.05, 0.05, 1],
            **_VISIBLE,
        )
    return spec


def _arm(knuckles: float) -> mujoco.MjSpec:
    """The arm with its seven joints and servos; its weight is compensated, as the real controller does."""
    folder = find_arm()
    spec = mujoco.MjSpec.from_file(str(folder / "xarm7.xml"))
    for part in (*spec.keys, *spec.equalities, *spec.tendons, *spec.excludes, spec.actuator("gripper")):
        spec.delete(part)
    for name, sign in _DRIVEN.items():
        body = spec.body(name)
        for joint in body.joints:
            spec.delete(joint)
        body.quat = [np.cos(knuckles / 2), sign * np.sin(knuckles / 2), 0, 0]
    for mesh in spec.meshes:
        vertices, faces = simplify(str(folder / spec.meshdir / mesh.file), CELL)
        mesh.file = ""
        mesh.uservert, mesh.userface = vertices.ravel(), faces.ravel()
    for body in spec.bodies:
        body.gravcomp = 1.0
        for geom in body.geoms:
            geom.contype = geom.conaffinity = 0
    hand = spec.body("xarm_gripper_base_link")
    # In place of the meshes, for contact: palm and fingers.
    for name, size, height in (("palm", [0.04, 0.065, 0.06], 0.06), ("fingers", [0.016, 0.045, 0.03], 0.142)):
        hand.add_geom(
            name=name, type=mujoco.mjtGeom.mjGEOM_BOX, size=size, pos=[0, 0, height], mass=0, group=3, **_TOUCHING
        )
    return spec


def _add_room(spec: mujoco.MjSpec) -> None:
    for name, image in looks.textures("train").items():
        height, width, channels = image.shape
        sky = name == "wall"
        spec.add_texture(
            name=name,
            type=mujoco.mjtTexture.mjTEXTURE_SKYBOX if sky else mujoco.mjtTexture.mjTEXTURE_2D,
            width=width,
            height=height,
            nchannel=channels,
            builtin=mujoco.mjtBuiltin.mjBUILTIN_FLAT,
        )
        if not sky:
            material = spec.add_material(name=name, specular=0.1, shininess=0.1, reflectance=0.0, texuniform=True)
            material.textures[mujoco.mjtTextureRole.mjTEXROLE_RGB] = name
            material.texrepeat = [1.0, 1.0]
    world = spec.worldbody
    plane = mujoco.mjtGeom.mjGEOM_PLANE
    world.add_geom(name="floor", type=plane, size=[4, 4, 0.2], pos=[0, 0, FLOOR], material="floor", **_VISIBLE)
    world.add_geom(name="table", type=plane, size=[0.55, 0.6, 0.1], pos=[0.3, 0, 0], material="table", **_TOUCHING)
    world.add_geom(
        name="board",
        type=mujoco.mjtGeom.mjGEOM_BOX,
        size=[0.549, 0.599, 0.02],
        pos=[0.3, 0, -0.0201],
        rgba=[0.25, 0.22, 0.2, 1],
        **_VISIBLE,
    )
    world.add_light(
        name="lamp",
        type=mujoco.mjtLightType.mjLIGHT_DIRECTIONAL,
        pos=[0.8, -0.6, 2.0],
        dir=[-0.3, 0.3, -1.0],
        diffuse=[0.5, 0.5, 0.5],
        specular=[0.1, 0.1, 0.1],
        castshadow=True,
    )
    spec.visual.quality.shadowsize = 1024  # of MuJoCo's 4096; in software, drawing them takes longer than the scene
    spec.visual.headlight.ambient = [0.35, 0.35, 0.35]
    spec.visual.headlight.diffuse = [0.25, 0.25, 0.25]
    spec.visual.headlight.specular = [0.0, 0.0, 0.0]
    position, target = np.array([1.45, 0.0, 0.80]), np.array([0.25, 0.0, 0.20])
    ahead = (target - position) / np.linalg.norm(target - position)
    right = np.cross(ahead, [0.0, 0.0, 1.0])
    right /= np.linalg.norm(right)
    rotation, quaternion = np.stack([right, np.cross(right, ahead), -ahead], axis=1), np.empty(4)
    mujoco.mju_mat2Quat(quaternion, rotation.ravel())
    world.add_camera(name="front", pos=position, quat=quaternion, fovy=42.0)


def _add_peg(arm: mujoco.MjSpec) -> None:
    hand, tip = arm.body("xarm_gripper_base_link"), arm.site("link_tcp")
    peg = hand.add_body(name="peg", pos=[0, 0, tip.pos[2] + PEG_TIP - PEG_LENGTH / 2], gravcomp=1.0)
    peg.add_geom(
        name="peg",
        type=mujoco.mjtGeom.mjGEOM_CYLINDER,
        size=[PEG_RADIUS, PEG_LENGTH / 2, 0],
        mass=0.05,
        rgba=[0.1, 0.25, 0.85, 1],
        material="",
        **_TOUCHING,
    )


def _add_box(spec: mujoco.MjSpec) -> None:
    box = spec.worldbody.add_body(name="goal", mocap=True)
    middle, half = BOX_INSIDE + BOX_WALL / 2, BOX_HEIGHT / 2
    long, thin = BOX_INSIDE + BOX_WALL, BOX_WALL / 2
    for name, x, y in (("front", 1, 0), ("back", -1, 0), ("left", 0, 1), ("right", 0, -1)):
        box.add_geom(
            name=f"wall_{name}",
            type=mujoco.mjtGeom.mjGEOM_BOX,
            size=[thin, long, half] if x else [BOX_INSIDE, thin, half],
            pos=[x * middle, y * middle, half],
            rgba=[0.9, 0.05, 0.05, 1],
            **_TOUCHING,
        )


@functools.cache
def simplify(file: str, cell: float) -> tuple[np.ndarray, np.ndarray]:
    """Vertices and faces of a binary STL file, all vertices within a cube of side `cell` merged into their mean."""
    points = _read_stl(file)
    _, merged = np.unique(np.round(points / cell).astype(np.int64), axis=0, return_inverse=True)
    merged = merged.reshape(-1)
    count = np.bincount(merged)
    vertices = np.stack([np.bincount(merged, points[:, axis]) / count for axis in range(3)], axis=1)
    faces = merged.reshape(-1, 3)
    faces = faces[(faces != np.roll(faces, 1, axis=1)).all(axis=1)]  # those that still have three corners
    _, first = np.unique(np.sort(faces, axis=1), axis=0, return_index=True)
    used, faces = np.unique(faces[np.sort(first)], return_inverse=True)
    return vertices[used], faces.reshape(-1, 3).astype(np.int32)


def _read_stl(file: str) -> np.ndarray:
    """The corners of all triangles, float (3 * triangles, 3)."""
    raw = Path(file).read_bytes()
    count = int.from_bytes(raw[80:84], "little")
    layout = np.dtype([("normal", "<f4", 3), ("corners", "<f4", (3, 3)), ("attribute", "<u2")])
    if len(raw) != 84 + count * layout.itemsize:
        raise DataError(f"{file} is not a binary STL file")
    return np.frombuffer(raw, layout, count, 84)["corners"].reshape(-1, 3).astype(np.float64)
