"""Deletion and insertion, on values whose curves are known."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from sgqn.errors import InvalidValueError, UnknownNameError
from sgqn.inspect.curves import ValueCurve, blurred, deletion, filled, insertion


def linear(seed: int, batch: int = 3, frames: int = 2, size: int = 5) -> tuple[Any, Tensor, Tensor, Tensor]:
    """Q(s, a) = <w, s> + sum of a, with random w; its observations, actions, and w."""
    g = torch.Generator().manual_seed(seed)
    weights = torch.randn(3 * frames, size, size, generator=g, dtype=torch.float64)
    obs = 255 * torch.rand(batch, 3 * frames, size, size, generator=g, dtype=torch.float64)
    action = torch.rand(batch, 2, generator=g, dtype=torch.float64)
    return lambda o, a: (weights * o).sum(dim=(1, 2, 3)) + a.sum(dim=1), obs, action, weights


def effect_map(weights: Tensor, obs: Tensor, blank: Tensor) -> Tensor:
    """w (s - blank), summed over a pixel's colours, as one number a pixel: its exact effect on a linear Q."""
    effect = (weights * (obs - blank)).unflatten(1, (-1, 3)).sum(dim=2)
    return effect.repeat_interleave(3, dim=1)


@pytest.mark.parametrize("fill", ["zero", "mean", "blur", 100.0])
@pytest.mark.parametrize("least_first", [False, True])
def test_curves_of_a_linear_q_are_the_closed_form(fill: str | float, least_first: bool):
    q, obs, action, weights = linear(seed=0)
    blank = filled(obs, fill)
    attribution = effect_map(weights, obs, blank)
    removing = deletion(q, obs, action, attribution, steps=25, fill=fill, least_first=least_first)
    # Frame by frame, Q falls by the effects in their order: a cumulative sum.
    effects = attribution[:, ::3].flatten(2)
    order = effects.abs().argsort(dim=2, descending=not least_first)
    fallen = effects.gather(2, order).cumsum(dim=2).sum(dim=1)
    expected = q(obs, action)[:, None] - torch.cat([torch.zeros(3, 1), fallen], dim=1)
    assert torch.allclose(removing.values, expected)
    assert torch.allclose(removing.shown, torch.linspace(1, 0, 26, dtype=torch.float64))
    assert torch.allclose(removing.whole, q(obs, action))
    assert torch.allclose(removing.filled, q(blank, action))
    # Q of what is shown and of what is not add up.
    showing = insertion(q, obs, action, attribution, steps=25, fill=fill, least_first=least_first)
    assert torch.allclose(showing.values + removing.values, (removing.whole + removing.filled)[:, None])
    assert torch.allclose(showing.area + removing.area, torch.ones(3, dtype=torch.float64))


def test_area_of_equal_effects_is_a_half_and_of_one_pixel_nearly_nothing():
    obs, action = torch.ones(1, 3, 4, 4), torch.zeros(1, 1)
    everything = deletion(lambda o, a: o.sum(dim=(1, 2, 3)), obs, action, torch.rand(1, 3, 4, 4), 16, fill=0.0)
    assert everything.area.item() == pytest.approx(0.5)
    one = torch.zeros(1, 3, 4, 4)
    one[:, :, 2, 1] = 1
    removing = deletion(lambda o, a: o[:, 0, 2, 1], obs, action, one, 16, fill=0.0)
    assert removing.values.tolist() == [[1, *[0] * 16]]
    assert removing.area.item() == pytest.approx(1 / 32)
    assert insertion(lambda o, a: o[:, 0, 2, 1], obs, action, one, 16, fill=0.0).area.item() == pytest.approx(31 / 32)
    late = deletion(lambda o, a: o[:, 0, 2, 1], obs, action, one, 16, fill=0.0, least_first=True)
    assert late.area.item() == pytest.approx(31 / 32)


def test_ties_go_by_position():
    seen: list[Tensor] = []

    def q(obs: Tensor, action: Tensor) -> Tensor:
        seen.append(obs)
        return obs.sum(dim=(1, 2, 3))

    obs, tied = torch.ones(1, 3, 2, 2), torch.zeros(1, 3, 2, 2)
    deletion(q, obs, torch.zeros(1, 1), tied, steps=4, fill=0.0)
    assert seen[0][:, 0].flatten(1).tolist() == [[1, 1, 1, 1], [0, 1, 1, 1], [0, 0, 1, 1], [0, 0, 0, 1], [0, 0, 0, 0]]
    deletion(q, obs, torch.zeros(1, 1), tied, steps=2, fill=0.0, least_first=True)
    assert seen[1][:, 0].flatten(1).tolist() == [[1, 1, 1, 1], [1, 1, 0, 0], [0, 0, 0, 0]]


@pytest.mark.parametrize("steps", [1, 7, 20, 100])
@pytest.mark.parametrize("batch_size", [1, 4, 13])
def test_small_passes_give_the_same_curve(batch_size: int, steps: int):
    q, obs, action, _ = linear(seed=1)
    attribution = torch.randn(obs.shape, generator=torch.Generator().manual_seed(0))
    largest = 0

    def counted(o: Tensor, a: Tensor) -> Tensor:
        nonlocal largest
        largest = max(largest, len(o))
        return q(o, a)

    at_once = deletion(q, obs, action, attribution, steps, batch_size=10_000)
    in_parts = deletion(counted, obs, action, attribution, steps, batch_size=batch_size)
    assert torch.allclose(at_once.values, in_parts.values)
    assert largest == min(batch_size, 3 * (steps + 1))
    assert at_once.values.shape == (3, steps + 1)
    assert torch.equal(in_parts.shown[[0, -1]], torch.tensor([1.0, 0.0], dtype=torch.float64))


def test_insertion_is_deletion_of_the_least_salient_backwards():
    q, obs, action, _ = linear(seed=2)
    bent = lambda o, a: q(o, a).tanh()  # noqa: E731
    attribution = torch.randn(obs.shape)
    showing = insertion(bent, obs, action, attribution, steps=8)
    removing = deletion(bent, obs, action, attribution, steps=8, least_first=True)
    assert torch.equal(showing.values, removing.values.flip(1))
    assert torch.equal(showing.shown, removing.shown.flip(0))
    assert torch.allclose(showing.area, removing.area, equal_nan=True)


def test_pooled_curve_is_weighted_by_what_there_is_to_explain():
    shown = torch.tensor([1.0, 0.5, 0.0], dtype=torch.float64)
    values = torch.tensor([[10.0, 4, 0], [-3, 1, -1], [5, 7, 5]], dtype=torch.float64)
    curve = ValueCurve(shown, values)
    assert curve.normalised[:2].tolist() == [[1, 0.4, 0], [1, -1, 0]]
    assert curve.normalised[2].isnan().all()  # nothing to explain
    assert curve.pooled.tolist() == pytest.approx([1, (10 * 0.4 + 2 * -1 + 0) / 12, 0])
    assert curve.pooled_area.item() == pytest.approx(0.25 + 0.5 * (2 / 12))
    assert curve.reversed().pooled_area.item() == pytest.approx(curve.pooled_area.item())
    assert curve.changed.tolist() == pytest.approx([0, (6 + 4 + 2) / 12, 1])
    assert curve.changed_area.item() == pytest.approx(0.25 + 0.5 * 1)


def test_uint8_observations_and_an_image_as_fill():
    q, obs, action, _ = linear(seed=4)
    bytes_, blank = obs.to(torch.uint8), torch.full(obs.shape[1:], 7.5)
    q32 = lambda o, a: q(o.double(), a)  # noqa: E731
    curve = deletion(q32, bytes_, action, obs, steps=3, fill=blank)
    assert torch.allclose(curve.whole, q(bytes_.double(), action))
    assert torch.allclose(curve.filled, q(blank.double().expand_as(obs), action))


def test_blur_keeps_flat_images_and_spreads_a_point():
    assert torch.allclose(blurred(torch.full((1, 3, 9, 9), 8.0), 1.5), torch.tensor(8.0))
    point = torch.zeros(1, 1, 21, 21, dtype=torch.float64)
    point[..., 10, 10] = 1
    spread = blurred(point, 2.0)[0, 0]
    assert spread.sum().item() == pytest.approx(1)
    assert torch.allclose(spread, spread.T)
    assert (spread[10, 12] / spread[10, 10]).item() == pytest.approx(math.exp(-0.5))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"steps": 0}, "steps must be"),
        ({"batch_size": 0}, "batch_size must be"),
        ({"fill": "grey"}, "unknown fill 'grey'"),
        ({"fill": torch.zeros(3, 4)}, "a fill for observations"),
        ({"attribution": torch.zeros(3, 6, 5, 4)}, "need an attribution of that shape"),
        ({"action": torch.zeros(2, 2)}, "as many actions"),
        ({"obs": torch.zeros(6, 5, 5)}, "observations are"),
        ({"q": lambda o, a: o}, "one value per observation"),
    ],
)
def test_curves_of_bad_input(change: dict[str, Any], words: str):
    q, obs, action, _ = linear(seed=0)
    with pytest.raises((InvalidValueError, UnknownNameError), match=words) as error:
        deletion(**{"q": q, "obs": obs, "action": action, "attribution": obs, **change})
    assert "\n" not in str(error.value)
