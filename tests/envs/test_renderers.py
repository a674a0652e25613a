"""Warp against OpenGL, and OpenGL against dm_control: frames and masks of the same state."""

from __future__ import annotations

import mujoco
import numpy as np
import pytest
import torch

import sgqn
from sgqn.envs.gl import GLRenderer
from sgqn.envs.shifts import Appearance
from sgqn.envs.warp import SAMPLES, WarpRenderer, _place_samples
from sgqn.results.paper import TASKS as PAPER_TASKS
from tests.envs import load

CPU = torch.device("cpu")
LIMITS = {
    "walker-walk": 4.3,
    "walker-stand": 4.3,
    "ball_in_cup-catch": 1.35,
    "cartpole-swingup": 1.6,
    "finger-spin": 1.4,
}
"""In the training scene, of 255; with rays in a square three of them are above."""


def both(
    task: str, shift: str, steps: int, device: str = "cpu"
) -> list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    """(gl frame, warp frame, gl mask, warp mask) along random actions."""
    simulation = load(task, shift)
    warp = WarpRenderer(simulation, 1, 84, torch.device(device), masks=True)
    simulation.reset(1)
    gl = GLRenderer(simulation, 84)
    gl.start()
    simulation.reset(0)
    gl.start()
    warp.set_appearances([0], [simulation.appearance])
    row = np.zeros((1, simulation.scene.size), dtype=np.float32)
    random = np.random.RandomState(0)
    results = []
    for _ in range(steps):
        simulation.step(random.uniform(-1, 1, simulation.action_dim))
        simulation.write_scene(row[0])
        results.append((gl.frame(), warp.frames(row)[0].cpu().numpy(), gl.mask(), warp.masks()[0].cpu().numpy()))
    warp.close()
    gl.close()
    simulation.close()
    return results


@pytest.mark.usefixtures("gl")
@pytest.mark.parametrize("task", PAPER_TASKS)
@pytest.mark.parametrize("shift", ["train", "color_hard", "video_hard"])
def test_warp_looks_like_gl(task: str, shift: str) -> None:
    check_alike(task, shift, both(task, shift, steps=12))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.usefixtures("gl")
@pytest.mark.parametrize("task", PAPER_TASKS)
@pytest.mark.parametrize("shift", ["train", "video_hard"])
def test_warp_looks_like_gl_on_a_gpu(task: str, shift: str) -> None:
    check_alike(task, shift, both(task, shift, steps=12, device="cuda"))


def check_alike(task: str, shift: str, pairs: list[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]) -> None:
    difference = np.mean([np.abs(a.astype(int) - b.astype(int)).mean() for a, b, _, _ in pairs])
    assert difference < (LIMITS[task] if shift == "train" else 5)
    overlap = np.sum([(a & b).sum() for _, _, a, b in pairs]) / np.sum([(a | b).sum() for _, _, a, b in pairs])
    assert overlap > 0.985


@pytest.mark.usefixtures("gl")
@pytest.mark.parametrize(
    "task", ["walker-walk", "ball_in_cup-catch", "finger-turn_hard", "dog-fetch", "quadruped-escape"]
)
def test_gl_frames_and_masks_are_dm_controls(task: str) -> None:
    """Bit for bit, also with other renderers and sizes at work in between."""
    small, simulation = load("cartpole-swingup"), load(task)
    renderer, other = GLRenderer(simulation, 84), GLRenderer(small, 30)
    simulation.reset(3)
    small.reset(0)
    renderer.start()
    ours = []
    for action in np.random.RandomState(0).uniform(-1, 1, (3, simulation.action_dim)):
        simulation.step(action)
        other.frame()
        ours.append((renderer.frame(), renderer.mask(), simulation.state()["physics"]))
    renderer.close()
    other.frame()
    other.close()
    controlled = simulation.scene.controlled_objects(simulation.model)
    physics = simulation.env.physics  # draws the same model in its own context
    for frame, mask, state in ours:
        mujoco.mj_setState(simulation.model, simulation.data, state, mujoco.mjtState.mjSTATE_INTEGRATION)
        mujoco.mj_step1(simulation.model, simulation.data)
        assert np.array_equal(physics.render(84, 84, camera_id=0), frame)
        shown = physics.render(84, 84, camera_id=0, segmentation=True).reshape(-1, 2)
        expected = [kind in controlled and bool(controlled[kind][index]) for index, kind in shown]
        assert np.array_equal(np.reshape(expected, (84, 84)), mask)
    simulation.close()


def test_rays_pass_where_opengl_samples_a_pixel() -> None:
    size, slope = 6, 0.4  # pixels, and the tangent of half the field of view
    at = (torch.arange(2 * size) + 0.5) / (2 * size)  # MuJoCo Warp's rays: two in a row and a column of each pixel
    grid = pinhole(at[None, :].expand(12, 12), at[:, None].expand(12, 12), slope)
    rays = grid.view(size, 2, size, 2, 3).permute(1, 3, 0, 2, 4).contiguous()
    _place_samples(rays)
    pixel = torch.arange(size)
    for placed, (x, y) in zip(rays.view(4, size, size, 3), SAMPLES, strict=True):
        across, along = ((pixel + x) / size)[None, :].expand(6, 6), ((pixel + y) / size)[:, None].expand(6, 6)
        torch.testing.assert_close(placed, pinhole(across, along, slope), rtol=0, atol=1e-6)


def pinhole(across: torch.Tensor, along: torch.Tensor, slope: float) -> torch.Tensor:
    """Directions to points of the image, both coordinates from 0 to 1, from the upper left."""
    x, y = slope * (2 * across - 1), slope * (1 - 2 * along)
    return torch.stack([x, y, -torch.ones_like(x)], -1) / (1 + x**2 + y**2).sqrt()[..., None]


@pytest.mark.usefixtures("gl")
@pytest.mark.parametrize("task", ["finger-turn_easy", "ball_in_cup-catch", "acrobot-swingup"])
def test_warp_draws_sites_and_tendons(task: str) -> None:
    """MuJoCo Warp alone draws neither: without them these pixels would show the background."""
    gl, warp, _, _ = both(task, "train", steps=3)[-1]
    simulation = load(task)
    assert simulation.scene.num_extras > 0
    strange = np.abs(gl.astype(int) - warp.astype(int)).max(axis=-1) > 90
    assert strange.sum() < 12


def test_masks_follow_the_body(renderer: str) -> None:
    """Ground truth by another way: what changes when only the body's own colour changes."""
    env = sgqn.make("walker-walk", renderer=renderer, masks=True)
    obs, info = env.reset(seed=0)
    mask = info["mask"]
    assert mask.dtype == bool
    assert mask.shape == (3, 84, 84)
    assert np.array_equal(mask[0], mask[2])
    red = obs[6].astype(int) - obs[8]  # the body is orange, the rest blue
    assert red[mask[2]].mean() > 40
    assert red[~mask[2]].mean() < 0
    for _ in range(3):
        _, _, _, _, info_after = env.step(np.ones(6))
    assert not np.array_equal(info_after["mask"][2], mask[2])
    env.close()


def test_rails_and_targets_are_not_controlled() -> None:
    cartpole = load("cartpole-swingup")
    names = {cartpole.model.geom(i).name: c for i, c in enumerate(cartpole.scene.controlled(cartpole.model))}
    assert names["cart"]
    assert names["pole_1"]
    assert not names["rail1"]
    assert not names["floor"]


def test_batch_and_single_draw_the_same() -> None:
    simulation = load("walker-walk")
    rows = np.zeros((5, simulation.scene.size), dtype=np.float32)
    one, five = (WarpRenderer(simulation, count, 84, CPU) for count in (1, 5))
    for i in range(5):
        simulation.reset(i)
        simulation.write_scene(rows[i])
    together = five.frames(rows)
    for i in range(5):
        assert torch.equal(one.frames(rows[i : i + 1])[0], together[i])


def test_worlds_have_colours_of_their_own() -> None:
    simulation = load("walker-walk", "color_hard")
    looks = simulation.shift.appearances
    renderer = WarpRenderer(simulation, 3, 84, CPU)
    rows = np.zeros((3, simulation.scene.size), dtype=np.float32)
    simulation.reset(0)
    for row in rows:
        simulation.write_scene(row)
    plain = renderer.frames(rows)
    renderer.set_appearances([0, 1, 2], [looks[4], looks[9], looks[4]])
    frames = renderer.frames(rows)
    assert torch.equal(frames[0], frames[2])
    assert (frames[0].float() - frames[1].float()).abs().mean() > 5
    renderer.set_appearances([1, 0, 2], [looks[4], Appearance(), Appearance("floor", {"grid": (1, 0, 0)})])
    again = renderer.frames(rows)
    assert torch.equal(again[1], frames[0])
    assert torch.equal(again[0], plain[0])  # as the model was
    floor, before = again[2, 70, :20].float(), plain[2, 70, :20].float()
    assert (floor[:, 2] < before[:, 2] - 5).all()  # red light alone


def test_other_sizes(renderer: str) -> None:
    env = sgqn.make("walker-walk", shift="video_hard", renderer=renderer, image_size=100, frame_stack=1)
    obs, _ = env.reset(seed=0)
    assert obs.shape == (3, 100, 100)
    env.close()
