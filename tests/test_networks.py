from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.distributions import Independent, Normal, TanhTransform, TransformedDistribution

from sgqn import losses, networks
from sgqn.attribution import fill, gradient, quantile_mask
from sgqn.errors import InvalidValueError

ACTIONS = 2


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def tiny_critic() -> networks.Critic:
    encoder = networks.Encoder(num_layers=3, num_filters=4, image_size=24)
    return networks.Critic(encoder, ACTIONS, embedding_dim=10, hidden_dim=16)


def tiny_batch(n: int = 5) -> tuple[torch.Tensor, torch.Tensor]:
    obs = torch.randint(256, (n, 9, 24, 24), dtype=torch.uint8)
    return obs, torch.rand(n, ACTIONS) * 2 - 1


# --- shapes and sizes


def test_paper_sizes():
    encoder = networks.Encoder()
    critic = networks.Critic(encoder, action_dim=6)
    actor = networks.Actor(encoder.out_shape, action_dim=6)
    decoder = networks.AttributionDecoder(action_dim=6)
    obs, action = torch.randint(256, (2, 9, 84, 84), dtype=torch.uint8), torch.zeros(2, 6)

    features = encoder(obs)
    assert encoder.out_shape == (32, 21, 21)
    assert features.shape == (2, 32, 21, 21)
    assert [conv.stride for conv in encoder.convs] == [(2, 2)] + [(1, 1)] * 10
    embedding = critic.embed(obs)
    assert embedding.shape == (2, 100)
    assert [q.shape for q in critic(obs, action)] == [(2,), (2,)]
    assert decoder(embedding, action).shape == (2, 9, 84, 84)
    assert [p.shape for p in actor(features, torch.zeros(2, 6))] == [(2, 6), (2, 6), (2,), (2, 6)]

    def count(module: nn.Module) -> int:
        return sum(p.numel() for p in module.parameters())

    assert count(encoder) == (9 * 9 * 32 + 32) + 10 * (9 * 32 * 32 + 32)
    assert count(critic.projection) == 14112 * 100 + 100 + 200
    assert count(critic.heads) == 2 * (106 * 1024 + 1024 + 1024 * 1024 + 1024 + 1024 + 1)
    assert count(actor.head) == 100 * 1024 + 1024 + 1024 * 1024 + 1024 + 1024 * 12 + 12
    convs = 9 * (32 * 128 + 128 * 64 + 64 * 9) + 128 + 64 + 9
    assert count(decoder) == 106 * 14112 + 14112 + convs


def test_encoder_is_the_written_out_network():
    encoder = networks.Encoder(num_layers=3, num_filters=4, image_size=24)
    obs, _ = tiny_batch()
    a, b, c = encoder.convs
    x = F.conv2d(obs.float() / 255, a.weight, a.bias, stride=2)
    x = F.conv2d(x.clamp(min=0), b.weight, b.bias)
    x = F.conv2d(x.clamp(min=0), c.weight, c.bias)
    torch.testing.assert_close(encoder(obs), x)
    assert torch.equal(encoder(obs), encoder(obs.float()))
    assert (x < 0).any()  # no ReLU after the last layer
    assert encoder.double()(obs).dtype == torch.float64


def test_sizes_that_do_not_fit_are_refused():
    with pytest.raises(InvalidValueError, match=r"11 layers .* size 16"):
        networks.Encoder(image_size=16)
    with pytest.raises(InvalidValueError, match="image_size 30"):
        networks.AttributionDecoder(ACTIONS, image_size=30)


def test_decoder_with_the_papers_filters():
    decoder = networks.AttributionDecoder(ACTIONS, channels=3, embedding_dim=10, image_size=24, filters=(64, 64))
    assert decoder.conv1.out_channels == 64
    assert decoder(torch.zeros(2, 10), torch.zeros(2, ACTIONS)).shape == (2, 3, 24, 24)


def test_decoder_relu_before_upsampling_changes_nothing():
    decoder = networks.AttributionDecoder(ACTIONS, channels=3, embedding_dim=10, image_size=24, filters=(8, 4))
    embedding, action = torch.randn(2, 10), torch.randn(2, ACTIONS)
    x = F.relu(decoder.linear(torch.cat([embedding, action], 1))).view(2, 32, 6, 6)
    for conv in (decoder.conv1, decoder.conv2):
        x = F.relu(F.interpolate(conv(x), scale_factor=2, mode="nearest"))
    torch.testing.assert_close(decoder(embedding, action), decoder.conv3(x))


def test_q_heads_are_independent():
    heads = networks.QHeads(ACTIONS, embedding_dim=10, hidden_dim=16)
    q1, q2 = heads(torch.randn(3, 10), torch.randn(3, ACTIONS))
    assert not torch.equal(q1, q2)
    q1.sum().backward()
    assert all(p.grad is None for p in heads.q2.parameters())


def test_soda_mlp_has_batch_norm_and_takes_feature_maps():
    projector = networks.SodaMLP(4 * 3 * 3, hidden_dim=8, out_features=5)
    assert projector(torch.randn(6, 4, 3, 3)).shape == (6, 5)
    hidden = projector.norm(projector.hidden(torch.randn(64, 36)))
    torch.testing.assert_close(hidden.mean(0), torch.zeros(8), atol=1e-5, rtol=0)


# --- initialisation


def test_convolutions_are_delta_orthogonal():
    encoder = networks.Encoder()
    for conv in encoder.convs:
        weight = conv.weight.detach()
        centre = weight[:, :, 1, 1]
        torch.testing.assert_close(centre.T @ centre, 2 * torch.eye(conv.in_channels), atol=1e-5, rtol=0)
        assert weight.count_nonzero() == centre.count_nonzero()  # every other tap is zero
        assert not conv.bias.any()


def test_linear_layers_are_orthogonal():
    head = networks.PolicyHead(ACTIONS, embedding_dim=10, hidden_dim=16)
    for layer in head.layers:
        if isinstance(layer, nn.Linear):
            w = layer.weight.detach()
            small = w @ w.T if w.shape[0] <= w.shape[1] else w.T @ w
            torch.testing.assert_close(small, torch.eye(len(small)), atol=1e-5, rtol=0)
            assert not layer.bias.any()


@pytest.mark.parametrize("init", [networks.init_weights, networks.init_uniform])
def test_initialisation_repeats_with_a_generator(init):
    critic = tiny_critic()
    state = torch.get_rng_state()
    init(critic, torch.Generator().manual_seed(7))
    first = copy.deepcopy(critic.state_dict())
    init(critic, torch.Generator().manual_seed(7))
    assert all(torch.equal(first[k], v) for k, v in critic.state_dict().items())
    init(critic, torch.Generator().manual_seed(8))
    assert not torch.equal(first["heads.q1.0.weight"], critic.heads.q1[0].weight)
    assert torch.equal(state, torch.get_rng_state())


def test_uniform_initialisation_is_pytorchs_own_rule():
    decoder = networks.AttributionDecoder(ACTIONS, embedding_dim=10, image_size=24)
    twin = nn.Conv2d(decoder.conv2.in_channels, decoder.conv2.out_channels, 3)
    bound = (128 * 9) ** -0.5
    for conv in (decoder.conv2, twin):
        assert 0.99 * bound < conv.weight.abs().max() <= bound
        assert conv.bias.abs().max() <= bound


# --- policy


def test_log_prob_equals_a_transformed_distribution():
    head = networks.PolicyHead(ACTIONS, embedding_dim=10, hidden_dim=16).double()
    embedding = torch.randn(7, 10, dtype=torch.float64)
    noise = torch.randn(7, ACTIONS, dtype=torch.float64)
    policy = head(embedding, noise)
    mu, _ = head.layers(embedding).chunk(2, dim=1)
    # The default initialisation gives sigma of about exp(-4): mild actions, where the oracle is exact.
    normal = Independent(Normal(mu, policy.log_std.exp()), 1)
    oracle = TransformedDistribution(normal, TanhTransform())
    torch.testing.assert_close(policy.log_prob, oracle.log_prob(policy.action), rtol=1e-8, atol=1e-8)
    torch.testing.assert_close(policy.mean, torch.tanh(mu))
    torch.testing.assert_close(policy.mean, head.mean_action(embedding))
    torch.testing.assert_close(policy.action, torch.tanh(mu + policy.log_std.exp() * noise))


def test_log_prob_and_its_gradient_stay_finite_where_tanh_saturates():
    x = torch.tensor([-80.0, -20.0, 0.0, 20.0, 80.0], requires_grad=True)
    value = networks.log_tanh_derivative(x)
    exact = torch.log1p(-(torch.tanh(torch.tensor(3.0, dtype=torch.float64)) ** 2))
    torch.testing.assert_close(networks.log_tanh_derivative(torch.tensor(3.0, dtype=torch.float64)), exact)
    value.sum().backward()
    assert value.isfinite().all()
    torch.testing.assert_close(x.grad, -2 * torch.tanh(x.detach()))


def test_log_std_is_bounded_and_reaches_its_bounds():
    head = networks.PolicyHead(1, embedding_dim=4, hidden_dim=4)
    last = head.layers[-1]
    for raw, bound in ((-100.0, -10.0), (100.0, 2.0), (0.0, -4.0)):
        nn.init.zeros_(last.weight)
        last.bias.data[1] = raw
        assert head(torch.zeros(1, 4), torch.zeros(1, 1)).log_std.item() == bound


def test_the_actor_does_not_train_the_convolutions_unless_asked():
    critic = tiny_critic()
    actor = networks.Actor(critic.encoder.out_shape, ACTIONS, embedding_dim=10, hidden_dim=16)
    obs, _ = tiny_batch()
    features = critic.encoder(obs)
    actor(features, torch.randn(5, ACTIONS)).log_prob.sum().backward()
    assert all(p.grad is None for p in critic.parameters())
    assert all(p.grad is not None for p in actor.parameters())
    actor(features, torch.randn(5, ACTIONS), detach_encoder=False).log_prob.sum().backward()
    assert all(p.grad is not None for p in critic.encoder.parameters())
    assert torch.equal(actor.mean_action(features), actor(features, torch.randn(5, ACTIONS)).mean)


# --- gradients of the paper's losses


def test_mask_prediction_trains_encoder_projection_and_decoder_and_nothing_else():
    critic = tiny_critic()
    decoder = networks.AttributionDecoder(ACTIONS, embedding_dim=10, image_size=24, filters=(8, 4))
    obs, action = tiny_batch()
    mask = torch.rand(5, 9, 24, 24) > 0.9
    losses.mask_prediction_loss(decoder(critic.embed(obs), action), mask).backward()
    for module in (critic.encoder, critic.projection, decoder):
        assert all(p.grad is not None and p.grad.any() for p in module.parameters())
    assert all(p.grad is None for p in critic.heads.parameters())


def test_consistency_is_zero_when_the_mask_keeps_everything():
    critic = tiny_critic()
    networks.init_uniform(critic.encoder)  # delta-orthogonal layers look at few pixels
    obs, action = tiny_batch()
    attribution = gradient(lambda o, a: critic(o, a)[0], obs, action)

    def consistency(rho: float) -> torch.Tensor:
        masked = fill(obs, quantile_mask(attribution, rho))
        return losses.consistency_loss(critic(obs, action), critic(masked, action))

    loss = consistency(rho=0.0)
    loss.backward()
    assert loss == 0
    assert all(not p.grad.any() for p in critic.parameters())
    assert consistency(rho=0.95) > 0


# --- targets


def test_targets_move_by_exactly_tau():
    source, target = tiny_critic().double(), networks.frozen_copy(tiny_critic().double())
    before = copy.deepcopy(target)
    networks.ema_update_critic(target, source, encoder_tau=0.05, heads_tau=0.01)
    for (name, new), old, online in zip(
        target.named_parameters(), before.parameters(), source.parameters(), strict=True
    ):
        tau = 0.01 if name.startswith("heads") else 0.05
        torch.testing.assert_close(new - old, tau * (online - old), rtol=0, atol=1e-15)
        assert name.endswith("bias") or "norm" in name or not torch.equal(new, old)
        assert not new.requires_grad


def test_ema_goes_all_the_way_with_tau_one_and_nowhere_with_zero():
    source, target = tiny_critic(), tiny_critic()
    before = copy.deepcopy(target.state_dict())
    networks.ema_update(target, source, 0.0)
    assert all(torch.equal(before[k], v) for k, v in target.state_dict().items())
    networks.ema_update(target, source, 1.0)
    assert all(torch.equal(source.state_dict()[k], v) for k, v in target.state_dict().items())


@pytest.mark.parametrize("size", [1.0, 1e8, 1e14, 1e19, 1e24])
def test_norms_do_not_see_how_large_features_have_grown(size: float):
    features = torch.randn(8, 40)
    for network in (networks.Projection(40, 10), networks.SodaMLP(40, 10, 5)):
        torch.testing.assert_close(network(size * features), network(10 * features), rtol=1e-3, atol=1e-3)


def test_frozen_copy_shares_nothing_and_takes_no_gradient():
    critic = tiny_critic()
    target = networks.frozen_copy(critic)
    assert not any(p.requires_grad for p in target.parameters())
    assert all(p.requires_grad for p in critic.parameters())
    assert {p.data_ptr() for p in critic.parameters()}.isdisjoint(p.data_ptr() for p in target.parameters())
