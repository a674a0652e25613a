"""SGAC: distracted observations, consistency of the policy, and SGQN as its special case."""

from __future__ import annotations

import pytest
import torch

from sgqn.agents import Phase
from sgqn.agents.svea import SVEA
from tests.agents.small import batch_for, changed, gradients, small, snapshot

ALL = Phase(actor=True, targets=True, auxiliary=True)


def white(obs, generator):
    return torch.full_like(obs, 255)


def test_distracted_observations_keep_the_salient_pixels_and_replace_the_others():
    agent = small("sgac", color_jitter=0.0)
    agent.augmentation = white
    obs = batch_for(agent).obs
    mask = torch.rand(obs.shape, generator=torch.Generator().manual_seed(0)) < 0.3
    distracted = agent.masking(obs)(mask)
    assert torch.equal(distracted, torch.where(mask, obs, torch.full_like(obs, 255)))


def test_the_colours_of_salient_pixels_change_too():
    agent = small("sgac", color_jitter=0.3)
    agent.augmentation = lambda obs, generator: obs
    obs = batch_for(agent).obs
    nothing, everything = torch.zeros_like(obs, dtype=torch.bool), torch.ones_like(obs, dtype=torch.bool)
    masking = agent.masking(obs)
    assert torch.equal(masking(nothing), masking(everything))
    assert (masking(everything) - obs).abs().flatten(1).mean(dim=1).min() > 5
    assert not torch.equal(agent.masking(obs)(everything), masking(everything))


def test_without_its_additions_it_is_sgqn():
    """With white images as augmentation, and no jitter, policy loss or augmented critic."""
    plain = small("sgac", color_jitter=0.0, policy_consistency_weight=0.0, augmented_critic=False)
    other = small("sgqn")
    other.load_state_dict(plain.state_dict())
    other.fill_value = lambda obs: 255
    for agent in (plain, other):
        agent.augmentation = white
    for seed in range(2):
        for agent in (plain, other):
            agent.update(batch_for(agent, seed), ALL)
    left, right = plain.state_dict(), other.state_dict()
    assert all(torch.equal(value, right[name]) for name, value in left.items())


@pytest.mark.parametrize("name", ["sgac", "sgdrqv2"])
def test_the_policy_loss_makes_actions_alike_and_trains_the_actor_alone(name):
    agent = small(name)
    learner, batch = agent.learner, batch_for(agent)
    with torch.no_grad():
        features, distracted = learner.encode(batch.obs), learner.encode(255 - batch.obs)

    def difference() -> float:
        with torch.no_grad():
            actions = [
                learner.actor.mean_action(f) if name == "sgac" else learner.actor(f) for f in (features, distracted)
            ]
            return (actions[0] - actions[1]).square().sum(dim=1).mean().item()

    first, before = difference(), snapshot(learner)
    for _ in range(30):
        metrics = learner.actor_step(features, distracted, 100.0)
    assert metrics["loss/actor_consistency"] < 100 * first
    assert difference() < 0.3 * first
    assert {part.split(".")[0] for part in changed(learner, before)} <= {"actor", "log_alpha"}


def test_policy_consistency_uses_the_same_noise_for_both():
    """Equal features have equal actions, so the loss is zero, whatever the noise."""
    agent = small("sgac")
    features = agent.learner.encode(batch_for(agent).obs).detach()
    assert agent.learner.actor_step(features, features, 10.0)["loss/actor_consistency"] == 0


def test_the_policy_loss_can_be_turned_off_and_the_critics_losses_stay():
    found = {}
    for weight, encoder in ((0.0, True), (10.0, False), (10.0, True)):
        agent = small("sgac", policy_consistency_weight=weight, policy_trains_encoder=encoder)
        metrics = agent.update(batch_for(agent), ALL)
        for name in ("loss/critic", "loss/consistency"):
            assert torch.equal(metrics[name], found.setdefault(name, metrics[name]))
        names = {name for name in metrics if name.endswith(("/policy_consistency", "/actor_consistency"))}
        assert all(metrics[name] > 0 for name in names)
        assert ("loss/actor_consistency" in names) == bool(weight)
        assert ("loss/policy_consistency" in names) == (bool(weight) and encoder)


def test_the_critic_step_trains_the_encoder_to_keep_the_actions():
    """Its gradient is that of L_Q + lambda L_C plus that of w L_PC, and none of it is the actor's."""
    agents = [
        small("sgac", double=True, policy_consistency_weight=weight, augmented_critic=False) for weight in (0.0, 10.0)
    ]
    states = [agent.generator.get_state() for agent in agents]
    batch = batch_for(agents[0])
    masks = [agent.critic_step(batch)[1] for agent in agents]
    without, with_policy = (gradients(agent.learner) for agent in agents)
    assert torch.equal(*masks)

    agent = small("sgac", double=True, augmented_critic=False)
    agent.generator.set_state(states[0])
    learner = agent.learner
    masked = agent.masking(batch.obs)(masks[0])
    learner.td_target(batch)  # draws noise
    with torch.no_grad():
        noise = agent.generator.get_state()
        features = learner.encode(batch.obs)
    agent.generator.set_state(noise)
    loss = 10 * learner.policy_consistency(features, learner.encode(masked))
    names, parameters = zip(*learner.critic.encoder.named_parameters(), strict=True)
    for name, value in zip(names, torch.autograd.grad(loss, parameters), strict=True):
        whole = f"critic.encoder.{name}"
        torch.testing.assert_close(with_policy[whole] - without[whole], value, rtol=1e-6, atol=1e-9)
    assert not any(name.startswith("actor") for name in with_policy)


def test_masked_pixels_can_be_sgqns():
    agent = small("sgac", mask_fill="zero", color_jitter=0.0)
    obs = batch_for(agent).obs
    mask = torch.rand(obs.shape, generator=torch.Generator().manual_seed(0)) < 0.3
    assert torch.equal(agent.masking(obs)(mask), obs * mask)


def test_the_augmented_critic_is_sveas():
    assert isinstance(small("sgac").learner, SVEA)
    assert not isinstance(small("sgac", augmented_critic=False).learner, SVEA)
