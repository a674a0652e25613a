"""Augmentations against per-image oracles; the picture bank's crops, refreshing, state and bad files."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor

from sgqn.augmentations import (
    AUGMENTATIONS,
    Augmentation,
    ImageBank,
    center_crop,
    color_jitter,
    make_augmentation,
    moving_overlay,
    overlay,
    random_conv,
    random_crop,
    random_shift,
    window,
)
from sgqn.errors import DataError, InvalidValueError, UnknownNameError

SIZE = 12


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def observations(batch: int = 6, stack: int = 3, size: int = SIZE) -> Tensor:
    return torch.randint(256, (batch, 3 * stack, size, size), dtype=torch.uint8, generator=generator(7))


def pictures(num: int = 10, size: int = SIZE) -> Tensor:
    return torch.randint(256, (num, 3, size, size), dtype=torch.uint8, generator=generator(8))


EVERY: dict[str, Augmentation] = {
    "color_jitter": color_jitter,
    "moving_overlay": lambda obs, g: moving_overlay(obs, g, pictures(), speed=2),
    "overlay": lambda obs, g: overlay(obs, g, pictures()),
    "random_conv": random_conv,
    "random_crop": lambda obs, g: random_crop(obs, g, size=8),
    "random_shift": lambda obs, g: random_shift(obs, g, pad=2),
}
OUTPUT = dict.fromkeys(("color_jitter", "moving_overlay", "overlay", "random_conv"), torch.float32)
"""The others keep the dtype."""


# What holds for all


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_dtype_range_and_shape(name: str, dtype: torch.dtype) -> None:
    obs = observations().to(dtype)
    before = obs.clone()
    out = EVERY[name](obs, generator())
    assert out.dtype == OUTPUT.get(name, dtype)
    assert out.shape == ((6, 9, 8, 8) if name == "random_crop" else obs.shape)
    assert out.is_contiguous()
    assert 0 <= out.min() <= out.max() <= 255
    assert torch.equal(obs, before)


@pytest.mark.parametrize("name", EVERY)
def test_uint8_and_float_give_the_same(name: str) -> None:
    a, b = EVERY[name](observations(), generator()), EVERY[name](observations().float(), generator())
    assert torch.equal(a.float(), b)


@pytest.mark.parametrize("name", EVERY)
def test_randomness_is_the_generators_alone(name: str) -> None:
    g = generator()
    torch.manual_seed(0)
    state = torch.get_rng_state()
    first, second = (EVERY[name](observations(), g) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), state)
    assert not torch.equal(first, second)
    torch.manual_seed(1)
    assert torch.equal(EVERY[name](observations(), generator()), first)


@pytest.mark.parametrize("name", [name for name in EVERY if name != "moving_overlay"])
def test_stacked_frames_are_treated_alike_and_images_are_not(name: str) -> None:
    """Equal frames stay equal within a stack; equal images of a batch become different ones."""
    obs = observations(1, 1).repeat(16, 3, 1, 1)
    out = EVERY[name](obs, generator()).unflatten(1, (3, 3))
    assert torch.equal(out[:, 0], out[:, 1])
    assert torch.equal(out[:, 0], out[:, 2])
    assert len(torch.unique(out.flatten(1), dim=0)) > 3


@pytest.mark.parametrize("name", EVERY)
def test_views_are_fine(name: str) -> None:
    """Observations that are not contiguous, such as a batch cut out of a larger tensor."""
    wide = torch.cat([observations(), observations()], dim=1)
    assert torch.equal(EVERY[name](wide[:, 9:], generator()), EVERY[name](observations(), generator()))


# Shift and crops


def test_shift_equals_padding_and_cropping_each_image() -> None:
    obs = observations(40)
    out = random_shift(obs, generator(3), pad=4)
    top, left = torch.randint(9, (2, 40), generator=generator(3)).tolist()
    for image, shifted, y, x in zip(obs, out, top, left, strict=True):
        padded = torch.nn.functional.pad(image.float()[None], (4, 4, 4, 4), mode="replicate")[0]
        assert torch.equal(padded[:, y : y + SIZE, x : x + SIZE], shifted.float())


def test_shift_covers_every_offset_evenly_and_nothing_else() -> None:
    rows = torch.arange(20, dtype=torch.float32)[:, None].expand(20, 20)
    obs = torch.stack([rows, rows.T, rows])[None].expand(8100, 3, 20, 20)
    middle = random_shift(obs, generator(), pad=4)[:, :2, 10, 10] - 10
    offsets, counts = middle.long().unique(dim=0, return_counts=True)
    assert sorted(map(tuple, offsets.tolist())) == [(y, x) for y in range(-4, 5) for x in range(-4, 5)]
    assert ((counts - 100.0) ** 2 / 100).sum() < 80 + 5 * 160**0.5


def test_obs_and_next_obs_get_different_shifts() -> None:
    g = generator()
    obs = observations(64)
    assert (random_shift(obs, g) != random_shift(obs, g)).flatten(1).any(dim=1).float().mean() > 0.9


def test_no_padding_changes_nothing() -> None:
    assert torch.equal(random_shift(observations(), generator(), pad=0), observations())
    with pytest.raises(InvalidValueError, match="-1"):
        random_shift(observations(), generator(), pad=-1)


def test_crops_lie_inside_and_reach_every_place() -> None:
    obs = observations(500, size=10)
    out = random_crop(obs, generator(), size=8)
    found = set()
    for image, crop in zip(obs, out, strict=True):
        places = [(y, x) for y in range(3) for x in range(3) if torch.equal(image[:, y : y + 8, x : x + 8], crop)]
        assert len(places) == 1
        found.add(places[0])
    assert len(found) == 9


def test_crop_of_the_whole_and_of_too_much() -> None:
    obs = observations()
    assert torch.equal(random_crop(obs, generator(), size=SIZE), obs)
    for crop in (lambda size: random_crop(obs, generator(), size), lambda size: center_crop(obs, size)):
        with pytest.raises(InvalidValueError, match="13x13 out of 12x12"):
            crop(13)


def test_center_crop_is_the_benchmarks() -> None:
    obs = observations(2, size=100)
    assert torch.equal(center_crop(obs), obs[:, :, 8:92, 8:92])
    assert torch.equal(center_crop(obs[0]), obs[0, :, 8:92, 8:92])


def test_window_by_hand() -> None:
    image = torch.arange(12.0).view(1, 1, 3, 4)
    cut = window(image, torch.tensor([-1]), torch.tensor([1]), 3, 5)
    assert cut[0, 0].tolist() == [[1, 2, 3, 3, 3], [1, 2, 3, 3, 3], [5, 6, 7, 7, 7]]


# Overlay and convolution


def test_overlay_by_hand() -> None:
    obs = torch.full((1, 6, 2, 2), 100, dtype=torch.uint8)
    picture = torch.tensor([0, 255, 51], dtype=torch.uint8).view(1, 3, 1, 1).expand(1, 3, 2, 2)
    half = overlay(obs, generator(), picture)
    assert half[0, :, 0, 0].tolist() == [50, 177.5, 75.5] * 2
    quarter = overlay(obs, generator(), picture, alpha=0.25)
    assert quarter[0, :, 1, 1].tolist() == [75, 138.75, 87.75] * 2


def test_overlay_equals_mixing_each_image() -> None:
    obs, bank = observations(30), pictures()
    out = overlay(obs, generator(2), bank, alpha=0.3)
    index = torch.randint(10, (30,), generator=generator(2))
    for image, mixed, number in zip(obs, out, index, strict=True):
        expected = 0.7 * image.double() + 0.3 * bank[number].double().repeat(3, 1, 1)
        torch.testing.assert_close(mixed.double(), expected, atol=1e-4, rtol=0)


def test_a_moving_overlay_equals_mixing_each_frame() -> None:
    obs, bank = observations(30), pictures()
    out = moving_overlay(obs, generator(2), bank, alpha=0.3, speed=3)
    drawn = generator(2)
    index = torch.randint(10, (30,), generator=drawn).tolist()
    down, right = (torch.randint(7, (2, 30), generator=drawn) - 3).tolist()
    assert {-3, 0, 3} <= set(down)
    for image, mixed, number, dy, dx in zip(obs, out, index, down, right, strict=True):
        for step in range(3):
            rows = np.clip(np.arange(SIZE) + step * dy, 0, SIZE - 1)
            columns = np.clip(np.arange(SIZE) + step * dx, 0, SIZE - 1)
            moved = bank[number].numpy()[:, rows][:, :, columns]
            frame = slice(3 * step, 3 * step + 3)
            expected = 0.7 * image[frame].numpy().astype(float) + 0.3 * moved
            np.testing.assert_allclose(mixed[frame].numpy(), expected, atol=1e-4)


def test_each_image_has_its_own_alpha() -> None:
    black, white = torch.zeros(2000, 3, 2, 2, dtype=torch.uint8), torch.full((1, 3, 2, 2), 255, dtype=torch.uint8)
    out = moving_overlay(black, generator(), white, alpha=0.6, spread=0.2) / 255
    assert (out == out[:, :1, :1, :1]).all()
    alphas = out[:, 0, 0, 0]
    assert 0.4 <= alphas.min() < 0.41
    assert 0.79 < alphas.max() <= 0.8
    assert abs(alphas.mean() - 0.6) < 5 * 0.4 / (12 * 2000) ** 0.5


def test_color_jitter_equals_mixing_the_colours_of_each_pixel() -> None:
    obs = observations(20)
    out = color_jitter(obs, generator(5), strength=0.4)
    drawn = generator(5)
    mixing = np.eye(3) + 0.4 * torch.randn(20, 3, 3, generator=drawn).double().numpy()
    offset = 128 * 0.4 * (2 * torch.rand(20, 3, 1, generator=drawn).double().numpy() - 1)
    for image, result, matrix, add in zip(obs, out, mixing, offset, strict=True):
        pixels = image.double().numpy().reshape(3, 3, -1)  # (frames, colours, pixels)
        for frame in range(3):
            expected = np.clip(matrix @ (pixels[frame] - 128) + 128 + add, 0, 255)
            np.testing.assert_allclose(result[3 * frame : 3 * frame + 3].flatten(1).numpy(), expected, atol=1e-3)


def test_no_color_jitter_changes_nothing() -> None:
    torch.testing.assert_close(color_jitter(observations(), generator(), strength=0.0), observations().float())
    with pytest.raises(InvalidValueError, match=r"-0\.1"):
        color_jitter(observations(), generator(), strength=-0.1)


def test_overlay_draws_every_picture() -> None:
    shades = torch.arange(20, dtype=torch.uint8).view(20, 1, 1, 1).expand(20, 3, 2, 2)
    out = overlay(torch.zeros(4000, 3, 2, 2, dtype=torch.uint8), generator(), shades, alpha=1.0)
    counts = torch.bincount(out[:, 0, 0, 0].long(), minlength=20)
    assert ((counts - 200.0) ** 2 / 200).sum() < 19 + 5 * 38**0.5


def test_overlay_refuses_what_does_not_fit() -> None:
    with pytest.raises(InvalidValueError, match=r"\(3, 5, 5\)"):
        overlay(observations(), generator(), pictures(size=5))
    with pytest.raises(InvalidValueError, match=r"\(3, 5, 5\)"):
        moving_overlay(observations(), generator(), pictures(size=5))
    with pytest.raises(InvalidValueError, match="4 channels"):
        overlay(torch.zeros(1, 4, SIZE, SIZE), generator(), pictures())


def test_random_conv_equals_a_convolution_of_each_frame() -> None:
    obs = observations(5)
    out = random_conv(obs, generator(4))
    weights = torch.randn(15, 3, 3, 3, generator=generator(4)).view(5, 3, 3, 3, 3)
    for image, result, weight in zip(obs, out, weights, strict=True):
        for frame in range(3):
            rgb = image[3 * frame : 3 * frame + 3].double().numpy() / 255
            padded = np.pad(rgb, ((0, 0), (1, 1), (1, 1)), mode="edge")
            expected = np.zeros((3, SIZE, SIZE))
            for o in range(3):
                for y in range(3):
                    for x in range(3):
                        part = padded[:, y : y + SIZE, x : x + SIZE]
                        expected[o] += np.tensordot(weight[o, :, y, x].double().numpy(), part, axes=1)
            expected = 255 / (1 + np.exp(-expected))
            np.testing.assert_allclose(result[3 * frame : 3 * frame + 3].numpy(), expected, atol=1e-3)


# Registry


def test_names_may_have_arguments() -> None:
    bank = ImageBank(4, SIZE, paths=[])
    by_name = make_augmentation("moving_overlay:alpha=0.7,speed=2", bank)(observations(), generator())
    assert torch.equal(by_name, moving_overlay(observations(), generator(), bank.images, alpha=0.7, speed=2))
    strong = make_augmentation("color_jitter:strength=0.5")(observations(), generator())
    assert torch.equal(strong, color_jitter(observations(), generator(), strength=0.5))
    assert "overlay:alpha=1" in AUGMENTATIONS


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("overlay:alpha=2", r"overlay: alpha must lie in \[0, 1\], not 2.0"),
        ("moving_overlay:alpha=0.9,spread=0.3", r"not 0.9 \+- 0.3"),
        ("moving_overlay:speed=-1", "speed must be at least 0, not -1"),
        ("overlay:alpha=red", "alpha must be a number, not 'red'"),
        ("overlay:speed=2", "'speed=2' is not an argument of 'overlay'; its arguments: alpha=float"),
        ("random_conv:alpha=1", "its arguments: none"),
        ("overlay:", "'' is not an argument"),
    ],
)
def test_invalid_arguments_are_named(name: str, message: str) -> None:
    with pytest.raises(InvalidValueError, match=message):
        AUGMENTATIONS[name]


def test_registry() -> None:
    assert set(AUGMENTATIONS) >= {"overlay", "random_conv"}
    bank = ImageBank(4, SIZE, paths=[])
    for name in AUGMENTATIONS:
        assert make_augmentation(name, bank)(observations(), generator()).shape == observations().shape
    with pytest.raises(UnknownNameError, match="random_conv"):
        make_augmentation("random_cnov")
    with pytest.raises(InvalidValueError, match="ImageBank"):
        make_augmentation("overlay")
    with pytest.raises(InvalidValueError, match="alpha"):
        overlay(observations(), generator(), bank.images, alpha=2)


# The bank


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    """Twelve files: plain colours that no two share, in several formats and shapes."""
    paths = []
    for index in range(12):
        path = tmp_path / f"{index}.{('png', 'jpg', 'bmp')[index % 3]}"
        Image.new("RGB", (30 + 7 * index, 60), (20 * index, 0, 0)).save(path, quality=95)
        paths.append(path)
    return paths


def gradient(path: Path, width: int = 160, height: int = 120) -> Path:
    """Red tells the column and green the row: a crop shows where it comes from."""
    x, y = np.meshgrid(np.linspace(0, 255, width), np.linspace(0, 255, height))
    Image.fromarray(np.stack([x, y, np.zeros_like(x)], axis=2).round().astype(np.uint8)).save(path)
    return path


def test_bank_holds_crops_of_all_files(files: list[Path]) -> None:
    bank = ImageBank(200, SIZE, paths=files)
    assert bank.source == "pictures"
    assert (bank.images.shape, bank.images.dtype) == ((200, 3, SIZE, SIZE), torch.uint8)
    shades = (bank.images[:, 0].float().mean(dim=(1, 2)) / 20).round().long()
    assert set(shades.tolist()) == set(range(12))


def test_crops_are_random_resized_crops(tmp_path: Path) -> None:
    bank = ImageBank(600, 16, paths=[gradient(tmp_path / "a.png")])
    red, green = (bank.images[:, channel].float() for channel in (0, 1))
    across = (red[:, :, -1] - red[:, :, 0]).mean(dim=1) / 255 * 16 / 15  # share of the width, < 0 if mirrored
    down = (green[:, -1] - green[:, 0]).mean(dim=1) / 255 * 16 / 15
    assert 0.4 < (across < 0).float().mean() < 0.6
    assert (down > 0).all()
    area, ratio = across.abs() * down, across.abs() / down * 160 / 120
    assert 0.06 < area.min() < 0.12
    assert 0.9 < area.max() < 1.1
    assert 0.70 < ratio.min() < 0.80
    assert 1.25 < ratio.max() < 1.42
    assert ratio.log().mean().abs() < 0.05
    assert 0.35 < area.mean() < 0.6
    left = torch.where(across > 0, red[:, 0, 0], red[:, 0, -1])
    assert left.min() < 15
    assert left.max() > 150


def test_extreme_shapes_fall_back_to_the_middle(tmp_path: Path) -> None:
    bank = ImageBank(20, SIZE, paths=[gradient(tmp_path / "wide.png", 400, 4)])
    red = bank.images[:, 0].float().mean(dim=(1, 2))
    assert (red - 127.5).abs().max() < 120


def test_large_pictures_are_reduced(tmp_path: Path) -> None:
    bank = ImageBank(4, SIZE, paths=[gradient(tmp_path / "large.jpg", 2000, 1500)])
    assert min(bank._sources[0].size) == 256


def test_same_seed_same_pictures(files: list[Path]) -> None:
    a, b, c = (ImageBank(70, SIZE, seed=seed, paths=files) for seed in (1, 1, 2))
    assert torch.equal(a.images, b.images)
    assert not torch.equal(a.images, c.images)


def test_refresh_replaces_the_oldest_in_place(files: list[Path]) -> None:
    bank = ImageBank(10, SIZE, paths=[gradient(files[0].parent / "g.png")])
    address, before = bank.images.data_ptr(), bank.images.clone()
    bank.refresh(4)
    changed = (bank.images != before).flatten(1).any(dim=1).tolist()
    assert changed == [True] * 4 + [False] * 6
    bank.refresh(4)
    bank.refresh(4)
    assert (bank.images != before).flatten(1).any(dim=1).all()
    assert bank.images.data_ptr() == address
    bank.refresh(0)
    bank.refresh(99)


def test_pictures_do_not_depend_on_how_or_when_they_were_prepared(files: list[Path]) -> None:
    path = gradient(files[0].parent / "g.png")
    a, b = (ImageBank(10, SIZE, paths=[*files, path]) for _ in range(2))
    for _ in range(6):
        a.refresh(2)
    b.refresh(5)
    time.sleep(0.05)
    b.refresh(3)
    b.refresh(4)
    assert torch.equal(a.images, b.images)


def test_state_brings_the_same_pictures_back(files: list[Path], caplog: pytest.LogCaptureFixture) -> None:
    a = ImageBank(10, SIZE, seed=3, paths=files)
    for _ in range(7):
        a.refresh(3)
    b = ImageBank(10, SIZE, seed=0, paths=files)
    b.refresh(2)
    b.load_state_dict(a.state_dict())
    for _ in range(3):
        assert torch.equal(a.images, b.images)
        a.refresh(3)
        b.refresh(3)
    with pytest.raises(InvalidValueError, match="10 overlay images"):
        ImageBank(11, SIZE, paths=files).load_state_dict(a.state_dict())
    assert "changed" not in caplog.text
    ImageBank(10, SIZE, paths=files[1:]).load_state_dict(a.state_dict())
    assert "changed" in caplog.text


def test_files_that_are_no_pictures_are_skipped_with_one_warning_each(
    files: list[Path], caplog: pytest.LogCaptureFixture
) -> None:
    folder = files[0].parent
    text, short, empty = folder / "text.jpg", folder / "short.png", folder / "empty.png"
    text.write_text("not a picture")
    short.write_bytes(files[0].read_bytes()[:60])
    empty.write_bytes(b"")
    bank = ImageBank(300, SIZE, paths=[*files, text, short, empty, folder / "gone.png"])
    bank.refresh(200)
    warnings = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert len(warnings) == 4
    for path in (text, short, empty, folder / "gone.png"):
        assert sum(str(path) in message for message in warnings) == 1


def test_only_bad_files_is_an_error(tmp_path: Path) -> None:
    paths = [tmp_path / f"{index}.jpg" for index in range(5)]
    for path in paths:
        path.write_text("not a picture")
    with pytest.raises(DataError, match="none of 5"):
        ImageBank(10, SIZE, paths=paths)


def test_cache_is_bounded(files: list[Path]) -> None:
    bank = ImageBank(100, SIZE, paths=files, cache_bytes=40_000)
    assert bank._sources._held <= 40_000  # type: ignore[union-attr]
    assert torch.equal(bank.images, ImageBank(100, SIZE, paths=files).images)


def test_generated_images_serve_and_say_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("SGQN_DATA", str(tmp_path))
    bank = ImageBank(16, SIZE)
    assert bank.source == "generated"
    assert "generated" in caplog.text
    assert bank.images.float().std() > 10
    assert torch.equal(bank.images, ImageBank(16, SIZE).images)


def test_pictures_come_from_the_data_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGQN_DATA", str(tmp_path))
    (tmp_path / "overlay" / "deep").mkdir(parents=True)
    Image.new("RGB", (40, 40), (1, 2, 3)).save(tmp_path / "overlay" / "deep" / "a.png")
    bank = ImageBank(4, SIZE)
    assert bank.source == "pictures"
    assert bank.images[:, :, 0, 0].tolist() == [[1, 2, 3]] * 4


def test_overlay_sees_refreshed_pictures(files: list[Path]) -> None:
    bank = ImageBank(8, SIZE, paths=[gradient(files[0].parent / "g.png")])
    augment = make_augmentation("overlay", bank)
    before = augment(observations(), generator())
    bank.refresh(8)
    assert not torch.equal(augment(observations(), generator()), before)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", EVERY)
def test_captured_equals_eager(name: str) -> None:
    bank = pictures().cuda()
    augment: Callable[[Tensor, torch.Generator], Tensor] = EVERY[name]
    if name == "overlay":
        augment = lambda obs, g: overlay(obs, g, bank)  # noqa: E731
    obs = observations().cuda()
    g = torch.Generator("cuda").manual_seed(0)
    torch.cuda.set_sync_debug_mode("error")
    augment(obs, g)
    torch.cuda.set_sync_debug_mode("default")
    g.manual_seed(0)
    eager = [augment(obs, g) for _ in range(3)]
    graph = torch.cuda.CUDAGraph()
    graph.register_generator_state(g)
    with torch.cuda.graph(graph):
        out = augment(obs, g)
    g.manual_seed(0)
    for expected in eager:
        graph.replay()
        torch.testing.assert_close(out, expected)
