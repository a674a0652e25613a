from __future__ import annotations

import copy
import threading
import warnings

import pytest
import torch
import torch.nn.functional as F
from captum.attr import GuidedBackprop
from torch import Tensor, nn

from sgqn import attribution, networks
from sgqn.attribution import gradient, guided, guided_backprop, guided_gradient_of, switchable_relu
from sgqn.errors import InvalidValueError, UnknownNameError
from tests.attribution.critics import ModuleCritic, batch, perturbed_critic, q1


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def captum(model: nn.Module, obs: Tensor, action: Tensor) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return GuidedBackprop(model).attribute(obs, additional_forward_args=(action,)).detach()


# --- against independent oracles


def test_equals_captum_on_encoder_and_q_head():
    critic = perturbed_critic()
    model = ModuleCritic(critic)
    obs, action = batch()
    ours = guided_backprop(model, obs, action)
    theirs = captum(copy.deepcopy(model), obs.clone().requires_grad_(), action)
    scale = theirs.abs().max()
    assert scale > 0
    assert (ours - theirs).abs().max() <= 1e-5 * min(1, scale)
    # The critic itself, whose encoder uses functional ReLUs that Captum would miss:
    assert (guided_backprop(q1(critic), obs, action) - theirs).abs().max() <= 1e-5 * min(1, scale)
    # The comparison says something: the plain gradient is another map.
    assert (gradient(model, obs, action) - theirs).abs().max() > 0.1 * scale


def test_equals_captum_at_the_papers_sizes():
    critic = networks.Critic(networks.Encoder(), action_dim=6)
    obs, action = torch.rand(1, 9, 84, 84) * 255, torch.rand(1, 6)
    theirs = captum(copy.deepcopy(ModuleCritic(critic)), obs.clone().requires_grad_(), action)
    ours = guided_backprop(q1(critic), obs, action)
    assert theirs.any()
    assert (ours - theirs).abs().max() <= 1e-5 * min(1, theirs.abs().max())


def hand_network(relu) -> attribution.QFunction:
    """h = relu(W x) of x (B, 2), q = v . h: small enough for paper and pencil."""
    w = torch.tensor([[1.0, 2.0], [-1.0, 1.0], [3.0, -1.0], [-2.0, -2.0]])
    v = torch.tensor([1.0, -1.0, -2.0, 5.0])
    return lambda x, action: relu(x @ w.T) @ v


def test_negative_gradients_by_hand():
    x = torch.tensor([[1.0, 2.0]])
    # W x = (5, 1, 1, -6): units 1-3 are active; their gradients are v = (1, -1, -2).
    plain = torch.tensor([[1.0 + 1 - 6, 2.0 - 1 + 2]])  # (1,2) - (-1,1) - 2 (3,-1)
    only_positive = torch.tensor([[1.0, 2.0]])  # units 2 and 3 pull down: guided drops them
    q = hand_network(F.relu)
    assert torch.equal(gradient(q, x, x), plain)
    assert torch.equal(guided_backprop(q, x, x), only_positive)


def test_two_layers_guide_twice_by_hand():
    # q = relu(b . relu(a x)) with a = (1, 1), b = (2, -1), x = 3: the outer unit is active, its gradient 1
    # passes, and of (2, -1) only the first survives the inner ReLU.
    a, b = torch.tensor([1.0, 1.0]), torch.tensor([2.0, -1.0])
    x = torch.tensor([[3.0]])

    def q(x: Tensor, action: Tensor) -> Tensor:
        return F.relu(F.relu(x * a) @ b)

    assert gradient(q, x, x).item() == 1.0
    assert guided_backprop(q, x, x).item() == 2.0
    # A negative weight on top: everything is pulled down, nothing passes.
    assert guided_backprop(lambda x, action: -q(x, action), x, x).item() == 0.0


def relu_in_place(x: Tensor) -> Tensor:
    x = x.clone()
    x.relu_()  # the returned tensor is dropped on purpose
    return x


@pytest.mark.parametrize(
    "relu",
    [
        nn.ReLU(),
        nn.ReLU(inplace=True),
        F.relu,
        lambda x: F.relu(x, inplace=True),
        lambda x: F.relu(x, True),
        lambda x: F.relu(input=x),
        torch.relu,
        Tensor.relu,
        lambda x: x.relu(),
        torch.relu_,
        F.relu_,
        relu_in_place,
    ],
)
def test_every_form_of_relu_is_guided(relu):
    x = torch.tensor([[1.0, 2.0], [2.0, -1.0], [-3.0, 0.5]])
    expected = guided_backprop(hand_network(nn.ReLU()), x, x)
    assert not torch.equal(expected, gradient(hand_network(nn.ReLU()), x, x))
    assert torch.equal(guided_backprop(hand_network(relu), x, x), expected)
    leaf = x.clone().requires_grad_()
    with switchable_relu():
        value = hand_network(relu)(leaf, x)
    assert torch.equal(guided_gradient_of(value, leaf), expected)


def test_functional_twin_of_a_module_network():
    first, second = nn.Linear(6, 8), nn.Linear(8, 1)
    module = nn.Sequential(first, nn.ReLU(), second)
    obs, action = torch.randn(4, 6), torch.zeros(4, 1)
    of_module = guided_backprop(lambda o, a: module(o), obs, action)
    of_functional = guided_backprop(lambda o, a: second(F.relu(first(o))), obs, action)
    assert torch.equal(of_module, of_functional)


# --- nothing left behind


@pytest.mark.parametrize("method", [gradient, guided_backprop])
def test_leaves_nothing_behind(method):
    critic = perturbed_critic()
    critic.heads.q2.requires_grad_(False)
    obs, action = batch()
    sum(critic(obs, action)).sum().backward()
    grads = {name: None if p.grad is None else p.grad.clone() for name, p in critic.named_parameters()}
    asked = {name: p.requires_grad for name, p in critic.named_parameters()}
    before = gradient(q1(critic), obs, action)
    obs_before = obs.clone()

    result = method(q1(critic), obs, action)

    for module in critic.modules():
        for kind in ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"):
            assert not getattr(module, kind)
    for name, p in critic.named_parameters():
        assert p.requires_grad == asked[name]
        assert p.grad is None if grads[name] is None else torch.equal(p.grad, grads[name])
    assert not obs.requires_grad
    assert obs.grad is None
    assert torch.equal(obs, obs_before)
    assert not result.requires_grad
    assert torch.equal(gradient(q1(critic), obs, action), before)


@pytest.mark.parametrize("method", [gradient, guided_backprop])
def test_relu_is_ordinary_again_after_an_error(method):
    def broken(obs: Tensor, action: Tensor) -> Tensor:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        method(broken, *batch())
    assert F.relu(torch.ones(1, requires_grad=True)).grad_fn.name() == "ReluBackward0"


# --- inputs


@pytest.mark.parametrize("method", [gradient, guided_backprop])
def test_inputs(method):
    q = q1(perturbed_critic())
    obs, action = batch()
    obs = obs.round()
    expected = method(q, obs, action)
    assert expected.shape == obs.shape
    assert torch.equal(method(q, obs.to(torch.uint8), action), expected)
    assert torch.equal(method(lambda o, a: q(o, a)[:, None], obs, action), expected)  # (B, 1)
    asking = obs.clone().requires_grad_()
    assert torch.equal(method(q, asking, action), expected)
    assert asking.requires_grad
    assert asking.grad is None
    with torch.no_grad():
        assert torch.equal(method(q, obs, action), expected)
    with torch.inference_mode():
        assert torch.equal(method(q, obs * 1, action * 1), expected)
    with pytest.raises(InvalidValueError, match=r"not \(3, 2\)"):
        method(lambda o, a: q(o, a)[:, None].expand(3, 2), obs, action)


# --- one forward pass for the loss and the map


def test_shared_forward_gives_the_guided_map_and_the_ordinary_gradient():
    critic = perturbed_critic()
    obs, action = batch()
    target = torch.randn(3)
    params = list(critic.parameters())

    def loss(qs: tuple[Tensor, Tensor]) -> Tensor:
        return sum(((q - target) ** 2).mean() for q in qs)

    ordinary_qs = critic(obs, action)
    ordinary = torch.autograd.grad(loss(ordinary_qs), params)

    leaf = attribution.differentiable(obs)
    with switchable_relu():
        qs = critic(leaf, action)
    guided_map = guided_gradient_of(qs[0], leaf)
    plain_map = attribution.gradient_of(qs[0], leaf)
    loss(qs).backward(inputs=params)

    assert all(torch.equal(a, b) for a, b in zip(qs, ordinary_qs, strict=True))
    assert all(torch.equal(p.grad, g) for p, g in zip(params, ordinary, strict=True))  # bit for bit
    assert torch.equal(guided_map, guided_backprop(q1(critic), obs, action))
    assert torch.equal(plain_map, gradient(q1(critic), obs, action))
    assert not torch.equal(guided_map, plain_map)


def test_plain_backward_equals_relus_on_special_values():
    special = torch.tensor([0.0, -0.0, 1e-45, -1e-45, float("inf"), -float("inf"), float("nan"), 1.0, -1.0])
    x = special.clone().requires_grad_()
    upstream = torch.tensor([1.0, float("nan"), -1.0, 2.0, float("inf"), 3.0, 4.0, -0.0, 5.0])
    out = F.relu(x)
    (expected,) = torch.autograd.grad(out, x, upstream)
    with switchable_relu():
        ours = F.relu(x)
    (result,) = torch.autograd.grad(ours, x, upstream)
    assert torch.equal(ours.view(torch.int32), out.view(torch.int32))
    assert torch.equal(result.view(torch.int32), expected.view(torch.int32))


def test_second_derivatives_through_switchable_relu():
    x = torch.randn(6, dtype=torch.float64, requires_grad=True)
    with switchable_relu():
        assert torch.autograd.gradgradcheck(lambda v: F.relu(v).pow(3), x)


def test_guided_does_not_nest_and_is_restored_after_errors():
    with guided(), pytest.raises(RuntimeError, match="already active"), guided():
        pass
    with pytest.raises(ZeroDivisionError), guided():
        raise ZeroDivisionError
    assert not attribution.is_guided()
    with guided():
        assert attribution.is_guided()
    assert not attribution.is_guided()


def test_switchable_nests_and_holds_guided_backprop():
    q = hand_network(F.relu)
    x = torch.tensor([[1.0, 2.0]])
    leaf = x.clone().requires_grad_()
    with switchable_relu():
        assert torch.equal(guided_backprop(q, x, x), torch.tensor([[1.0, 2.0]]))
        with switchable_relu():
            value = q(leaf, x)
    assert torch.equal(guided_gradient_of(value, leaf), torch.tensor([[1.0, 2.0]]))
    assert torch.equal(attribution.gradient_of(value, leaf), gradient(q, x, x))


def test_the_switch_reaches_other_threads():
    # As for CUDA, whose backward runs in autograd's threads.
    x = torch.tensor([[1.0, 2.0]], requires_grad=True)
    with switchable_relu():
        value = hand_network(F.relu)(x, x)
    maps = []
    thread = threading.Thread(target=lambda: maps.append(attribution.gradient_of(value, x)))
    with guided():
        thread.start()
        thread.join()
    assert torch.equal(maps[0], torch.tensor([[1.0, 2.0]]))


def test_guiding_a_graph_without_switchable_relus_is_refused():
    x = torch.tensor([[1.0, 2.0]], requires_grad=True)
    value = hand_network(F.relu)(x, x)
    with pytest.raises(InvalidValueError, match="switchable_relu"):
        guided_gradient_of(value, x)
    assert not attribution.is_guided()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_shared_forward_on_cuda_and_in_a_graph():
    critic = perturbed_critic().cuda()
    obs, action = (x.cuda() for x in batch())
    leaf = attribution.differentiable(obs)

    def step() -> tuple[Tensor, ...]:
        with switchable_relu():
            qs = critic(leaf, action)
        return guided_gradient_of(qs[0], leaf), *torch.autograd.grad(sum(qs).sum(), critic.parameters())

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        step()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = step()
    graph.replay()
    expected = torch.autograd.grad(sum(critic(obs, action)).sum(), critic.parameters())
    torch.testing.assert_close(result[0], guided_backprop(q1(critic), obs, action))
    torch.testing.assert_close(result[1:], expected)


# --- registry


def test_registry():
    assert attribution.get("guided_backprop") is guided_backprop
    assert attribution.METHODS["gradient"].function is gradient is attribution.gradient
    with pytest.raises(UnknownNameError, match="did you mean 'guided_backprop'"):
        attribution.get("guided_backprob")
