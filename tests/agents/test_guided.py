"""SaliencyGuided: SGQN around learners from outside, with plain functions."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import sgqn
from sgqn.agents import Batch, Phase, Spec, build_agent
from sgqn.agents.sgqn import SGQN, SGQNSettings
from sgqn.attribution import gradient, quantile_mask
from sgqn.augmentations import overlay, random_conv
from tests.agents.discrete import TinyDQN
from tests.agents.small import SETTINGS

SPEC = Spec(3, channels=3, image_size=48, render_size=48, discrete=True)
PAGE = Path(sgqn.__file__).parent.parent / "docs" / "own-agent.md"


def learner() -> TinyDQN:
    torch.manual_seed(0)
    made = TinyDQN(SPEC, SETTINGS)
    with torch.no_grad():  # off the sparse initialization, so that all pixels count
        for parameter in made.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return made


def batch(count: int = 6) -> Batch:
    drawn = torch.Generator().manual_seed(1)
    obs, after = torch.randint(0, 256, (2, count, 3, 48, 48), dtype=torch.uint8, generator=drawn)
    action = torch.randint(3, (count,), generator=drawn)
    return Batch(obs, action, torch.rand(count, generator=drawn), torch.full((count,), 0.99), after)


def small(**options: Any) -> Any:
    return sgqn.SaliencyGuided(learner(), **{"decoder_filters": (8, 8), **options})


def test_it_is_sgqn_with_the_same_settings() -> None:
    guided = small(augmentation=random_conv, weight=0.7, rho=0.9)
    settings = SGQNSettings(**{**vars(SETTINGS), "consistency_weight": 0.7, "rho": 0.9, "decoder_filters": (8, 8)})
    plain = SGQN(learner(), settings, random_conv)
    plain.make_optimizers()
    plain.load_state_dict(guided.state_dict())
    plain.generator.set_state(guided.generator.get_state())
    for phase in (Phase(), Phase(auxiliary=False)):
        ours, theirs = guided.learn(batch(), phase), plain.learn(batch(), phase)
        assert ours.keys() == theirs.keys()
        for name in ours:
            assert torch.equal(ours[name], theirs[name]), name
    for one, other in zip(guided.parameters(), plain.parameters(), strict=True):
        assert torch.equal(one, other)


def test_functions_of_ones_own_are_used() -> None:
    used = []

    def method(q: Any, obs: Tensor, action: Tensor) -> Tensor:
        used.append("attribution")
        return gradient(q, obs, action)

    def augment(obs: Tensor, generator: torch.Generator) -> Tensor:
        used.append("augmentation")
        return random_conv(obs, generator)

    def mask(attribution: Tensor) -> Tensor:
        used.append("mask")
        return quantile_mask(attribution, 0.5)

    guided = small(attribution=method, augmentation=augment, mask=mask)
    metrics = guided.update(batch())
    assert {"attribution", "augmentation", "mask"} == set(used)
    assert float(metrics["mask/kept"]) == pytest.approx(0.5, abs=0.05)
    assert guided.explained_by == "method"


def test_an_optimizer_that_the_learner_has_is_kept() -> None:
    own = learner()
    own.make_optimizers()
    kept = own.optimizers["critic"]
    guided = sgqn.SaliencyGuided(own, decoder_filters=(8, 8))
    assert guided.optimizers["critic"] is kept
    assert "auxiliary" in guided.optimizers


@pytest.mark.parametrize(
    ("option", "function", "parts"),
    [
        ("attribution", lambda q, obs, action: torch.zeros(6, 1, 48, 48), ["(6, 1, 48, 48)", "(6, 3, 48, 48)"]),
        ("attribution", lambda q, obs, action: obs, ["uint8", "float32"]),
        ("attribution", lambda q, obs, action: obs.numpy(), ["ndarray", "(6, 3, 48, 48)"]),
        ("attribution", lambda q, obs, action: torch.zeros(6, 3, 48, 48, device="meta"), ["on meta", "on cpu"]),
        ("augmentation", lambda obs, generator: obs[:, :, :40], ["(6, 3, 40, 48)", "(6, 3, 48, 48)"]),
        ("augmentation", lambda obs, generator: obs.long(), ["int64", "uint8"]),
        ("augmentation", lambda obs, generator: None, ["NoneType"]),
        ("mask", lambda attribution: attribution[:, :1] > 0, ["(6, 1, 48, 48)"]),
        ("mask", lambda attribution: attribution.long(), ["int64", "bool"]),
    ],
)
def test_results_that_do_not_fit_say_what_was_expected(option: str, function: Any, parts: list[str]) -> None:
    guided = small(**{option: function})
    with pytest.raises(sgqn.InvalidValueError, match=f"^{option} ") as caught:
        guided.update(batch())
    for part in parts:
        assert part in str(caught.value)


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(sgqn.InvalidValueError, match="not a Linear: subclass Learner"):
        sgqn.SaliencyGuided(torch.nn.Linear(2, 2))  # type: ignore[arg-type]
    with pytest.raises(sgqn.UnknownNameError, match="guided_backprop"):
        small(attribution="guided_backpro")
    with pytest.raises(sgqn.InvalidValueError, match=r"'overlay' needs images: choose .*random_conv"):
        small(augmentation="overlay")
    with pytest.raises(sgqn.InvalidValueError, match="consistency_weight must be a non-negative number, not -1"):
        small(weight=-1)
    images = torch.randint(0, 256, (4, 3, 48, 48), dtype=torch.uint8)
    assert "loss/mask" in small(augmentation=partial(overlay, images=images)).update(batch())


def test_the_page_runs_as_printed() -> None:
    names: dict[str, Any] = {"__name__": "page"}
    own, _ = PAGE.read_text().split("## Stable-Baselines3")  # whose code tests/test_sb3.py runs
    blocks = re.findall(r"(?ms)^```python\n(.*?)^```", own)
    assert len(blocks) == 3
    for block in blocks:
        exec(block, names)
    assert {"loss/critic", "loss/consistency", "loss/mask"} <= names["metrics"].keys()
    assert names["mask"].shape == (16, 9, 84, 84)
    lines = [line for line in blocks[0].splitlines() if line.strip()]
    assert len(lines) <= 60


def test_sac_of_this_package_can_be_guided_too() -> None:
    spec = Spec(2, channels=3, image_size=48, render_size=48)
    inner: Any = build_agent("drq", spec, sgqn.agents.make_settings("drq", **SMALL))
    guided = sgqn.SaliencyGuided(inner, decoder_filters=(8, 8))
    found = batch()._replace(action=torch.rand(6, 2))
    assert {"loss/critic", "loss/consistency", "loss/mask", "loss/actor"} <= guided.update(found).keys()


SMALL: dict[str, Any] = {
    "encoder_layers": 4, "encoder_filters": 8, "embedding_dim": 16, "hidden_dim": 32, "batch_size": 6
}  # fmt: skip
