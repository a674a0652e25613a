"""Where the agent looks: attributions in a thread of their own, so that slow methods hold up nothing else."""

from __future__ import annotations

import copy
import inspect
import threading
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sgqn import attribution, saliency
from sgqn.agents import Agent
from sgqn.errors import SgqnError
from sgqn.explain import Block, Subject, inferno, overlaid
from sgqn.watch.pictures import finite, png
from sgqn.watch.session import Session, Start

AT_ONCE = 32
"""Pictures in one pass of a slow method: few, so that it soon notices that nobody waits for it any more."""
PROGRESS_EVERY = 0.2


@dataclass(frozen=True, eq=False)
class Moment:
    """One step of an episode, as the agent's networks see it."""

    subject: Subject
    start: Start
    step: int
    seen: Tensor  # (1, C, H, W) uint8
    action: Tensor  # (1, A)
    body: Tensor  # (1, 1, H, W) bool: the controlled system in the newest frame, by the simulator


class _Outdated(Exception):
    """Another method or episode was chosen while the attribution ran."""


class Looker(threading.Thread):
    """Attributes the newest moment by the chosen method, then the then newest, and publishes part `look`.

    A moment that has passed is finished all the same, or a slow method would never have a result. Another rho needs no
    new attribution.
    """

    def __init__(self, session: Session):
        super().__init__(name="looker", daemon=True)
        self._session = session
        self._moment: Moment | None = None
        self._done: tuple[Any, ...] = ()
        self._progress: dict[str, Any] | None = None
        self._copy: tuple[Subject, Agent] | None = None

    def show(self, moment: Moment) -> None:
        with self._session.changed:
            self._moment = moment
            self._session.changed.notify_all()

    def run(self) -> None:
        session = self._session
        heat = torch.empty(0)
        while True:
            with session.changed:
                session.changed.wait_for(lambda: session.stopped or self._wanted() != self._done)
                if session.stopped:
                    return
                moment, method, rho = wanted = self._wanted()
            if wanted[:2] != self._done[:2]:
                try:
                    heat = self._attribute(moment, method)
                except _Outdated:
                    continue
                except Exception as error:  # whatever it is, the page tells it and the simulation goes on
                    session.publish("look", {"method": method, "error": _reason(error)}, only_for=moment.start)
                    self._done = wanted
                    continue
                finally:
                    self._report(None)
            session.publish("look", look(moment, heat, method, rho), only_for=moment.start)
            self._done = wanted

    def _wanted(self) -> tuple[Any, ...]:
        """What is to be looked at: moment, method, rho."""
        settings = self._session.settings
        return () if self._moment is None else (self._moment, settings.method, settings.rho)

    def _attribute(self, moment: Moment, method: str) -> Tensor:
        """The attribution of the newest frame, (1, 3, H, W) on the host."""
        session, chosen = self._session, attribution.get(method)
        last = time.monotonic()

        def on_step(done: int, total: int) -> None:
            nonlocal last
            if session.stopped or session.settings.method != method or session.start != moment.start:
                raise _Outdated
            if time.monotonic() - last > PROGRESS_EVERY:
                last = time.monotonic()
                self._report({"method": method, "step": moment.step, "done": done, "total": total})

        options = {"on_step": on_step, "batch_size": AT_ONCE}
        takes = inspect.signature(chosen).parameters
        options = {name: value for name, value in options.items() if name in takes}
        q = saliency.q_of(self._own(moment.subject))
        heat: Tensor = chosen(q, moment.seen, moment.action, **options)
        return heat[:, -3:].float().cpu()

    def _report(self, progress: dict[str, Any] | None) -> None:
        if progress != self._progress:
            self._progress = progress
            self._session.publish("progress", progress)

    def _own(self, subject: Subject) -> Agent:
        """A copy of the agent: some methods hang hooks on its networks, which act in another thread meanwhile."""
        if self._copy is None or self._copy[0] is not subject:
            self._copy = subject, copy.deepcopy(subject.agent)
        return self._copy[1]


def look(moment: Moment, heat: Tensor, method: str, rho: float) -> dict[str, Any]:
    """Pictures of an attribution (1, 3, H, W) and of its mask, and how much of the mask lies on the body."""
    mask = attribution.quantile_mask(heat, rho)
    block = Block(
        moment.subject,
        moment.start.shift,
        method,
        rho,
        observation=moment.seen[:, -3:].permute(0, 2, 3, 1).cpu().numpy(),
        attribution=heat.abs().amax(dim=1).nan_to_num().numpy(),
        mask=mask[:, -1].numpy(),
        predicted=None,
    )
    return {
        "method": method,
        "rho": rho,
        "step": moment.step,
        "attribution": png(inferno(block.attribution[0] / block.scale)),
        "mask": png(overlaid(block.observation[0], block.mask[0])),
        "scale": finite(block.scale),
        "kept": float(block.mask.mean()),
        "share": finite(float(saliency.mask_share(mask, moment.body))),
        "chance": finite(float(saliency.base_rate(moment.body))),
    }


def _reason(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, SgqnError) else f"{type(error).__name__}: {text[:300]}"
