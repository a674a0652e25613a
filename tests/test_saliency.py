"""`sgqn.saliency.measure`, on small agents."""

from __future__ import annotations

import json
import math
import sys
from typing import Any

import numpy as np
import pytest
import torch

import sgqn
from sgqn import saliency
from sgqn.agents import AGENTS, Spec, build_agent
from sgqn.attribution import quantile_mask, soft_mask
from sgqn.errors import SgqnError
from sgqn.inspect.measures import mask_iou
from sgqn.saliency import iou, mass_share, measure
from tests.agents.small import RENDER, SIZE, VALUES, settings_of, small


def cartpole(name: str, **settings: Any) -> Any:
    """An agent for cartpole; its weights are moved off the sparse initialisation, so that all pixels count."""
    spec = Spec(1, image_size=SIZE, render_size=RENDER if AGENTS[name].crops else SIZE)
    agent = build_agent(name, spec, settings_of(name, **VALUES | settings), seed=0)
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
    attribution = sgqn.attribution.gradient(agent.value, seen, action)
    found = measure(agent, "cartpole-swingup", episodes=1, **{**OPTIONS, "every": 10}, method="gradient")
    assert found.means["mass_share"] == pytest.approx(mass_share(attribution, truth).mean().item())
    assert found.means["base_rate"] == pytest.approx(truth.double().mean().item())
    assert found.rho == 0.98  # the task's: this agent has none
    assert found.means["iou"] == pytest.approx(iou(quantile_mask(attribution, 0.98), truth).mean().item())


def test_the_decoder_is_held_against_the_mask_that_it_learned():
    options = {**OPTIONS, "every": 10, "episodes": 1, "curves": False}
    agent = cartpole("sgqn")
    own, other = (
        measure(agent, "cartpole-swingup", **options, method=m, rho=r)
        for m, r in (("guided_backprop", 0.9), ("gradient", 0.5))
    )
    assert own.means["mass_share"] != other.means["mass_share"]
    assert own.means["agreement_iou"] == other.means["agreement_iou"]


def test_soft_masks_are_compared_as_the_agent_learned_them():
    """The mask, the agreement of M_theta and the share kept are those of the soft mask at 0.5, whatever rho is."""
    agent = cartpole("sgqn", mask="soft")
    envs = sgqn.make_vec(
        "cartpole-swingup", 1, renderer="warp", image_size=SIZE, masks=True, num_workers=0, device="cpu"
    )
    obs, info = envs.reset(seed=0)
    envs.close()
    action = agent.act(obs)
    soft = soft_mask(sgqn.attribution.guided_backprop(agent.value, obs, action)) > 0.5
    options = {**OPTIONS, "every": 10, "episodes": 1, "curves": False}
    found = [measure(agent, "cartpole-swingup", **options, rho=rho) for rho in (None, 0.5)]
    assert found[0].means == found[1].means
    predicted = agent.predict_mask(obs, action) > 0.5
    assert found[0].means["kept"] == pytest.approx(soft.double().mean().item())
    assert found[0].means["iou"] == pytest.approx(iou(soft, info["mask"]).mean().item())
    assert found[0].means["agreement_iou"] == pytest.approx(mask_iou(predicted, soft, frames=3).mean().item())
    assert found[0].means["agreement_accuracy"] == pytest.approx((predicted == soft).double().mean().item())
    assert abs(found[0].means["kept"] - 0.1) > 0.02  # unlike the quantile mask's


def test_a_function_is_a_method():
    """Attribution on one half of every frame: all of its mass lies there."""

    def right_half(q: Any, obs: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        assert q(obs, action).shape[0] == len(obs)
        return (torch.arange(obs.shape[-1]) >= obs.shape[-1] // 2).expand(obs.shape).float()

    options = {**OPTIONS, "episodes": 1, "curves": False}
    found = measure(cartpole("sgqn"), "cartpole-swingup", method=right_half, **options)
    assert found.method == "right_half"
    assert found.means["kept"] == pytest.approx(0.5)
    by_name, by_function = (
        measure(cartpole("sac"), "cartpole-swingup", method=method, **options)
        for method in ("gradient", sgqn.attribution.gradient)
    )
    assert by_name == by_function


# Bad input


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"method": "guided_backdrop"}, "did you mean 'guided_backprop'"),
        ({"method": 5}, "unknown attribution method '5'"),
        ({"method": lambda q, obs, action: obs[:, :1]}, "shape of the observations"),
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
    assert "\n" not in str(error.value)


def test_captum_is_checked_before_environments_are_made(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "captum", None)
    monkeypatch.setattr(saliency, "evaluate", lambda *_, **__: pytest.fail("episodes were played"))
    with pytest.raises(SgqnError, match="needs Captum"):
        saliency.measure(small("sgqn"), "cartpole-swingup", method="occlusion")
