"""The agents acting: one simulation, which everyone who opens the page sees."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch

from sgqn import attribution, loading
from sgqn.envs.env import PixelEnv
from sgqn.envs.families import find_task
from sgqn.errors import SgqnError
from sgqn.inspect import Step, Subject, check_comparable, environment, predict, steps
from sgqn.inspect.drawing import data_url, grey, png
from sgqn.inspect.look import newest
from sgqn.watch.looker import Looker, Request
from sgqn.watch.session import Session, Start, finite, part_of

PAUSE_AFTER = 1.5
"""Seconds for which the end of an episode is shown, at speed 1."""


class Actor:
    """One agent with its environment; `number` tells its parts of the view from those of the other agents."""

    def __init__(
        self,
        path: str | Path,
        subject: Subject,
        session: Session,
        looker: Looker,
        renderer: str = "auto",
        device: str = "cpu",
        number: int = 0,
    ):
        self._path, self._renderer, self._device, self._number = path, renderer, device, number
        self._session, self._looker = session, looker
        self.subject = subject
        self._env: PixelEnv | None = None
        self._made_for: tuple[Any, ...] = ()
        self._publish_run()

    def close(self) -> None:
        if self._env is not None:
            self._env.close()
            self._env, self._made_for = None, ()

    @property
    def closed(self) -> bool:
        return self._env is None

    def refresh(self) -> None:
        """Load the run's latest checkpoint; an unreadable one is ignored."""
        try:
            newest_folder = loading.find(self._path)
            if newest_folder != self.subject.folder:
                self.subject = Subject.load(newest_folder, self._device)
                self._publish_run()
        except (SgqnError, OSError) as error:
            self._session.publish("note", f"still the agent of step {self.subject.step:,}: {error}")

    def environment(self, shift: str) -> PixelEnv:
        config, size = self.subject.config, self.subject.agent.spec.render_size
        wanted = (config.task, shift, config.action_repeat, size, config.frame_stack)
        if self._env is None or wanted != self._made_for:
            self.close()
            truth = find_task(config.task).family.has_masks(config.task)
            self._env = environment(self.subject, shift, renderer=self._renderer, truth=truth)
            self._made_for = wanted
        return self._env

    def play(self, start: Start) -> Iterator[Step]:
        """Publish an episode step by step."""
        session, env = self._session, self.environment(start.shift)
        made_by = {name: env.metadata[name] for name in ("renderer", "backgrounds")}
        rewards: list[float] = []
        values: list[float] = []
        for step in steps(self.subject, env, start.seed, start.episode):
            if step.number > 0:
                rewards.append(step.reward)
            values.append(self._value(step))
            frame = self._frame(start, step, rewards, values) | made_by
            session.publish(part_of("frame", self._number), frame, only_for=start)
            self._looker.show(Request(self.subject, start, step))
            yield step

    @torch.no_grad()
    def _value(self, step: Step) -> float:
        return float(self.subject.agent.value(step.seen, step.action))

    def _frame(self, start: Start, step: Step, rewards: list[float], values: list[float]) -> dict[str, Any]:
        """The data of a step and of the episode so far, for the page; `values` has one more than `rewards`."""
        predicted = predict(self.subject.agent, step.seen, step.action)
        body = None if step.truth is None else step.truth[0, -1].numpy()
        return {
            "shift": start.shift,
            "seed": start.seed,
            "episode": start.episode,
            "step": step.number,
            "steps": self.subject.config.episode_steps,
            "over": step.over,
            "return": finite(sum(rewards)),
            "value": finite(values[-1]),
            "rewards": [finite(round(reward, 6)) for reward in rewards],
            "values": [finite(round(value, 6)) for value in values],
            "observation": _image(newest(step.seen)[0].permute(1, 2, 0).cpu().numpy()),
            "predicted": None if predicted is None else _image(grey(newest(predicted)[0].mean(dim=0).cpu().numpy())),
            "body": None if body is None else _image(grey(body)),
            "body_share": None if body is None else float(body.mean()),
        }

    def _publish_run(self) -> None:
        config = self.subject.config
        self._session.publish(
            part_of("run", self._number),
            {
                "task": config.task,
                "agent": config.agent,
                "seed": config.seed,
                "step": self.subject.step,
                "shifts": find_task(config.task).shifts,
                # The run's own may have arguments, which are not listed.
                "methods": list(dict.fromkeys([*attribution.available(), self._session.settings.method])),
            },
        )


class Player:
    """Plays the session's episode with all actors, then the next of its seed, always with their latest checkpoints.

    The actors step together: each plays the same episode. Everything happens in the thread that calls `prepare` and
    `run`: an OpenGL context belongs to one thread.
    """

    def __init__(self, session: Session, actors: Sequence[Actor]):
        check_comparable([actor.subject for actor in actors])
        self._session, self.actors = session, list(actors)

    @property
    def subject(self) -> Subject:
        return self.actors[0].subject

    def run(self) -> None:
        """Play until the session stops. Errors are shown on the page, where other settings can be chosen."""
        session = self._session
        try:
            while not session.stopped:
                start = session.start
                try:
                    session.publish("note", None)
                    for actor in self.actors:
                        actor.refresh()
                    self._play(start)
                except SgqnError as error:
                    session.publish("busy", None)
                    session.publish("note", str(error))
                    session.wait_other(start)
        finally:
            self.close()

    def prepare(self) -> None:
        """Build the first environments: a failure is an error here, and a note on the page later."""
        for actor in self.actors:
            actor.environment(self._session.start.shift)

    def close(self) -> None:
        for actor in self.actors:
            actor.close()

    def _play(self, start: Start) -> None:
        """One episode, or its beginning if another one is chosen; who is done first waits for the others."""
        session = self._session
        session.publish("busy", f"preparing {start.shift}")
        for number in range(len(self.actors)):
            session.publish(part_of("look", number), None, only_for=start)
        fps = max(1, self.actors[0].environment(start.shift).metadata["render_fps"])
        for met in zip_longest(*(actor.play(start) for actor in self.actors)):
            if met[0] is not None and met[0].number == 0:
                session.publish("busy", None)
            if any(step is not None and not step.over for step in met) and not session.wait_turn(start, 1 / fps):
                return
        if session.wait_turn(start, PAUSE_AFTER):
            session.next_episode(start)


def _image(image: Any) -> str:
    """An image at its own size, as a data URL: the page enlarges it."""
    return data_url(png(image, compress_level=3))
