"""The agent interface for training, evaluation and inspection."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from sgqn.attribution.mask import quantile_mask
from sgqn.errors import InvalidValueError, SgqnError
from sgqn.reading import integer, mapping
from sgqn.replaceable import replaceable
from sgqn.replay import Batch

Metrics = dict[str, Tensor]
Losses = dict[str, Tensor]
Array = TypeVar("Array", np.ndarray, Tensor)


@dataclass(frozen=True)
class Spec:
    """Sizes that an agent is built for. Some agents get `render_size` pixels and crop them to `image_size`."""

    action_dim: int
    """Size of a continuous action, or the number of discrete actions."""
    channels: int = 9
    image_size: int = 84
    render_size: int = 84
    discrete: bool = False

    @classmethod
    def from_dict(cls, values: Any) -> Spec:
        """The sizes that were written to a file."""
        if more := mapping(values, "spec").keys() - {one.name for one in fields(cls)}:
            raise ValueError(f"spec has no {min(more)}")
        for name in values.keys() | {"action_dim"}:
            if name != "discrete":
                integer(values.get(name), name, 1, 1 << 20)
            elif not isinstance(values[name], bool):
                raise ValueError(f"discrete must be true or false, not {values[name]!r}")
        return cls(**values)

    def action_vector(self, action: Tensor) -> Tensor:
        """Actions as vectors (B, action_dim): discrete actions (B,) are one-hot encoded, continuous ones unchanged."""
        if not self.discrete:
            return action
        # F.one_hot looks at the values on some devices, and an update may not.
        return (action[:, None] == torch.arange(self.action_dim, device=action.device)).float()

    def check_actions(self, action: Tensor, count: int) -> None:
        """Raise an error unless `action` is a batch of `count` actions."""
        shape = (count,) if self.discrete else (count, self.action_dim)
        if action.shape != shape:
            raise InvalidValueError(f"expected actions of shape {shape}, not {(*action.shape,)}")
        if action.device.type == "cpu" and not action.isfinite().all():  # on a GPU, the host would have to wait
            raise InvalidValueError(f"actions must be finite numbers, not {action.tolist()}")
        if self.discrete and action.device.type == "cpu" and not ((action >= 0) & (action < self.action_dim)).all():
            raise InvalidValueError(f"actions must be integers from 0 to {self.action_dim - 1}, not {action.tolist()}")


class Intervals(NamedTuple):
    """Number of updates between two actor, target and auxiliary steps."""

    actor: int = 1
    targets: int = 1
    auxiliary: int = 1


class Phase(NamedTuple):
    """Which parts of an update run. The trainer decides this before the update starts."""

    actor: bool = True
    targets: bool = True
    auxiliary: bool = True


class Agent(nn.Module):
    """Networks, optimizers and random generators; independent of environments, loggers and files.

    A subclass implements `make_optimizers`, `learn` and `policy`. `batch_size` is the number of transitions per update,
    `discount` the discount factor, `n_steps` the number of steps of n-step returns, `update_every` the number of agent
    steps per update.
    """

    discount = 0.99
    n_steps = 1
    update_every = 1
    intervals = Intervals()

    def __init__(self, spec: Spec, batch_size: int = 128):
        super().__init__()
        self.spec = spec
        self.batch_size = batch_size
        self.task: str | None = None  # where a loaded agent was trained,
        self.action_repeat: int | None = None  # and with which action repeat
        self.optimizers: dict[str, torch.optim.Optimizer] = {}
        self.generator = torch.Generator()
        self.preparer = torch.Generator()  # for what `prepare` draws

    def make_optimizers(self) -> None:
        """Fill `self.optimizers`. Called once, when the networks have moved to their device."""
        raise NotImplementedError

    def update(self, batch: Batch, phase: Phase = Phase()) -> Metrics:  # noqa: B008
        """One update: tensors in, tensors out, so that it can be captured in a CUDA graph."""
        return self.learn(self.prepare(batch), phase)

    def prepare(self, batch: Batch) -> Batch:
        """The part of an update that needs no weights. It may run in parallel with the previous update."""
        return batch

    def learn(self, batch: Batch, phase: Phase = Phase()) -> Metrics:  # noqa: B008
        """The rest of an update; returns metrics, scalars by name (losses as `loss/NAME`)."""
        raise NotImplementedError

    def sample_size(self, phase: Phase) -> int:
        """Number of transitions that `update` takes in this phase."""
        del phase
        return self.batch_size

    def policy(self, obs: Tensor, deterministic: bool) -> Tensor:
        """Actions for observations (B, C, H, W): (B, A) in [-1, 1], or integers (B,) where they are discrete."""
        raise NotImplementedError

    def value(self, obs: Tensor, action: Tensor) -> Tensor:
        """The value that attributions explain, (B,), for observations (B, C, H, W) of the networks' image size.

        Q(s, a) for agents with a critic. By default the inner product <pi(s), a>.
        """
        preferred = self.policy(obs, deterministic=True)
        if not preferred.is_floating_point():
            raise SgqnError(f"{type(self).__name__} has discrete actions and no value(obs, action) to explain")
        return (preferred * action).sum(dim=1)

    @property
    def explained_by(self) -> str:
        """The default attribution method for this agent."""
        return "guided_backprop"

    @property
    def rho(self) -> float | None:
        """The quantile of its attribution mask; None if it learns without a mask."""
        return None

    def mask_of(self, attribution: Tensor, rho: float) -> Tensor:
        """The mask of an attribution (B, C, H, W): boolean, or in [0, 1] for agents that learn with soft masks."""
        return quantile_mask(attribution, rho)

    @property
    def predicts_masks(self) -> bool:
        """Whether it has a decoder M_theta for `mask_probabilities` and `predict_mask`."""
        return False

    def mask_probabilities(self, obs: Tensor, action: Tensor) -> Tensor:
        """The mask predicted by the decoder M_theta: (B, C, H, W) in [0, 1]."""
        raise SgqnError(f"{type(self).__name__} has no attribution decoder: it does not learn to predict masks")

    def restored(self, obs: Tensor) -> Tensor | None:
        """What the networks get in place of observations (B, C, H, W), in [0, 255]; None if they get these."""
        return None

    def start_from(self, trained: Agent) -> None:
        """Replace the fresh weights by those of a trained agent, before training starts."""
        copy_weights(self, trained)

    def left_out(self) -> dict[str, str | None]:
        """Weights that are not exported, because only training needs them: each with the name of the weight whose copy
        replaces it when the agent is loaded, or None to keep the initial weight."""
        return {}

    @torch.no_grad()
    def act(self, obs: Array, deterministic: bool = True) -> Array:
        """The action for one observation (C, H, W), or the actions for a batch of them; numpy in, numpy out."""
        batch, single = self._as_batch(obs)
        action = self.policy(batch, deterministic)
        return self._like(obs, action[0] if single else action)

    @torch.no_grad()
    def predict_mask(self, obs: Array, action: Array) -> Array:
        """The decoder's prediction of the attribution mask, in [0, 1], like `obs`; no backward pass."""
        batch, single = self._as_batch(obs)
        given = torch.as_tensor(action, dtype=torch.int64 if self.spec.discrete else torch.float32)
        actions = given[None] if single else given
        self.spec.check_actions(actions, len(batch))
        mask = self.mask_probabilities(batch, actions.to(batch.device))
        return self._like(obs, mask[0] if single else mask)

    @property
    def device(self) -> torch.device:
        return next(self.parameters()).device

    def _as_batch(self, obs: np.ndarray | Tensor) -> tuple[Tensor, bool]:
        tensor = torch.as_tensor(obs, device=self.device)
        shape = (self.spec.channels, self.spec.render_size, self.spec.render_size)
        if tensor.ndim not in (3, 4) or tensor.shape[-3:] != shape:
            raise InvalidValueError(f"this agent sees observations {shape} or a batch of them, not {(*tensor.shape,)}")
        if tensor.is_floating_point() and tensor.numel() > 0:
            brightest = float(tensor.max())
            if 0 < brightest <= 1 or not math.isfinite(brightest):
                raise InvalidValueError(
                    f"observations are bytes, 0 to 255, and the brightest of these {tensor.dtype} is {brightest:g}: "
                    "pass them as the environment gives them" + ", or multiply by 255" * (brightest <= 1)
                )
        return (tensor[None], True) if tensor.ndim == 3 else (tensor, False)

    @staticmethod
    def _like(given: Any, result: Tensor) -> Any:
        return result if isinstance(given, Tensor) else result.cpu().numpy()


def copy_weights(target: nn.Module, source: nn.Module) -> None:
    """Load the weights of another module, which must have the same names and shapes."""
    wanted, found = target.state_dict(), source.state_dict()
    for name in [*wanted, *found]:
        here, there = (tuple(of[name].shape) if name in of else "missing" for of in (wanted, found))
        if here != there:
            why = f"{name} is {there} there and {here} here"
            raise InvalidValueError(f"the weights of the trained agent do not fit: {why}")
    target.load_state_dict(found)


def minimize(optimizer: torch.optim.Optimizer, losses: Losses, max_norm: float | None = None) -> Metrics:
    """One gradient step on the sum of the losses, only for the optimizer's own parameters.

    With `max_norm`, the gradient is clipped to this norm, and the metrics have the norm before clipping.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    optimizer.zero_grad(set_to_none=True)
    torch.autograd.backward(list(losses.values()), inputs=parameters)
    metrics = {f"loss/{name}": loss.detach() for name, loss in losses.items()}
    if max_norm is not None:
        metrics["gradient_norm"] = nn.utils.clip_grad_norm_(parameters, max_norm)
    optimizer.step()
    return metrics


class Adam(torch.optim.Adam):
    """PyTorch's Adam. With `warmup`, its learning rates rise linearly to their values in this number of steps; with
    `decay`, they fall linearly to zero from the first step to this one."""

    warmup = 0
    decay = 0

    def step(self, closure: Callable[[], float] | None = None) -> Any:
        if not self.warmup and not self.decay:
            return super().step(closure)
        rates = [group["lr"] for group in self.param_groups]
        share = self._share(self._steps())
        try:
            for group, rate in zip(self.param_groups, rates, strict=True):
                group["lr"] = rate * share
            return super().step(closure)
        finally:
            for group, rate in zip(self.param_groups, rates, strict=True):
                group["lr"] = rate

    def _share(self, steps: Tensor) -> Tensor:
        """The learning rate of a step relative to the full one: a tensor, because steps are captured in graphs."""
        share = torch.ones_like(steps)
        if self.warmup:
            share = share * (steps + 1).div(self.warmup).clamp(max=1)
        if self.decay:
            share = share * (1 - steps / self.decay).clamp(min=0)
        return share

    def progress(self) -> Tensor:
        """The share of `decay` that has passed, a scalar in [0, 1]."""
        return (self._steps() / max(self.decay, 1)).clamp(max=1)

    def _steps(self) -> Tensor:
        """The number of steps so far, a scalar."""
        first = self.param_groups[0]["params"][0]
        return self.state[first]["step"] if self.state[first] else first.new_zeros(())


@replaceable
def make_adam(parameters: Sequence[Tensor], learning_rate: float, beta: float) -> Adam:
    return Adam(parameters, learning_rate, betas=(beta, 0.999), fused=True)


def adam(
    parameters: Iterable[Tensor],
    learning_rate: float,
    beta: float = 0.9,
    *,
    warmup: int = 0,
    decay: int = 0,
    scaled: Iterable[Tensor] = (),
    scale: float = 1.0,
) -> Adam:
    """Adam with the paper's settings. The learning rate of the parameters `scaled` is multiplied by `scale`."""
    optimizer = make_adam(list(parameters), learning_rate, beta)
    optimizer.warmup, optimizer.decay = warmup, decay
    (group,) = optimizer.param_groups
    apart = {id(tensor) for tensor in scaled} if scale != 1 else set()
    if own := [p for p in group["params"] if id(p) in apart]:
        group["params"] = [p for p in group["params"] if id(p) not in apart]
        optimizer.add_param_group({"params": own, "lr": scale * learning_rate})
    return optimizer
