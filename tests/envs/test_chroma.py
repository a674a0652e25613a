"""The chroma key against a plain-Python reading of the benchmark's rule, and on rendered green screens."""

from __future__ import annotations

import colorsys
import os
import sys
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sgqn.envs import chroma
from sgqn.errors import InvalidValueError

SCREEN = (51, 204, 51)
channel = st.integers(0, 255)


def scalar_rule(r: int, g: int, b: int) -> bool:
    """The rule as the benchmark states it, one pixel at a time."""
    h, s, v = colorsys.rgb_to_hsv(r / 255, g / 255, b / 255)
    return 100 <= h * 360 <= 185 and 80 <= s * 255 <= 255 and 70 <= v * 255 <= 255


def scalar_rules(colours: np.ndarray) -> np.ndarray:
    return np.array([scalar_rule(*colour) for colour in colours.tolist()])


def float_rules(colours: np.ndarray) -> np.ndarray:
    return chroma.float_rule(*np.moveaxis(colours.astype(np.float64), -1, 0))


def keys(colours: np.ndarray) -> np.ndarray:
    return chroma.is_key(torch.from_numpy(colours.astype(np.uint8))).numpy()


def colours_of_red(red: int) -> np.ndarray:
    green, blue = np.meshgrid(np.arange(256), np.arange(256), indexing="ij")
    return np.stack([np.full_like(green, red), green, blue], axis=-1)


def boundary_colours() -> np.ndarray:
    """All colours whose exact hue is 100 or 185 degrees, saturation 80/255 or value 70, and near misses."""
    found = []
    for red in range(0, 256, 5):
        c = colours_of_red(red).reshape(-1, 3)
        high, low = c.max(1), c.min(1)
        _, g, b = c.T
        spread = high - low
        at_100 = (g == high) & (abs(3 * (b - red) + spread) <= 1)
        at_185 = (b == high) & (abs(12 * (g - red) - 11 * spread) <= 1)
        at_saturation = abs(51 * spread - 16 * high) <= 8
        at_value = abs(high - 70) <= 1
        found.append(c[at_100 | at_185 | ((at_saturation | at_value) & (g >= red) & (spread % 3 == 0))])
    return np.concatenate(found)


def test_vectorised_rule_is_the_scalar_rule_on_random_and_boundary_colours() -> None:
    random = np.random.default_rng(0).integers(0, 256, (20_000, 3))
    greenish = np.random.default_rng(1).integers((0, 100, 0), (180, 256, 256), (20_000, 3))
    colours = np.concatenate([random, greenish, boundary_colours()])
    expected = scalar_rules(colours)
    assert 0.1 < expected.mean() < 0.9
    np.testing.assert_array_equal(float_rules(colours), expected)
    np.testing.assert_array_equal(keys(colours), expected)


def test_key_is_the_float_rule_on_all_colours() -> None:
    for red in range(256):
        colours = colours_of_red(red)
        np.testing.assert_array_equal(keys(colours), float_rules(colours), err_msg=f"red {red}")


def test_float_rounding_decides_on_the_boundary() -> None:
    """Hue exactly 100 degrees is in for some colours and out for others: the key follows the floats."""
    exact = np.array([(b + n, b + 3 * n, b) for n in range(24, 60) for b in range(256 - 3 * n)])
    expected = scalar_rules(exact)
    assert expected.any()
    assert not expected.all()
    np.testing.assert_array_equal(keys(exact), expected)


@given(channel, channel, channel)
@settings(max_examples=300, deadline=None)
def test_single_colours(r: int, g: int, b: int) -> None:
    assert bool(keys(np.array([[[r, g, b]]]))) == scalar_rule(r, g, b)


@pytest.mark.parametrize(
    ("colour", "expected"),
    [
        (SCREEN, True),
        ((0, 255, 0), True),
        ((0, 255, 255), True),
        ((0, 70, 0), True),
        ((0, 69, 0), False),
        ((0, 0, 255), False),
        ((255, 0, 0), False),
        ((255, 255, 0), False),
        ((0, 0, 0), False),
        ((128, 128, 128), False),
        ((255, 255, 255), False),
    ],
)
def test_known_colours(colour: tuple[int, int, int], expected: bool) -> None:
    assert keys(np.array([[colour]])).item() is expected


@pytest.mark.parametrize("batch", [(), (1,), (3,), (2, 3)])
def test_replace_shows_the_background_only_on_the_key(batch: tuple[int, ...]) -> None:
    rng = np.random.default_rng(2)
    frames = rng.integers(0, 256, (*batch, 20, 24, 3)).astype(np.uint8)
    frames[..., :10, :, :] = SCREEN
    backgrounds = rng.integers(0, 256, frames.shape).astype(np.uint8)
    key = scalar_rules(frames.reshape(-1, 3)).reshape(frames.shape[:-1])
    given_frames, given_backgrounds = torch.from_numpy(frames.copy()), torch.from_numpy(backgrounds.copy())
    result = chroma.replace(given_frames, given_backgrounds)
    np.testing.assert_array_equal(result.numpy(), np.where(key[..., None], backgrounds, frames))
    np.testing.assert_array_equal(given_frames.numpy(), frames)  # inputs stay as they were
    np.testing.assert_array_equal(given_backgrounds.numpy(), backgrounds)


def test_non_contiguous_frames() -> None:
    channel_first = torch.from_numpy(np.random.default_rng(3).integers(0, 256, (2, 3, 16, 16)).astype(np.uint8))
    view = channel_first.permute(0, 2, 3, 1)
    torch.testing.assert_close(chroma.is_key(view), chroma.is_key(view.contiguous()))
    torch.testing.assert_close(chroma.replace(view, view), view.contiguous())


def test_bad_input_is_named() -> None:
    frames = torch.zeros(2, 8, 8, 3, dtype=torch.uint8)
    with pytest.raises(InvalidValueError, match="float32"):
        chroma.is_key(frames.float())
    with pytest.raises(InvalidValueError, match=r"\(2, 8, 8, 4\)"):
        chroma.is_key(torch.zeros(2, 8, 8, 4, dtype=torch.uint8))
    with pytest.raises(InvalidValueError, match=r"\(1, 8, 8, 3\)"):
        chroma.replace(frames, frames[:1])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_cuda_equals_cpu_without_a_host_sync() -> None:
    frames = torch.randint(0, 256, (64, 84, 84, 3), dtype=torch.uint8)
    expected = chroma.replace(frames, frames.flip(0))
    on_device = frames.cuda()
    chroma.is_key(on_device)  # moves the table there once
    torch.cuda.set_sync_debug_mode("error")
    try:
        result = chroma.replace(on_device, on_device.flip(0))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    torch.testing.assert_close(result.cpu(), expected)


@pytest.fixture(scope="module")
def green_screen_frames() -> Iterator[np.ndarray]:
    """A dm_control walker before sky and floor painted in the benchmark's green, in a few poses."""
    if sys.platform == "linux":
        os.environ.setdefault("MUJOCO_GL", "egl")
    mujoco = pytest.importorskip("mujoco")
    suite = pytest.importorskip("dm_control.suite")
    physics = suite.load("walker", "walk", task_kwargs={"random": 0}).physics
    model = physics.model.ptr
    model.tex_data[:] = np.resize(np.array(SCREEN, np.uint8), model.tex_data.shape)
    floor = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_GEOM, "floor")
    model.mat_rgba[model.geom_matid[floor]] = 1.0
    try:
        renderer = mujoco.Renderer(model, 84, 84)
    except Exception as error:
        pytest.skip(f"no OpenGL context: {error}")
    frames = []
    for angle in (0.0, 0.3, -0.4):
        physics.data.qpos[3:] = angle
        mujoco.mj_forward(model, physics.data.ptr)
        renderer.update_scene(physics.data.ptr, camera=0)
        frames.append(renderer.render())
    yield np.stack(frames)
    renderer.close()


def test_green_screen_is_keyed_and_the_robot_is_not(green_screen_frames: np.ndarray) -> None:
    key = keys(green_screen_frames)
    np.testing.assert_array_equal(key, scalar_rules(green_screen_frames.reshape(-1, 3)).reshape(key.shape))
    assert key[:, :3].all()  # above the robot's head there is only sky
    assert 0.8 < key.mean() < 0.98
    red, green, _ = np.moveaxis(green_screen_frames, -1, 0)
    robot = red > green
    assert robot.sum() > 300
    assert not key[robot].any()
