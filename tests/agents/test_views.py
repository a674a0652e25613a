"""DrQ, RAD, SVEA, SODA: what each agent's update sees, and what it does with it."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sgqn.agents import Phase
from sgqn.augmentations import center_crop, random_crop, random_shift
from sgqn.errors import InvalidValueError
from tests.agents.small import (
    CRITIC_ONLY,
    OVERLAY,
    RENDER,
    SETTINGS,
    SIZE,
    VALUES,
    batch_for,
    changed,
    gradients,
    same,
    small,
    snapshot,
)

# ---- DrQ and RAD: SAC on views


def offset(cut: Tensor, whole: Tensor) -> tuple[int, int]:
    """Where a picture was cut out of another."""
    size = cut.shape[-1]
    places = [(y, x) for y in range(whole.shape[-2] - size + 1) for x in range(whole.shape[-1] - size + 1)]
    (place,) = [(y, x) for y, x in places if torch.equal(whole[:, y : y + size, x : x + size], cut)]
    return place


@pytest.mark.parametrize("name", ["drq", "svea", "rad"])
def test_obs_and_next_obs_are_moved_independently(name, monkeypatch):
    agent = small(name)
    batch = batch_for(agent)
    views, view = [], agent.view
    monkeypatch.setattr(agent, "view", lambda *given: views.append(view(*given)) or views[-1])
    agent.update(batch._replace(next_obs=batch.obs), Phase(False, False, False))
    of_obs, of_next = views
    assert of_obs.shape == of_next.shape == (SETTINGS.batch_size, 9, SIZE, SIZE)
    assert of_obs.dtype == torch.uint8
    pad = 4 if name != "rad" else 0
    whole = F.pad(batch.obs.float(), (pad,) * 4, mode="replicate").byte()
    moved = [[offset(cut, picture) for cut, picture in zip(cuts, whole, strict=True)] for cuts in views]
    assert len(set(moved[0])) > 1  # every picture its own
    assert moved[0] != moved[1]


@pytest.mark.parametrize("name", ["drq", "rad"])
def test_drq_and_rad_are_sac_on_views(name):
    agent, plain = small(name), small("sac")
    plain.load_state_dict(agent.state_dict())
    batch = batch_for(agent)
    view = random_shift if name == "drq" else partial(random_crop, size=SIZE)
    seen = batch._replace(obs=view(batch.obs, plain.preparer), next_obs=view(batch.next_obs, plain.preparer))
    ours, theirs = agent.update(batch), plain.update(seen)
    assert all(torch.equal(ours[key], theirs[key]) for key in theirs)
    assert same(snapshot(agent), snapshot(plain))


def test_drq_without_a_shift_is_sac():
    drq, sac = small("drq", shift_pad=0), small("sac")
    drq.update(batch_for(drq))
    sac.update(batch_for(sac))
    assert same(snapshot(drq), snapshot(sac))


@pytest.mark.parametrize("name", ["rad", "soda"])
def test_agents_trained_on_crops_act_on_the_centre(name):
    agent = small(name)
    obs = batch_for(agent).obs
    edge = obs.clone()
    border = (RENDER - SIZE) // 2
    edge[..., :border, :] = 0
    edge[..., -border:] = 255
    assert torch.equal(agent.act(obs), agent.act(edge))
    learner = agent if name == "rad" else agent.learner
    assert torch.equal(agent.act(obs), learner.actor.mean_action(learner.encode(center_crop(obs, SIZE))))
    edge[..., border, border] = 255 - edge[..., border, border]
    assert not torch.equal(agent.act(obs), agent.act(edge))


# ---- SVEA


@pytest.mark.parametrize("weights", [(0.5, 0.5), (0.2, 0.9)])
def test_svea_mixes_the_losses_of_clean_and_augmented_pictures(weights):
    alpha, beta = weights
    agent = small("svea", double=True, svea_alpha=alpha, svea_beta=beta)
    batch = batch_for(agent)
    state = agent.generator.get_state()
    target = agent.td_target(batch)
    augmented = OVERLAY(batch.obs, agent.generator)

    def error(obs: Tensor) -> Tensor:
        return sum(((q - target) ** 2).mean() for q in agent.critic(obs, batch.action))

    expected = alpha * error(batch.obs) + beta * error(augmented)
    names, parameters = zip(*agent.critic.named_parameters(), strict=True)
    by_hand = dict(zip(names, torch.autograd.grad(expected, parameters), strict=True))
    agent.generator.set_state(state)
    values = agent.values(agent.encode(batch.obs), batch.action)
    metrics = agent.critic_step(agent.critic_losses(batch, values))
    torch.testing.assert_close(metrics["loss/critic"], expected.detach(), rtol=1e-7, atol=1e-9)
    for name, value in gradients(agent.critic).items():
        torch.testing.assert_close(value, by_hand[name], rtol=1e-6, atol=1e-9, msg=name)


def test_sveas_target_sees_no_strong_augmentation():
    """Next obs is shifted only: with next pictures of one colour, which no shift changes, overlay would show."""
    agent = small("svea")
    batch = batch_for(agent)
    flat = torch.full_like(batch.next_obs, 128)
    state = agent.generator.get_state()
    expected = agent.td_target(batch._replace(next_obs=flat))
    seen = {}
    agent.td_target, original = lambda b: seen.setdefault("target", original(b)), agent.td_target
    agent.generator.set_state(state)
    agent.critic_losses(batch._replace(next_obs=flat), agent.values(agent.encode(batch.obs), batch.action))
    assert torch.equal(seen["target"], expected)


# ---- SODA


def test_sodas_slow_network_moves_by_its_tau():
    agent = small("soda", soda_tau=0.2)
    before = snapshot(agent.slow)
    agent.update(batch_for(agent, phase=CRITIC_ONLY), CRITIC_ONLY)
    assert same(snapshot(agent.slow), before)
    agent.update(batch_for(agent), Phase())
    online = dict(nn.Sequential(agent.learner.encoder, agent.projector).named_parameters())
    for name, value in agent.slow.named_parameters():
        expected = before[name] + 0.2 * (online[name].detach() - before[name])
        torch.testing.assert_close(value, expected, rtol=1e-5, atol=1e-7, msg=name)
        assert not value.requires_grad


@pytest.mark.parametrize("name", ["soda", "svea_soda"])
def test_sodas_batch_is_its_own(name):
    """Rows up to batch_size train the learner, the rest SODA; neither looks at the other's."""
    base, other = small(name), small(name)
    batch = batch_for(base)
    n = SETTINGS.batch_size
    assert len(batch.obs) == n + VALUES["soda_batch_size"]
    obs = batch.obs.clone()
    obs[n:] = obs[n:].flip(0)
    left, right = base.update(batch), other.update(batch._replace(obs=obs))
    for key in left:
        assert torch.equal(left[key], right[key]) == (key != "loss/soda"), key
    again = small(name)
    obs = batch.obs.clone()
    obs[:n] = obs[:n].flip(0)
    moved = again.update(batch._replace(obs=obs))
    assert not torch.equal(left["loss/critic"], moved["loss/critic"])
    with pytest.raises(InvalidValueError, match="takes 11 transitions, not 6"):
        base.update(batch_for(base, phase=CRITIC_ONLY), Phase())


def test_sodas_two_views_are_drawn_independently():
    agent = small("soda")
    seen = []
    view = agent.learner.view
    agent.learner.view = lambda *given: seen.append(view(*given)) or seen[-1]
    agent.auxiliary_step(batch_for(agent).obs)
    clean, augmented = seen
    assert clean.shape == augmented.shape
    assert not torch.equal(clean, augmented)


def test_sodas_loss_by_hand():
    agent = small("soda", double=True)
    obs = batch_for(agent).obs
    state = agent.generator.get_state()
    clean = random_crop(obs, agent.generator, SIZE)
    augmented = OVERLAY(random_crop(obs, agent.generator, SIZE), agent.generator)

    def projector(net, x):
        h = net.hidden(x.flatten(1))
        h = (h - h.mean(0)) / (h.var(0, unbiased=False) + 1e-5).sqrt() * net.norm.weight + net.norm.bias
        return net.out(h.clamp(min=0))

    p = projector(agent.predictor, projector(agent.projector, agent.learner.encode(augmented)))
    z = projector(agent.slow[1], agent.slow[0](clean))
    p, z = p / p.norm(dim=1, keepdim=True), z / z.norm(dim=1, keepdim=True)
    agent.generator.set_state(state)
    loss = agent.auxiliary_step(obs)["loss/soda"]
    torch.testing.assert_close(loss, ((p - z) ** 2).mean().detach(), rtol=1e-6, atol=1e-9)


def test_sodas_step_trains_encoder_projector_and_predictor_and_keeps_batch_statistics_apart():
    agent = small("soda")
    before = snapshot(agent)
    agent.auxiliary_step(batch_for(agent).obs)
    moved = changed(agent, before)
    assert {name.split(".")[0] for name in moved} == {"learner", "projector", "predictor", "slow"}
    assert {name for name in moved if name.startswith("learner")} == {"learner.critic.encoder"}
    # Both networks count their own batches; the slow one's statistics come from what it saw itself.
    assert agent.projector.norm.num_batches_tracked == agent.slow[1].norm.num_batches_tracked == 1
    assert not torch.equal(agent.projector.norm.running_mean, agent.slow[1].norm.running_mean)
    # They play no part in training: the same step with other statistics is the same step.
    left, right = small("soda"), small("soda")
    right.slow[1].norm.running_mean.add_(5)
    right.projector.norm.running_var.mul_(9)
    obs = batch_for(left).obs
    assert torch.equal(left.auxiliary_step(obs)["loss/soda"], right.auxiliary_step(obs)["loss/soda"])
    assert same(snapshot(left.learner), snapshot(right.learner))


def test_svea_soda_is_svea_with_sodas_step():
    svea, both = small("svea"), small("svea_soda")
    both.learner.load_state_dict(svea.state_dict())
    batch = batch_for(both)
    n = SETTINGS.batch_size
    left = svea.update(type(batch)(*(part[:n] for part in batch)))
    right = both.update(batch)
    assert all(torch.equal(left[key], right[key]) for key in left)
    assert right.keys() - left.keys() == {"loss/soda"}
