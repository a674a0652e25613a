"""The agent at play: one simulation, which everyone who opens the page sees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from sgqn import attribution, saliency
from sgqn import run as runs
from sgqn.augmentations import center_crop
from sgqn.envs.env import PixelEnv, make
from sgqn.envs.tasks import SHIFTS
from sgqn.errors import SgqnError
from sgqn.explain import Subject, grey
from sgqn.watch.looker import Looker, Moment
from sgqn.watch.pictures import finite, png
from sgqn.watch.session import Session, Start

PAUSE_AFTER = 1.5
"""Seconds for which the end of an episode stays, at speed 1."""


class Player:
    """Plays the episode that the session asks for, then the next of its seed, always with the newest checkpoint.

    All of it happens in the thread that calls `prepare` and `run`: an OpenGL context belongs to one.
    """

    def __init__(self, path: str | Path, session: Session, looker: Looker, renderer: str = "auto", device: str = "cpu"):
        self._path, self._renderer, self._device = path, renderer, device
        self._session, self._looker = session, looker
        self._folder = runs.find(path)
        self.subject = Subject.load(self._folder, device)
        self._env: PixelEnv | None = None
        self._made_for: tuple[Any, ...] = ()
        self._publish_run()

    def run(self) -> None:
        """Until the session stops. What can't be played is said on the page, which may then choose something else."""
        session = self._session
        try:
            while not session.stopped:
                start = session.start
                try:
                    self._refresh()
                    self._play(start)
                except SgqnError as error:
                    session.publish("busy", None)
                    session.publish("note", str(error))
                    session.wait_other(start)
        finally:
            self.close()

    def prepare(self) -> None:
        """Build the first environment: what is wrong with it is an error here, and a note on the page later."""
        self._environment(self._session.start.shift)

    def close(self) -> None:
        if self._env is not None:
            self._env.close()
            self._env, self._made_for = None, ()

    def _refresh(self) -> None:
        """Take the run's newest checkpoint; one that can't be read changes nothing."""
        self._session.publish("note", None)
        try:
            newest = runs.find(self._path)
            if newest != self._folder:
                self.subject = Subject.load(newest, self._device)
                self._folder = newest
                self._publish_run()
        except (SgqnError, OSError) as error:
            self._session.publish("note", f"still the agent of step {self.subject.step:,}: {error}")

    def _environment(self, shift: str) -> PixelEnv:
        config, size = self.subject.config, self.subject.agent.spec.render_size
        wanted = (config.task, shift, config.action_repeat, size, config.frame_stack)
        if self._env is None or wanted != self._made_for:
            self.close()
            self._env = make(
                config.task,
                shift,
                renderer=self._renderer,
                action_repeat=config.action_repeat,
                image_size=size,
                frame_stack=config.frame_stack,
                masks=True,
            )
            self._made_for = wanted
        return self._env

    def _play(self, start: Start) -> None:
        """One episode, or its beginning if another one is chosen."""
        session = self._session
        session.publish("busy", f"preparing {start.shift}")
        session.publish("look", None, only_for=start)
        env = self._environment(start.shift)
        rewards: list[float] = []
        values: list[float] = []
        over = False
        obs, info = env.reset(seed=start.seed, options={"episode": start.episode})
        session.publish("busy", None)
        while True:
            moment = self._moment(start, len(rewards), obs, info["mask"])
            values.append(self._value(moment))
            session.publish("frame", self._frame(moment, rewards, values, over) | _made_by(info), only_for=start)
            self._looker.show(moment)
            if over:
                break
            if not session.wait_turn(start, 1 / max(1, env.metadata["render_fps"])):
                return
            obs, reward, terminated, truncated, info = env.step(moment.action[0].cpu().numpy())
            rewards.append(reward)
            over = terminated or truncated
        if session.wait_turn(start, PAUSE_AFTER):
            session.next_episode(start)

    def _moment(self, start: Start, step: int, obs: np.ndarray, mask: np.ndarray) -> Moment:
        agent = self.subject.agent
        shown = torch.from_numpy(obs.copy()).to(agent.device)[None]
        seen, body = (
            center_crop(part, agent.spec.image_size) for part in (shown, torch.from_numpy(mask[-1:].copy())[None])
        )
        return Moment(self.subject, start, step, seen, agent.act(shown, deterministic=True), body)

    @torch.no_grad()
    def _value(self, moment: Moment) -> float:
        return float(saliency.q_of(moment.subject.agent)(moment.seen, moment.action))

    @torch.no_grad()
    def _frame(self, moment: Moment, rewards: list[float], values: list[float], over: bool) -> dict[str, Any]:
        """What is to be seen of a moment, and of the episode until then; values have that of the moment itself too."""
        agent, start = moment.subject.agent, moment.start
        guess = None
        if hasattr(agent, "decoder"):
            chances = agent.mask_probabilities(moment.seen, moment.action)
            guess = png(grey(chances[0, -3:].mean(dim=0).cpu().numpy()))
        return {
            "shift": start.shift,
            "seed": start.seed,
            "episode": start.episode,
            "step": moment.step,
            "steps": moment.subject.config.episode_steps,
            "over": over,
            "return": finite(sum(rewards)),
            "value": finite(values[-1]),
            "rewards": [finite(round(reward, 6)) for reward in rewards],
            "values": [finite(round(value, 6)) for value in values],
            "observation": png(moment.seen[0, -3:].permute(1, 2, 0).cpu().numpy()),
            "predicted": guess,
            "body": png(grey(moment.body[0, 0].numpy())),
            "body_share": float(moment.body.float().mean()),
        }

    def _publish_run(self) -> None:
        config = self.subject.config
        self._session.publish(
            "run",
            {
                "task": config.task,
                "agent": config.agent,
                "seed": config.seed,
                "step": self.subject.step,
                "shifts": SHIFTS,
                "methods": attribution.available(),
            },
        )


def _made_by(info: dict[str, Any]) -> dict[str, str]:
    return {name: info[name] for name in ("renderer", "backgrounds")}
