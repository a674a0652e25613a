"""SGQN around a DQN of Stable-Baselines3, compared with SB3 itself."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from gymnasium import spaces
from torch import nn

import sgqn
from sgqn.attribution import quantile_mask

pytest.importorskip("stable_baselines3")
from stable_baselines3 import DQN, PPO
from stable_baselines3.common.logger import configure
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import DummyVecEnv, VecFrameStack

from sgqn.sb3 import saliency_guided

SIZE = 36
NO_MASKS = 10**9
"""An interval of mask prediction that no test reaches."""


class Dots(gymnasium.Env):
    """Random images; the reward is 1 for the action that a bright pixel shows."""

    action_space = spaces.Discrete(3)

    def __init__(self, channels: int = 3, size: int = SIZE):
        self.observation_space = spaces.Box(0, 255, (size, size, channels), np.uint8)
        self.shown = self.steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[np.ndarray, dict]:
        super().reset(seed=seed)
        self.steps = 0
        return self.observe(), {}

    def step(self, action: Any) -> tuple[np.ndarray, float, bool, bool, dict]:
        reward = float(action == self.shown)
        self.steps += 1
        return self.observe(), reward, self.steps == 7, False, {}

    def observe(self) -> np.ndarray:
        image = self.np_random.integers(0, 50, self.observation_space.shape, dtype=np.uint8)
        self.shown = int(self.np_random.integers(3))
        image[8 * self.shown : 8 * self.shown + 8, 5:12] = 250
        return image


class Small(BaseFeaturesExtractor):
    """A features extractor of one's own."""

    def __init__(self, observation_space: spaces.Box, features_dim: int = 16):
        super().__init__(observation_space, features_dim)
        self.layers = nn.Sequential(
            nn.Conv2d(observation_space.shape[0], 4, 5, stride=4), nn.ReLU(), nn.Flatten(), nn.LazyLinear(features_dim)
        )
        self.layers(torch.zeros(1, *observation_space.shape))

    def forward(self, observations: torch.Tensor) -> torch.Tensor:
        return self.layers(observations).tanh()


def dqn(env: Any = None, **options: Any) -> DQN:
    values = {"buffer_size": 200, "learning_starts": 8, "batch_size": 6, "target_update_interval": 12, "seed": 1}
    policy = options.pop("policy_kwargs", {"features_extractor_kwargs": {"features_dim": 32}})
    return DQN("CnnPolicy", env or Dots(), policy_kwargs=policy, device="cpu", **{**values, **options})


def guided(model: DQN, **options: Any) -> Any:
    return saliency_guided(model, **{"decoder_filters": (8, 8), **options})


def same(one: DQN, other: DQN) -> bool:
    """Whether networks and optimizers are equal, bit for bit."""
    for ours, theirs in zip(one.policy.parameters(), other.policy.parameters(), strict=True):
        if not torch.equal(ours, theirs):
            return False
    left, right = (model.policy.optimizer.state_dict()["state"] for model in (one, other))
    return left.keys() == right.keys() and all(
        torch.equal(left[key][name], right[key][name]) for key in left for name in left[key]
    )


SETTINGS = {
    "defaults": {},
    "n_steps": {"n_steps": 3},
    "schedule": {"gradient_steps": 2, "max_grad_norm": 0.01, "learning_rate": lambda left: left / 99},
}


@pytest.mark.parametrize("options", SETTINGS.values(), ids=SETTINGS)
def test_without_its_losses_it_is_sb3_bit_for_bit(options: dict[str, Any]) -> None:
    plain = dqn(**options).learn(60)
    ours = guided(dqn(**options), weight=0, auxiliary_every=NO_MASKS).learn(60)
    assert plain._n_updates == ours._n_updates > 10
    assert not same(plain, dqn(**options))
    assert same(plain, ours)


def test_its_losses_change_the_networks() -> None:
    plain = dqn().learn(30)
    assert not same(plain, guided(dqn(), auxiliary_every=NO_MASKS).learn(30))
    assert not same(plain, guided(dqn(), weight=0).learn(30))


def test_the_loss_in_the_log_is_the_one_that_sb3_logs(tmp_path: Path) -> None:
    logged = []
    for wrap in (lambda model: model, guided):
        model = wrap(dqn())
        model.set_logger(configure(str(tmp_path), []))
        model.learn(12, log_interval=NO_MASKS)  # one update
        assert model._n_updates == 1
        logged.append(model.logger.name_to_value)
    assert logged[1]["train/loss"] == pytest.approx(logged[0]["train/loss"], rel=1e-6)


def test_the_losses_are_in_the_log(tmp_path: Path) -> None:
    model = guided(dqn(gradient_steps=2), rho=0.9)
    model.set_logger(configure(str(tmp_path), []))
    model.learn(28, log_interval=NO_MASKS)
    logged = model.logger.name_to_value
    names = ("loss", "consistency_loss", "mask_loss", "mask_kept", "mask_agreement")
    assert all(np.isfinite(logged[f"train/{name}"]) for name in names)
    assert logged["train/consistency_loss"] > 0
    assert logged["train/mask_kept"] == pytest.approx(0.1, abs=0.02)


def test_the_consistency_loss_and_the_mask_by_hand() -> None:
    """From the Q network itself, with the public functions."""
    model = guided(dqn(), weight=0.5, rho=0.8, fill="zero")
    model.learn(9)
    batch = model._sample(4)

    def q(obs: torch.Tensor, action: torch.Tensor) -> torch.Tensor:
        return model.q_net(obs).gather(1, action[:, None])

    mask = quantile_mask(sgqn.attribution.guided_backprop(q, batch.obs, batch.action), 0.8)
    with torch.no_grad():
        expected = 0.5 * F.mse_loss(q(batch.obs * mask, batch.action), q(batch.obs, batch.action))
    metrics = model.saliency.learn(batch, sgqn.agents.Phase(auxiliary=False))
    assert float(metrics["loss/consistency"]) == pytest.approx(float(expected), rel=1e-5)


def test_a_saved_model_is_a_plain_dqn_that_acts_alike(tmp_path: Path) -> None:
    model = guided(dqn()).learn(40)
    model.save(tmp_path / "agent")
    obs = np.random.default_rng(0).integers(0, 256, (20, 3, SIZE, SIZE), dtype=np.uint8)
    for load in (DQN.load, type(model).load):
        loaded: Any = load(tmp_path / "agent", env=Dots(), device="cpu")
        assert type(loaded) is DQN
        assert not hasattr(loaded, "saliency")
        assert same(model, loaded)
        assert (loaded.predict(obs, deterministic=True)[0] == model.predict(obs, deterministic=True)[0]).all()
    again = guided(loaded)
    again.saliency.decoder.load_state_dict(model.saliency.decoder.state_dict())
    action = model.predict(obs, deterministic=True)[0]
    assert (again.saliency.act(obs) == action).all()
    assert np.array_equal(again.saliency.predict_mask(obs, action), model.saliency.predict_mask(obs, action))
    again.learn(20, reset_num_timesteps=False)
    assert again._n_updates > model._n_updates


def test_greyscale_frames_have_masks_of_their_own() -> None:
    env = VecFrameStack(DummyVecEnv([lambda: Dots(channels=1)] * 2), 4)
    model = guided(dqn(env), rho=0.75)
    assert model.observation_space.shape == (4, SIZE, SIZE)
    model.learn(40)
    batch = model._sample(2)
    (mask,) = [model.saliency.saliency(batch)]
    assert mask.shape == (2, 4, SIZE, SIZE)
    assert mask.float().mean(dim=(2, 3)).allclose(torch.tensor(0.25), atol=0.01)
    augmented = model.saliency.augmentation(batch.obs, torch.Generator().manual_seed(0))
    assert augmented.shape == batch.obs.shape
    assert 0 <= float(augmented.min()) < float(augmented.max()) <= 255


def test_a_number_of_frames() -> None:
    model = guided(dqn(Dots(channels=3)), frames=3, mask="soft")  # three grey frames
    model.learn(12)
    mask = model.saliency.saliency(model._sample(2))
    assert not torch.equal(mask[:, 0], mask[:, 1])
    with pytest.raises(sgqn.InvalidValueError, match="3 channels are not 2 frames"):
        guided(dqn(), frames=2)


def test_a_features_extractor_of_ones_own() -> None:
    model = guided(dqn(policy_kwargs={"features_extractor_class": Small, "normalize_images": False}))
    before = model.q_net.features_extractor.layers[0].weight.clone()
    model.learn(20)
    assert not torch.equal(before, model.q_net.features_extractor.layers[0].weight)
    assert model.saliency.decoder.linear.in_features == 16 + 3


def test_it_is_an_agent_that_can_be_evaluated() -> None:
    task = "gym:sgqn/Catch-v0"
    env = sgqn.make(task, image_size=SIZE, seed=0)
    model = guided(dqn(env)).learn(16)
    scores = sgqn.evaluate(model.saliency, task, episodes=1)
    assert len(scores.returns) == 1


def test_the_page_runs_as_printed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All but the length of training and the size of the decoder."""
    learn, decoder = DQN.learn, sgqn.agents.sgqn.AttributionDecoder
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(DQN, "learn", lambda model, steps: learn(model, steps // 19))
    monkeypatch.setattr(sgqn.agents.sgqn, "AttributionDecoder", lambda *sizes: decoder(*sizes[:-1], (4, 4)))
    page = (Path(sgqn.__file__).parent.parent / "docs" / "own-agent.md").read_text()
    names: dict[str, Any] = {"__name__": "page"}
    for block in re.findall(r"(?ms)^```python\n(.*?)^```", page[page.index("## Stable-Baselines3") :]):
        exec(block, names)
    assert names["mask"].shape == (9, 84, 84)
    assert len(names["scores"].returns) == 10
    assert (tmp_path / "catch.zip").is_file()


def test_a_subclass_is_kept() -> None:
    class Mine(DQN):
        mark = "mine"

    model = guided(Mine("CnnPolicy", Dots(), buffer_size=10, device="cpu"))
    assert isinstance(model, Mine)
    assert model.mark == "mine"


def test_models_that_do_not_fit_are_refused() -> None:
    class Own(DQN):
        def train(self, gradient_steps: int, batch_size: int = 100) -> None: ...

    with pytest.raises(sgqn.InvalidValueError, match="takes a DQN of Stable-Baselines3, not a PPO"):
        saliency_guided(PPO("MlpPolicy", "CartPole-v1", device="cpu"))  # type: ignore[type-var]
    with pytest.raises(sgqn.InvalidValueError, match="Own has a train method of its own"):
        saliency_guided(Own("CnnPolicy", Dots(), buffer_size=10, device="cpu"))
    with pytest.raises(sgqn.InvalidValueError, match="square uint8 images, not Box"):
        saliency_guided(DQN("MlpPolicy", "CartPole-v1", device="cpu"))
    with pytest.raises(sgqn.InvalidValueError, match="already"):
        guided(guided(dqn()))


def test_a_missing_sb3_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "sgqn.sb3")
    monkeypatch.setitem(sys.modules, "stable_baselines3", None)
    with pytest.raises(sgqn.SgqnError, match=r"^sgqn.sb3 needs Stable-Baselines3: pip install 'sgqn\[sb3\]'$"):
        importlib.import_module("sgqn.sb3")
