"""SGQN and its ablations: gradients against separate computations, masks against separate passes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from sgqn import attribution, networks
from sgqn.agents import Phase, Spec
from sgqn.agents.sgqn import SGQN
from sgqn.attribution import METHODS, contrast_mask, fill, guided_backprop, quantile_mask
from sgqn.errors import InvalidValueError
from sgqn.replay import Batch
from tests.agents.discrete import TinyDQN
from tests.agents.small import (
    ACTIONS,
    CRITIC_ONLY,
    OVERLAY,
    SETTINGS,
    SIZE,
    batch_for,
    gradients,
    same,
    small,
    snapshot,
)


def q1_of(agent: SGQN) -> Any:
    return lambda obs, action: agent.learner.values(agent.learner.encode(obs), action)[0]


def reference_mask(attribution: Tensor, rho: float) -> Tensor:
    """Frame by frame with torch.quantile."""
    frames = []
    for i in range(0, 9, 3):
        strength = attribution[:, i : i + 3].abs().max(dim=1).values
        threshold = torch.quantile(strength.flatten(1), rho, dim=1)
        frames.append((strength >= threshold[:, None, None]).unsqueeze(1).repeat(1, 3, 1, 1))
    return torch.cat(frames, dim=1)


def learner_gradients(agent: SGQN, batch: Batch) -> dict[str, Tensor]:
    """Of the wrapped learner's own critic loss, on the same weights and random numbers."""
    other = small("drq", double=True)
    other.load_state_dict(agent.learner.state_dict())
    other.generator.set_state(agent.generator.get_state())
    values = other.values(other.encode(batch.obs), batch.action)
    other.critic_step(other.critic_losses(batch, values))
    return gradients(other.critic)


def consistency_gradients(agent: SGQN, batch: Batch, mask: Tensor, fill: float) -> tuple[Tensor, dict[str, Tensor]]:
    critic = agent.learner.critic
    masked = batch.obs.double()
    masked[~mask] = fill
    pairs = zip(critic(batch.obs, batch.action), critic(masked, batch.action), strict=True)
    loss = sum(((q - q_masked) ** 2).mean() for q, q_masked in pairs)
    names, parameters = zip(*critic.named_parameters(), strict=True)
    return loss.detach(), dict(zip(names, torch.autograd.grad(loss, parameters), strict=True))


@pytest.mark.parametrize("weight", [0.5, 2.0])
def test_critic_gradient_is_the_learners_plus_lambda_times_consistency(weight):
    agent = small("sgqn", double=True, mask_fill="zero", consistency_weight=weight)
    batch = batch_for(agent)
    expected = learner_gradients(agent, batch)
    mask = reference_mask(guided_backprop(q1_of(agent), batch.obs, batch.action), SETTINGS.rho)
    loss, of_consistency = consistency_gradients(agent, batch, mask, fill=0)
    metrics, kept = agent.critic_step(batch)
    assert torch.equal(kept, mask)
    torch.testing.assert_close(metrics["loss/consistency"], weight * loss, rtol=1e-6, atol=1e-9)
    ours = gradients(agent.learner.critic)
    assert ours.keys() == expected.keys()
    for name, value in ours.items():
        torch.testing.assert_close(
            value, expected[name] + weight * of_consistency[name], rtol=1e-6, atol=1e-9, msg=name
        )
        if not name.endswith("4.bias"):  # an offset of both values is no inconsistency
            assert not torch.allclose(value, expected[name], rtol=1e-3), name


def test_random_fill_is_one_number_of_the_batchs_range():
    agent = small("sgqn", double=True)
    batch = batch_for(agent)
    fills = torch.stack([agent.fill_value(batch.obs) for _ in range(200)])
    low, high = batch.obs.min(), batch.obs.max()
    assert fills.shape == (200,)
    assert (fills >= low).all()
    assert (fills <= high).all()
    assert fills.min() < low + 20
    assert fills.max() > high - 20
    # And that number stands in the critic's step.
    state = agent.generator.get_state()
    value = agent.fill_value(batch.obs).item()
    mask = reference_mask(guided_backprop(q1_of(agent), batch.obs, batch.action), SETTINGS.rho)
    loss, _ = consistency_gradients(agent, batch, mask, value)
    agent.generator.set_state(state)
    metrics, _ = agent.critic_step(batch)
    torch.testing.assert_close(metrics["loss/consistency"], 0.5 * loss, rtol=1e-5, atol=1e-9)


def test_consistency_is_nothing_where_the_mask_keeps_everything():
    agent = small("sgqn", double=True, rho=0.0, mask_fill="zero")
    batch = batch_for(agent)
    expected = learner_gradients(agent, batch)
    metrics, mask = agent.critic_step(batch)
    assert mask.all()
    assert metrics["loss/consistency"] == 0
    assert metrics["mask/kept"] == 1
    for name, value in gradients(agent.learner.critic).items():
        torch.testing.assert_close(value, expected[name], rtol=1e-9, atol=1e-12, msg=name)


def test_mask_prediction_trains_encoder_projection_and_decoder_and_nothing_else():
    agent = small("sgqn", perturb=False)
    batch = batch_for(agent)
    mask = torch.rand(batch.obs.shape) > 0.9
    before = snapshot(agent)
    agent.auxiliary_step(batch, mask)
    trained = ("learner.critic.encoder.", "learner.critic.projection.", "decoder.")
    for name, parameter in agent.named_parameters():
        if name.startswith(trained):
            assert parameter.grad is not None, name
            assert parameter.grad.any(), name
            assert not torch.equal(parameter, before[name]), name
        else:
            assert parameter.grad is None, name
            assert torch.equal(parameter, before[name]), name


def test_mask_prediction_loss_by_hand():
    agent = small("sgqn")
    batch = batch_for(agent)
    mask = torch.rand(batch.obs.shape) > 0.9
    state = agent.generator.get_state()
    augmented = OVERLAY(batch.obs, agent.generator)
    probability = agent.mask_probabilities(augmented, batch.action).double()
    by_hand = -torch.where(mask, probability, 1 - probability).log().mean()
    agreement = ((probability > 0.5) == mask).double().mean()
    agent.generator.set_state(state)
    metrics = agent.auxiliary_step(batch, mask)
    torch.testing.assert_close(metrics["loss/mask"].double(), by_hand, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(metrics["mask/agreement"].double(), agreement, rtol=1e-5, atol=1e-5)


# ---- one forward pass for several uses


def test_attribution_from_the_shared_forward_pass_equals_a_pass_of_its_own():
    agent = small("sgqn")
    batch = batch_for(agent)
    obs, features = agent.saliency.trace(batch.obs)
    values = agent.saliency.values(features, batch.action)
    found = agent.saliency.attribution(values, obs, batch)
    expected = guided_backprop(q1_of(agent), batch.obs, batch.action)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6 * expected.abs().max().item())
    assert torch.equal(values[0], q1_of(agent)(batch.obs, batch.action))
    assert obs.grad is None


@pytest.mark.parametrize("actor", [True, False])
@pytest.mark.parametrize("recompute", [True, False])
def test_the_auxiliary_mask_is_that_of_the_weights_it_says(monkeypatch, actor, recompute):
    agent = small("sgqn", recompute_attribution=recompute)
    seen: dict[str, Tensor] = {}

    def spy(view: Batch, mask: Tensor, *_: object) -> dict[str, Tensor]:
        seen["mask"] = mask
        seen["now"] = reference_mask(guided_backprop(q1_of(agent), view.obs, view.action), SETTINGS.rho)
        return {}

    critic_step = agent.critic_step

    def before_critic_step(view: Batch) -> Any:
        seen["before"] = reference_mask(guided_backprop(q1_of(agent), view.obs, view.action), SETTINGS.rho)
        return critic_step(view)

    monkeypatch.setattr(agent, "auxiliary_step", spy)
    monkeypatch.setattr(agent, "critic_step", before_critic_step)
    agent.update(batch_for(agent), Phase(actor=actor))
    assert torch.equal(seen["mask"], seen["now" if recompute else "before"])
    assert not torch.equal(seen["now"], seen["before"])


@pytest.mark.parametrize("trains_encoder", [True, False])
def test_features_shared_with_the_actor_change_nothing(trains_encoder):
    """The actor's step is the same whether its features come from the auxiliary step's pass or from their own."""
    agents = [small(name, actor_trains_encoder=trains_encoder) for name in ("sgqn", "sac_consistency")]
    agents[1].load_state_dict(agents[0].state_dict(), strict=False)
    for agent in agents:
        agent.update(batch_for(agent), Phase(targets=False))
    for (name, left), right in zip(
        agents[0].learner.actor.named_parameters(), agents[1].learner.actor.parameters(), strict=True
    ):
        torch.testing.assert_close(left, right, rtol=0, atol=1e-6, msg=name)


# ---- ablations


def run(agent: SGQN, steps: int = 3) -> dict[str, Tensor]:
    for step in range(steps):
        agent.update(batch_for(agent, step))
    return snapshot(agent)


def test_sac_selfsup_is_sgqn_without_the_consistency_loss():
    ablation = run(small("sac_selfsup", double=True, mask_fill="zero"))
    without = run(small("sgqn", double=True, mask_fill="zero", consistency_weight=0.0))
    assert ablation.keys() == without.keys()
    for name, value in ablation.items():
        torch.testing.assert_close(value, without[name], rtol=1e-4, atol=1e-6, msg=name)
    assert not torch.allclose(
        run(small("sgqn", double=True, mask_fill="zero"))["learner.critic.heads.q1.2.weight"],
        without["learner.critic.heads.q1.2.weight"],
        atol=1e-5,
    )


def test_sac_consistency_is_sgqn_without_the_auxiliary_step():
    ablation = small("sac_consistency")
    whole = small("sgqn")
    for step in range(3):
        ablation.update(batch_for(ablation, step))
        whole.update(batch_for(whole, step), Phase(auxiliary=False))
    assert same(snapshot(ablation.learner), snapshot(whole.learner))
    assert same(snapshot(whole.decoder), snapshot(small("sgqn").decoder))
    assert ablation.decoder is None


def test_without_both_halves_it_is_the_learner():
    bare = small("drq")
    wrapped = SGQN(small("drq"), SETTINGS, OVERLAY, without="selfsup")
    wrapped.consistency = False
    wrapped.generator, wrapped.preparer = wrapped.learner.generator, wrapped.learner.preparer
    wrapped.make_optimizers()
    for step in range(2):
        left, right = bare.update(batch_for(bare, step)), wrapped.update(batch_for(wrapped, step))
        assert left.keys() == right.keys()
        assert all(torch.equal(left[key], right[key]) for key in left)
    assert same(snapshot(bare), snapshot(wrapped.learner))


# ---- settings that choose another reading


READINGS: dict[str, dict[str, Any]] = {
    "no shift": {"shift_pad": 0},
    "zero fill": {"mask_fill": "zero"},
    "decoder of 64": {"decoder_filters": (64, 64)},
    "soft mask": {"mask": "soft"},
    "contrast mask": {"mask": "contrast"},
    "gradient": {"attribution": "gradient"},
    "mean of both critics": {"attribution_target": "mean"},
    "actor trains encoder": {"actor_trains_encoder": True},
    "the critic step's mask": {"recompute_attribution": False},
    "the paper's text": {
        "shift_pad": 0,
        "mask_fill": "zero",
        "decoder_filters": (64, 64),
        "attribution_target": "mean",
        "actor_trains_encoder": True,
        "actor_every": 1,
    },
}


@pytest.mark.parametrize("reading", READINGS)
def test_other_readings_run_and_differ(reading):
    results = [run(small("sgqn", **settings), steps=2) for settings in ({}, READINGS[reading])]
    assert all(value.isfinite().all() for value in results[1].values())
    assert not same(*results)


def test_attribution_of_the_mean_and_of_the_plain_gradient():
    agent = small("sgqn", attribution="gradient", attribution_target="mean")
    batch = batch_for(agent)
    obs, features = agent.saliency.trace(batch.obs)
    found = agent.saliency.attribution(agent.saliency.values(features, batch.action), obs, batch)
    leaf = batch.obs.float().requires_grad_()
    q1, q2 = agent.learner.critic(leaf, batch.action)
    (expected,) = torch.autograd.grad(((q1 + q2) / 2).sum(), leaf)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6 * expected.abs().max().item())


def test_contrast_masks_are_for_the_losses_only():
    agent = small("sgqn", mask="contrast", rho=0.9)
    batch, seen = batch_for(agent), []
    obs, features = agent.saliency.trace(batch.obs)
    attribution = agent.saliency.attribution(agent.saliency.values(features, batch.action), obs, batch)
    expected = contrast_mask(batch.obs, attribution, 0.9)
    assert torch.equal(agent.saliency(batch), expected)
    assert torch.equal(agent.mask_of(attribution, 0.9), quantile_mask(attribution, 0.9))
    agent.masking = lambda obs: lambda mask: seen.append(mask) or fill(obs, mask, 0)
    _, mask = agent.critic_step(batch)
    assert torch.equal(seen[0], expected)
    assert torch.equal(mask, expected)


def test_soft_masks_interpolate_and_are_predicted():
    agent = small("sgqn", mask="soft", mask_fill="zero", double=True)
    batch = batch_for(agent)
    attribution = guided_backprop(q1_of(agent), batch.obs, batch.action)
    strength = attribution.unflatten(1, (3, 3)).abs().amax(2)
    expected = (strength / strength.amax((2, 3), keepdim=True)).repeat_interleave(3, 1)
    metrics, mask = agent.critic_step(batch)
    torch.testing.assert_close(mask, expected, rtol=1e-5, atol=1e-6)
    assert 0 < metrics["mask/kept"] < 1
    loss = agent.auxiliary_step(batch, mask)["loss/mask"]
    assert loss > -(mask * mask.clamp(min=1e-12).log() + (1 - mask) * (1 - mask).clamp(min=1e-12).log()).mean()


# ---- another learner


def test_a_discrete_learner_can_be_wrapped():
    torch.manual_seed(0)
    agent = SGQN(TinyDQN(Spec(ACTIONS, image_size=SIZE, render_size=SIZE, discrete=True), SETTINGS), SETTINGS, OVERLAY)
    agent.make_optimizers()
    batch = batch_for(agent)
    first = agent.update(batch)
    for _ in range(20):
        last = agent.update(batch, CRITIC_ONLY._replace(auxiliary=True))
    assert last["loss/critic"] < first["loss/critic"]
    assert last["loss/mask"] < first["loss/mask"]
    assert agent.predict_mask(batch.obs, batch.action).shape == batch.obs.shape
    assert agent.predict_mask(batch.obs[0], batch.action[0]).shape == batch.obs[0].shape
    actions = agent.act(batch.obs.numpy())
    assert (actions.dtype, actions.shape) == (np.int64, (len(batch.obs),))
    assert agent.act(batch.obs[0].numpy()) == actions[0]
    assert agent.value(batch.obs, batch.action).shape == (len(batch.obs),)
    with pytest.raises(InvalidValueError, match=r"expected actions of shape \(6,\), not \(6, 2\)"):
        agent.predict_mask(batch.obs, torch.zeros(6, 2))


def test_random_convolution_can_be_the_augmentation():
    from sgqn.augmentations import make_augmentation

    agent = small("sgqn", augmentation="random_conv")
    agent.augmentation = make_augmentation(agent.settings.augmentation)
    assert all(value.isfinite() for value in agent.update(batch_for(agent)).values())
    assert not same(snapshot(agent), run(small("sgqn"), steps=1))


def test_an_attribution_method_that_needs_its_own_passes_can_be_used(monkeypatch):
    """Anything of type Attribution works; only methods that read the value's own graph share its forward pass."""
    calls = []

    def halves(q: Any, obs: Tensor, action: Tensor) -> Tensor:
        calls.append(q(obs, action).shape)
        return guided_backprop(q, obs, action)

    monkeypatch.setitem(attribution.METHODS._things, "halves", attribution.Method("halves", halves))
    left, right = small("sgqn", attribution="halves"), small("sgqn")
    batch = batch_for(left)
    (_, mask), (_, expected) = left.critic_step(batch), right.critic_step(batch)
    assert calls == [(SETTINGS.batch_size,)]
    assert torch.equal(mask, expected)


@pytest.mark.parametrize("name", ["gradient", "guided_backprop", "grad_cam", "guided_grad_cam"])
@pytest.mark.parametrize("agent_name", ["sgqn", "sgdqn", "sgppo"])
def test_methods_that_differentiate_read_the_pass_of_the_loss(monkeypatch, name, agent_name):
    """The maps are those of a pass of their own, and the encoder sees observations no more often than by default."""
    agent = small(agent_name, attribution=name)
    batch = batch_for(agent)
    leaf, features = agent.saliency.trace(batch.obs)
    values = agent.saliency.values(features, batch.action)
    shared = agent.saliency.attribution(values, leaf, batch, features)
    own = METHODS[name](agent.value, batch.obs, batch.action)
    assert (shared.shape, shared.dtype) == (batch.obs.shape, torch.float32)
    torch.testing.assert_close(shared, own, rtol=1e-4, atol=1e-5 * own.abs().max().item())
    passes = []
    forward = networks.Encoder.forward
    monkeypatch.setattr(networks.Encoder, "forward", lambda *given: passes.append(given) or forward(*given))
    agent.update(batch)
    counted = len(passes)
    small(agent_name).update(batch)
    assert counted == len(passes) - counted


def test_grad_cam_differentiates_no_further_than_the_features(monkeypatch):
    agent = small("sgqn", attribution="grad_cam")
    batch = batch_for(agent)
    leaf, features = agent.saliency.trace(batch.obs)
    values = agent.saliency.values(features, batch.action)
    features.grad_fn.register_prehook(lambda _: pytest.fail("the encoder was differentiated"))
    assert agent.saliency.attribution(values, leaf, batch, features).any()


def test_features_that_are_no_map_get_a_pass_of_their_own():
    """As those of a learner whose encoder flattens them."""
    agent = small("sgqn", attribution="grad_cam")
    batch = batch_for(agent)
    leaf, features = agent.saliency.trace(batch.obs)
    values = agent.saliency.values(features, batch.action)
    expected = agent.saliency.attribution(values, leaf, batch, features)
    for other in (features.flatten(1), None):
        torch.testing.assert_close(agent.saliency.attribution(values, leaf, batch, other), expected)


def test_an_own_method_of_the_graph_takes_what_it_names(monkeypatch):
    """Methods registered for the value and the observations alone work as they did; others get the features too."""
    given = {}

    def plain(value: Tensor, obs: Tensor, retain_graph: bool = True) -> Tensor:
        given["plain"] = retain_graph
        return attribution.gradient_of(value, obs, retain_graph)

    def of_features(value: Tensor, obs: Tensor, features: Tensor, pixels_per_feature: int) -> Tensor:
        given["of_features"] = (features.shape[1:], pixels_per_feature)
        return attribution.gradient_of(value, obs) * features.mean()

    masks = {}
    for function in (plain, of_features):
        name = function.__name__
        method = attribution.Method(name, attribution.gradient, of_graph=function)
        monkeypatch.setitem(METHODS._things, name, method)
        agent = small("sgqn", attribution=name)
        masks[name] = agent.critic_step(batch_for(agent))[1]
    assert given == {"plain": True, "of_features": (agent.learner.encoder.out_shape, 2)}
    assert torch.equal(masks["plain"], masks["of_features"])
    assert torch.equal(
        masks["plain"], (other := small("sgqn", attribution="gradient")).critic_step(batch_for(other))[1]
    )
