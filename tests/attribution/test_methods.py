from __future__ import annotations

import copy
import subprocess
import sys
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import captum.attr
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from sgqn import attribution, networks
from sgqn.attribution import (
    METHODS,
    grad_cam,
    gradient,
    guided_backprop,
    guided_grad_cam,
    integrated_gradients,
    occlusion,
    rise,
    smoothgrad,
)
from sgqn.errors import InvalidValueError, SgqnError, UnknownNameError
from tests.agents.small import batch_for, small
from tests.attribution.critics import ModuleCritic, batch, perturbed_critic, q1

FAST: dict[str, dict[str, Any]] = {
    "integrated_gradients": {"steps": 5},
    "smoothgrad": {"samples": 3},
    "occlusion": {"window": 8, "stride": 8},
    "rise": {"masks": 20},
}
"""Arguments that make the slow methods quick enough to test everything with."""


QUICK = [f"{name}:{','.join(f'{key}={value}' for key, value in FAST[name].items())}" if name in FAST else name
         for name in METHODS]  # fmt: skip
"""The same as names."""


def quick(name: str) -> attribution.Attribution:
    return partial(attribution.get(name), **FAST.get(name, {}))


# --- what holds for all


@pytest.mark.parametrize("name", METHODS)
def test_every_method_maps_an_agents_value(name: str):
    agent = small("sgqn")
    of_agent = batch_for(agent)
    before = {key: value.clone() for key, value in agent.state_dict().items()}
    result = quick(name)(agent.value, of_agent.obs, of_agent.action)
    assert result.shape == of_agent.obs.shape
    assert result.dtype == torch.float32
    assert result.isfinite().all()
    assert result.any()
    assert all(torch.equal(value, before[key]) for key, value in agent.state_dict().items())


@pytest.mark.parametrize("mask", ["quantile", "soft"])
@pytest.mark.parametrize("agent_name", ["sgqn", "sgdqn", "sgppo"])
@pytest.mark.parametrize("name", QUICK)
def test_every_method_can_train_every_learner_with_every_mask(
    name: str, agent_name: str, mask: str, monkeypatch: pytest.MonkeyPatch
):
    agent = small(agent_name, attribution=name, mask=mask)
    masks: list[Tensor] = []
    make = agent.saliency.mask
    monkeypatch.setattr(agent.saliency, "mask", lambda found: masks.append(make(found)) or masks[-1])
    batch = batch_for(agent)
    metrics, _ = agent.critic_step(agent.prepare(batch))
    encoder, projection = agent.learner.encoder, agent.learner.projection
    trained = [*encoder.parameters(), *projection.parameters()]
    assert all(parameter.grad.isfinite().all() and parameter.grad.any() for parameter in trained)
    assert all(parameter.grad is None for parameter in agent.decoder.parameters())
    assert 0 < metrics["loss/consistency"] < float("inf")
    metrics = agent.update(batch)
    assert all(value.isfinite() for value in metrics.values())
    assert all(parameter.grad.isfinite().all() for parameter in [*trained, *agent.decoder.parameters()])
    assert all(parameter.grad.any() for parameter in agent.decoder.parameters())
    assert len(masks) == 3  # of two critic steps and a prediction
    for found in masks:
        assert found.shape == batch.obs.shape
        assert found.dtype == (torch.bool if mask == "quantile" else torch.float32)
        assert not found.requires_grad
        assert ((found >= 0) & (found <= 1)).all()
        assert (found.float().amax(dim=(2, 3)) == 1).all()  # the most salient pixel of each frame is kept
        assert found.float().std() > 0


@pytest.mark.parametrize("name", METHODS)
def test_inputs(name: str):
    method, q = quick(name), q1(perturbed_critic())
    obs, action = batch()
    obs = obs.round()
    expected = method(q, obs, action)
    assert not expected.requires_grad
    assert torch.equal(method(q, obs, action), expected)  # random methods too
    assert torch.equal(method(q, obs.to(torch.uint8), action), expected)
    assert torch.equal(method(lambda o, a: q(o, a)[:, None], obs, action), expected)
    one_by_one = torch.cat([method(q, obs[i : i + 1], action[i : i + 1]) for i in range(3)])
    if name != "smoothgrad":  # whose noise is drawn for the whole batch
        torch.testing.assert_close(one_by_one, expected, rtol=1e-4, atol=1e-5 * expected.abs().max().item())
    with torch.no_grad():
        assert torch.equal(method(q, obs, action), expected)
    with torch.inference_mode():
        assert torch.equal(method(q, obs * 1, action * 1), expected)
    with pytest.raises(InvalidValueError, match=r"q must return one value per observation.*\(3, 2\)"):
        method(lambda o, a: q(o, a)[:, None].expand(-1, 2)[:3], obs, action)


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("frozen", [False, True])
def test_leaves_nothing_behind(name: str, frozen: bool):
    critic = perturbed_critic()
    obs, action = batch()
    sum(critic(obs, action)).sum().backward()
    critic.requires_grad_(not frozen)
    grads = {key: p.grad.clone() for key, p in critic.named_parameters() if p.grad is not None}
    random_state, obs_before = torch.get_rng_state(), obs.clone()
    quick(name)(q1(critic), obs, action)
    for key, p in critic.named_parameters():
        assert p.requires_grad is not frozen
        assert torch.equal(p.grad, grads[key])
    for module in critic.modules():
        for kind in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"):
            assert not getattr(module, kind)
    assert not nn.modules.module._global_forward_hooks
    assert not obs.requires_grad
    assert torch.equal(obs, obs_before)
    assert torch.equal(torch.get_rng_state(), random_state)


def test_an_unknown_name_lists_all():
    with pytest.raises(UnknownNameError) as error:
        attribution.get("nope")
    assert all(name in str(error.value) for name in METHODS)


def test_without_captum():
    """The package imports, its own methods work, and the others say in one line what to install."""
    code = """if True:
        import sys
        sys.modules["captum"] = None
        import torch
        from sgqn.attribution import METHODS
        from sgqn.errors import SgqnError
        for name, method in METHODS.items():
            q = torch.nn.Conv2d(3, 1, 8)
            try:
                method(lambda obs, action: q(obs).flatten(1), torch.rand(1, 3, 8, 8), torch.rand(1, 2))
            except SgqnError as error:
                assert "needs Captum: pip install 'sgqn[explain]', or captum itself" in str(error)
                print(name)
    """
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [name for name, method in METHODS.items() if method.needs_captum]


def test_arrays_are_refused():
    obs, action = torch.rand(1, 3, 8, 8), torch.rand(1, 2)
    for method in ("gradient", "guided_backprop", "smoothgrad"):
        with pytest.raises(InvalidValueError, match=r"obs must be a torch tensor.*ndarray"):
            attribution.get(method)(lambda obs, action: obs.sum((1, 2, 3)), obs.numpy(), action)


# --- against Captum


def close(ours: Tensor, theirs: Tensor) -> bool:
    scale = theirs.abs().max().item()
    assert scale > 0
    return (ours - theirs).abs().max().item() <= 1e-5 * scale


def attributed(method: Any, obs: Tensor, action: Tensor, **arguments: Any) -> Tensor:
    """Captum's own result."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        leaf = obs.clone().requires_grad_()
        return method.attribute(leaf, additional_forward_args=(action,), **arguments).detach()


@pytest.fixture
def module() -> ModuleCritic:
    """A critic as Captum needs it: a module whose ReLUs are modules."""
    return ModuleCritic(perturbed_critic())


def test_gradient_and_integrated_gradients_equal_captum(module: ModuleCritic):
    obs, action = batch()
    theirs = attributed(captum.attr.Saliency(module), obs, action, abs=False)
    assert close(gradient(module, obs, action), theirs)
    for baseline in (0.0, 128.0):
        theirs = attributed(captum.attr.IntegratedGradients(module), obs, action, baselines=baseline, n_steps=20)
        assert close(integrated_gradients(module, obs, action, baseline, steps=20), theirs)
        assert close(integrated_gradients(module, obs, action, baseline, steps=20, batch_size=7), theirs)
    pictures = torch.rand_like(obs) * 255
    theirs = attributed(captum.attr.IntegratedGradients(module), obs, action, baselines=pictures, n_steps=20)
    assert close(integrated_gradients(module, obs, action, pictures, steps=20), theirs)


def test_smoothgrad_equals_captum_to_the_bit(module: ModuleCritic):
    obs, action = batch()
    torch.manual_seed(5)
    tunnel = captum.attr.NoiseTunnel(captum.attr.Saliency(module))
    theirs = attributed(tunnel, obs, action, stdevs=51.0, nt_samples=4, nt_samples_batch_size=1, abs=False)
    generator = torch.Generator().manual_seed(5)
    assert torch.equal(smoothgrad(module, obs, action, 0.2, samples=4, batch_size=1, generator=generator), theirs)
    generator.manual_seed(5)
    assert close(smoothgrad(module, obs, action, 0.2, samples=4, batch_size=10, generator=generator), theirs)


def test_grad_cam_equals_captum(module: ModuleCritic):
    obs, action = batch()
    for layer in (module.features[-1], module.features[1], module.features[2]):
        method = captum.attr.LayerGradCam(module, layer)
        for relu in (False, True):
            theirs = attributed(method, obs, action, relu_attributions=relu)
            theirs = captum.attr.LayerAttribution.interpolate(theirs, (24, 24), "bilinear")
            assert close(grad_cam(module, obs, action, layer, relu=relu), theirs.expand_as(obs))
    assert torch.equal(grad_cam(module, obs, action), grad_cam(module, obs, action, module.features))


def test_guided_grad_cam_equals_captum(module: ModuleCritic):
    obs, action = batch()
    layer = module.features[-1]
    other = copy.deepcopy(module)
    method = captum.attr.GuidedGradCam(other, other.features[-1])
    theirs = attributed(method, obs, action, interpolate_mode="bilinear")
    assert close(guided_grad_cam(module, obs, action, layer), theirs)


@pytest.mark.parametrize("per_frame", [False, True])
def test_occlusion_equals_captum(module: ModuleCritic, per_frame: bool):
    obs, action = batch()
    depth = 3 if per_frame else 9
    theirs = attributed(
        captum.attr.Occlusion(module),
        obs,
        action,
        sliding_window_shapes=(depth, 7, 7),
        strides=(depth, 5, 5),
        baselines=64.0,
    )
    for batch_size in (1, 10, 1000):
        ours = occlusion(module, obs, action, 7, 5, fill=64.0, per_frame=per_frame, batch_size=batch_size)
        assert close(ours, theirs)


# --- against what can be known


def linear(weight: Tensor) -> attribution.QFunction:
    return lambda obs, action: (obs * weight).flatten(1).sum(1) + action.sum(1)


def test_of_a_linear_value_all_gradient_methods_give_the_weights():
    weight = torch.randn(9, 24, 24)
    obs, action = batch()
    q = linear(weight)
    torch.testing.assert_close(gradient(q, obs, action), weight.expand_as(obs))
    torch.testing.assert_close(smoothgrad(q, obs, action), weight.expand_as(obs))
    for baseline in (0.0, 100.0, torch.rand(9, 24, 24) * 255):
        expected = weight * (obs - baseline)
        torch.testing.assert_close(integrated_gradients(q, obs, action, baseline, 3), expected, rtol=1e-4, atol=1e-3)


def test_occlusion_of_a_linear_value_is_the_sum_under_the_window():
    weight = torch.randn(9, 24, 24)
    obs, action = batch()
    contribution = weight * (obs - 50)
    blocks = F.avg_pool2d(contribution.sum(1, keepdim=True), 6, divisor_override=1)
    expected = blocks.repeat_interleave(6, 2).repeat_interleave(6, 3).expand_as(obs)
    ours = occlusion(linear(weight), obs, action, window=6, stride=6, fill=50.0)
    torch.testing.assert_close(ours, expected, rtol=1e-3, atol=0.1)


def test_integrated_gradients_are_complete():
    smooth = nn.Sequential(nn.Conv2d(9, 4, 5), nn.Tanh(), nn.Flatten(), nn.Linear(4 * 20 * 20, 1))
    rough = q1(perturbed_critic())
    obs, action = batch()
    cases = [(lambda o, a: smooth(o / 255)[:, 0] + a.sum(1), 10, 1e-4), (rough, 500, 0.03)]
    for q, steps, tolerance in cases:
        for baseline in (torch.zeros_like(obs), torch.rand_like(obs) * 255):
            with torch.no_grad():
                change = q(obs, action) - q(baseline, action)
            missing = integrated_gradients(q, obs, action, baseline, steps).flatten(1).sum(1) - change
            assert missing.abs().max() < tolerance * change.abs().max()


def test_smoothgrad_without_noise_is_the_gradient_and_with_noise_is_not():
    q = q1(perturbed_critic())
    obs, action = batch()
    assert close(smoothgrad(q, obs, action, noise=0.0), gradient(q, obs, action))
    assert not close(smoothgrad(q, obs, action, noise=0.1), gradient(q, obs, action))


def square(top: int, left: int, side: int = 8) -> Tensor:
    """Where the only pixels are that a value depends on, (48, 48)."""
    where = torch.zeros(48, 48, dtype=torch.bool)
    where[top : top + side, left : left + side] = True
    return where


def brightness(where: Tensor, frames: slice = slice(None), offset: float = 0.0) -> attribution.QFunction:
    """The value is the mean brightness there, far from linear."""
    return lambda obs, action: torch.tanh(obs[:, frames, where].mean(dim=(1, 2)) / 128) + offset


def share_of_mass(result: Tensor, where: Tensor) -> float:
    mass = result.clamp_min(0)
    return (mass[..., where].sum() / mass.sum()).item()


@pytest.mark.parametrize(("top", "left"), [(0, 0), (12, 28), (40, 40), (19, 5)])
@pytest.mark.parametrize(("method", "mass"), [(occlusion, 0.35), (rise, 0.1)])
def test_occlusion_and_rise_find_the_informative_square(
    method: Callable[..., Tensor], mass: float, top: int, left: int
):
    where = square(top, left)
    base_rate = where.float().mean().item()  # 0.03
    obs, action = torch.rand(2, 9, 48, 48) * 255, torch.zeros(2, 1)
    result = method(brightness(where, offset=100.0), obs, action)
    for one in result:
        peak = one[0].flatten().argmax().item()
        assert where.flatten()[peak]  # the pointing game
        assert share_of_mass(one, where) > mass > 3 * base_rate
    assert torch.equal(result, result[:, :1].expand_as(result))  # all frames alike


@pytest.mark.parametrize("method", [occlusion, rise])
def test_per_frame_finds_the_frame_too(method: Callable[..., Tensor]):
    where = square(12, 28)
    obs, action = torch.rand(1, 9, 48, 48) * 255, torch.zeros(1, 1)
    result = method(brightness(where, slice(3, 6)), obs, action, per_frame=True)
    first, second, third = result.unflatten(1, (3, 3))[0].unbind()
    assert torch.equal(second, second[:1].expand_as(second))  # colours alike
    assert where.flatten()[second[0].flatten().argmax().item()]
    assert second.abs().max() > 3 * first.abs().max()
    assert second.abs().max() > 3 * third.abs().max()


def test_rise_is_the_mean_value_over_masks_that_show_the_pixel():
    """By its definition, with masks read off the pictures that q is given: white, so that a picture is its mask."""
    pictures: list[Tensor] = []

    def q(obs: Tensor, action: Tensor) -> Tensor:
        pictures.append(obs)
        return obs[:, :, :10].mean(dim=(1, 2, 3)) ** 2

    obs = torch.full((1, 3, 20, 28), 255.0)
    ours = rise(q, obs, torch.zeros(1, 1), masks=50, cell=6, keep=0.4, batch_size=8)
    shown = torch.cat(pictures[1:])[:, 0] / 255  # the first picture is the whole one
    values = q(shown[:, None].expand(-1, 3, -1, -1) * 255, obs)
    assert shown.shape == (50, 20, 28)
    assert abs(shown.mean() - 0.4) < 0.1
    conditional = (values[:, None, None] * shown).sum(0) / shown.sum(0)
    torch.testing.assert_close(ours[0, 0], conditional - values.mean(), rtol=1e-3, atol=1e-2)


def test_rise_does_not_depend_on_the_batch_size_nor_on_a_constant():
    q = q1(perturbed_critic())
    obs, action = batch()
    run = partial(rise, obs=obs, action=action, masks=30, cell=5)
    expected = run(q)
    for batch_size in (1, 10, 1000):
        torch.testing.assert_close(run(q, batch_size=batch_size), expected)
    torch.testing.assert_close(run(lambda o, a: q(o, a) + 50), expected, rtol=1e-2, atol=1e-4)


@pytest.mark.parametrize("method", [partial(rise, masks=20), partial(smoothgrad, samples=3)])
def test_a_generator_decides_the_draws(method: Callable[..., Tensor]):
    q = q1(perturbed_critic())
    first, again, other = (method(q, *batch_of_one(), generator=torch.Generator().manual_seed(s)) for s in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def batch_of_one() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(7)
    return torch.rand(1, 9, 24, 24, generator=generator) * 255, torch.zeros(1, 2)


# --- Grad-CAM's layer and its place in the picture


def test_grad_cam_finds_the_encoder_and_takes_other_layers():
    critic = perturbed_critic()
    obs, action = batch()
    of_encoder = grad_cam(q1(critic), obs, action, critic.encoder)
    assert torch.equal(grad_cam(q1(critic), obs, action), of_encoder)
    assert torch.equal(grad_cam(q1(critic), obs, action, critic.encoder.convs[-1], stride=2), of_encoder)
    # An inner convolution, which the encoder rectifies in place: as of the twin that does not.
    inner = grad_cam(q1(critic), obs, action, critic.encoder.convs[1], relu=False)
    assert close(inner, grad_cam(ModuleCritic(critic), obs, action, critic.encoder.convs[1], relu=False))


@pytest.mark.parametrize(("row", "column"), [(23, 23), (31, 53), (59, 41)])
def test_grad_cam_lies_where_the_features_look(row: int, column: int):
    """Fresh weights look at the centre of each receptive field alone, so the place is known exactly."""
    encoder = networks.Encoder(num_filters=9)
    with torch.no_grad():
        for conv in encoder.convs:
            conv.weight.abs_()

    def q(obs: Tensor, action: Tensor) -> Tensor:
        return encoder(obs).sum(dim=(1, 2, 3))

    obs = torch.zeros(1, 9, 84, 84)
    obs[:, :, row, column] = 255
    assert gradient(q, obs, obs)[0, 0, row, column] > 0
    peak = grad_cam(q, obs, obs)[0, 0].flatten().argmax().item()
    assert abs(peak // 84 - row) <= 1
    assert abs(peak % 84 - column) <= 1


def test_grad_cam_without_a_layer_to_be_found_is_refused():
    weight = torch.randn(9, 24, 24)
    with pytest.raises(InvalidValueError, match="q runs no module whose output is"):
        grad_cam(linear(weight), *batch())
    critic = perturbed_critic()
    for layer in (nn.Conv2d(3, 3, 3), critic.projection):
        with pytest.raises(InvalidValueError, match=r"q does not run this (Conv2d|Projection)") as error:
            guided_grad_cam(q1(critic), *batch(), layer)
        assert "\n" not in str(error.value)
    assert not nn.modules.module._global_forward_hooks


# --- progress and bad arguments


@pytest.mark.parametrize("batch_size", [1, 7, 64, 10_000])
@pytest.mark.parametrize(
    ("method", "total"),
    [
        (partial(occlusion, window=8, stride=6), 16),  # 0, 6, 12 and a clipped one at 18
        (partial(occlusion, window=8, stride=6, per_frame=True), 48),
        (partial(occlusion, window=24, stride=24), 1),
        (partial(rise, masks=20), 20),
    ],
)
def test_progress_is_told_to_the_end(method: Callable[..., Tensor], total: int, batch_size: int):
    steps: list[tuple[int, int]] = []
    sizes: list[int] = []

    def q(obs: Tensor, action: Tensor) -> Tensor:
        sizes.append(len(obs))
        return obs.mean(dim=(1, 2, 3))

    obs, action = batch()
    method(q, obs, action, batch_size=batch_size, on_step=lambda *step: steps.append(step))
    assert {all_ for _, all_ in steps} == {total}
    assert [done for done, _ in steps] == sorted({done for done, _ in steps})
    assert steps[-1] == (total, total)
    assert len(steps) == len(sizes) - 1  # and one pass for the whole pictures
    assert max(sizes) <= max(batch_size, len(obs))
    assert sum(sizes) == (total + 1) * len(obs)


BAD = [
    (partial(integrated_gradients, steps=0), "steps .* not 0"),
    (partial(integrated_gradients, batch_size=0), "batch_size .* not 0"),
    (partial(integrated_gradients, baseline=torch.zeros(3, 24, 24)), r"baseline .* cannot be \(3, 24, 24\)"),
    (partial(smoothgrad, samples=-1), "samples .* not -1"),
    (partial(smoothgrad, noise=-0.5), "noise .* not -0.5"),
    (partial(smoothgrad, noise=float("nan")), "noise .* not nan"),
    (partial(occlusion, window=0), "window .* not 0"),
    (partial(occlusion, window=25), "25 pixels does not fit images of 24x24"),
    (partial(occlusion, window=4, stride=5), "stride of 5 pixels leaves gaps"),
    (partial(occlusion, stride=1.5), "stride .* not 1.5"),
    (partial(rise, masks=0), "masks .* not 0"),
    (partial(rise, cell=0), "cell .* not 0"),
    (partial(rise, keep=1.0), "keep.* not 1.0"),
    (partial(grad_cam, stride=0), "stride .* not 0"),
]


@pytest.mark.parametrize(("method", "message"), BAD)
def test_bad_arguments_are_refused(method: attribution.Attribution, message: str):
    with pytest.raises(SgqnError, match=message) as error:
        method(q1(perturbed_critic()), *batch())
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("method", [occlusion, rise])
def test_per_frame_needs_frames_of_three_colours(method: Callable[..., Tensor]):
    with pytest.raises(InvalidValueError, match="4 channels"):
        method(linear(torch.ones(1)), torch.rand(1, 4, 24, 24), torch.zeros(1, 1), per_frame=True)


@pytest.mark.parametrize("method", [occlusion, rise, grad_cam, guided_grad_cam])
def test_pictures_are_needed(method: Callable[..., Tensor]):
    with pytest.raises(InvalidValueError, match=r"B, C, H, W.*not \(3, 6\)"):
        method(lambda obs, action: obs.sum(1), torch.rand(3, 6), torch.zeros(3, 1))


def test_guided_grad_cam_is_the_product():
    q = q1(perturbed_critic())
    obs, action = batch()
    expected = guided_backprop(q, obs, action) * grad_cam(q, obs, action)
    assert torch.equal(guided_grad_cam(q, obs, action), expected)


# --- names with arguments


def test_a_name_can_have_arguments():
    q = q1(perturbed_critic())
    obs, action = batch()
    for name in QUICK:
        plain = name.partition(":")[0]
        assert torch.equal(attribution.get(name)(q, obs, action), quick(plain)(q, obs, action))
        assert name in METHODS
        assert METHODS[name].name == name
        assert METHODS.origin(name) == METHODS.origin(plain)
        assert METHODS[name].needs_captum == METHODS[plain].needs_captum
    assert list(METHODS) == [name.partition(":")[0] for name in QUICK]  # lists without them
    expected = grad_cam(q, obs, action, stride=4, relu=False)
    assert torch.equal(attribution.get("grad_cam:relu=false, stride=4")(q, obs, action), expected)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("smoothgrad:sample=4", r"'sample=4' is not an argument of 'smoothgrad'; .*noise=float, samples=int"),
        ("smoothgrad:", "'' is not an argument of 'smoothgrad'"),
        ("smoothgrad:4", "'4' is not an argument of 'smoothgrad'"),
        ("smoothgrad:generator=1", "'generator=1' is not an argument"),
        ("smoothgrad:samples=4,samples=5", "samples is given twice"),
        ("smoothgrad:samples=1.5", "smoothgrad: samples must be an integer, not '1.5'"),
        ("smoothgrad:samples=0", "smoothgrad: samples must be a positive integer, not 0"),
        ("smoothgrad:noise=-1", "noise must be zero or positive, not -1.0"),
        ("smoothgrad:noise=loud", "noise must be a number, not 'loud'"),
        ("grad_cam:relu=maybe", "relu must be true or false, not 'maybe'"),
        ("grad_cam:stride=0", "stride must be a positive integer, not 0"),
        ("guided_grad_cam:layer=3", "'layer=3' is not an argument .*: stride=int$"),
        ("occlusion:window=4,stride=5", "stride of 5 pixels leaves gaps"),
        ("occlusion:stride=9", "stride of 9 pixels leaves gaps"),  # than the default window
        ("integrated_gradients:steps=0", "steps must be"),
        ("rise:keep=1", "keep, .* not 1.0"),
        ("gradient:samples=4", "'samples=4' is not an argument of 'gradient'; its arguments: none"),
        ("smothgrad:samples=4", "unknown attribution method 'smothgrad': did you mean 'smoothgrad'"),
    ],
)
def test_bad_arguments_of_a_name_are_refused_with_the_settings(name: str, message: str):
    for make in (lambda: METHODS[name], lambda: small("sgqn", attribution=name)):
        with pytest.raises(SgqnError, match=message) as error:
            make()
        assert "\n" not in str(error.value)


def test_own_methods_take_arguments_without_annotations(monkeypatch: pytest.MonkeyPatch):
    def scaled(q, obs, action, factor=2.0, times=1, note="", sign=True):
        return gradient(q, obs, action) * factor**times * (1 if sign else -1)

    def fixed(value: Tensor, obs: Tensor, factor: float = 2.0) -> Tensor:
        return attribution.gradient_of(value, obs) * factor

    monkeypatch.setitem(METHODS._things, "scaled", attribution.Method("scaled", scaled, fixed))
    q = q1(perturbed_critic())
    obs, action = batch()
    found = attribution.get("scaled:factor=3,times=2,sign=false")(q, obs, action)
    assert close(found, -9 * gradient(q, obs, action))
    with pytest.raises(InvalidValueError, match=r"factor=float, times=int, sign=bool$"):
        attribution.get("scaled:note=x")
    # From the graph of the loss only if that function has the arguments too.
    leaf = attribution.differentiable(obs)
    shared = METHODS["scaled:factor=3"].of_graph
    assert shared is not None
    assert close(shared(q(leaf, action), leaf), 3 * gradient(q, obs, action))
    assert METHODS["scaled:times=2"].of_graph is None


def test_in_training_noise_is_the_agents_own():
    """Another in every update, and the same again from the same state."""
    agent, other = (small("sgqn", attribution="smoothgrad:samples=2") for _ in range(2))
    found = batch_for(agent)

    def noisy(of: Any) -> Tensor:
        leaf, features = of.saliency.trace(found.obs)
        values = of.saliency.values(features, found.action)
        return of.saliency.attribution(values, leaf, found, features)

    first = noisy(agent)
    assert not torch.equal(noisy(agent), first)
    assert torch.equal(noisy(other), first)
    assert agent.explained_by == "smoothgrad:samples=2"
