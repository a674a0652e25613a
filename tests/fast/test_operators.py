"""Every fused operator against the plain modules and functions that it stands for, its kernels run by the emulator."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from itertools import product

import pytest
import torch
from torch import Tensor, nn

from sgqn import attribution, augmentations, losses
from sgqn.agents import Phase
from sgqn.agents.base import adam
from sgqn.errors import SgqnError
from sgqn.fast import autograd, encoder, heads, pixels, switch, weights
from sgqn.networks import AttributionDecoder, DeterministicHead, Encoder, PolicyHead, Projection, QHeads, ema_update
from tests.agents.small import batch_for, small
from tests.fast.emulated import requires_compiler
from tests.fast.oracles import carry_back, convolve, cosine, shaken

pytestmark = [requires_compiler, pytest.mark.usefixtures("emulated")]


def close(a: Tensor, b: Tensor, at_least: float = 0.999, size: float = 0.02) -> None:
    """Alike up to bf16's rounding."""
    assert a.shape == b.shape
    assert cosine(a, b) >= at_least
    assert abs(a.norm() / b.norm() - 1).item() <= size


def picture(batch: int, generator: int = 0, channels: int = 9) -> Tensor:
    drawn = torch.Generator().manual_seed(generator)
    return torch.randint(0, 256, (batch, channels, 84, 84), dtype=torch.uint8, generator=drawn)


def both(run):
    """The results of `run()` by the plain path and by the kernels."""
    plain = run()
    with switch.kernels():
        return plain, run()


# ---- encoder


def test_encoder_matches_rounded_oracle_closely():
    net, obs = shaken(Encoder()), picture(2)
    with switch.kernels(), torch.no_grad():
        assert encoder.fits(net.convs, obs)
        fused = net(obs)
    expected = convolve(obs, net.convs)[-1]
    assert fused.dtype == torch.bfloat16
    assert fused.shape == (2, 32, 21, 21)
    # Sums in another order move some results across a rounding border, no more.
    torch.testing.assert_close(fused.float(), expected, atol=0.02 * expected.std().item(), rtol=0.02)


@pytest.mark.parametrize(("guided", "channels"), [(False, 9), (True, 9), (False, 3), (True, 3), (False, 6)])
def test_encoder_gradients_match_rounded_oracle(guided: bool, channels: int):
    net, obs, count = shaken(Encoder(channels)), picture(2, 1, channels), 2
    gradient = torch.randn(count, 32, 21, 21, generator=torch.Generator().manual_seed(3)).bfloat16()
    x = attribution.differentiable(obs)
    with switch.kernels(), attribution.switchable_relu():
        assert encoder.fits(net.convs, x)
        features = net(x)
    with attribution.guided() if guided else nullcontext():
        (of_x,) = torch.autograd.grad(features, x, gradient, retain_graph=True)
    torch.testing.assert_close(features.detach().float(), convolve(obs, net.convs)[-1], atol=0.02, rtol=0.02)
    expected_of_x, expected = carry_back(convolve(obs, net.convs), net.convs, gradient, guided)
    close(of_x, expected_of_x, 0.9995 if guided else 0.998)
    if not guided:
        of_parameters = torch.autograd.grad(features, list(net.parameters()), gradient)
        for own, of_parameter in zip(of_parameters, expected, strict=True):
            close(own, of_parameter, 0.997)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_encoder_takes_pictures_of_other_types_and_rounds_them(dtype: torch.dtype):
    net, obs = shaken(Encoder()), picture(1)
    with switch.kernels(), torch.no_grad():
        expected = net(obs)
        assert torch.equal(net(obs.to(dtype)), expected)
        if dtype == torch.float32:
            assert torch.equal(net(obs.to(dtype) + 0.3), expected)


@pytest.mark.parametrize("guided", [False, True])
def test_encoders_of_other_sizes_go_layer_by_layer(guided: bool):
    net = shaken(Encoder(num_layers=4, num_filters=8, image_size=48))
    drawn = torch.Generator().manual_seed(0)
    obs = torch.randint(0, 256, (4, 9, 48, 48), dtype=torch.uint8, generator=drawn)
    gradient = torch.rand(4, *net.out_shape, generator=drawn)

    def run() -> list[Tensor]:
        x = attribution.differentiable(obs)
        assert not encoder.fits(net.convs, x)
        with attribution.switchable_relu():
            features = net(x)
        with attribution.guided() if guided else nullcontext():
            (of_x,) = torch.autograd.grad(features, x, gradient.to(features.dtype), retain_graph=True)
        of_weights = torch.autograd.grad(features, list(net.parameters()), gradient.to(features.dtype))
        return [features.float(), of_x, *of_weights]

    for plain, fused in zip(*both(run), strict=True):
        close(fused, plain, 0.97, 0.05)


def test_the_papers_encoder_layer_by_layer_where_the_fused_one_is_off():
    net, obs = shaken(Encoder()), picture(1)
    with torch.no_grad(), switch.kernels(encoder=False):
        assert not encoder.fits(net.convs, obs)
        assert encoder.fits_layers(net.convs, obs)
        by_layers = net(obs)
    with torch.no_grad():
        close(by_layers.float(), net(obs))


def test_weights_are_converted_again_when_they_have_changed():
    net, obs = shaken(Encoder()), picture(1)
    optimizer = adam(net.parameters(), 1e-3)
    with switch.kernels():
        before = net(obs)
        before.float().square().mean().backward()
        optimizer.step()
        after = net(obs)
    with torch.no_grad():
        plain = net(obs)
    assert not torch.equal(before, after)
    close(after.float(), plain)


def test_weights_that_changed_before_the_backward_pass_are_refused():
    net = shaken(Encoder())
    with switch.kernels():
        features = net(picture(1))
    with torch.no_grad():
        net.convs[3].bias.add_(1)
    with pytest.raises(SgqnError, match="changed in place"):
        features.float().sum().backward()


def test_only_wanted_gradients_are_computed(monkeypatch: pytest.MonkeyPatch):
    launched: list[str] = []
    emulator = encoder.compiler.module("encoder", torch.device("cpu"))
    launch = emulator.launch
    monkeypatch.setattr(emulator, "launch", lambda name, *rest: (launched.append(name), launch(name, *rest)))
    net, x = shaken(Encoder()), attribution.differentiable(picture(1))
    with switch.kernels():
        value = net(x).float().sum(dim=(1, 2, 3))
    launched.clear()
    torch.autograd.grad(value, x, torch.ones(1), retain_graph=True)
    assert launched == ["encoder_backward", "encoder_pixels"]
    launched.clear()
    value.sum().backward(inputs=list(net.parameters()))
    assert launched == ["encoder_backward", "encoder_weights", "encoder_first_weights", "encoder_unpack"]
    assert x.grad is None


@pytest.mark.parametrize("count", [1, 3, 128])
@pytest.mark.parametrize("blocks", [1, 7, 264])
def test_work_items_cover_every_row_once(count: int, blocks: int):
    items, starts = encoder.work_items(count, blocks, torch.device("cpu"))
    assert (len(starts), starts[0], starts[-1]) == (blocks + 1, 0, len(items))
    assert (starts.diff() >= 0).all()
    for level in range(10):
        for index in {0, count - 1}:
            rows = [
                row
                for _, _, first, number in items[(items[:, 0] == level) & (items[:, 1] == index)].tolist()
                for row in range(first, first + number)
            ]
            assert rows == list(range(encoder.LEVELS[level + 1]))


# ---- heads


@pytest.mark.parametrize(("rows", "inputs"), [(33, 1024), (33, 1120), (130, 1120)])
def test_projection_and_its_gradients(rows: int, inputs: int):
    module = shaken(Projection(inputs, 100))
    features = torch.randn(rows, inputs)

    def run() -> list[Tensor]:
        x = features.clone().requires_grad_()
        out = module(x)
        return [
            out,
            *torch.autograd.grad(out, [x, *module.parameters()], torch.linspace(-1, 1, out.numel()).view_as(out)),
        ]

    for plain, fused in zip(*both(run), strict=True):
        close(fused.float(), plain)


@pytest.mark.parametrize("scale", [1e12, 1e19, 1e28])
def test_projection_of_features_of_any_scale(scale: float):
    """Long training makes them huge; the embedding does not see it, and gradients shrink by as much."""
    module, features = Projection(1120, 100), torch.randn(9, 1120)

    def run(factor: float) -> list[Tensor]:
        x = (factor * features).requires_grad_()
        out = module(x)
        of_x, of_weight = torch.autograd.grad(
            out, [x, module.linear.weight], torch.linspace(-1, 1, out.numel()).view_as(out)
        )
        return [out, factor * of_x, of_weight]

    expected = run(1)
    for plain, fused, usual in zip(*both(lambda: run(scale)), expected, strict=True):
        close(plain, usual, 0.99999, 1e-4)
        close(fused.float(), usual)


@pytest.mark.parametrize(("head", "guided", "actions"), [*product([0, 1, None], [False, True], [6]), (None, False, 1)])
def test_values_and_their_gradients(head: int | None, guided: bool, actions: int):
    module = shaken(QHeads(action_dim=actions, hidden_dim=256))
    embedding, action = torch.randn(20, 100).tanh(), torch.rand(20, actions) * 2 - 1

    def run() -> list[Tensor]:
        z, a = embedding.clone().requires_grad_(), action.clone().requires_grad_()
        with attribution.switchable_relu():
            q = module(z, a)
        value = q[0] * 2 + q[1] if head is None else q[head]
        with attribution.guided() if guided else nullcontext():
            inputs = [z, a] if guided else [z, a, *(module.q1 if head != 1 else module.q2).parameters()]
            return [*q, *torch.autograd.grad(value, inputs, torch.linspace(-1, 2, 20))]

    for plain, fused in zip(*both(run), strict=True):
        close(fused, plain, 0.97, 0.05)


@pytest.mark.parametrize("actions", [1, 2, 3, 6])
def test_policy_and_its_gradients(actions: int):
    module = shaken(PolicyHead(action_dim=actions, hidden_dim=128), 0.05)
    embedding, noise = torch.randn(20, 100).tanh(), torch.randn(20, actions)

    def run() -> list[Tensor]:
        z = embedding.clone().requires_grad_()
        policy = module(z, noise)
        loss = (policy.log_prob * torch.linspace(0, 1, 20)).sum() + (policy.action * noise).sum()
        return [*policy, *torch.autograd.grad(loss, [z, *module.parameters()])]

    for plain, fused in zip(*both(run), strict=True):
        close(fused, plain, 0.97, 0.05)


@pytest.mark.parametrize("actions", [1, 2, 6])
def test_deterministic_actions_and_their_gradients(actions: int):
    module = shaken(DeterministicHead(action_dim=actions, hidden_dim=128), 0.05)
    embedding, weight = torch.randn(20, 50).tanh(), torch.randn(20, actions)

    def run() -> list[Tensor]:
        z = embedding.clone().requires_grad_()
        action = module(z)
        return [action, *torch.autograd.grad((action * weight).sum(), [z, *module.parameters()])]

    plain, fused = both(run)
    assert torch.equal(plain[0], fused[0]) == (actions == 1)  # a single output is not fused
    for a, b in zip(fused, plain, strict=True):
        close(a, b, 0.97, 0.05)


@pytest.mark.parametrize("actions", [1, 2, 4, 6])
def test_gaussian_is_exact_in_float32(actions: int):
    raw, noise = torch.randn(7, 2 * actions, requires_grad=True), torch.randn(7, actions)
    head = PolicyHead(action_dim=actions)
    head.layers = nn.Identity()  # type: ignore[assignment]
    plain = head(raw, noise)
    assert not switch.enabled()
    fused = heads.gaussian(raw, noise, head.log_std_bounds)
    for a, b in zip(fused, plain, strict=True):
        torch.testing.assert_close(a, b)
    for index in (1, 2):
        (a,) = torch.autograd.grad(fused[index].sum(), raw, retain_graph=True)
        (b,) = torch.autograd.grad(plain[index].sum(), raw, retain_graph=True)
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize(("actions", "channels"), [(1, 9), (3, 9), (2, 3), (3, 6)])
def test_decoder_and_its_gradients(actions: int, channels: int):
    torch.manual_seed(0)
    module = AttributionDecoder(
        actions, embedding_dim=20, image_size=24, base_filters=16, filters=(32, 16), channels=channels
    )
    embedding, action = torch.randn(5, 20).tanh(), torch.rand(5, actions) * 2 - 1
    weight = torch.randn(5, channels, 24, 24, generator=torch.Generator().manual_seed(0)).cumsum(3)

    def run() -> list[Tensor]:
        z, a = embedding.clone().requires_grad_(), action.clone().requires_grad_()
        logits = module(z, a).float()
        return [logits, *torch.autograd.grad((logits * weight).sum(), [z, a, *module.parameters()])]

    plain, fused = both(run)
    assert plain[0].shape == fused[0].shape
    for a, b in zip(plain, fused, strict=True):
        close(b, a, 0.99, 0.05)


@pytest.mark.parametrize(("base", "filters"), [(4, (16, 16)), (8, (4, 8)), (8, (8, 4)), (8, (24, 8))])
def test_decoders_that_the_kernels_cannot_share_out_stay_plain(base: int, filters: tuple[int, int]):
    module = AttributionDecoder(action_dim=3, embedding_dim=20, image_size=24, base_filters=base, filters=filters)
    embedding, action = torch.randn(2, 20).tanh(), torch.rand(2, 3)
    plain, fused = both(lambda: module(embedding, action))
    assert torch.equal(plain, fused)


# ---- Adam


@pytest.mark.parametrize("rate", [1e-3, 3e-4])
def test_adam_is_pytorchs(rate: float):
    drawn = torch.Generator().manual_seed(0)
    shapes = [(5000,), (33, 7), (4, 4), (), (128, 64)]
    first = [nn.Parameter(torch.randn(shape, generator=drawn)) for shape in shapes]
    second = [nn.Parameter(p.detach().clone()) for p in first]
    fused = adam(first, rate, beta=0.8)
    fused.param_groups[0]["capturable"] = True  # what it is on a GPU
    plain = torch.optim.Adam(second, rate, betas=(0.8, 0.999))
    for step in range(5):
        for a, b in zip(first, second, strict=True):
            a.grad = torch.randn(a.shape, generator=drawn) * 10.0 ** (step - 2)
            b.grad = a.grad.clone()
        versions = [p._version for p in first]
        with switch.kernels():
            fused.step()
        plain.step()
        assert all(p._version > before for p, before in zip(first, versions, strict=True))
    for a, b in zip(first, second, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)
        for name in ("step", "exp_avg", "exp_avg_sq"):
            torch.testing.assert_close(fused.state[a][name].float(), plain.state[b][name].float(), rtol=1e-5, atol=1e-7)


def test_the_learning_rate_rises_as_in_pytorchs_scheduler():
    """By the kernel, and by the plain code with its state."""
    drawn = torch.Generator().manual_seed(0)
    first = [nn.Parameter(torch.randn(shape, generator=drawn)) for shape in [(500,), (33, 7)]]
    second, third = ([nn.Parameter(p.detach().clone()) for p in first] for _ in range(2))
    fused, own = (adam(of, 1e-2, warmup=4, scaled=of[:1], scale=0.1) for of in (first, third))
    for group in fused.param_groups:
        group["capturable"] = True  # what it is on a GPU
    plain = torch.optim.Adam([{"params": second[1:]}, {"params": second[:1], "lr": 1e-3}], 1e-2)
    scheduler = torch.optim.lr_scheduler.LambdaLR(plain, lambda step: min(1, (step + 1) / 4))
    for _ in range(7):
        for of in zip(first, second, third, strict=True):
            gradient = torch.randn(of[0].shape, generator=drawn)
            for parameter in of:
                parameter.grad = gradient.clone()
        with switch.kernels():
            fused.step()
        own.step()
        plain.step()
        scheduler.step()
        torch.testing.assert_close(first, second, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(third, second, rtol=1e-5, atol=1e-6)
    assert [group["lr"] for group in fused.param_groups] == [group["lr"] for group in own.param_groups] == [1e-2, 1e-3]


def test_adam_leaves_the_converted_weights_up_to_date(monkeypatch: pytest.MonkeyPatch):
    module = shaken(QHeads(action_dim=6, hidden_dim=128))
    embedding, action = torch.randn(4, 100).tanh(), torch.rand(4, 6)
    optimizer = adam(module.parameters(), 1e-2)
    optimizer.param_groups[0]["capturable"] = True

    def update() -> Tensor:
        optimizer.zero_grad()
        sum(module(embedding, action)).sum().backward()
        optimizer.step()
        return module(embedding, action)[0]

    with switch.kernels():
        update()  # makes Adam's state
        module(embedding, action)
        monkeypatch.setattr(heads._Stacked, "convert", lambda self: pytest.fail("converted again"))
        after = update()
    plain = module(embedding, action)[0]
    close(after, plain)


@pytest.mark.usefixtures("silent_lists")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) for name in ("sac", "drqv2", "sac_selfsup")]
)
def test_weights_that_change_within_a_block_are_converted_again(name: str):
    """A captured graph of many updates is one block, eager updates are one each: the same must come out."""
    ends = []
    for together in (True, False):
        agent = small(name, hidden_dim=128, batch_size=2, encoder_tau=0.5, critic_tau=0.5, tau=0.5)
        for optimizer in agent.optimizers.values():
            for group in optimizer.param_groups:
                group["capturable"] = True
        with switch.kernels() if together else nullcontext():
            for number in range(3):
                with nullcontext() if together else switch.kernels():
                    losses = agent.update(batch_for(agent, number))
        ends.append({**agent.state_dict(), **losses})
    torch.testing.assert_close(ends[0], ends[1], rtol=1e-5, atol=1e-6)


@pytest.mark.usefixtures("silent_lists")
def test_targets_that_have_moved_have_new_versions():
    target, source = shaken(QHeads(action_dim=6, hidden_dim=128)), QHeads(action_dim=6, hidden_dim=128)
    before = [p._version for p in target.parameters()]
    with switch.kernels():
        ema_update(target, source, 0.1)
    assert all(p._version > version for p, version in zip(target.parameters(), before, strict=True))


def test_targets_that_have_moved_are_converted_at_once(monkeypatch: pytest.MonkeyPatch):
    source, target = shaken(QHeads(action_dim=6, hidden_dim=128)), shaken(QHeads(action_dim=6, hidden_dim=128), 0.05)
    embedding, action = torch.randn(4, 100).tanh(), torch.rand(4, 6)
    with switch.kernels():
        target(embedding, action)
        ema_update(target, source, 0.5)
        monkeypatch.setattr(heads._Stacked, "convert", lambda self: pytest.fail("converted late"))
        fused = target(embedding, action)[0]
    close(fused, target(embedding, action)[0])


# ---- pictures and masks


@pytest.mark.parametrize("size", [84, 64])
def test_windows_are_the_same(size: int):
    obs = picture(3)
    top, left = torch.tensor([-4, 0, 3]), torch.tensor([4, -2, 20])
    plain, fused = both(partial(augmentations.window, obs, top, left, size, size))
    assert torch.equal(plain, fused)


def test_overlay_is_rounded():
    obs, bank = picture(3), torch.randint(0, 256, (5, 3, 84, 84), dtype=torch.uint8)
    plain, fused = both(lambda: augmentations.overlay(obs, torch.Generator().manual_seed(1), bank))
    assert fused.dtype == torch.uint8
    assert torch.equal(fused, (plain + 0.5).floor().to(torch.uint8))


def test_moving_overlay_is_rounded():
    obs, bank = picture(3), torch.randint(0, 256, (5, 3, 84, 84), dtype=torch.uint8)
    plain, fused = both(
        lambda: augmentations.moving_overlay(obs, torch.Generator().manual_seed(1), bank, spread=0.4, speed=30)
    )
    assert fused.dtype == torch.uint8
    assert (fused - plain).abs().max() <= 0.5 + 1e-4
    assert len(plain.unique()) > 256  # not rounded


@pytest.mark.parametrize("channels", [3, 9])
def test_color_jitter_is_rounded(channels: int):
    obs = picture(3, 1, channels)
    plain, fused = both(lambda: augmentations.color_jitter(obs, torch.Generator().manual_seed(1), 0.5))
    assert fused.dtype == torch.uint8
    assert (fused - plain).abs().max() <= 0.5 + 1e-3


def test_observations_are_filled_with_images():
    obs, mask, images = picture(2), torch.rand(2, 9, 84, 84) < 0.3, picture(2, 3)
    plain, fused = both(partial(attribution.fill, obs, mask, images))
    assert torch.equal(plain, fused)
    assert torch.equal(fused, torch.where(mask, obs, images))


def test_fill_is_rounded():
    obs, mask = picture(2), torch.rand(2, 9, 84, 84) < 0.3
    plain, fused = both(partial(attribution.fill, obs, mask, torch.tensor(17.6)))
    assert torch.equal(fused, (plain + 0.5).floor().to(torch.uint8))


@pytest.mark.parametrize("rho", [0.0, 0.5, 0.95, 0.98, 1.0])
@pytest.mark.parametrize("kind", ["smooth", "ties", "sparse", "constant", "nan"])
def test_quantile_masks_are_the_same(rho: float, kind: str):
    drawn = torch.Generator().manual_seed(0)
    values = torch.randn(2, 6, 84, 84, generator=drawn)
    if kind == "ties":
        values = values.round()
    elif kind == "sparse":
        values = values * (torch.rand(values.shape, generator=drawn) < 0.001)
    elif kind == "constant":
        values = torch.zeros_like(values)
    elif kind == "nan":
        values[0, 1, 3, 3] = float("nan")
    plain, fused = both(lambda: attribution.quantile_mask(values, rho))
    assert fused.dtype == torch.bool
    assert torch.equal(plain, fused)


def test_mask_prediction_loss_and_gradient():
    logits = (torch.randn(2, 9, 12, 12) * 3).bfloat16().requires_grad_()
    mask = torch.rand(2, 9, 12, 12) < 0.3
    plain = nn.functional.binary_cross_entropy_with_logits(logits.float(), mask.float())
    with switch.kernels():
        assert pixels.fits_logits(logits, mask)
        fused = losses.mask_prediction_loss(logits, mask)
    torch.testing.assert_close(fused, plain)
    (expected,) = torch.autograd.grad(plain, logits)
    (given,) = torch.autograd.grad(2 * fused, logits)
    torch.testing.assert_close(given.float(), 2 * expected.float(), atol=1e-6, rtol=0.02)


def test_copies_convert_pad_and_notice_changes():
    source, vector = nn.Parameter(torch.randn(5, 6)), nn.Parameter(torch.randn(7))
    half, full = torch.zeros(5, 8, dtype=torch.bfloat16), torch.zeros(7)
    copies = weights.Copies([(source, half[:, :6]), (vector, full)])
    copies.refresh()
    assert torch.equal(half[:, :6], source.detach().bfloat16())
    assert not half[:, 6:].any()
    assert torch.equal(full, vector.detach())
    with torch.no_grad():
        source.mul_(2)
    copies.refresh()
    assert torch.equal(half[:, :6], source.detach().bfloat16())


def test_wanted_tells_what_the_engine_asks_for():
    seen: list[list[bool]] = []

    class Product(torch.autograd.Function):
        @staticmethod
        def forward(ctx, a: Tensor, b: Tensor) -> Tensor:
            ctx.save_for_backward(a, b)
            return a * b

        @staticmethod
        def backward(ctx, gradient: Tensor):
            seen.append(autograd.wanted(ctx))
            a, b = ctx.saved_tensors
            return gradient * b, gradient * a

    a, b = torch.ones(2, requires_grad=True), torch.ones(2, requires_grad=True)
    inner = a * 1  # not a leaf
    product = Product.apply(inner, b).sum()
    torch.autograd.grad(product, b, retain_graph=True)
    torch.autograd.grad(product, a, retain_graph=True)
    product.backward(inputs=[b], retain_graph=True)
    product.backward()
    assert seen == [[False, True], [True, False], [False, True], [True, True]]


# ---- all together


@pytest.mark.parametrize("name", ["sgqn", "sgac", "sgqn_restored"])
def test_an_update_by_kernels_is_an_update(name: str, paper_agent):
    """One update at the paper's sizes: the same losses as by the plain path."""
    batch, make = paper_agent
    bank = torch.randint(0, 256, (5, 3, 84, 84), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    augmentation = partial(augmentations.moving_overlay, images=bank, spread=0.3) if name == "sgac" else None
    plain, fused = (make(name, *([augmentation] if augmentation else [])) for _ in range(2))
    metrics = plain.update(batch, Phase())
    with switch.kernels():
        others = fused.update(batch, Phase())
    for key, value in metrics.items():
        small = key.endswith("_consistency")  # differences of nearly equal actions: rounding weighs more
        torch.testing.assert_close(others[key].float(), value.float(), atol=1e-3, rtol=0.3 if small else 0.15)


def test_attributions_by_features_need_no_gradient_of_the_encoder(paper_agent):
    """Grad-CAM from the graph of the loss at the paper's sizes, and from that of the plain path."""
    batch, make = paper_agent
    agent, maps = shaken(make(), 0.02), []
    agent.saliency.method = attribution.find_method("grad_cam:relu=false")
    batch = batch._replace(obs=batch.obs[:1], action=batch.action[:1])
    for kernels in (False, True):
        with switch.kernels() if kernels else nullcontext():
            leaf, features = agent.saliency.trace(batch.obs, trains=False)
            values = agent.saliency.values(features, batch.action)
            features.grad_fn.register_prehook(lambda _: pytest.fail("the encoder was differentiated"))
            maps.append(agent.saliency.attribution(values, leaf, batch, features))
    assert features.dtype == torch.bfloat16
    assert maps[1].dtype == torch.float32
    close(*maps, at_least=0.95, size=0.2)  # mean gradients are small differences of rounded numbers


def test_weights_used_twice_have_one_gradient():
    """The sum over two uses, handed over once, equals what autograd adds up."""
    encode, project, heads_ = shaken(Encoder()), shaken(Projection(14112, 100)), shaken(QHeads(6, hidden_dim=128))
    parameters = [*encode.parameters(), *project.parameters(), *heads_.parameters()]
    obs, action = picture(2), torch.rand(2, 6)

    def losses_of(mask: Tensor) -> Tensor:
        clean = heads_(project(encode(obs)), action)
        masked = heads_(project(encode(obs * mask)), action)
        return sum((q - 1).square().sum() + (q - r).square().sum() for q, r in zip(clean, masked, strict=True))

    mask = (torch.rand(2, 9, 84, 84) < 0.5).to(torch.uint8)
    plain, fused = both(lambda: torch.autograd.grad(losses_of(mask), parameters))
    for a, b in zip(plain, fused, strict=True):
        if a.norm() > 1e-4:
            close(b, a, 0.9, 0.3)
    with switch.kernels():
        unused = heads_(project(encode(obs)), action)  # a use whose backward pass never runs
        again = torch.autograd.grad(losses_of(mask), parameters)
    del unused
    for a, b in zip(fused, again, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-5)


# ---- small things


def test_range_and_share():
    obs, mask = picture(2).clamp(7, 240), torch.rand(2, 9, 84, 84) < 0.3
    with switch.kernels():
        assert pixels.byte_range(obs).tolist() == [7, 240]
        torch.testing.assert_close(attribution.share(mask), mask.float().mean())


@pytest.mark.parametrize("shared", [False, True])
def test_squared_errors_and_their_gradients(shared: bool):
    drawn = torch.Generator().manual_seed(0)
    first, second, third = (torch.randn(2, 33, generator=drawn, requires_grad=True) for _ in range(3))

    def run() -> list[Tensor]:
        loss = losses.critic_loss(first.unbind(), third[0]) if shared else losses.consistency_loss(first, second)
        inputs = [first] if shared else [first, second]
        return [loss, *torch.autograd.grad(3 * loss, inputs)]

    for plain, fused in zip(*both(run), strict=True):
        torch.testing.assert_close(fused, plain)


def test_soft_target():
    reward, discount, q1, q2, log_pi = torch.randn(5, 40)

    def run() -> Tensor:
        with torch.no_grad():
            return losses.soft_td_target(reward, discount, (q1, q2), log_pi, torch.tensor(0.3))

    plain, fused = both(run)
    torch.testing.assert_close(fused, plain)
