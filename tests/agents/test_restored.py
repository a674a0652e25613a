"""Restored observations: what the agent copies, what its restorer sees and learns, and how its rate falls."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from sgqn.agents.base import adam
from sgqn.agents.distraction import Distracted, Distraction, DistractionSettings
from sgqn.agents.restored import RestoredSettings
from sgqn.attribution import gradient, guided_backprop, quantile_mask
from sgqn.attribution.mask import edges
from sgqn.errors import InvalidValueError
from sgqn.losses import gate_loss, perception_loss
from sgqn.networks import Restorer
from tests.agents.small import SIZE, batch_for, changed, small, snapshot

NOTHING = {"replaced": 0.0, "recolored": 0.0, "overlaid": 0.0, "sided": 0.0, "fringed": 0.0, "color_jitter": 0.0}


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def observations(batch: int = 16) -> Tensor:
    return torch.randint(20, 230, (batch, 9, SIZE, SIZE), dtype=torch.uint8, generator=generator(1))


def half_kept(batch: int = 16) -> Tensor:
    return torch.rand(batch, 1, SIZE, SIZE, generator=generator(2)) < 0.5


def white(obs: Tensor, generator: torch.Generator) -> Tensor:
    return torch.full_like(obs, 255)


def lesson(obs: Tensor, mask: Tensor, **settings: float) -> Distracted:
    return Distraction(DistractionSettings(**{**NOTHING, **settings}), white)(obs, mask.expand_as(obs), generator())


def distracted(obs: Tensor, mask: Tensor, **settings: float) -> Tensor:
    return lesson(obs, mask, **settings).obs


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
    assert 0.65 < (lowest > 0.999).float().mean() < 0.95


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


def test_some_observations_change_on_one_side_of_a_line() -> None:
    """Every row and every column of pixels changes sides at most once."""
    obs = torch.zeros(64, 9, SIZE, SIZE, dtype=torch.uint8)
    seen = distracted(obs, torch.zeros(64, 1, SIZE, SIZE, dtype=torch.bool), replaced=1.0, sided=0.5)
    side = (seen > 0).int()
    assert torch.equal(side, side[:, :1].expand_as(side))  # the same in all frames
    for dim in (2, 3):
        assert side.diff(dim=dim).abs().sum(dim=dim).max() <= 1
    share = side.float().mean(dim=(1, 2, 3))
    assert 0.3 < (share == 1).float().mean() < 0.7
    assert share.min() < 0.4


def test_shares_are_those_of_the_settings() -> None:
    obs, mask = observations(400), torch.zeros(400, 1, SIZE, SIZE, dtype=torch.bool)
    seen = distracted(obs, mask, replaced=0.5, recolored=0.2, overlaid=0.15)
    same = (seen == obs).flatten(1).all(dim=1).float().mean()
    white_ones = (seen == 255).flatten(1).all(dim=1).float().mean()
    assert 0.1 < same < 0.2
    assert 0.33 < white_ones < 0.47  # 0.8 of the replaced ones


def test_replaced_pixels_are_those_that_visibly_change() -> None:
    """White pixels outside the mask, unless they were nearly white before. The gate learns these."""
    obs = torch.full((4, 9, SIZE, SIZE), 90, dtype=torch.uint8)
    obs[:, :, :, : SIZE // 2] = 250
    mask = half_kept(4)
    found = lesson(obs, mask, replaced=1.0)
    assert torch.equal(found.kept, mask.expand_as(found.kept))
    assert torch.equal(found.replaced, ~found.kept & (obs[:, ::3] == 90))


def antialiased(count: int = 8) -> tuple[Tensor, Tensor, Tensor]:
    """Discs in front of a scene whose colours change slowly: observations, how much of the disc every pixel shows,
    (B, 1, H, W), and its colour (B, 9, 1, 1)."""
    rows, columns = torch.meshgrid(torch.arange(SIZE) + 0.5, torch.arange(SIZE) + 0.5, indexing="ij")
    centers = SIZE / 2 + 3 * torch.rand(count, 2, 1, 1, generator=generator(8))
    distance = ((rows - centers[:, 0]).square() + (columns - centers[:, 1]).square()).sqrt()
    shown = (SIZE / 4 + 1 - distance).mul(0.5).clamp(0, 1)[:, None]  # an edge of two pixels
    colors = torch.tensor([[230.0, 150.0, 60.0]]).repeat(count, 3)[:, :, None, None]
    scene = (60 + 20 * columns / SIZE).expand(count, 9, SIZE, SIZE)
    return (shown * colors + (1 - shown) * scene).round().byte(), shown, colors


def test_edges_show_as_much_of_the_scene_as_they_lack_of_the_body() -> None:
    obs, shown, _ = antialiased()
    mask = (shown > 0.3).expand_as(obs)
    amount, behind = edges(obs, mask)
    rim = (shown > 0.3) & (shown < 1)
    assert not amount[~mask[:, ::3]].any()
    assert not amount[(shown == 1).expand_as(amount)].any()
    error = (amount - (1 - shown)).abs()[rim.expand_as(amount)]
    assert error.max() < 0.15
    assert error.mean() < 0.05
    assert (behind - 70).abs().max() < 15  # the scene, without the disc


def test_another_colour_shines_through_the_edges() -> None:
    """As if the disc had been drawn in front of a screen of that colour, which is one for each observation."""
    obs, shown, colors = antialiased(32)
    found = lesson(obs, shown > 0.3, replaced=1.0, fringed=0.5)
    rim, inside = ((shown > 0.3) & (shown < 0.7)).expand_as(obs), (shown == 1).expand_as(obs)
    torch.testing.assert_close(found.obs[inside], obs.float()[inside], atol=1, rtol=0)
    screens = (found.obs - shown * colors) / (1 - shown)
    lowest, highest = (torch.where(rim, screens, fill).flatten(2) for fill in (1e9, -1e9))
    tinted = (found.obs - obs).abs().where(rim, 0).flatten(1).amax(dim=1) > 8
    assert 0.25 < tinted.float().mean() < 0.75
    assert (highest.amax(dim=2) - lowest.amin(dim=2))[tinted].max() < 80  # of 255
    median = torch.where(rim, screens, torch.nan).flatten(2).nanmedian(dim=2).values[tinted]  # (n, 9)
    torch.testing.assert_close(median[:, :3], median[:, 6:], atol=12, rtol=0)  # the same in all frames
    assert (median[:, None] - median).abs().amax(dim=2).fill_diagonal_(255).min() > 5
    changed = (found.obs - obs).abs().unflatten(1, (3, 3)).amax(dim=2) > 8
    assert not (found.kept & changed).any()  # the gate does not learn these pixels
    assert not (found.replaced & (shown > 0.3)).any()


def test_settings_of_the_distraction_are_checked() -> None:
    with pytest.raises(InvalidValueError, match=r"add up to at most 1, not 1\.5"):
        DistractionSettings(replaced=1.0, recolored=0.5, overlaid=0.0)
    with pytest.raises(InvalidValueError, match="the same length, at least 1, not 1, 8, 8"):
        DistractionSettings(kept_rho=(0.9,))
    with pytest.raises(InvalidValueError, match="the same length, at least 1, not 0, 0, 0"):
        DistractionSettings(kept_rho=(), kept_margin=(), kept_contrast=())
    wrong: dict[str, Any] = {"kept_rho": (1.0,), "kept_margin": (-1,), "kept_contrast": (1.1,)}
    wrong |= {"replaced": 1.1, "fringed": -0.1, "color_jitter": -0.1}
    for name, value in wrong.items():
        with pytest.raises(InvalidValueError, match=f"{name} must be"):
            RestoredSettings(**{name: value})


# ---- the copy


def unchanged(agent: Any) -> None:
    """Make the restorer return its observations: the gate is open everywhere."""
    with torch.no_grad():
        agent.restorer.output.weight.zero_()
        agent.restorer.output.bias.fill_(100)
        for parameter in agent.restorer.colors.parameters():
            parameter.zero_()


def test_it_is_the_trained_agent_behind_a_restorer() -> None:
    trained, agent = small("sgqn"), small("sgqn_restored", seed=3)
    agent.start_from(trained)
    batch = batch_for(trained)
    seen = agent.restorer(batch.obs)
    assert torch.equal(agent.act(batch.obs), trained.act(seen))
    assert torch.equal(agent.value(batch.obs, batch.action), trained.value(seen, batch.action))
    assert torch.equal(agent.predict_mask(batch.obs, batch.action), trained.predict_mask(seen, batch.action))
    assert not torch.allclose(agent.act(batch.obs), trained.act(batch.obs), atol=1e-3)
    unchanged(agent)
    torch.testing.assert_close(agent.act(batch.obs), trained.act(batch.obs), atol=1e-4, rtol=1e-4)


def test_its_attribution_is_that_of_the_observation_before_it_is_restored() -> None:
    """By finite differences of the value of what the restorer returns."""
    agent = small("sgqn_restored", double=True)
    batch = batch_for(agent)
    obs, action = batch.obs[:1].double(), batch.action[:1].double()
    found = gradient(agent.value, obs, action)
    for index in found.abs().flatten().topk(5).indices:
        moved = torch.zeros_like(obs).flatten()
        moved[index] = 1e-3
        moved = moved.view_as(obs)
        with torch.no_grad():
            slope = (agent.value(obs + moved, action) - agent.value(obs - moved, action)) / 2e-3
        assert float(found.flatten()[index]) == pytest.approx(float(slope), rel=1e-2)


def test_only_agents_with_a_decoder_can_be_restored() -> None:
    for name, kind in (("sac", "SAC"), ("sgqn_restored", "Restored")):
        with pytest.raises(InvalidValueError, match=f"such as sgqn, can be restored, not {kind}"):
            small("sgqn_restored").start_from(small(name))
    with pytest.raises(InvalidValueError, match="the weights of the trained agent do not fit"):
        small("sgqn_restored").start_from(small("sgqn", hidden_dim=16))


def test_any_agent_can_start_from_a_trained_one_of_its_kind() -> None:
    trained, agent = small("svea"), small("svea", seed=1)
    agent.start_from(trained)
    assert all(torch.equal(value, trained.state_dict()[name]) for name, value in agent.state_dict().items())


# ---- learning


def test_only_the_restorer_learns() -> None:
    agent = small("sgqn_restored")
    before = snapshot(agent)
    agent.update(batch_for(agent))
    assert {name.split(".")[0] for name in changed(agent, before)} == {"restorer"}


def relative_error(found: Tensor, expected: Tensor) -> float:
    """The squared error, relative to the variance over the batch, averaged over the elements."""
    return float((found - expected).square().mean() / expected.var(dim=0, correction=0).mean())


def test_the_losses_are_those_of_pixels_features_embeddings_and_actions() -> None:
    """Without distraction, computed from the restorer's output; kept pixels count more."""
    rate = {"learning_rate_warmup": 0, "learning_rate_decay": 1}
    weights = {
        "kept_weight": 3.0,
        "gate_weight": 0.1,
        "feature_weight": 0.2,
        "embedding_weight": 0.3,
        "action_weight": 0.5,
    }
    agent = small("sgqn_restored", **NOTHING, **rate, **weights, views=1)
    learner, batch = agent.learner, batch_for(agent)
    with torch.no_grad():
        mask = (torch.rand(len(batch.obs), 3, SIZE, SIZE, generator=generator(2)) < 0.3).repeat_interleave(3, dim=1)
        features = learner.encode(batch.next_obs)
    agent.lesson = lambda obs, views: (features, mask)
    first = agent.update(batch)
    assert first["loss/action"] == first["loss/embeddings"] == 0  # their weights rise later
    with torch.no_grad():
        errors = (agent.restorer(batch.obs) - batch.obs).abs() / 255
        opened = agent.restorer.gated(batch.obs)[1].sigmoid()[mask[:, ::3]]
        seen, action = learner.encode(agent.restorer(batch.obs)), agent.act(batch.obs)
        embeddings = [
            relative_error(projection(seen), projection(features))
            for projection in (learner.critic.projection, learner.actor.projection)
        ]
    metrics = agent.update(batch)
    expected = {
        "restoration": float(errors.mean() + 3 * errors[mask].mean()),
        "gate": -0.1 * float(opened.log().mean()),  # nothing is replaced
        "features": 0.2 * relative_error(seen, features),
        "embeddings": 0.3 * sum(embeddings),
        "action": 0.5 * float((action - learner.mean_action(features)).detach().square().mean()),
    }
    found = {name.removeprefix("loss/"): float(value) for name, value in metrics.items() if name.startswith("loss/")}
    assert found == pytest.approx(expected, rel=1e-4)
    assert float(metrics["mask/kept"]) == pytest.approx(float(mask.float().mean()))


def test_the_gate_learns_which_pixels_are_kept_however_few_they_are() -> None:
    """By binary cross-entropy; pixels that are neither kept nor replaced do not count."""
    logits = torch.randn(2, 3, SIZE, SIZE, generator=generator(5))
    kept = torch.rand(logits.shape, generator=generator(6)) < 0.1
    replaced = ~kept & (torch.rand(logits.shape, generator=generator(7)) < 0.5)
    expected = 0.0
    for pixels, target in ((kept, 1.0), (replaced, 0.0)):
        expected += float(F.binary_cross_entropy_with_logits(logits[pixels], torch.full((int(pixels.sum()),), target)))
    assert float(gate_loss(logits, kept, replaced)) == pytest.approx(expected, rel=1e-5)
    assert gate_loss(logits, torch.zeros_like(kept), torch.zeros_like(kept)) == 0


def test_features_of_any_scale_are_compared() -> None:
    """Those of a trained encoder may have squares beyond float32."""
    found, expected = torch.randn(2, 8, 5, generator=generator(4))
    reference = relative_error(found.double(), expected.double())
    for scale in (1.0, 1e-15, 1e30):
        assert float(perception_loss(scale * found, scale * expected)) == pytest.approx(reference, rel=1e-4)
    constant = torch.ones(4, 5)
    assert torch.isfinite(perception_loss(found[:4], constant))


def test_kept_pixels_are_those_of_the_agents_attribution() -> None:
    """Of the value of the action that the agent chooses in the training scene, behind which no restorer is."""
    agent = small("sgqn_restored", kept_rho=(0.9,), kept_margin=(0,), kept_contrast=(0.0,))
    obs = batch_for(agent).obs
    attribution = guided_backprop(agent.learner.value, obs, agent.learner.act(obs))
    expected = quantile_mask(attribution, 0.9).any(dim=1, keepdim=True).expand_as(obs)
    features, kept = agent.lesson(obs, 2)
    assert torch.equal(features, agent.learner.encode(obs))
    assert (kept == expected.repeat(2, 1, 1, 1)).float().mean() > 0.999


def test_it_learns_to_undo_distractions() -> None:
    """A bright square on grey ground, over noise."""
    sizes = {"restorer_filters": (16, 16, 16), "views": 2}
    pixels = {
        "kept_weight": 1.0,
        "gate_weight": 0.0,
        "feature_weight": 0.0,
        "embedding_weight": 0.0,
        "action_weight": 0.0,
    }
    agent = small("sgqn_restored", learning_rate=5e-3, learning_rate_decay=10_000, **pixels, **sizes)
    obs = torch.full((6, 9, SIZE, SIZE), 90, dtype=torch.uint8)
    for k in range(6):
        obs[k, :, 4 * k : 4 * k + 10, 5 * k : 5 * k + 10] = 200
    mask = obs == 200
    features = torch.zeros(6, *agent.learner.encoder.out_shape)
    agent.lesson = lambda _, views: (features, mask.repeat(views, 1, 1, 1))
    batch = batch_for(agent)._replace(obs=obs)
    losses = [float(agent.update(batch)["loss/restoration"]) for _ in range(150)]
    assert sum(losses[-10:]) < 0.5 * sum(losses[:10])
    scene = torch.randint(256, obs.shape, dtype=torch.uint8, generator=generator(3))
    with torch.no_grad():
        restored = agent.restorer(torch.where(mask, obs, scene))
    assert (restored - obs).abs().mean() < 0.5 * (scene.float() - obs).abs().mean()


def test_training_actions_range_from_the_trained_agents_to_random_ones() -> None:
    agent, obs = small("sgqn_restored", random_actions=1.0), observations(64)
    trained = agent.learner.act(obs)
    drawn = torch.stack([agent.act(obs, deterministic=False) for _ in range(50)])
    shares = (drawn - trained).abs().amax(dim=2).gt(1e-6).float().mean(dim=0)
    assert shares[0] == 0
    assert shares[-1] == 1
    torch.testing.assert_close(shares, torch.linspace(0, 1, 64), atol=0.3, rtol=0)
    assert drawn.abs().max() <= 1
    assert torch.equal(small("sgqn_restored", random_actions=0.0).act(obs, deterministic=False), trained)


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


# ---- the canvas


def test_the_canvas_is_what_the_restorer_paints_where_it_shows_nothing() -> None:
    restorer = Restorer(9, (16, 16, 16), SIZE, canvas=True)
    plain = Restorer(9, (16, 16, 16), SIZE)
    plain.load_state_dict({name: value for name, value in restorer.state_dict().items() if name != "canvas"})
    obs = observations(4)
    torch.testing.assert_close(restorer(obs), plain(obs))  # nothing is on it at first
    image = torch.rand(3, SIZE, SIZE, generator=generator(9)).clamp(0.01, 0.99)
    with torch.no_grad():
        restorer.canvas.copy_(image.logit())
        restorer.output.weight.zero_()
        restorer.output.bias.zero_()
        restorer.output.bias[: 3 * 4] = -100  # the gates, at four positions each
    torch.testing.assert_close(restorer(obs), (255 * image).repeat(3, 1, 1).expand(4, 9, SIZE, SIZE))


def test_a_scene_that_stays_is_learned_faster_with_a_canvas() -> None:
    """Noise that is the same in all observations, which has to be painted from other noise."""
    scene = torch.randint(256, (1, 3, SIZE, SIZE), dtype=torch.uint8, generator=generator(10)).repeat(6, 3, 1, 1)
    errors = []
    for canvas in (True, False):
        agent = small(
            "sgqn_restored",
            **NOTHING | {"replaced": 1.0, "feature_weight": 0.0, "embedding_weight": 0.0, "action_weight": 0.0},
            canvas=canvas,
            learning_rate_warmup=0,
            learning_rate_decay=1000,
            restorer_filters=(8, 8, 8),
            views=1,
        )
        features = torch.zeros(6, *agent.learner.encoder.out_shape)
        agent.lesson = lambda obs, views, features=features: (features, torch.zeros_like(obs, dtype=torch.bool))
        batch = batch_for(agent)._replace(obs=scene)
        errors.append([float(agent.update(batch)["loss/restoration"]) for _ in range(100)][-1])
    assert errors[0] < 0.25 * errors[1]
