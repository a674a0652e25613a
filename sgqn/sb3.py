"""Stable-Baselines3: its algorithms on vector environments, and SGQN around its DQN.

`PixelVecEnv(sgqn.make_vec(...))` is a `VecEnv` for any algorithm. `saliency_guided(DQN("CnnPolicy", env))` changes only
the update: replay, exploration, target network, logging, `learn`, `predict` and `save` are those of SB3.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from gymnasium import spaces
from torch import Tensor, nn

from sgqn.agents.base import Losses, Metrics, Phase, Spec, minimize
from sgqn.agents.guided import SaliencyGuided
from sgqn.agents.learner import Learner
from sgqn.attribution.mask import quantile_mask, soft_mask
from sgqn.augmentations import Augmentation
from sgqn.envs.vector import PixelVectorEnv
from sgqn.errors import InvalidValueError, SgqnError
from sgqn.replay import Batch

try:
    from stable_baselines3 import DQN
    from stable_baselines3.common.preprocessing import preprocess_obs
    from stable_baselines3.common.vec_env import VecEnv
    from stable_baselines3.common.vec_env.base_vec_env import VecEnvObs, VecEnvStepReturn
except ImportError as error:
    raise SgqnError("sgqn.sb3 needs Stable-Baselines3: pip install 'sgqn[sb3]'") from error

Model = TypeVar("Model", bound=DQN)
COLOURS = 3
LOGGED = {
    "loss/critic": "train/loss",  # the name that SB3 gives it
    "loss/consistency": "train/consistency_loss",
    "loss/mask": "train/mask_loss",
    "mask/kept": "train/mask_kept",
    "mask/agreement": "train/mask_agreement",
}
"""The names of SGQN's metrics in SB3's logger."""


def saliency_guided(model: Model, *, frames: int | None = None, **options: Any) -> Model:
    """Make a DQN learn with SGQN's losses: changes the model in place and returns it.

    `model.saliency` is then the `sgqn.SaliencyGuided` that makes its updates; it predicts masks and can be evaluated.

    Args:
        model: A `stable_baselines3.DQN` that sees square uint8 images, with any features extractor.
        frames: Number of frames in an observation. By default its channels are RGB frames if their number is a
            multiple of three, and greyscale frames otherwise.
        options: Those of `sgqn.SaliencyGuided`: attribution, augmentation, mask, weight, rho, ...
    """
    if not isinstance(model, DQN):
        raise InvalidValueError(f"saliency_guided takes a DQN of Stable-Baselines3, not a {type(model).__name__}")
    if isinstance(model, GuidedDQN):
        raise InvalidValueError("the model is saliency-guided already")
    plain = type(model)
    if plain.train is not DQN.train:
        raise InvalidValueError(
            f"{plain.__name__} has a train method of its own, which saliency_guided would replace: write a "
            "sgqn.agents.Learner with its loss, and pass it to sgqn.SaliencyGuided"
        )
    learner = DQNLearner(model)
    guided = SaliencyGuided(learner, **options)
    channels = learner.spec.channels
    if frames is None:
        frames = channels // COLOURS if channels % COLOURS == 0 else channels
    if channels not in (frames, frames * COLOURS):
        raise InvalidValueError(f"{channels} channels are not {frames} frames, RGB or greyscale")
    if channels == frames:
        _use_greyscale(guided, frames, options)
    model.saliency = guided  # type: ignore[attr-defined]
    model.__class__ = type(f"SaliencyGuided{plain.__name__}", (GuidedDQN, plain), {"plain": plain})
    return model


class GuidedDQN(DQN):
    """The class of models after `saliency_guided`: a DQN with another `train`."""

    saliency: SaliencyGuided
    plain: ClassVar[type[DQN]] = DQN

    def train(self, gradient_steps: int, batch_size: int = 100) -> None:
        self.policy.set_training_mode(True)
        self._update_learning_rate(self.policy.optimizer)
        found: dict[str, list[Tensor]] = defaultdict(list)
        for update in range(self._n_updates + 1, self._n_updates + gradient_steps + 1):
            phase = Phase(actor=False, targets=False, auxiliary=update % self.saliency.intervals.auxiliary == 0)
            for name, value in self.saliency.update(self._sample(batch_size), phase).items():
                found[name].append(value)
        self._n_updates += gradient_steps
        self.logger.record("train/n_updates", self._n_updates, exclude="tensorboard")
        for name in LOGGED.keys() & found.keys():
            self.logger.record(LOGGED[name], np.mean(torch.stack(found[name]).tolist()))

    def _sample(self, batch_size: int) -> Batch:
        assert self.replay_buffer is not None
        data = self.replay_buffer.sample(batch_size, env=self._vec_normalize_env)
        gamma = getattr(data, "discounts", None)  # of n-step returns, which older versions of SB3 lack
        discount = (1 - data.dones) * (self.gamma if gamma is None else gamma)
        return Batch(
            obs=data.observations,
            action=data.actions.long().flatten(),
            reward=data.rewards.flatten(),
            discount=discount.flatten(),
            next_obs=data.next_observations,
        )

    def _excluded_save_params(self) -> list[str]:
        return [*super()._excluded_save_params(), "saliency"]

    @classmethod
    def load(cls, *args: Any, **kwargs: Any) -> Any:
        """The model as SB3 loads it, without SGQN."""
        return cls.plain.load(*args, **kwargs)


class DQNLearner(Learner):
    """The networks, the loss and the optimizer of a DQN as a learner. SB3 moves the target network itself."""

    def __init__(self, model: DQN):
        super().__init__(_spec_of(model), model.batch_size)
        self.discount = model.gamma
        self.max_grad_norm = model.max_grad_norm
        self.q_net, self.target = model.q_net, model.q_net_target
        self.images = Images(model)
        self.optimizers["critic"] = model.policy.optimizer

    @property
    def encoder(self) -> Any:
        """SB3's preprocessing. A features extractor is not split: it may be any module."""
        return self.images

    @property
    def projection(self) -> nn.Module:
        return self.q_net.features_extractor

    def values(self, features: Tensor, action: Tensor) -> tuple[Tensor, ...]:
        return (self.q_net.q_net(self.embed(features)).gather(1, action[:, None]).squeeze(1),)

    def critic_losses(self, batch: Batch, values: tuple[Tensor, ...]) -> Losses:
        with torch.no_grad():
            target = batch.reward + batch.discount * self.target(batch.next_obs).amax(dim=1)
        return {"critic": F.smooth_l1_loss(values[0], target)}

    def critic_step(self, losses: Losses) -> Metrics:
        return minimize(self.optimizers["critic"], losses, self.max_grad_norm)

    def target_step(self) -> None:
        pass

    def make_optimizers(self) -> None:
        pass

    def learn(self, batch: Batch, phase: Phase = Phase()) -> Metrics:  # noqa: B008
        return self.critic_step(self.critic_losses(batch, self.values(self.encode(batch.obs), batch.action)))

    def policy(self, obs: Tensor, deterministic: bool) -> Tensor:
        """The best actions: exploration is SB3's, in `model.predict`."""
        del deterministic
        return self.q_net(obs).argmax(dim=1)


class Images(nn.Module):
    """Observations as a features extractor sees them."""

    def __init__(self, model: DQN):
        super().__init__()
        self.space, self.normalize = model.observation_space, model.policy.normalize_images
        self.out_shape = self.space.shape

    def forward(self, obs: Tensor) -> Any:
        return preprocess_obs(obs, self.space, normalize_images=self.normalize)


def _spec_of(model: DQN) -> Spec:
    space, actions = model.observation_space, model.action_space
    assert isinstance(actions, spaces.Discrete)
    shape = space.shape or ()
    if space.dtype != np.uint8 or len(shape) != 3 or shape[1] != shape[2]:
        raise InvalidValueError(f"SGQN needs observations that are square uint8 images, not {space}")
    return Spec(int(actions.n), channels=shape[0], image_size=shape[1], render_size=shape[1], discrete=True)


def _use_greyscale(guided: SaliencyGuided, frames: int, options: dict[str, Any]) -> None:
    """One mask per channel instead of one per RGB frame. Functions of the user's own are left as they are."""
    mask = options.get("mask", "quantile")
    if mask == "quantile":
        guided.saliency.own_mask = partial(quantile_mask, rho=guided.rho, frames=frames)
    elif mask == "soft":
        guided.saliency.own_mask = partial(soft_mask, frames=frames)
    if isinstance(options.get("augmentation", ""), str):
        guided.augmentation = _greyscale(guided.augmentation)


def _greyscale(augmentation: Augmentation) -> Augmentation:
    """An augmentation of RGB frames for greyscale ones: each gets three equal channels, which are averaged again."""

    def augment(obs: Tensor, generator: torch.Generator) -> Tensor:
        coloured = augmentation(obs.repeat_interleave(COLOURS, dim=1), generator)
        return coloured.unflatten(1, (-1, COLOURS)).float().mean(dim=2)

    return augment


class PixelVecEnv(VecEnv):
    """A vector environment of `sgqn.make_vec` as a `VecEnv` of Stable-Baselines3, which closes it.

    SB3 has no adapter for vector environments of Gymnasium; its `SubprocVecEnv` would make a renderer per environment.
    """

    def __init__(self, envs: PixelVectorEnv):
        if not isinstance(envs, PixelVectorEnv):
            raise InvalidValueError(f"PixelVecEnv takes what sgqn.make_vec returns, not a {type(envs).__name__}")
        if not envs.returns_numpy:
            raise InvalidValueError("Stable-Baselines3 takes numpy arrays: leave out the device of sgqn.make_vec")
        self.envs, self.metadata = envs, envs.metadata
        super().__init__(envs.num_envs, envs.single_observation_space, envs.single_action_space)

    def reset(self) -> VecEnvObs:
        obs, info = self.envs.reset(seed=self._seeds[0], options=self._options[0] or None)
        self._reset_seeds()
        self._reset_options()
        self.reset_infos = _rows(info, range(self.num_envs))
        return obs

    def step_async(self, actions: np.ndarray) -> None:
        self.envs.step_async(actions)

    def step_wait(self) -> VecEnvStepReturn:
        obs, rewards, terminated, truncated, info = self.envs.step_wait()
        infos = _rows(info, range(self.num_envs))
        over = np.flatnonzero(terminated | truncated).tolist()
        for world, last in zip(over, _rows(info.get("final_info", {}), over), strict=True):
            self.reset_infos[world], infos[world] = infos[world], last
            last["terminal_observation"] = info["final_obs"][world]
            if "success" in last:
                last["is_success"] = last["success"]  # what SB3 logs
        for world, one in enumerate(infos):
            one["TimeLimit.truncated"] = bool(truncated[world] and not terminated[world])
        return obs, rewards.astype(np.float32), terminated | truncated, infos

    def close(self) -> None:
        self.envs.close()

    def get_images(self) -> Sequence[np.ndarray | None]:
        return self.envs.render() or [None] * self.num_envs

    def get_attr(self, attr_name: str, indices: Any = None) -> list[Any]:
        return [getattr(self.envs, attr_name) for _ in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: Any = None) -> None:
        raise NotImplementedError(f"{attr_name!r} belongs to all environments of the vector: set it on `envs`")

    def env_method(self, method_name: str, *method_args: Any, indices: Any = None, **method_kwargs: Any) -> list[Any]:
        raise NotImplementedError(f"{method_name!r} belongs to all environments of the vector: call it on `envs`")

    def env_is_wrapped(self, wrapper_class: type, indices: Any = None) -> list[bool]:
        return [False for _ in self._get_indices(indices)]


def _rows(info: dict[str, Any], worlds: Sequence[int]) -> list[dict[str, Any]]:
    """The info of some environments, each in the form of a single one."""
    keys = [key for key in info if not key.startswith(("_", "final_"))]
    return [{key: info[key][world] for key in keys} for world in worlds]
