"""What every agent owes the trainer, the checkpoint and a captured graph."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from sgqn.agents import AGENTS, Phase, Spec, build_agent
from sgqn.agents.sgqn import SGQNSettings
from sgqn.agents.svea_soda import SVEASODASettings
from sgqn.errors import InvalidValueError, SgqnError, UnknownNameError
from sgqn.results import paper
from tests.agents.small import (
    ACTIONS,
    COPIES,
    CRITIC_ONLY,
    NAMES,
    OFF_POLICY,
    OVERLAY,
    SIZE,
    batch_for,
    changed,
    same,
    settings_of,
    small,
    snapshot,
)

PHASES = [Phase(), CRITIC_ONLY, Phase(auxiliary=False), Phase(actor=False, targets=False)]
CAPTURABLE = ("gradient", "guided_backprop", "grad_cam", "guided_grad_cam", "smoothgrad:samples=2")
DECODERS = ("sgac", "sgqn", "sgqn_restored", "sgsvea", "sac_selfsup", "sgdrqv2", "sgdqn", "sgppo")
every_agent = pytest.mark.parametrize("name", NAMES)
every_off_policy_agent = pytest.mark.parametrize("name", sorted({*OFF_POLICY} - COPIES))


def run(agent, steps: int = 4, start: int = 0):
    for step in range(start, start + steps):
        phase = PHASES[step % len(PHASES)]
        metrics = agent.update(batch_for(agent, step, phase), phase)
    return metrics


def test_the_papers_agents():
    papers = set(paper.TITLES)
    assert papers <= set(NAMES)
    assert {name for name in papers if AGENTS[name].crops} == {"rad", "soda"}
    assert {name for name in papers if AGENTS[name].augments} == {"soda", "svea", "svea_soda", "sgqn", "sac_selfsup"}
    assert {name for name in papers if AGENTS[name].masks} == {"sgqn", "sac_consistency", "sac_selfsup"}
    with pytest.raises(UnknownNameError, match="did you mean 'sgqn'"):
        AGENTS["sgqm"]


# ---- repeatable


@every_agent
def test_same_seed_same_weights_whatever_the_global_generator_does(name):
    torch.manual_seed(1)
    left = small(name)
    run(left)
    torch.manual_seed(2)
    state = torch.get_rng_state()
    right = small(name)
    run(right)
    assert torch.equal(torch.get_rng_state(), state)  # and it was left alone
    assert same(snapshot(left), snapshot(right))
    assert torch.equal(left.generator.get_state(), right.generator.get_state())
    other = small(name, seed=5)
    run(other)
    assert not same(snapshot(left), snapshot(other))


@pytest.mark.parametrize("name", sorted({*NAMES} - {"ppo"}))  # whose updates draw nothing
def test_the_seed_of_the_updates_matters(name):
    left, right = small(name), small(name)
    right.generator.manual_seed(17)
    if name == "dqn":  # whose updates draw random shifts alone
        right.preparer.manual_seed(17)
    run(left)
    run(right)
    assert not same(snapshot(left), snapshot(right))


@every_agent
def test_a_restored_agent_goes_on_bit_for_bit(name):
    agent = small(name)
    run(agent, 3)
    saved = copy.deepcopy(
        (
            agent.state_dict(),
            {key: optimizer.state_dict() for key, optimizer in agent.optimizers.items()},
            [generator.get_state() for generator in (agent.generator, agent.preparer)],
        )
    )
    run(agent, 4, start=3)
    restored = small(name, seed=8)
    weights, optimizers, states = saved
    restored.load_state_dict(weights)
    assert restored.optimizers.keys() == optimizers.keys()
    for key, optimizer in restored.optimizers.items():
        optimizer.load_state_dict(optimizers[key])
    for generator, state in zip((restored.generator, restored.preparer), states, strict=True):
        generator.set_state(state)
    run(restored, 4, start=3)
    assert same(snapshot(agent), snapshot(restored))
    actions = [a.act(batch_for(a).obs, deterministic=False) for a in (agent, restored)]
    assert torch.equal(*actions)


# ---- fit for a captured graph


class NoSync(TorchDispatchMode):
    """Refuses operations whose result the host must wait for."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        banned = ("_local_scalar_dense", "nonzero", "masked_select", "is_nonzero", "equal", "_unique2")
        if func._schema.name.removeprefix("aten::") in banned:
            raise AssertionError(f"{func} waits for the device")
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        *((name, {}) for name in NAMES),
        *(("sgqn", {"attribution": method, "mask": "soft"}) for method in CAPTURABLE),
        *(("sgqn", {"attribution": method}) for method in CAPTURABLE),
        ("sgqn", {"mask": "contrast"}),
    ],
)
def test_an_update_never_waits_for_the_device(name, settings, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a tensor's value was looked at")

    agent = small(name, **settings)
    batches = [batch_for(agent, 0, phase) for phase in PHASES]
    run(agent, 1)
    for method in ("item", "tolist", "cpu", "numpy", "__bool__", "__float__", "__int__", "__index__"):
        monkeypatch.setattr(torch.Tensor, method, refuse)
    with NoSync():
        for batch, phase in zip(batches, PHASES, strict=True):
            agent.update(batch, phase)


@every_agent
def test_addresses_stay_and_batches_are_left_as_they_are(name):
    agent = small(name)
    run(agent, 2)

    def addresses():
        state = [
            tensor for optimizer in agent.optimizers.values() for s in optimizer.state.values() for tensor in s.values()
        ]
        return [tensor.data_ptr() for tensor in [*agent.state_dict().values(), *state]]

    before = addresses()
    batch = batch_for(agent)
    copy_of_batch = copy.deepcopy(batch)
    agent.update(batch)
    run(agent)
    assert addresses() == before
    for part, original in zip(batch, copy_of_batch, strict=True):
        assert torch.equal(part, original)
        assert part.grad is None
        assert not part.requires_grad


@every_agent
@pytest.mark.parametrize("phase", PHASES)
def test_metrics_are_finite_scalars_with_the_same_keys(name, phase):
    agent = small(name)
    keys = set()
    for step in range(2):
        metrics = agent.update(batch_for(agent, step, phase), phase)
        keys.add(tuple(metrics))
        for key, value in metrics.items():
            assert value.shape == (), key
            assert value.isfinite(), key
            assert not value.requires_grad, key
    assert len(keys) == 1
    (found,) = keys
    assert ("loss/actor" in found) == (phase.actor and "actor" in agent.optimizers)
    has_auxiliary = name in {"soda", "svea_soda", *DECODERS} - COPIES
    assert bool({"loss/mask", "loss/soda"} & set(found)) == (has_auxiliary and phase.auxiliary)


@every_off_policy_agent
def test_phases_switch_their_parts_and_nothing_else(name):
    agent = small(name)

    def part_of(weight: str) -> str:
        return weight.removeprefix("learner.").split(".")[0]

    def moved(phase: Phase) -> set[str]:
        before = snapshot(agent)
        agent.update(batch_for(agent, 0, phase), phase)
        return {part_of(weight) for weight in changed(agent, before)}

    has = {part_of(weight) for weight in agent.state_dict()}
    always = {"critic"} | has & {"exploration"}
    assert moved(CRITIC_ONLY) == always
    assert moved(CRITIC_ONLY._replace(actor=True)) == always | has & {"actor", "log_alpha"}
    assert moved(CRITIC_ONLY._replace(targets=True)) == always | {"target"}
    extra = {"projector", "predictor", "slow", "decoder"}
    assert moved(CRITIC_ONLY._replace(auxiliary=True)) == always | has & extra
    assert has == always | {"target"} | has & {"actor", "log_alpha", *extra}
    assert ("actor" in has) != agent.spec.discrete
    assert bool(has & extra) == (name in ("soda", "svea_soda", *DECODERS))


@every_agent
def test_losses_fall_on_one_batch(name):
    """Every part learns: the same transitions again and again, with the targets held."""
    agent = small(name, perturb=False, learning_rate=1e-3, auxiliary_learning_rate=1e-3, shift_pad=0)
    phase = Phase(actor=False, targets=False)
    batch = batch_for(agent, 0, phase)
    if "discount" in batch._fields:
        batch = batch._replace(discount=torch.zeros_like(batch.discount))
    history = [agent.update(batch, phase) for _ in range(50)]
    for key in history[0]:
        if key in ("loss/critic", "loss/value", "loss/mask", "loss/soda", "loss/restoration"):
            first, last = (torch.stack([m[key] for m in part]).mean() for part in (history[:3], history[-3:]))
            assert last < (0.98 if key == "loss/soda" else 0.9) * first, key


# ---- acting


@every_agent
def test_act_takes_numpy_and_torch_one_and_many(name):
    agent = small(name)
    many = batch_for(agent).obs[:4]
    actions = agent.act(many)
    assert isinstance(actions, torch.Tensor)
    shape = () if agent.spec.discrete else (ACTIONS,)
    assert actions.shape == (4, *shape)
    assert actions.dtype == (torch.int64 if agent.spec.discrete else torch.float32)
    assert (actions.abs() <= 1).all()
    assert not actions.requires_grad
    as_numpy = agent.act(many.numpy())
    assert isinstance(as_numpy, np.ndarray)
    np.testing.assert_array_equal(as_numpy, actions.numpy())
    one = agent.act(many[1].numpy())
    assert one.shape == shape
    np.testing.assert_allclose(one, actions[1].numpy(), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(agent.act(many[1]), actions[1], rtol=1e-4, atol=1e-5)
    assert torch.equal(agent.act(many), actions)
    drawn = [agent.act(batch_for(agent).obs, deterministic=False) for _ in range(2)]
    assert not torch.equal(*drawn)
    agent.generator.manual_seed(3)
    first = agent.act(many, deterministic=False)
    agent.generator.manual_seed(3)
    assert torch.equal(agent.act(many, deterministic=False), first)


def test_observations_from_0_to_1_are_refused():
    agent = small("sac")
    obs = torch.rand(2, 9, agent.spec.render_size, agent.spec.render_size)
    with pytest.raises(InvalidValueError, match=r"0 to 255.*float32"):
        agent.act(obs)
    assert agent.act((obs * 255).byte()).shape == (2, agent.spec.action_dim)
    obs[1, 0, 0, 0] = float("nan")
    for broken, value in ((255 * obs, "nan"), (255 * obs.nan_to_num(float("inf")).numpy(), "inf")):
        with pytest.raises(InvalidValueError, match=f"float32 is {value}"):
            agent.act(broken)


@every_agent
def test_observations_of_another_shape_are_refused(name):
    agent = small(name)
    size = agent.spec.render_size
    for shape in (
        (3, size, size),
        (9, size, size - 1),
        (9, size + 4, size + 4),
        (size, size, 9),
        (size, size),
        (1, 1, 9, size, size),
    ):
        with pytest.raises(InvalidValueError, match=rf"\(9, {size}, {size}\).*not \({shape[0]}, "):
            agent.act(np.zeros(shape, dtype=np.uint8))


@pytest.mark.parametrize("name", DECODERS)
def test_predicted_masks_look_like_the_observation(name):
    agent = small(name)
    batch = batch_for(agent)
    masks = agent.predict_mask(batch.obs, batch.action)
    assert masks.shape == batch.obs.shape
    assert masks.dtype == torch.float32
    assert not masks.requires_grad
    assert masks.min() >= 0
    assert masks.max() <= 1
    assert masks.std() > 0
    single = agent.predict_mask(batch.obs[2].numpy(), batch.action[2].numpy())
    assert isinstance(single, np.ndarray)
    np.testing.assert_allclose(single, masks[2].numpy(), rtol=1e-4, atol=1e-5)
    more = ", 2" if batch.action.ndim == 2 else ","
    with pytest.raises(InvalidValueError, match=rf"expected actions of shape \(6{more}\), not \(5{more}\)"):
        agent.predict_mask(batch.obs, batch.action[:5])
    with pytest.raises(InvalidValueError, match="this agent sees"):
        agent.predict_mask(batch.obs[:, :6], batch.action)
    if agent.spec.discrete:
        with pytest.raises(InvalidValueError, match=r"actions must be integers from 0 to 1, not \[2\]"):
            agent.predict_mask(batch.obs[0].numpy(), np.array(2))
        return
    for number in ("nan", "inf"):
        with pytest.raises(InvalidValueError, match=rf"actions must be finite numbers, not \[\[{number}, 0\.0\]\]"):
            agent.predict_mask(batch.obs[0].numpy(), np.array([float(number), 0]))


@every_agent
def test_acting_on_bytes_never_waits_for_the_device(name):
    agent = small(name)
    obs = batch_for(agent).obs
    with NoSync():
        agent.act(obs, deterministic=False)


@pytest.mark.parametrize("name", sorted({*NAMES} - {*DECODERS}))
def test_agents_without_a_decoder_say_so(name):
    agent = small(name)
    batch = batch_for(agent)
    with pytest.raises(SgqnError, match="no attribution decoder"):
        agent.predict_mask(batch.obs, batch.action)


# ---- settings


@pytest.mark.parametrize("name", [name for name in NAMES if AGENTS[name].actions != "any"])
def test_actions_of_another_kind_are_refused(name):
    discrete = AGENTS[name].actions != "discrete"
    kind, wanted = ("continuous", "one of 5 discrete actions") if discrete else ("discrete", "actions of 5 numbers")
    with pytest.raises(InvalidValueError, match=f"agent '{name}' has {kind} actions only, not {wanted}") as error:
        build_agent(name, Spec(5, image_size=SIZE, render_size=SIZE, discrete=discrete), settings_of(name), OVERLAY)
    others = ", ".join(sorted(one for one in NAMES if AGENTS[one].takes(discrete)))
    assert str(error.value).endswith(f": use one of {others}" if others else wanted)


def test_defaults_are_the_papers_table():
    settings = SGQNSettings()
    assert (settings.encoder_layers, settings.encoder_filters, settings.embedding_dim) == (11, 32, 100)
    assert (settings.hidden_dim, settings.batch_size, settings.discount) == (1024, 128, 0.99)
    assert (settings.learning_rate, settings.auxiliary_learning_rate) == (1e-3, 3e-4)
    assert (settings.temperature_learning_rate, settings.encoder_tau, settings.critic_tau) == (1e-4, 0.05, 0.01)
    assert (settings.targets_every, settings.auxiliary_every, settings.rho) == (2, 2, 0.95)


BAD = {
    "rho": [1.0, -0.1, float("nan")],
    "discount": [0.0, 1.1],
    "batch_size": [0, 1.5],
    "encoder_layers": [0],
    "hidden_dim": [-1],
    "learning_rate": [0.0, float("inf"), float("nan")],
    "soda_learning_rate": [-1e-3],
    "temperature_learning_rate": [0.0],
    "shift_pad": [-1, 0.5],
    "consistency_weight": [-0.5],
    "svea_beta": [-1.0],
    "initial_temperature": [0.0],
    "encoder_tau": [0.0, 2.0],
    "soda_tau": [0.0],
    "soda_batch_size": [1],
    "decoder_filters": [(64,), (64, 0)],
    "actor_every": [0],
    "mask": ["hard"],
    "mask_fill": ["noise"],
    "attribution": ["lime"],
    "attribution_target": ["q2"],
    "augmentation": ["blur"],
}


@pytest.mark.parametrize(("field", "value"), [(field, value) for field in BAD for value in BAD[field]])
def test_settings_that_cannot_work_are_refused(field, value):
    with pytest.raises((InvalidValueError, UnknownNameError)) as error:
        (SVEASODASettings if field.startswith(("soda", "svea")) else SGQNSettings)(**{field: value})
    assert str(value) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_picture_too_small_for_the_encoder_is_refused():
    with pytest.raises(InvalidValueError, match="does not fit"):
        build_agent("sac", Spec(ACTIONS, image_size=SIZE), settings_of("sac", encoder_layers=30), OVERLAY)
