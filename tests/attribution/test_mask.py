from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import ndimage
from torch import Tensor

from sgqn.attribution import Mask, fill, quantile_mask, soft_mask
from sgqn.attribution.mask import contrast_mask, contrasting, grown, inpainted, varied_masks
from sgqn.errors import InvalidValueError


def tie_free(batch: int, frames: int, size: int, seed: int) -> Tensor:
    """Attributions whose magnitude over RGB is, in every frame, a permutation of 1 .. size^2."""
    g = torch.Generator().manual_seed(seed)
    order = torch.stack([torch.randperm(size * size, generator=g) + 1.0 for _ in range(batch * frames)])
    peak = order.view(batch, frames, 1, size, size)
    colours = peak * torch.rand(batch, frames, 3, size, size, generator=g)
    where = torch.randint(3, peak.shape, generator=g)
    colours = colours.scatter(2, where, peak)
    sign = torch.randint(2, colours.shape, generator=g) * 2 - 1
    return (colours * sign).flatten(1, 2)


def reference(attribution: Tensor, rho: float) -> Tensor:
    """The definition, written plainly: one frame at a time, with torch.quantile."""
    mask = torch.zeros_like(attribution, dtype=torch.bool)
    for b in range(attribution.shape[0]):
        for c in range(0, attribution.shape[1], 3):
            magnitude = attribution[b, c : c + 3].abs().max(dim=0).values
            mask[b, c : c + 3] = magnitude >= torch.quantile(magnitude, rho)
    return mask


def test_keeps_the_353_strongest_of_an_84x84_frame():
    attribution = tie_free(2, 3, 84, seed=0)
    mask = quantile_mask(attribution, rho=0.95)
    assert mask.dtype == torch.bool
    assert mask.shape == attribution.shape
    assert (mask.sum(dim=(2, 3)) == 353).all()
    assert torch.equal(mask, reference(attribution, 0.95))
    assert ((attribution.abs().unflatten(1, (3, 3)).amax(2) > 7056 - 353) == mask[:, ::3]).all()


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(2, 15),
    st.integers(0, 2**31),
    st.floats(0, 1, width=32),
)
def test_keeps_exactly_the_top_share(batch: int, frames: int, size: int, seed: int, rho: float):
    attribution = tie_free(batch, frames, size, seed)
    n = size * size
    rank = np.float32(rho) * np.float32(n - 1)
    # A hair above a whole rank, torch.quantile's interpolation rounds back to the value below.
    assume(rank == round(rank) or abs(rank - round(rank)) > 1e-4)
    mask = quantile_mask(attribution, rho)
    assert torch.equal(mask, reference(attribution, rho))
    share = n - math.ceil(rho * (n - 1) - 1e-4)
    assert (abs(mask.sum(dim=(2, 3)) - share) <= (0 if abs(rho * (n - 1) % 1) > 1e-3 else 1)).all()
    kept, dropped = mask[:, ::3], ~mask[:, ::3]
    magnitude = attribution.abs().unflatten(1, (frames, 3)).amax(2)
    for m, k, d in zip(magnitude.flatten(0, 1), kept.flatten(0, 1), dropped.flatten(0, 1), strict=True):
        assert not d.any() or m[k].min() > m[d].max()


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 10), st.integers(0, 2**31), st.sampled_from([0.0, 0.1, 0.5, 0.9, 0.95, 0.98, 1.0]))
def test_ties_are_kept_as_by_the_definition(size: int, seed: int, rho: float):
    g = torch.Generator().manual_seed(seed)
    attribution = torch.randint(-4, 5, (2, 6, size, size), generator=g).float()
    assert torch.equal(quantile_mask(attribution, rho), reference(attribution, rho))


def test_frames_are_independent():
    attribution = tie_free(2, 3, 12, seed=1)
    scaled = attribution.clone()
    scaled[:, 3:6] *= 1000
    scaled[1, 6:] += torch.randn(3, 12, 12)
    mask, other = quantile_mask(attribution, 0.9), quantile_mask(scaled, 0.9)
    assert torch.equal(mask[:, :6], other[:, :6])
    assert torch.equal(mask[0], other[0])
    assert torch.equal(quantile_mask(attribution[:, 3:6], 0.9), mask[:, 3:6])  # a frame on its own


def test_colours_share_a_mask():
    mask = quantile_mask(torch.randn(2, 9, 8, 8), 0.8).unflatten(1, (3, 3))
    assert torch.equal(mask, mask[:, :, :1].expand_as(mask))


def test_frames_can_be_named_for_other_channel_counts():
    attribution = torch.randn(2, 4, 8, 8)
    grey = quantile_mask(attribution, 0.5, frames=4)
    assert torch.equal(grey, attribution.abs() >= attribution.abs().flatten(2).quantile(0.5, 2)[..., None, None])
    one = quantile_mask(attribution, 0.5, frames=1)
    assert torch.equal(one, one[:, :1].expand_as(one))
    for bad in (quantile_mask, soft_mask):
        with pytest.raises(InvalidValueError, match="4 channels do not divide into frames of three colours"):
            bad(attribution)
        for frames in (0, 3):
            with pytest.raises(InvalidValueError, match=f"into {frames} frames"):
                bad(attribution, frames=frames)
        with pytest.raises(InvalidValueError, match="B, C, H, W"):
            bad(attribution[0])


@pytest.mark.parametrize("mask", [quantile_mask, soft_mask])
@pytest.mark.parametrize("value", [0.0, 3.0, -1.0])
def test_constant_maps_are_kept_whole(mask: Mask, value: float):
    assert (mask(torch.full((2, 9, 8, 8), value)) == 1).all()


def test_one_constant_frame_does_not_touch_the_others():
    attribution = tie_free(1, 3, 8, seed=2)
    expected = quantile_mask(attribution, 0.9)
    attribution[:, :3] = 0
    mask = quantile_mask(attribution, 0.9)
    assert mask[:, :3].all()
    assert torch.equal(mask[:, 3:], expected[:, 3:])


@pytest.mark.parametrize("mask", [quantile_mask, soft_mask])
def test_not_a_number_does_not_crash_and_stays_in_its_frame(mask: Mask):
    attribution = torch.randn(2, 9, 8, 8)
    expected = mask(attribution)
    attribution[0, 0, 0, 0] = math.nan
    result = mask(attribution)
    assert torch.equal(result[1], expected[1])
    assert torch.equal(result[0, 3:], expected[0, 3:])
    if mask is quantile_mask:
        assert torch.equal(result, reference(attribution, 0.95))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_other_precisions(dtype: torch.dtype):
    attribution = tie_free(1, 3, 8, seed=3).to(dtype)
    assert (quantile_mask(attribution, 0.9).sum(dim=(2, 3)) == 7).all()  # 64 - ceil(0.9 * 63)


@pytest.mark.parametrize("rho", [-0.1, 1.5, math.nan])
def test_rho_out_of_range_is_refused(rho: float):
    with pytest.raises(InvalidValueError, match="rho must lie"):
        quantile_mask(torch.randn(1, 3, 4, 4), rho)


def test_soft_mask_is_the_normalised_map():
    attribution = tie_free(2, 3, 8, seed=4)
    mask = soft_mask(attribution)
    magnitude = attribution.abs().unflatten(1, (3, 3)).amax(2)
    torch.testing.assert_close(mask[:, ::3], magnitude / 64)
    assert torch.equal(mask[:, ::3], mask[:, 1::3])
    assert torch.equal(mask[:, ::3], mask[:, 2::3])
    # the softmax of log magnitude over a frame, scaled to a peak of 1
    softmax = (magnitude.log() / 0.5).flatten(2).softmax(2).view_as(magnitude)
    torch.testing.assert_close(
        soft_mask(attribution, temperature=0.5)[:, ::3], softmax / softmax.amax((2, 3), keepdim=True)
    )
    with pytest.raises(InvalidValueError, match="temperature"):
        soft_mask(attribution, temperature=0.0)


def test_masks_share_an_interface():
    attribution, obs = torch.randn(2, 9, 8, 8), torch.rand(2, 9, 8, 8) * 255
    masks: list[Mask] = [partial(quantile_mask, rho=0.9), partial(soft_mask, temperature=2.0)]
    for mask in masks:
        assert mask(attribution).shape == obs.shape
        assert fill(obs, mask(attribution)).shape == obs.shape


def test_fill():
    obs = torch.randint(256, (2, 9, 8, 8), dtype=torch.uint8)
    mask = torch.rand(2, 9, 8, 8) > 0.5
    assert torch.equal(fill(obs, mask), obs * mask)
    assert fill(obs, mask).dtype == torch.uint8
    filled = fill(obs, mask, torch.tensor(37.5))  # the authors' random value, a tensor
    assert torch.equal(filled[mask], obs[mask].float())
    assert (filled[~mask] == 37.5).all()
    assert torch.equal(fill(obs, torch.ones_like(mask)), obs)
    # soft masks interpolate, and agree with hard ones at 0 and 1
    torch.testing.assert_close(fill(obs, mask.float(), torch.tensor(37.5)), filled)
    torch.testing.assert_close(fill(obs, torch.full((2, 9, 8, 8), 0.25), 8), 6 + obs / 4)


def test_grown_masks_have_their_neighbours_too():
    mask = torch.rand(3, 1, 12, 9, generator=torch.Generator().manual_seed(0)) < 0.05
    expected = [ndimage.binary_dilation(image, np.ones((3, 3))) for image in mask[:, 0].numpy()]
    np.testing.assert_array_equal(grown(mask)[:, 0], expected)


def test_varied_masks_have_one_of_the_quantiles_and_its_margin():
    """Each is one of those made one by one, for all frames together, and all of them occur."""
    rhos, margins = (0.5, 0.9, 0.9), (0, 1, 3)
    attribution = tie_free(batch=4, frames=3, size=12, seed=0)
    kinds = torch.randint(3, (10, 4), generator=torch.Generator().manual_seed(1))
    masks = varied_masks(attribution, rhos, margins, kinds)
    assert masks.shape == (40, 1, 12, 12)
    assert masks.dtype == torch.bool
    for copy, (mask, kind) in enumerate(zip(masks.numpy(), kinds.flatten(), strict=True)):
        kept = quantile_mask(attribution[copy % 4][None], rhos[kind])[0].any(dim=0).numpy()
        if margins[kind]:
            kept = ndimage.binary_dilation(kept, np.ones((3, 3)), iterations=margins[kind])
        np.testing.assert_array_equal(mask[0], kept)


def test_a_hole_is_filled_with_what_is_around_it():
    """A hole in an even colour gets that colour, one in a ramp nearly the ramp; pixels outside stay."""
    frames = torch.full((2, 3, 21, 17), 70.0)
    frames[1] = torch.linspace(0, 160, 17)
    hole = torch.zeros(2, 1, 21, 17, dtype=torch.bool)
    hole[:, :, 5:12, 4:9] = True
    seen = torch.where(hole, 1e6, frames)  # of no account
    filled = inpainted(seen, hole)
    torch.testing.assert_close(filled[~hole.expand_as(filled)], frames[~hole.expand_as(frames)])
    torch.testing.assert_close(filled[0], frames[0])
    assert (filled[1] - frames[1]).abs().max() < 30
    assert inpainted(seen, torch.ones_like(hole)).isfinite().all()


def test_contrasting_pixels_are_those_of_another_colour_than_the_surroundings():
    """A body that moves over a plain scene is found in every frame, whatever the mask around it."""
    obs = torch.full((3, 6, 24, 24), 90, dtype=torch.uint8)
    body = torch.zeros(3, 6, 24, 24, dtype=torch.bool)
    body[:, :3, 8:12, 6:10] = True
    body[:, 3:, 9:13, 7:11] = True
    obs[body] = 150
    bright = torch.zeros_like(body)
    bright[:, :3, 8:10, 6:8] = bright[:, 3:, 9:11, 7:9] = True
    obs[bright] = 210
    mask = torch.zeros(3, 1, 24, 24, dtype=torch.bool)
    mask[:, :, 5:16, 4:14] = True
    found = contrasting(obs, mask, torch.tensor([0.0, 0.4, 0.6]))
    assert torch.equal(found[0], mask[0].expand(6, 24, 24))  # every pixel inside
    assert torch.equal(found[1], body[1])
    assert torch.equal(found[2], bright[2])
    assert not contrasting(obs, torch.zeros_like(mask), torch.zeros(3)).any()


def test_a_contrast_mask_is_the_body_that_an_attribution_points_to():
    """A square on ground that becomes brighter from left to right. The attribution covers a part of it, and ground."""
    ground = torch.linspace(40, 120, 40).round().expand(2, 9, 40, 40).clone()
    body = torch.zeros(2, 1, 40, 40, dtype=torch.bool)
    body[0, :, 10:18, 12:20] = body[1, :, 20:28, 20:28] = True
    obs = torch.where(body, 230, ground).to(torch.uint8)
    attribution = torch.rand(2, 9, 40, 40, generator=torch.Generator().manual_seed(0)) * 0.1
    attribution[0, :, 8:14, 12:20] = attribution[1, :, 22:30, 20:28] = 1.0
    found = contrast_mask(obs, attribution, rho=0.97, margin=6, contrast=0.5)
    assert torch.equal(found, body.expand_as(obs))
    assert not torch.equal(quantile_mask(attribution, 0.97), found)
    assert contrast_mask(obs, attribution, rho=0.97, margin=0, contrast=0.5).sum() < found.sum()  # a part of the body
