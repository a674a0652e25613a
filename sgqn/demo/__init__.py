"""`sgqn demo`: trained agents in the clean scene and in a distracting one, as a table, a web page and an animation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch

from sgqn import pretrained
from sgqn.demo.frames import Frames
from sgqn.demo.scene import Demo, Numbers, Scene, Shown, look_into
from sgqn.demo.web import TITLE, page, show, table
from sgqn.envs.checks import check_seed
from sgqn.envs.families import check_shift, find_task
from sgqn.errors import InvalidValueError
from sgqn.files import write_atomically
from sgqn.inspect import Report, Subject, check_comparable

__all__ = ["Demo", "Frames", "Numbers", "Scene", "Shown", "demo", "packaged", "page", "show", "table"]

MOST_STEPS = 250
"""Steps of an episode that are played by default."""
MOST_AGENTS = 2
PAGE, ANIMATION = "index.html", "demo.webp"


def packaged(task: str) -> list[str]:
    """The pretrained agents that the demo of a task shows: SGQN, next to the first other one."""
    return pretrained.of_task(task)[:MOST_AGENTS] or [pretrained.PREFIX + task]


def demo(
    path: str | Path | Sequence[str | Path] = "pretrained:walker-walk",
    out: str | Path = "demo",
    shift: str | None = None,
    steps: int | None = None,
    seed: int = 0,
    renderer: str = "auto",
    report: Report = lambda what, done, total: None,
) -> Demo:
    """Play an episode in the clean scene and under `shift`, by default the hardest; write a page and an animation.

    `path` is anything that `sgqn.load_agent` takes, or two of them: agents of one task, which play the same episodes
    next to each other. Everything is computed on the CPU.
    """
    out = Path(out)
    paths = [path] if isinstance(path, str | Path) else list(path)
    _check(paths, out, steps, seed)
    with _one_thread():
        subjects = [Subject.load(one) for one in paths]
        check_comparable(subjects)
        task, most = subjects[0].config.task, subjects[0].config.episode_steps
        training, *_, hardest = find_task(task).shifts
        shift = check_shift(task, shift or hardest)
        if shift == training:
            raise InvalidValueError(f"{shift!r} is the clean scene: choose a distracting one with --shift")
        if steps is not None and steps > most:
            raise InvalidValueError(f"steps must be at most {most}, the steps of an episode, not {steps}")
        count = steps or min(most, MOST_STEPS)
        agents = []
        for number, (source, subject) in enumerate(zip(paths, subjects, strict=True), start=1):
            of = f"agent {number}, " if len(paths) > 1 else ""
            clean, other = (look_into(subject, name, count, seed, renderer, report, of) for name in (training, shift))
            agents.append(Shown(str(source), subject, (clean, other)))
    shown = Demo(tuple(agents), out / PAGE, out / ANIMATION)
    frames = Frames(shown)
    video, animation = frames.video(report), frames.animation(report)
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(shown.animation, animation)
    write_atomically(shown.page, page(shown, video, animation))
    return shown


def _check(paths: Sequence[str | Path], out: Path, steps: int | None, seed: int) -> None:
    if not 1 <= len(paths) <= MOST_AGENTS:
        raise InvalidValueError(f"the demo shows one agent or {MOST_AGENTS} next to each other, not {len(paths)}")
    if out.exists() and not out.is_dir():
        raise InvalidValueError(f"{out} is not a folder: choose another --out")
    if any((out / name).exists() for name in (PAGE, ANIMATION)) and not _is_demo(out / PAGE):
        raise InvalidValueError(f"{out} holds an {PAGE} or {ANIMATION} that is no demo: choose another --out")
    if steps is not None and steps < 1:
        raise InvalidValueError(f"steps must be at least 1, not {steps}")
    check_seed(seed)


def _is_demo(page: Path) -> bool:
    """Whether an earlier demo wrote this page."""
    if not page.is_file():
        return False
    with open(page, "rb") as file:
        return TITLE.encode() in file.read(1000)


@contextmanager
def _one_thread() -> Iterator[None]:
    """One observation at a time is too little work for several threads: on busy cores they wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
