from __future__ import annotations

import json
import math
import sys
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import sgqn
from sgqn import saliency
from sgqn.agents import AGENTS, Agent, Spec, build_agent
from sgqn.attribution import quantile_mask
from sgqn.augmentations import center_crop
from sgqn.errors import InvalidValueError, SgqnError, UnknownNameError
from sgqn.saliency import (
    Curve,
    agreement,
    base_rate,
    deletion,
    insertion,
    iou,
    iou_ceiling,
    mask_share,
    mass_share,
    measure,
    pointing,
    q_of,
)
from tests.agents.small import NAMES, RENDER, SETTINGS, SIZE, batch_for, small

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


# ---------------------------------------------------------------- measures


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


# ---------------------------------------------------------------- agreement


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


# ---------------------------------------------------------------- deletion and insertion


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
    blank = saliency.filled(obs, fill)
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
    curve = Curve(shown, values)
    assert curve.normalised[:2].tolist() == [[1, 0.4, 0], [1, -1, 0]]
    assert curve.normalised[2].isnan().all()  # nothing to explain
    assert curve.pooled.tolist() == pytest.approx([1, (10 * 0.4 + 2 * -1 + 0) / 12, 0])
    assert curve.pooled_area.item() == pytest.approx(0.25 + 0.5 * (2 / 12))
    assert curve.reversed().pooled_area.item() == pytest.approx(curve.pooled_area.item())
    assert curve.changed.tolist() == pytest.approx([0, (6 + 4 + 2) / 12, 1])
    assert curve.changed_area.item() == pytest.approx(0.25 + 0.5 * 1)


def test_uint8_observations_and_a_picture_as_fill():
    q, obs, action, _ = linear(seed=4)
    bytes_, blank = obs.to(torch.uint8), torch.full(obs.shape[1:], 7.5)
    q32 = lambda o, a: q(o.double(), a)  # noqa: E731
    curve = deletion(q32, bytes_, action, obs, steps=3, fill=blank)
    assert torch.allclose(curve.whole, q(bytes_.double(), action))
    assert torch.allclose(curve.filled, q(blank.double().expand_as(obs), action))


def test_blur_keeps_flat_pictures_and_spreads_a_point():
    assert torch.allclose(saliency.blurred(torch.full((1, 3, 9, 9), 8.0), 1.5), torch.tensor(8.0))
    point = torch.zeros(1, 1, 21, 21, dtype=torch.float64)
    point[..., 10, 10] = 1
    spread = saliency.blurred(point, 2.0)[0, 0]
    assert spread.sum().item() == pytest.approx(1)
    assert torch.allclose(spread, spread.T)
    assert (spread[10, 12] / spread[10, 10]).item() == pytest.approx(math.exp(-0.5))


# ---------------------------------------------------------------- agents


@pytest.mark.parametrize("name", NAMES)
def test_q_of_is_the_first_critic_of_every_agent(name: str):
    agent = small(name)
    batch = batch_for(agent)
    seen = center_crop(batch.obs, agent.spec.image_size)
    learner = getattr(agent, "learner", agent)
    first, second = learner.critic(seen, batch.action)
    assert torch.allclose(q_of(agent)(seen, batch.action), first)
    mean = q_of(small(name, attribution_target="mean"))
    assert torch.allclose(mean(seen, batch.action), (first + second) / 2, atol=1e-6)


def cartpole(name: str) -> Any:
    """An agent for cartpole; its weights are moved off the sparse initialisation, so that all pixels count."""
    spec = Spec(1, image_size=SIZE, render_size=RENDER if AGENTS[name].crops else SIZE)
    agent = build_agent(name, spec, SETTINGS, seed=0)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in agent.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=generator))
    return agent


OPTIONS: dict[str, Any] = {
    "renderer": "warp",
    "num_workers": 0,
    "action_repeat": 100,
    "every": 4,
    "steps": 4,
}


def test_measure_of_an_agent_with_a_decoder():
    reports: list[tuple[int, int]] = []
    agent = cartpole("sgqn")
    found = measure(
        agent, "cartpole-swingup", "video_hard", 3, **OPTIONS, num_envs=2, on_step=lambda *s: reports.append(s)
    )
    assert reports == [(step, 30) for step in (*range(0, 21, 2), *range(21, 31))]  # two environments, then one
    assert (found.renderer, found.backgrounds, found.rho, found.episodes) == ("warp", "generated", 0.9, 3)
    assert found.frames == 3 * 3 * 3  # episodes, steps 0, 4 and 8, frames a stack
    assert set(found.means) == set(found.errors) >= {"mass_share", "agreement_iou", "deletion", "curve_gap"}
    for name in set(found.means) - {"deletion", "insertion", "curve_gap", "change_most", "change_least", "change_gap"}:
        assert 0 <= found.means[name] <= 1
        assert found.errors[name] >= 0
    assert 0 < found.means["base_rate"] < 0.2
    assert found.means["kept"] == pytest.approx(0.1, abs=0.01)
    assert found.means["curve_gap"] == pytest.approx(found.means["insertion"] - found.means["deletion"])
    assert found.curves["shown"] == (0, 0.25, 0.5, 0.75, 1)
    assert found.curves["deletion"][0] == found.curves["insertion"][0] == 0
    assert found.curves["deletion"][-1] == found.curves["insertion"][-1] == 1
    assert found.curves["change_most"][0] == found.curves["change_least"][0] == 1
    assert found.curves["change_most"][-1] == found.curves["change_least"][-1] == 0
    assert found.means["change_gap"] == pytest.approx(found.means["change_most"] - found.means["change_least"])
    assert found.means["insertion"] == pytest.approx(np.trapezoid(found.curves["insertion"], dx=0.25))
    returns = sgqn.evaluate(
        agent, "cartpole-swingup", "video_hard", 3, renderer="warp", num_envs=2, num_workers=0, action_repeat=100
    ).returns
    assert found.returns == returns
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["episodes"] == 3


def test_the_same_seed_gives_the_same_numbers():
    runs = [measure(cartpole("sgqn"), "cartpole-swingup", episodes=2, seed=s, **OPTIONS) for s in (1, 1, 2)]
    assert runs[0] == runs[1]
    assert runs[0].means != runs[2].means


@pytest.mark.parametrize("name", ["svea", "rad", "soda", "sac_consistency"])
def test_measure_of_agents_without_a_decoder(name: str):
    found = measure(cartpole(name), "cartpole-swingup", **{**OPTIONS, "every": 10}, episodes=1, curves=False, rho=0.8)
    assert not any(key.startswith(("agreement", "predicted")) for key in found.means)
    assert "deletion" not in found.means
    assert not found.curves
    assert found.means["kept"] == pytest.approx(0.2, abs=0.01)
    assert math.isnan(found.errors["mass_share"])  # one episode
    assert found.to_dict()["errors"]["mass_share"] is None


def test_measure_is_of_what_the_networks_see():
    """The first observation of an agent that crops, measured by hand."""
    agent = cartpole("rad")
    envs = sgqn.make_vec("cartpole-swingup", 1, renderer="warp", image_size=56, masks=True, num_workers=0, device="cpu")
    obs, info = envs.reset(seed=0)
    action = agent.act(obs)
    seen, truth = obs[..., 4:52, 4:52], info["mask"][..., 4:52, 4:52]
    envs.close()
    attribution = sgqn.attribution.gradient(q_of(agent), seen, action)
    found = measure(agent, "cartpole-swingup", episodes=1, **{**OPTIONS, "every": 10}, method="gradient")
    assert found.means["mass_share"] == pytest.approx(mass_share(attribution, truth).mean().item())
    assert found.means["base_rate"] == pytest.approx(truth.double().mean().item())
    assert found.means["iou"] == pytest.approx(iou(quantile_mask(attribution, 0.9), truth).mean().item())


def test_the_decoder_is_held_against_the_mask_that_it_learned():
    options = {**OPTIONS, "every": 10, "episodes": 1, "curves": False}
    agent = cartpole("sgqn")
    own, other = (
        measure(agent, "cartpole-swingup", **options, method=m, rho=r)
        for m, r in (("guided_backprop", 0.9), ("gradient", 0.5))
    )
    assert own.means["mass_share"] != other.means["mass_share"]
    assert own.means["agreement_iou"] == other.means["agreement_iou"]


# ---------------------------------------------------------------- bad input


def one_line(error: pytest.ExceptionInfo[Exception]) -> bool:
    return "\n" not in str(error.value)


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
    assert one_line(error)


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
    assert one_line(error)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"method": "guided_backdrop"}, "did you mean 'guided_backprop'"),
        ({"fill": "grey"}, "unknown fill"),
        ({"rho": 1.5}, "rho must lie"),
        ({"episodes": 0}, "episodes must be"),
        ({"every": 0}, "every must be"),
        ({"shift": "video_harder"}, "unknown shift"),
        ({"task": "cartpole-fly"}, "unknown task"),
    ],
)
def test_measure_of_bad_input(change: dict[str, Any], words: str):
    with pytest.raises(sgqn.SgqnError, match=words) as error:
        measure(cartpole("sac"), **{"task": "cartpole-swingup", "renderer": "warp", "num_workers": 0, **change})
    assert one_line(error)


def test_what_a_method_needs_is_missed_before_environments_are_made(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "captum", None)
    monkeypatch.setattr(saliency, "evaluate", lambda *_, **__: pytest.fail("episodes were played"))
    with pytest.raises(SgqnError, match="needs Captum"):
        saliency.measure(small("sgqn"), "cartpole-swingup", method="grad_cam")


def test_an_agent_without_a_critic_is_refused():
    with pytest.raises(InvalidValueError, match="has no critic"):
        q_of(Agent(Spec(1), 1))
