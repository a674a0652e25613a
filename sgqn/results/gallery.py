"""Sheets of what the agents of a task look at: the same time steps for all, one agent per row."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image, ImageDraw

from sgqn.envs.families import find_task
from sgqn.errors import SgqnError
from sgqn.inspect import Episode, Images, Subject, look_at, play
from sgqn.inspect.drawing import grey, inferno, paste, png, text
from sgqn.results.document import Look, Sheet, slug
from sgqn.results.runs import Run, with_settings
from sgqn.results.tables import agents_of, title_of

MOMENTS = (0.1, 0.35)
"""Where in an episode."""
COLUMNS = ("observation", "attribution", "mask", "predicted mask")
CELL, GAP, BETWEEN, NAMES, HEAD, ROW, MARGIN = 168, 10, 36, 300, 92, 178, 8
"""In pixels of the sheet."""
INK, GREY, PALE = (29, 33, 41), (104, 112, 125), (240, 242, 245)


class Row(NamedTuple):
    """One agent and what it looks at."""

    subject: Subject
    images: Images


OnShare = Callable[[float], None]
"""Called with the share of the work that is done, from 0 to 1."""


def choose(runs: Iterable[Run]) -> list[Run]:
    """For every agent of one task, the run to show: with weights, preferably with the paper's settings, seed 0 first.

    All have the same action repeat as the first, so that time steps match.
    """
    there = [run for run in runs if run.weights]
    own = with_settings(there)
    chosen: list[Run] = []
    for agent in reversed(agents_of(there)):  # SGQN is the last of the paper's, and plays the episode
        of_agent = [run for run in there if run.agent == agent]
        best = min(of_agent, key=lambda run: (run not in own, run.seed))
        if not chosen or best.config.episode_steps == chosen[0].config.episode_steps:
            chosen.append(best)
    return chosen


def sheets(
    runs: Sequence[Run],
    shifts: Sequence[str],
    warnings: list[str],
    seed: int = 0,
    renderer: str = "auto",
    device: str = "cpu",
    on_share: OnShare = lambda share: None,
) -> list[Sheet]:
    """A sheet for each shift, of runs of one task. An agent that cannot be loaded is left out, with a warning."""
    subjects = []
    for run in runs:
        if run.weights is None:
            continue
        try:
            subjects.append(Subject.load(run.weights, device))
        except SgqnError as error:
            warnings.append(f"not in the gallery: {error}")
    sheets = []
    for number, shift in enumerate(shifts if subjects else ()):

        def say(share: float, number: int = number) -> None:
            on_share((number + share) / len(shifts))

        try:
            sheets.append(_sheet(subjects, shift, seed, renderer, say))
        except SgqnError as error:
            warnings.append(f"no gallery of {subjects[0].config.task} in {shift}: {error}")
    return sheets


def _sheet(subjects: Sequence[Subject], shift: str, seed: int, renderer: str, say: OnShare) -> Sheet:
    task, length = subjects[0].config.task, subjects[0].config.episode_steps
    moments = np.unique([int(share * length) for share in MOMENTS])
    played: dict[tuple[int, int, int], Episode] = {}
    rows = []
    for number, subject in enumerate(subjects):
        eyes = (subject.agent.spec.render_size, subject.agent.spec.image_size, subject.config.frame_stack)
        if eyes not in played:
            first = next(iter(played.values()), None)
            steps = int(moments[-1]) + 1
            actions = first.actions if first else None

            def on_step(done: int, total: int, number: int = number) -> None:
                say((number + 0.9 * done / total) / len(subjects))

            played[eyes] = play(subject, shift, seed, renderer, steps, actions, on_step=on_step)
        rows.append(_look(subject, played[eyes], moments))
        say((number + 1) / len(subjects))
    episode = next(iter(played.values()))
    caption = (
        f"An episode of {title_of(subjects[0].config.agent)} with seed {seed}; renderer {episode.renderer}, "
        f"backgrounds {episode.backgrounds}."
    )
    return Sheet(
        slug(f"look-{task}-{shift}"),
        f"{task}, {shift}",
        caption,
        png(draw(rows, moments), optimize=True),
        COLUMNS,
        tuple(f"step {moment}" for moment in moments),
        tuple(_shown(row, len(moments)) for row in rows),
        training=shift == find_task(task).shifts[0],
    )


def _look(subject: Subject, episode: Episode, moments: np.ndarray) -> Row:
    """The time steps as observations of an agent, for any player."""
    seen = episode.seen[torch.from_numpy(moments.clip(max=len(episode.seen) - 1))].to(subject.agent.device)
    with torch.no_grad():
        actions = subject.agent.policy(seen, deterministic=True)
    return Row(subject, look_at(subject.agent, seen, actions, subject.method).images(subject.rho))


# ---------------------------------------------------------------- drawing


def _shown(row: Row, moments: int) -> Look:
    """The images one by one, in the agent's own resolution."""
    images = (
        tuple(None if cell is None else png(cell, optimize=True) for cell in _cells(row.images, moment))
        for moment in range(moments)
    )
    return Look(title_of(row.subject.config.agent), ", ".join(_about(row)), tuple(images))


def draw(rows: Sequence[Row], moments: np.ndarray) -> Image.Image:
    """A row of images per agent: observation, attribution, mask and predicted mask at every time step."""
    strip = len(COLUMNS) * (CELL + GAP) - GAP
    width = NAMES + len(moments) * strip + (len(moments) - 1) * BETWEEN
    sheet = Image.new("RGB", (width, HEAD + len(rows) * ROW - GAP + MARGIN), "white")
    pen = ImageDraw.Draw(sheet)
    for i, moment in enumerate(moments):
        left = NAMES + i * (strip + BETWEEN)
        text(pen, (left, 4), f"step {moment}", 28, INK)
        for j, name in enumerate(COLUMNS):
            text(pen, (left + j * (CELL + GAP), 50), name, 24, GREY)
        for number, row in enumerate(rows):
            _strip(sheet, row.images, i, left, HEAD + number * ROW)
    for number, row in enumerate(rows):
        _names(pen, row, HEAD + number * ROW)
    return sheet


def _names(pen: ImageDraw.ImageDraw, row: Row, top: int) -> None:
    trained, mask = _about(row)
    text(pen, (0, top + 36), title_of(row.subject.config.agent), 28, INK)
    text(pen, (0, top + 76), trained, 22, GREY)
    text(pen, (0, top + 106), mask, 22, GREY)


def _about(row: Row) -> tuple[str, str]:
    """Its training, and how its mask is made."""
    mask = "soft mask" if row.images.soft else f"rho {row.subject.rho:g}"
    return f"seed {row.subject.config.seed}, {row.subject.step:,} steps", mask


def _cells(shown: Images, moment: int) -> tuple[np.ndarray | None, ...]:
    """One image for each column."""
    return (
        shown.observation[moment],
        inferno(shown.attribution[moment] / shown.scale),
        grey(shown.mask[moment]),
        None if shown.predicted is None else grey(shown.predicted[moment]),
    )


def _strip(sheet: Image.Image, shown: Images, moment: int, left: int, top: int) -> None:
    for j, cell in enumerate(_cells(shown, moment)):
        paste(sheet, cell, (left + j * (CELL + GAP), top), CELL, 22, PALE, GREY)
