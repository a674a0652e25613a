"""SGQN around SVEA, and masked pixels that become those of the augmented observation."""

from __future__ import annotations

import pytest
import torch

from sgqn.agents import Phase
from sgqn.agents.sgqn import SGQN
from sgqn.agents.svea import SVEA
from sgqn.errors import SgqnError
from tests.agents.small import batch_for, small

ALL = Phase(actor=True, targets=True, auxiliary=True)


def white(obs, generator):
    return torch.full_like(obs, 255)


@pytest.mark.parametrize("name", ["sgsvea", "sgqn", "sgdrqv2"])
def test_masked_pixels_become_those_of_the_augmented_observation(name):
    agent = small(name, mask_fill="augmented")
    agent.augmentation = white
    obs = batch_for(agent).obs
    mask = torch.rand(obs.shape, generator=torch.Generator().manual_seed(0)) < 0.3
    assert torch.equal(agent.masking(obs)(mask), torch.where(mask, obs, 255))


def test_it_is_sgqn_whose_learner_is_svea():
    agent = small("sgsvea")
    assert type(agent) is SGQN
    assert type(agent.learner) is SVEA
    assert agent.settings.mask_fill == "augmented"


def test_its_critic_loss_is_sveas():
    """The weighted sum of the losses on clean and on augmented observations."""
    losses = {}
    for weights in ((1.0, 0.0), (0.0, 1.0), (0.3, 0.6)):
        agent = small("sgsvea", double=True, svea_alpha=weights[0], svea_beta=weights[1])
        losses[weights] = agent.update(batch_for(agent), ALL)["loss/critic"]
    clean, augmented, mixed = losses.values()
    assert clean != augmented
    torch.testing.assert_close(mixed, 0.3 * clean + 0.6 * augmented)


def test_sgac_without_its_additions():
    """With the same random numbers, so bit for bit."""
    agents = small("sgsvea"), small("sgac", color_jitter=0.0, policy_consistency_weight=0.0)
    for seed in range(2):
        metrics = [agent.update(batch_for(agent, seed), ALL) for agent in agents]
        assert metrics[0] == metrics[1]
    left, right = (agent.state_dict() for agent in agents)
    assert all(torch.equal(value, right[name]) for name, value in left.items())


def test_the_ablation_without_an_augmentation_refuses_it():
    with pytest.raises(SgqnError, match="mask_fill 'augmented' needs an augmentation"):
        small("sac_consistency", mask_fill="augmented")
