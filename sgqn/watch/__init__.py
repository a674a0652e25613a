"""The live view: agents acting, what they look at and how their runs learn, on a local web page."""

from __future__ import annotations

import functools
import os
import signal
import sys
import threading
import webbrowser
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from sgqn import attribution
from sgqn.envs.families import find_task
from sgqn.errors import Interrupted, InvalidValueError
from sgqn.inspect import Subject, check_comparable
from sgqn.signals import asked_to_stop
from sgqn.watch.learning import follow
from sgqn.watch.looker import Looker
from sgqn.watch.player import Actor, Player
from sgqn.watch.server import Server
from sgqn.watch.session import Session, Settings

PORT = 8765
MOST_AGENTS = 2


def watch(
    path: str | Path | Sequence[str | Path],
    shift: str | None = None,
    method: str | None = None,
    rho: float | None = None,
    seed: int = 0,
    host: str = "127.0.0.1",
    port: int = PORT,
    renderer: str = "auto",
    device: str = "cpu",
    browser: bool = True,
    say: Callable[[str], object] = functools.partial(print, flush=True),  # noqa: B008
) -> None:
    """Run the web server of the live view of an agent until a signal ends it with `Interrupted`.

    `path` is anything that `sgqn.load_agent` takes, or two of them: agents of one task, which play the same episodes
    next to each other. The page starts with `shift` (by default the task's hardest), `method` and `rho` (the first
    agent's own) and `seed`.
    """
    paths = [path] if isinstance(path, str | Path) else list(path)
    if not 1 <= len(paths) <= MOST_AGENTS:
        raise InvalidValueError(f"watch one RUN, or {MOST_AGENTS} next to each other, not {len(paths)}")
    subjects = [Subject.load(one, device) for one in paths]
    check_comparable(subjects)
    subject = subjects[0]
    task = subject.config.task
    begin = (shift or find_task(task).shifts[-1], method or subject.method, subject.rho if rho is None else rho)
    session = Session(Settings(*begin, seed=seed), task)
    with ExitStack() as stack:
        server = stack.enter_context(Server(session, host, port))
        actors, threads = [], list[threading.Thread]()
        for number, (one, shown) in enumerate(zip(paths, subjects, strict=True)):
            looker = Looker(session, number)
            actors.append(Actor(one, shown, session, looker, renderer, device, number))
            reading = {"home": shown.home, "session": session, "number": number}
            threads += [looker, threading.Thread(target=follow, kwargs=reading)]
        player = Player(session, actors)
        stack.callback(player.close)
        player.prepare()
        stack.enter_context(_at_work(session, *threads))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        stack.callback(server.shutdown)
        with _ended_by_signals(session):
            _announce(player, server, say)
            if browser:
                _open(server.url)
            player.run()


@contextmanager
def _at_work(session: Session, *threads: threading.Thread) -> Iterator[None]:
    """Run threads while the block runs; its end stops the session."""
    try:
        for thread in threads:
            thread.start()
        yield
    finally:
        session.stop()
        for thread in threads:
            if thread.ident is not None:
                thread.join()


def _announce(player: Player, server: Server, say: Callable[[str], object]) -> None:
    if not server.loopback:
        say(f"warning: everyone who can reach this machine at port {server.port} can watch and change what is shown")
    if missing := [name for name in attribution.METHODS if name not in attribution.available()]:
        say(f"not available without Captum: {', '.join(missing)} (pip install 'sgqn[explain]')")
    names = " and ".join(actor.subject.name for actor in player.actors)
    say(f"{names}, on {player.subject.config.task}: {server.url}")
    say("press Ctrl-C to stop")


def _open(url: str) -> None:
    """Open the page in a browser, if there is a display."""
    if sys.platform == "darwin" or os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"):
        threading.Thread(target=webbrowser.open, args=(url,), daemon=True).start()


@contextmanager
def _ended_by_signals(session: Session) -> Iterator[None]:
    """SIGTERM and Ctrl-C end the session, as `Interrupted` once all is closed; a second one stops at once."""
    stopped: list[int] = []

    def ask(by: signal.Signals) -> None:
        stopped.append(by)
        session.stop()

    with asked_to_stop(ask):
        yield
    if stopped:
        raise Interrupted("stopped", 128 + stopped[0])
