"""Where agents look: a sheet of images (.png) or a video of a whole episode (.mp4)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence, Sized
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw

from sgqn import attribution
from sgqn.attribution import OnStep
from sgqn.envs.checks import check_seed
from sgqn.envs.families import check_shift, find_task
from sgqn.errors import InvalidValueError
from sgqn.files import written_atomically
from sgqn.inspect import Episode, Images, Report, Subject, check_comparable, looks, play, video
from sgqn.inspect.drawing import GREY, PALE, grey, inferno, overlaid, paste, text
from sgqn.inspect.look import PERCENTILE

SUFFIXES = (".png", ".mp4")
MOMENTS, MOMENTS_PER_SHIFT = 4, 2
"""Rows of a block by default: of one shift, and of each of several."""


def explain(
    paths: Sequence[str | Path],
    out: str | Path,
    shift: str | Sequence[str] | None = None,
    methods: Sequence[str] = (),
    rhos: Sequence[float] = (),
    frames: int | None = None,
    seed: int = 0,
    renderer: str = "auto",
    device: str = "cpu",
    report: Report = lambda what, done, total: None,
) -> Episode:
    """Draw attributions and masks of agents: a block for each shift, run, method and rho.

    A sheet (.png) has `frames` evenly spaced time steps of the episode that the first agent plays in the first shift,
    for all agents. A video (.mp4) has the first `frames` steps, or all, of each agent's own episode. Defaults are the
    task's hardest shift and each agent's own method and rho. Returns the first episode.
    """
    out = Path(out)
    _check(paths, out, methods, rhos, frames, seed)
    subjects = [Subject.load(path, device) for path in paths]
    check_comparable(subjects)
    config = subjects[0].config
    chosen = [shift] if isinstance(shift, str) else list(shift or find_task(config.task).shifts[-1:])
    shifts = [check_shift(config.task, name) for name in dict.fromkeys(chosen)]
    if frames is not None and frames > config.episode_steps:
        raise InvalidValueError(f"frames must be at most {config.episode_steps}, the steps of an episode, not {frames}")
    sheet = out.suffix.lower() == ".png"
    episodes = list(_episodes(subjects, shifts, seed, renderer, None if sheet else frames, sheet, report))
    if sheet:
        rows = frames or (MOMENTS if len(shifts) == 1 else MOMENTS_PER_SHIFT)
        moments = np.unique(np.linspace(0, len(episodes[0].seen) - 1, rows).round().astype(int))
    else:
        moments = np.arange(max(len(episode.seen) for episode in episodes))
    blocks = [
        block
        for (name, subject), episode in zip(product(shifts, subjects), episodes, strict=True)
        for method in methods or (subject.method,)
        for block in blocks_of(
            subject, episode, moments, name, method, rhos, partial(report, f"{subject.name}: {method}, {name}")
        )
    ]
    title = f"{config.task}, {', '.join(shifts)}, episode of seed {seed}"
    with written_atomically(out) as temporary:
        if sheet:
            draw_sheet(blocks, moments, title, episodes).save(temporary, format="PNG")
        else:
            video.write(temporary, _frames(blocks, title, episodes, report), episodes[0].fps)
    return episodes[0]


def _check(
    paths: Sequence[str | Path],
    out: Path,
    methods: Sequence[str],
    rhos: Sequence[float],
    frames: int | None,
    seed: int,
) -> None:
    if not paths:
        raise InvalidValueError("name at least one run's folder")
    if out.suffix.lower() not in SUFFIXES:
        raise InvalidValueError(f"cannot write {str(out)!r}: the name must end in .png or .mp4")
    if out.is_dir():
        raise InvalidValueError(f"cannot write {str(out)!r}: it is a folder")
    if not out.absolute().parent.is_dir():
        raise InvalidValueError(f"cannot write {str(out)!r}: there is no folder {str(out.parent)!r}")
    for method in methods:
        attribution.check(method)
    for rho in rhos:
        if not 0 <= rho < 1:
            raise InvalidValueError(f"rho must lie in [0, 1), not {rho}: 0.95 keeps one pixel in twenty")
    if frames is not None and frames < 1:
        raise InvalidValueError(f"frames must be at least 1, not {frames}")
    check_seed(seed)


def _episodes(
    subjects: Sequence[Subject],
    shifts: Sequence[str],
    seed: int,
    renderer: str,
    count: int | None,
    same: bool,
    report: Report,
) -> Iterator[Episode]:
    """An episode for each shift and agent; `same`: all with the actions of the first."""
    actions = None
    for shift, subject in product(shifts, subjects):
        on_step = partial(report, f"{subject.name}: {shift}")
        episode = play(subject, shift, seed, renderer, count, actions, on_step=on_step)
        actions = actions if not same or actions is not None else episode.actions
        yield episode


@dataclass(frozen=True)
class Block:
    """Time steps of an episode for one agent, method and rho."""

    subject: Subject
    shift: str
    method: str
    rho: float
    images: Images


def blocks_of(
    subject: Subject,
    episode: Episode,
    moments: np.ndarray,
    shift: str,
    method: str,
    rhos: Sequence[float] = (),
    on_step: OnStep | None = None,
) -> list[Block]:
    """One block for each rho; the attribution, which is the same for all, is computed once."""
    picked = torch.from_numpy(moments.clip(max=len(episode.seen) - 1)).to(episode.seen.device)
    rhos = rhos or (subject.rho,)
    parts = [
        [look.images(rho) for rho in rhos]
        for look in looks(subject.agent, episode.seen[picked], episode.actions[picked], method, on_step)
    ]
    joined = [Images.join(of_rho) for of_rho in zip(*parts, strict=True)]
    return [Block(subject, shift, method, rho, images) for rho, images in zip(rhos, joined, strict=True)]


# Sheets

CELL, GAP, LABELS, HEADER, BAR, MARGIN = 168, 8, 64, 76, 40, 20
COLUMNS = ("observation", "attribution", "mask", "masked", "predicted mask")
RESTORED = "restored"
"""A further column, if any agent restores its observations."""
PER_LINE = 2
TITLE, FOOTER = 48, 84


def _columns(blocks: Sequence[Block], columns: tuple[str, ...] = COLUMNS) -> tuple[str, ...]:
    restores = any(block.images.restored is not None for block in blocks)
    return (columns[0], RESTORED, *columns[1:]) if restores else columns


def block_width(columns: Sized) -> int:
    """Width of a block with these columns."""
    return LABELS + len(columns) * (CELL + GAP)


def sheet_size(blocks: int, moments: int, columns: Sized = COLUMNS) -> tuple[int, int]:
    """Width and height of a sheet."""
    across, down = min(blocks, PER_LINE), -(-blocks // PER_LINE)
    width = MARGIN + across * (block_width(columns) + MARGIN)
    return width, TITLE + down * (HEADER + BAR + moments * (CELL + GAP)) + FOOTER


def draw_sheet(blocks: Sequence[Block], moments: np.ndarray, title: str, episodes: Sequence[Episode]) -> Image.Image:
    """All blocks, two to a line, under a title and over a footer that says how to read them."""
    columns = _columns(blocks)
    sheet = Image.new("RGB", sheet_size(len(blocks), len(moments), columns), "white")
    pen = ImageDraw.Draw(sheet)
    text(pen, (MARGIN, 14), title, 22)
    height = HEADER + BAR + len(moments) * (CELL + GAP)
    for i, block in enumerate(blocks):
        left, top = MARGIN + i % PER_LINE * (block_width(columns) + MARGIN), TITLE + i // PER_LINE * height
        _draw_block(sheet, pen, block, moments, columns, left, top)
    rule = "pixels at or above the rho-quantile of their frame"
    if any(block.images.soft for block in blocks):
        rule += "; soft: the magnitude, 1 at its frame's largest"
    notes = (
        "Newest frame of each stack. Attribution: largest magnitude over RGB; the brightest colour is its "
        f"{PERCENTILE}th percentile over the block.",
        f"Mask: {rule}. Masked: the rest is black. Predicted mask: the decoder's probability."
        + (" Restored: what the networks get." if RESTORED in columns else ""),
        f"Renderer {episodes[0].renderer}, backgrounds {'; '.join(dict.fromkeys(e.backgrounds for e in episodes))}.",
    )
    for i, note in enumerate(notes):
        text(pen, (MARGIN, sheet.height - FOOTER + 10 + 20 * i), note, 14, GREY)
    return sheet


def _draw_block(
    sheet: Image.Image,
    pen: ImageDraw.ImageDraw,
    block: Block,
    moments: np.ndarray,
    columns: Sequence[str],
    left: int,
    top: int,
) -> None:
    at = {name: left + LABELS + i * (CELL + GAP) for i, name in enumerate(columns)}
    _draw_header(pen, block, at, top)
    shown = block.images
    heat, masked = inferno(shown.attribution / shown.scale), shown.masked
    for row, moment in enumerate(moments):
        y = top + HEADER + row * (CELL + GAP)
        text(pen, (left, y + CELL // 2 - 18), "step", 14, GREY)
        text(pen, (left, y + CELL // 2), str(moment), 18)
        cells = {
            "observation": shown.observation[row],
            RESTORED: shown.observation[row] if shown.restored is None else shown.restored[row],
            "attribution": heat[row],
            "mask": grey(shown.mask[row]),
            "masked": masked[row],
            "predicted mask": None if shown.predicted is None else grey(shown.predicted[row]),
        }
        for name, x in at.items():
            paste(sheet, cells[name], (x, y), CELL)
    y = top + HEADER + len(moments) * (CELL + GAP)
    _draw_bar(sheet, pen, inferno, f"{shown.scale:.2g}", at["attribution"], y)
    if shown.predicted is not None:
        _draw_bar(sheet, pen, grey, "1", at["predicted mask"], y)


def _draw_header(pen: ImageDraw.ImageDraw, block: Block, columns: dict[str, int], top: int) -> None:
    """What the block shows, and the names of its columns, each at its x."""
    left = min(columns.values())
    mask = "soft mask" if block.images.soft else f"rho {block.rho:g}"
    text(pen, (left, top), block.subject.name, 20)
    text(pen, (left, top + 26), f"{block.method}, {mask}, {block.shift}", 16, GREY)
    for name, x in columns.items():
        text(pen, (x, top + HEADER - 22), name, 16)


def _draw_bar(
    sheet: Image.Image, pen: ImageDraw.ImageDraw, colors: Callable[[np.ndarray], np.ndarray], high: str, x: int, y: int
) -> None:
    """A colour bar from 0 to `high`, as wide as a cell."""
    sheet.paste(Image.fromarray(colors(np.linspace(0, 1, CELL))[None].repeat(10, axis=0)), (x, y))
    text(pen, (x, y + 13), "0", 14, GREY)
    text(pen, (x + CELL, y + 13), high, 14, GREY, anchor="ra")


# Videos

PANEL = 252
PANELS = ("observation", "mask over it", "predicted mask, 0 to 1", "return so far")
STRIP = HEADER + PANEL + MARGIN
"""Height of one block in a video."""


def video_size(blocks: int, panels: Sized = PANELS) -> tuple[int, int]:
    """Width and height of a video."""
    return MARGIN + len(panels) * (PANEL + GAP) - GAP + MARGIN, TITLE + blocks * STRIP


def _frames(blocks: Sequence[Block], title: str, episodes: Sequence[Episode], report: Report) -> Iterator[np.ndarray]:
    """One frame for each step."""
    steps = len(blocks[0].images.observation)
    each = len(blocks) // len(episodes)  # blocks are in the order of episodes
    sums = [np.cumsum(episode.rewards) for episode in episodes]
    returns = [np.append(total, np.full(steps - len(total), total[-1])) for total in sums for _ in range(each)]
    for row in range(steps):
        yield np.asarray(draw_frame(blocks, returns, row, steps, title))
        report("video", row + 1, steps)


def draw_frame(blocks: Sequence[Block], returns: Sequence[np.ndarray], row: int, steps: int, title: str) -> Image.Image:
    """Frame `row` of a video of `steps`: one strip for each block. `returns`: each block's summed rewards by step."""
    panels = _columns(blocks, PANELS)
    frame = Image.new("RGB", video_size(len(blocks), panels), "white")
    pen = ImageDraw.Draw(frame)
    text(pen, (MARGIN, 14), title, 22)
    text(pen, (frame.width - MARGIN, 14), f"step {row + 1} of {steps}", 22, anchor="ra")
    top_return = max(1e-9, *(float(values.max()) for values in returns))
    for i, (block, values) in enumerate(zip(blocks, returns, strict=True)):
        top, shown = TITLE + i * STRIP, block.images
        at = {name: MARGIN + j * (PANEL + GAP) for j, name in enumerate(panels)}
        _draw_header(pen, block, at, top)
        cells = {
            "observation": shown.observation[row],
            RESTORED: shown.observation[row] if shown.restored is None else shown.restored[row],
            "mask over it": overlaid(shown.observation[row], shown.mask[row]),
            "predicted mask, 0 to 1": None if shown.predicted is None else grey(shown.predicted[row]),
        }
        for name, cell in cells.items():
            if name in at:
                paste(frame, cell, (at[name], top + HEADER), PANEL)
        _draw_return(pen, values[: row + 1], steps, top_return, at["return so far"], top + HEADER)
    return frame


def _draw_return(pen: ImageDraw.ImageDraw, values: np.ndarray, steps: int, top_return: float, x: int, y: int) -> None:
    """The number, and a curve below the line of `top_return`, the best return in the video."""
    pen.rectangle((x, y, x + PANEL - 1, y + PANEL - 1), fill=PALE)
    text(pen, (x + 12, y + 8), f"{values[-1]:.1f}", 36)
    height = PANEL - 72
    across = x + 10 + (PANEL - 20) * np.arange(1, len(values) + 1) / steps
    up = y + PANEL - 10 - height * values.clip(min=0) / top_return
    points = [(x + 10.0, y + PANEL - 10.0), *zip(across.tolist(), up.tolist(), strict=True)]
    text(pen, (x + PANEL - 10, y + 54), f"{top_return:.1f}", 14, GREY, anchor="rs")
    pen.line([(x + 10, y + 62), (x + PANEL - 10, y + 62)], fill="white")
    pen.line(points, fill=(190, 60, 20), width=3)
    pen.line([(x + 10, y + PANEL - 10), (x + PANEL - 10, y + PANEL - 10)], fill=GREY)
