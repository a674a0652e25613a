"""Distillation: what the learner copies, what it sees, what it learns, and how its rate falls."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from sgqn.agents.base import adam
from sgqn.agents.distilled import DistilledSettings
from sgqn.agents.distraction import Distraction, DistractionSettings
from sgqn.errors import InvalidValueError
from tests.agents.small import SIZE, batch_for, changed, small, snapshot

NOTHING = {"replaced": 0.0, "recolored": 0.0, "overlaid": 0.0, "color_jitter": 0.0}


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def observations(batch: int = 16) -> Tensor:
    return torch.randint(20, 230, (batch, 9, SIZE, SIZE), dtype=torch.uint8, generator=generator(1))


def half_kept(batch: int = 16) -> Tensor:
    return torch.rand(batch, 1, SIZE, SIZE, generator=generator(2)) < 0.5


def white(obs: Tensor, generator: torch.Generator) -> Tensor:
    return torch.full_like(obs, 255)


def distracted(obs: Tensor, mask: Tensor, **settings: float) -> Tensor:
    return Distraction(DistractionSettings(**{**NOTHING, **settings}), white)(obs, mask, generator())


# ---- distracted observations


def test_without_distraction_observations_stay() -> None:
    obs = observations()
    assert torch.equal(distracted(obs, half_kept()), obs.float())


def test_replaced_pixels_are_those_outside_the_mask() -> None:
    """Either white, or at least half of it; the pixels inside are the observation's own."""
    obs, mask = observations(64), half_kept(64)
    seen = distracted(obs, mask, replaced=1.0)
    inside, outside = mask.expand_as(obs), ~mask.expand_as(obs)
    assert torch.equal(seen[inside], obs.float()[inside])
    opacity = ((seen - obs) / (255.0 - obs)).where(outside, torch.nan).flatten(1)
    lowest, highest = opacity.nan_to_num(2).amin(dim=1), opacity.nan_to_num(-1).amax(dim=1)
    torch.testing.assert_close(lowest, highest, atol=1e-3, rtol=0)  # one opacity for each observation
    assert lowest.min() >= 0.5 - 1e-3
    assert 0.4 < (lowest > 0.999).float().mean() < 0.8


def test_kept_pixels_change_their_colours_in_some_observations() -> None:
    obs, mask = observations(64), half_kept(64)
    seen = distracted(obs, mask, replaced=1.0, color_jitter=0.6)
    inside = mask.expand_as(obs)
    moved = (seen - obs).abs().where(inside, 0).flatten(1).mean(dim=1)
    assert 0.4 < (moved > 0.5).float().mean() < 0.8
    assert (moved < 1e-3).any()


def test_recolored_observations_have_no_foreign_pixels() -> None:
    obs, mask = observations(), half_kept()
    seen = distracted(obs, mask, recolored=1.0)
    inside = mask.expand_as(obs)
    torch.testing.assert_close(seen[inside], obs.float()[inside], atol=1e-3, rtol=0)
    grey = torch.full_like(obs, 90)
    recolored = distracted(grey, torch.zeros_like(mask), recolored=1.0)
    assert all(len(image[channel].unique()) == 1 for image in recolored for channel in range(9))
    assert (recolored - 90).abs().flatten(1).mean(dim=1).max() > 5


def test_overlaid_observations_are_blended_everywhere() -> None:
    obs = observations()
    seen = distracted(obs, half_kept(), overlaid=1.0)
    opacity = ((seen - obs) / (255.0 - obs)).flatten(1)
    torch.testing.assert_close(opacity.amin(dim=1), opacity.amax(dim=1), atol=1e-3, rtol=0)
    assert opacity.min() > 0.1 - 1e-3
    assert opacity.max() < 0.6 + 1e-3


def test_shares_are_those_of_the_settings() -> None:
    obs, mask = observations(400), torch.zeros(400, 1, SIZE, SIZE, dtype=torch.bool)
    seen = distracted(obs, mask, replaced=0.5, recolored=0.2, overlaid=0.15)
    same = (seen == obs).flatten(1).all(dim=1).float().mean()
    white_ones = (seen == 255).flatten(1).all(dim=1).float().mean()
    assert 0.1 < same < 0.2
    assert 0.24 < white_ones < 0.36  # 0.6 of the replaced ones


def test_settings_of_the_distraction_are_checked() -> None:
    with pytest.raises(InvalidValueError, match=r"add up to at most 1, not 1\.5"):
        DistractionSettings(replaced=1.0, recolored=0.5, overlaid=0.0)
    with pytest.raises(InvalidValueError, match="lists of the same length, not 1 and 7"):
        DistractionSettings(kept_rho=(0.9,))
    with pytest.raises(InvalidValueError, match="lists of the same length, not 0 and 0"):
        DistractionSettings(kept_rho=(), kept_margin=())
    for name, value in (("kept_rho", (1.0,)), ("kept_margin", (-1,)), ("replaced", 1.1), ("color_jitter", -0.1)):
        with pytest.raises(InvalidValueError, match=f"{name} must be"):
            DistilledSettings(**{name: value})


# ---- the copy


def test_it_starts_as_a_copy() -> None:
    trained, agent = small("sgqn"), small("sgqn_distilled", seed=3)
    with torch.no_grad():  # as after many updates, see `networks.tamed`
        for projection in trained.learner.projections:
            for weight in projection.linear.parameters():
                weight.mul_(1e9)
    agent.start_from(trained)
    batch = batch_for(trained)
    for copied in (agent.learner, agent.teacher):
        torch.testing.assert_close(copied.act(batch.obs), trained.act(batch.obs), atol=1e-4, rtol=1e-4)
        value = copied.value(batch.obs, batch.action)
        torch.testing.assert_close(value, trained.value(batch.obs, batch.action), atol=1e-4, rtol=1e-4)
    masks = agent.predict_mask(batch.obs, batch.action)
    torch.testing.assert_close(masks, trained.predict_mask(batch.obs, batch.action), atol=1e-4, rtol=1e-4)
    scale = agent.learner.critic.projection.linear.weight.abs().mean()
    assert scale < 1e-3 * trained.learner.critic.projection.linear.weight.abs().mean()


def test_only_agents_with_a_decoder_can_be_copied() -> None:
    with pytest.raises(
        InvalidValueError, match="only agents that predict masks, such as sgqn, can be distilled, not SAC"
    ):
        small("sgqn_distilled").start_from(small("sac"))
    with pytest.raises(InvalidValueError, match="the weights of the trained agent do not fit"):
        small("sgqn_distilled").start_from(small("sgqn", hidden_dim=16))


def test_any_agent_can_start_from_a_trained_one_of_its_kind() -> None:
    trained, agent = small("svea"), small("svea", seed=1)
    agent.start_from(trained)
    assert all(torch.equal(value, trained.state_dict()[name]) for name, value in agent.state_dict().items())


# ---- learning


def test_only_the_encoder_and_the_projections_learn() -> None:
    agent = small("sgqn_distilled")
    before = snapshot(agent)
    agent.update(batch_for(agent))
    assert changed(agent, before) == {"learner.critic.encoder", "learner.critic.projection", "learner.actor.projection"}


def test_the_losses_are_those_of_the_embeddings_and_actions() -> None:
    """Without distraction, computed from the networks one by one."""
    agent = small("sgqn_distilled", **NOTHING, views=1, action_weight=3.0, embedding_weight=0.5)
    batch = batch_for(agent)
    metrics = agent.update(batch)
    agent = small("sgqn_distilled", **NOTHING, views=1)
    teacher, learner = agent.teacher, agent.learner
    with torch.no_grad():
        wanted, found = teacher.encoder(batch.obs), learner.encoder(batch.obs)
    total = 0.0
    for theirs, own in ((teacher.critic, learner.critic), (teacher.actor, learner.actor)):
        target, embedding = theirs.projection(wanted).detach(), own.projection(found).detach()
        for dimension in range(target.shape[1]):
            sigma = max(float(target[:, dimension].std()), 0.05)
            total += float(((embedding - target)[:, dimension] / sigma).square().mean()) / target.shape[1]
    assert float(metrics["loss/embedding"]) == pytest.approx(0.5 * total, rel=1e-4)
    actions = teacher.act(batch.obs) - learner.act(batch.obs)
    assert float(metrics["loss/action"]) == pytest.approx(3 * float(actions.square().mean()), rel=1e-4)
    assert float(metrics["action_error"]) == pytest.approx(float(actions.square().mean().sqrt()), rel=1e-4)


def test_it_learns_to_act_in_distracting_scenes_as_in_the_training_scene() -> None:
    agent = small("sgqn_distilled", perturb=False, learning_rate=3e-3, learning_rate_decay=10_000)
    agent.start_from(small("sgqn", seed=4))
    batch = batch_for(agent)
    errors = [float(agent.update(batch)["action_error"]) for _ in range(60)]
    assert sum(errors[-10:]) < 0.5 * sum(errors[3:13])


def test_training_actions_are_the_teachers_or_those_of_distracted_observations() -> None:
    obs = batch_for(small("sgqn_distilled")).obs
    for share, same in ((0.0, True), (1.0, False)):
        agent = small("sgqn_distilled", distracted_actions=share)
        agent.start_from(small("sgqn"))
        drawn = agent.act(obs, deterministic=False)
        assert torch.allclose(drawn, agent.teacher.act(obs), atol=1e-5) == same
        assert not torch.allclose(drawn, agent.act(255 - obs), atol=1e-3)


def test_exports_leave_the_teacher_out() -> None:
    left_out = small("sgqn_distilled").left_out()
    assert left_out["teacher.critic.encoder.convs.0.weight"] is None
    assert left_out["learner.target.encoder.convs.0.weight"] == "learner.critic.encoder.convs.0.weight"


# ---- a learning rate that falls


def test_the_learning_rate_falls_linearly_to_zero() -> None:
    """With a constant gradient, Adam moves by its learning rate."""
    weight = torch.nn.Parameter(torch.zeros(1))
    optimizer = adam([weight], 0.1, warmup=2, decay=5)
    moves = []
    for _ in range(7):
        before = weight.detach().clone()
        weight.grad = torch.ones(1)
        optimizer.step()
        moves.append((before - weight).item())
    assert moves == pytest.approx([0.05, 0.08, 0.06, 0.04, 0.02, 0, 0], abs=1e-6)
    assert optimizer.param_groups[0]["lr"] == 0.1
