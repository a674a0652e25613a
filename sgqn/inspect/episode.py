"""Playing an episode: the one loop over a single environment."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from sgqn.attribution import OnStep
from sgqn.augmentations import center_crop
from sgqn.envs.env import PixelEnv, make
from sgqn.inspect.subject import Subject


class Observed(NamedTuple):
    """The observation before an action."""

    obs: np.ndarray  # (C, H, W) uint8
    info: dict[str, Any]
    reward: float
    """Reward of the action that led here; 0 at the start."""
    over: bool
    """Whether the episode has ended: no action follows."""


def roll(env: Any, act: Callable[[np.ndarray], Any], seed: int | None = None, episode: int = 0) -> Iterator[Observed]:
    """An episode of a Gymnasium environment, from the first observation to the last.

    `act(obs)` is called when the next observation is asked for. Without a seed, the environment's next episode.
    """
    obs, info = env.reset(seed=seed, options={"episode": episode} if episode else None)
    reward, over = 0.0, False
    while True:
        yield Observed(obs, info, reward, over)
        if over:
            return
        obs, reward, terminated, truncated, info = env.step(act(obs))
        over = terminated or truncated


class Step(NamedTuple):
    """A step of an agent's episode; tensors are batches of one."""

    number: int
    seen: Tensor  # (1, C, H, W) uint8, as its networks see it
    action: Tensor  # (1, A), the action that it prefers
    truth: Tensor | None
    """The controlled system in each stacked frame, (1, frames, H, W) bool on the CPU, where the environment has it."""
    reward: float
    """Reward of the previous action; 0 at the start."""
    over: bool


def environment(subject: Subject, shift: str, seed: int = 0, renderer: str = "auto", truth: bool = False) -> PixelEnv:
    """The agent's environment in a shift; `truth`: with ground-truth masks."""
    config = subject.config
    return make(
        config.task,
        shift,
        seed,
        renderer,
        action_repeat=config.action_repeat,
        image_size=subject.agent.spec.render_size,
        frame_stack=config.frame_stack,
        masks=truth,
    )


def steps(
    subject: Subject, env: PixelEnv, seed: int = 0, episode: int = 0, actions: Tensor | None = None
) -> Iterator[Step]:
    """An episode with the agent's deterministic actions, or the given ones; the last step is the final observation."""
    agent = subject.agent
    chosen = torch.empty(0)

    def act(_: np.ndarray) -> np.ndarray:
        return chosen.cpu().numpy()

    for number, found in enumerate(roll(env, act, seed, episode)):
        shown = torch.from_numpy(found.obs.copy())[None].to(agent.device)
        truth = torch.from_numpy(found.info["mask"].copy())[None] if "mask" in found.info else None
        step = Step(
            number,
            center_crop(shown, agent.spec.image_size),
            agent.act(shown, deterministic=True),
            None if truth is None else center_crop(truth, agent.spec.image_size),
            found.reward,
            found.over,
        )
        chosen = step.action[0] if actions is None else actions[min(number, len(actions) - 1)]
        yield step


class Episode(NamedTuple):
    """An episode of an agent: the observation before each action as input of its networks, and its preferred action."""

    seen: Tensor  # (T, C, H, W) uint8
    actions: Tensor  # (T, A)
    rewards: np.ndarray  # (T,)
    fps: int
    renderer: str
    backgrounds: str
    truth: Tensor | None = None  # (T, frames, H, W) bool: the controlled system, where it was asked for


def play(
    subject: Subject,
    shift: str,
    seed: int = 0,
    renderer: str = "auto",
    count: int | None = None,
    actions: Tensor | None = None,
    truth: bool = False,
    on_step: OnStep | None = None,
) -> Episode:
    """Episode 0 of the seed, or its first `count` steps, with the agent's own actions or the given ones.

    `truth`: also which pixels show the controlled system. `on_step(done, total)` reports progress.
    """
    total = count or (subject.config.episode_steps if actions is None else len(actions))
    met: list[Step] = []
    rewards: list[float] = []
    env = environment(subject, shift, seed, renderer, truth)
    try:
        for step in steps(subject, env, seed, actions=actions):
            if step.number > 0:
                rewards.append(step.reward)
                if on_step is not None:
                    on_step(len(rewards), total)
            if step.over or len(rewards) == total:
                break
            met.append(step)
        about = env.metadata
    finally:
        env.close()
    bodies = [step.truth for step in met if step.truth is not None]
    return Episode(
        torch.cat([step.seen for step in met]),
        torch.cat([step.action for step in met]),
        np.array(rewards),
        max(1, about["render_fps"]),
        about["renderer"],
        about["backgrounds"],
        torch.cat(bodies).to(subject.agent.device) if bodies else None,
    )
