"""Where the agent looks: attributions in a separate thread, so that slow methods delay nothing else."""

from __future__ import annotations

import copy
import threading
import time
from dataclasses import dataclass
from typing import Any

from sgqn.agents import Agent
from sgqn.errors import SgqnError
from sgqn.inspect import Look, Step, Subject, attribute
from sgqn.inspect.drawing import data_url, inferno, overlaid, png
from sgqn.inspect.look import newest
from sgqn.inspect.measures import base_rate, binary, mask_share
from sgqn.watch.session import Session, Start, finite, part_of

AT_ONCE = 32
"""Images in one pass of a slow method: few, so that it soon notices that its result is no longer wanted."""
PROGRESS_EVERY = 0.2


@dataclass(frozen=True, eq=False)
class Request:
    """A step of an episode to attribute."""

    subject: Subject
    start: Start
    step: Step


class _Outdated(Exception):
    """Another method or episode was chosen during the attribution."""


class Looker(threading.Thread):
    """Attributes the latest request with the chosen method, then the next one, and publishes part `look`.

    A request is finished even if a newer one arrives: otherwise slow methods would never have a result.
    Another rho needs no new attribution.
    """

    def __init__(self, session: Session, number: int = 0):
        super().__init__(name=part_of("looker", number), daemon=True)
        self._session, self._number = session, number
        self._request: Request | None = None
        self._done: tuple[Any, ...] = ()
        self._progress: dict[str, Any] | None = None
        self._copy: tuple[Subject, Agent] | None = None

    def show(self, request: Request) -> None:
        with self._session.changed:
            self._request = request
            self._session.changed.notify_all()

    def run(self) -> None:
        session = self._session
        look: Look | None = None
        while True:
            with session.changed:
                session.changed.wait_for(lambda: session.stopped or self._wanted() != self._done)
                if session.stopped:
                    return
                request, method, rho = wanted = self._wanted()
            try:
                if look is None or wanted[:2] != self._done[:2]:
                    look = None
                    look = self._look(request, method)
                part = shown(look, request, method, rho)
            except _Outdated:
                continue
            except Exception as error:  # the page shows any error, and the simulation continues
                part = {"method": method, "error": _reason(error)}
            finally:
                self._report(None)
            session.publish(part_of("look", self._number), part, only_for=request.start)
            self._done = wanted

    def _wanted(self) -> tuple[Any, ...]:
        """The next request, method and rho."""
        settings = self._session.settings
        return () if self._request is None else (self._request, settings.method, settings.rho)

    def _look(self, request: Request, method: str) -> Look:
        session, step = self._session, request.step
        last = time.monotonic()

        def on_step(done: int, total: int) -> None:
            nonlocal last
            if session.stopped or session.settings.method != method or session.start != request.start:
                raise _Outdated
            if time.monotonic() - last > PROGRESS_EVERY:
                last = time.monotonic()
                self._report({"method": method, "step": step.number, "done": done, "total": total})

        agent = self._own(request.subject)
        return Look(agent, step.seen, step.action, attribute(agent, step.seen, step.action, method, on_step, AT_ONCE))

    def _report(self, progress: dict[str, Any] | None) -> None:
        if progress != self._progress:
            self._progress = progress
            self._session.publish(part_of("progress", self._number), progress)

    def _own(self, subject: Subject) -> Agent:
        """A copy of the agent: some methods register hooks on its networks, which act in another thread meanwhile."""
        if self._copy is None or self._copy[0] is not subject:
            self._copy = subject, copy.deepcopy(subject.agent)
        return self._copy[1]


def shown(look: Look, request: Request, method: str, rho: float) -> dict[str, Any]:
    """Images of an attribution and of its mask, and how much of the mask lies on the body, for the newest frame."""
    images = look.images(rho)
    mask = binary(newest(look.mask(rho))).cpu()
    truth = request.step.truth
    body = None if truth is None else truth[:, -1:]
    return {
        "method": method,
        "rho": rho,
        "soft": images.soft,
        "step": request.step.number,
        "attribution": data_url(png(inferno(images.attribution[0] / images.scale), compress_level=3)),
        "mask": data_url(png(overlaid(images.observation[0], images.mask[0]), compress_level=3)),
        "scale": finite(images.scale),
        "kept": float(images.mask.mean()),
        "share": None if body is None else finite(float(mask_share(mask, body))),
        "chance": None if body is None else finite(float(base_rate(body))),
    }


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, SgqnError) else f"{type(error).__name__}: {text[:300]}"
