"""Measures of maps and masks, on maps whose measures are known."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from sgqn.attribution import quantile_mask
from sgqn.errors import InvalidValueError
from sgqn.inspect.measures import (
    agreement,
    base_rate,
    binary,
    iou,
    iou_ceiling,
    mask_iou,
    mask_share,
    mass_share,
    pointing,
)

MAP_MEASURES = (mass_share, pointing)
MASK_MEASURES = (mask_share, iou)
NO_ANSWER = torch.full((1, 1), math.nan, dtype=torch.float64)


def frame(*rows: list[float]) -> Tensor:
    """One frame of one colour, (1, 1, H, W)."""
    return torch.tensor([[list(rows)]])


TRUTH = frame([1, 1, 0], [0, 0, 0]).bool()


def random_case(seed: int, frames: int = 2, size: int = 6) -> tuple[Tensor, Tensor]:
    """An attribution (2, 3 * frames, size, size) and a ground truth with at least one pixel a frame."""
    g = torch.Generator().manual_seed(seed)
    truth = torch.rand(2, frames, size, size, generator=g) < torch.rand(2, frames, 1, 1, generator=g)
    truth[:, :, seed % size, 0] = True
    return torch.randn(2, 3 * frames, size, size, generator=g), truth


def equal(left: Tensor, right: Tensor) -> bool:
    """The same numbers, NaN included."""
    return torch.equal(left.nan_to_num(-1), right.nan_to_num(-1))


def test_by_hand():
    attribution = frame([-3.0, 1, 2], [0, -4, 0])
    assert mass_share(attribution, TRUTH).item() == pytest.approx(4 / 10)
    assert pointing(attribution, TRUTH).item() == 0
    assert pointing(attribution * frame([1, 1, 1], [1, 0, 1]), TRUTH).item() == 1
    assert pointing(frame([4.0, 1, 4], [0, -4, 0]), TRUTH).item() == pytest.approx(1 / 3)  # three tied, one on it
    mask = frame([1, 0, 1], [0, 1, 0]).bool()
    assert mask_share(mask, TRUTH).item() == pytest.approx(1 / 3)
    assert iou(mask, TRUTH).item() == pytest.approx(1 / 4)
    assert iou_ceiling(mask, TRUTH).item() == pytest.approx(2 / 3)
    assert base_rate(TRUTH).item() == pytest.approx(1 / 3)


def test_a_pixel_counts_by_its_strongest_colour():
    colours = torch.cat([frame([1.0, 0]), frame([-5.0, 3]), frame([2.0, -1])], dim=1)
    assert mass_share(colours, frame([1, 0]).bool()).item() == pytest.approx(5 / 8)


def test_frames_are_measured_one_by_one():
    attribution, truth = random_case(seed=3)
    mask = quantile_mask(attribution, 0.7)
    for function, of in [(f, attribution) for f in MAP_MEASURES] + [(f, mask) for f in MASK_MEASURES]:
        whole = function(of, truth)
        assert whole.shape == (2, 2)
        assert equal(whole[:, 1:], function(of[:, 3:], truth[:, 1:]))
        assert equal(whole[1:], function(of[1:], truth[1:]))


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**31), st.floats(1e-30, 1e30))
def test_a_perfect_attribution_scores_exactly_1(seed: int, scale: float):
    attribution, truth = random_case(seed)
    perfect = torch.where(truth.repeat_interleave(3, dim=1), scale * attribution, 0)
    for function in MAP_MEASURES:
        assert (function(perfect, truth) == 1).all()
    for function in (*MASK_MEASURES, iou_ceiling):
        assert (function(truth, truth) == 1).all()
        assert (function(truth.repeat_interleave(3, dim=1), truth) == 1).all()


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**31), st.floats(0, 1e30) | st.floats(-1e30, 0))
def test_a_uniform_attribution_scores_exactly_the_base_rate(seed: int, value: float):
    attribution, truth = random_case(seed)
    uniform = torch.full_like(attribution, value)
    rate = base_rate(truth)
    assert torch.equal(rate, truth.double().mean(dim=(2, 3)))
    for function in MAP_MEASURES:
        assert torch.equal(function(uniform, truth), rate)
    for function in MASK_MEASURES:
        assert torch.equal(function(quantile_mask(uniform, 0.95), truth), rate)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**31), st.floats(1e-20, 1e20))
def test_neither_scale_nor_sign_nor_place_matters(seed: int, scale: float):
    attribution, truth = random_case(seed)
    mask = quantile_mask(attribution, 0.8)
    order = torch.randperm(36, generator=torch.Generator().manual_seed(seed))

    def moved(x: Tensor) -> Tensor:
        return x.flatten(2)[..., order].view_as(x)

    assert torch.allclose(mass_share(-scale * attribution, truth), mass_share(attribution, truth), rtol=1e-5)
    assert torch.equal(pointing(-scale * attribution, truth), pointing(attribution, truth))
    assert torch.allclose(mass_share(moved(attribution), moved(truth)), mass_share(attribution, truth), rtol=1e-12)
    assert torch.equal(pointing(moved(attribution), moved(truth)), pointing(attribution, truth))
    for function in MASK_MEASURES:
        assert torch.equal(function(moved(mask), moved(truth)), function(mask, truth))


def test_frames_without_an_answer():
    attribution, nothing = frame([1.0, 2, 3]), frame([0, 0, 0]).bool()
    whole, some = ~nothing, frame([0, 1, 0]).bool()
    for function in MAP_MEASURES:
        assert equal(function(attribution, nothing), NO_ANSWER)
        assert equal(function(frame([0.0, 0, 0]), nothing), NO_ANSWER)
        assert equal(function(frame([1.0, math.nan, 0]), some), NO_ANSWER)
        assert function(attribution, whole).item() == 1
    for function in (*MASK_MEASURES, iou_ceiling):
        assert equal(function(some, nothing), NO_ANSWER)
        assert equal(function(nothing, nothing), NO_ANSWER)
    assert equal(base_rate(nothing), NO_ANSWER)
    assert mask_share(nothing, some).item() == base_rate(some).item()  # an empty mask ranks no pixel
    assert iou(nothing, some).item() == 0


# Agreement


def test_agreement_by_hand():
    mask = frame([1, 0, 0, 1, 0]).bool()
    predicted = frame([0.9, 0.8, 0.1, 0.3, 0.3])
    accuracy, overlap, precision = (value.item() for value in agreement(predicted, mask, frames=1))
    assert accuracy == pytest.approx(3 / 5)
    assert overlap == pytest.approx(1 / 3)
    assert precision == pytest.approx((1 / 1 + 2 / 4) / 2)  # the second one shares its score with a wrong one


def slow_average_precision(scores: np.ndarray, wanted: np.ndarray) -> float:
    """The definition: the sum over thresholds of precision times the recall gained."""
    area, recall = 0.0, 0.0
    for threshold in sorted(set(scores.flatten().tolist()), reverse=True):
        said = scores >= threshold
        now = (said & wanted).sum() / wanted.sum()
        area += (now - recall) * (said & wanted).sum() / said.sum()
        recall = now
    return area


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 2**31), st.integers(1, 40))
def test_average_precision_is_the_definition(seed: int, levels: int):
    g = torch.Generator().manual_seed(seed)
    predicted = torch.randint(levels, (2, 6, 5, 5), generator=g) / levels
    mask = torch.rand(2, 6, 5, 5, generator=g) < 0.2
    mask[:, ::3, 0, 0] = True
    found = agreement(predicted, mask).average_precision
    for b in range(2):
        for f in range(2):
            part = (slice(b, b + 1), slice(3 * f, 3 * f + 3))
            expected = slow_average_precision(predicted[part].numpy(), mask[part].numpy())
            assert found[b, f].item() == pytest.approx(expected)


def test_agreement_of_extremes():
    mask = quantile_mask(torch.randn(2, 9, 12, 12, generator=torch.Generator().manual_seed(0)), 0.95)
    kept = mask.double().mean(dim=(2, 3))[:, ::3]
    perfect = agreement(mask.float(), mask)
    assert all((value == 1).all() for value in perfect)
    silent = agreement(torch.full(mask.shape, 0.05), mask)
    assert torch.allclose(silent.accuracy, 1 - kept)  # high, though it says nothing
    assert (silent.iou == 0).all()
    assert torch.allclose(silent.average_precision, kept)
    empty = agreement(torch.rand(1, 3, 4, 4), torch.zeros(1, 3, 4, 4, dtype=torch.bool))
    assert empty.iou.isnan().all()
    assert empty.average_precision.isnan().all()


def test_iou_of_two_masks_by_hand() -> None:
    one, other = frame([1, 1, 0, 0]).bool(), frame([0, 1, 1, 0]).bool()
    assert mask_iou(one, other, frames=1).item() == pytest.approx(1 / 3)
    stacks = torch.cat([one, one], dim=1), torch.cat([other, one], dim=1)
    assert mask_iou(*stacks, frames=2).tolist() == [pytest.approx([1 / 3, 1])]
    assert mask_iou(*stacks, frames=1).item() == pytest.approx(3 / 5)
    assert mask_iou(one & other & ~one, ~one & one, frames=1).isnan().all()


def test_a_soft_mask_counts_where_it_keeps_more_than_half() -> None:
    soft = frame([0.2, 0.5, 0.6, 1.0])
    assert binary(soft).tolist() == frame([0, 0, 1, 1]).bool().tolist()
    hard = soft > 0.1
    assert binary(hard) is hard


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda a, t, m: mass_share(a, t[:, :, :3]), "must fit"),
        (lambda a, t, m: pointing(a[:1], t), "must fit"),
        (lambda a, t, m: mass_share(a[:, :4], t[:, [0, 1, 0]]), "must fit"),
        (lambda a, t, m: mass_share(a, t.float()), "ground truth is bool"),
        (lambda a, t, m: base_rate(t[0]), "ground truth is bool"),
        (lambda a, t, m: mask_share(a, t), "a mask is bool"),
        (lambda a, t, m: iou(m[:, :, 1:], t), "must fit"),
        (lambda a, t, m: agreement(a, a), "a mask is bool"),
        (lambda a, t, m: agreement(a[:1], m), "shapes differ"),
        (lambda a, t, m: agreement(a, m, frames=4), "6 channels do not divide into 4 frames"),
    ],
)
def test_shapes_that_do_not_fit(call: Any, words: str):
    attribution, truth = random_case(seed=0)
    with pytest.raises(InvalidValueError, match=words) as error:
        call(attribution, truth, quantile_mask(attribution))
    assert "\n" not in str(error.value)
