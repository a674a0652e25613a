"""Where an agent looks: a sheet of pictures (.png) or a film of a whole episode (.mp4)."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from sgqn import attribution
from sgqn import run as runs
from sgqn.agents import Agent
from sgqn.attribution import OnStep
from sgqn.augmentations import center_crop
from sgqn.config import TrainConfig
from sgqn.data import written_atomically
from sgqn.envs.env import make
from sgqn.envs.tasks import check_seed, check_shift
from sgqn.errors import InvalidValueError
from sgqn.saliency import q_of

SUFFIXES = (".png", ".mp4")
MOMENTS = 4
"""Rows of a sheet, unless told otherwise."""
AT_ONCE = 16
"""Observations attributed together."""
PERCENTILE = 99.5
"""Which attribution gets the brightest colour, among all that are drawn for one agent and method."""

Report = Callable[[str, int, int], None]
"""report(what, done, total), called as the work goes on."""


def explain(
    paths: Sequence[str | Path],
    out: str | Path,
    shift: str = "video_hard",
    methods: Sequence[str] = (),
    rhos: Sequence[float] = (),
    frames: int | None = None,
    seed: int = 0,
    renderer: str = "auto",
    device: str = "cpu",
    report: Report | None = None,
) -> Episode:
    """Draw what matters to the agents of some runs, one block for each run, method and rho; returns the first episode.

    A sheet (.png) has `frames` evenly spaced moments of the episode that the first agent plays; the others are shown
    the same moments. A film (.mp4) has the first `frames` steps, or all, of the episode that each agent plays itself.
    Without methods or rhos, those of each run's own settings.
    """
    out = Path(out)
    _check(paths, out, methods, rhos, frames, seed)
    check_shift(shift)
    subjects = [Subject.load(path, device) for path in paths]
    _check_comparable(subjects)
    sheet = out.suffix.lower() == ".png"
    steps = subjects[0].config.episode_steps
    if frames is not None and frames > steps:
        raise InvalidValueError(f"frames must be at most {steps}, the steps of an episode, not {frames}")
    say = report or (lambda what, done, total: None)
    if sheet:
        first = play(subjects[0], shift, seed, renderer, report=say)
        moments = np.unique(np.linspace(0, len(first.seen) - 1, frames or MOMENTS).round().astype(int))
        others = (play(subject, shift, seed, renderer, actions=first.actions, report=say) for subject in subjects[1:])
        episodes = [first, *others]
    else:
        episodes = [play(subject, shift, seed, renderer, frames, report=say) for subject in subjects]
        moments = np.arange(max(len(episode.seen) for episode in episodes))
    blocks = [
        block
        for subject, episode in zip(subjects, episodes, strict=True)
        for method in methods or (subject.config.settings.attribution,)
        for block in look_at(subject, episode, moments, shift, method, rhos, say)
    ]
    title = f"{subjects[0].config.task}, {shift}, episode of seed {seed}"
    with written_atomically(out) as temporary:
        if sheet:
            draw_sheet(blocks, moments, title, episodes[0]).save(temporary, format="PNG")
        else:
            _write_film(temporary, blocks, title, episodes, say)
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


# Agents and what they see


@dataclass(frozen=True)
class Subject:
    """A trained agent to look into."""

    agent: Agent
    config: TrainConfig
    step: int

    @classmethod
    def load(cls, path: str | Path, device: str = "cpu") -> Subject:
        """Of all that `sgqn.load_agent` takes: a run's folder, a checkpoint's, an exported one, a pretrained name."""
        trained = runs.load(path, device)
        return cls(trained.agent, trained.config, trained.step)

    @property
    def name(self) -> str:
        return f"{self.config.agent}, run {self.config.seed}, {self.step:,} steps"


def _check_comparable(subjects: Sequence[Subject]) -> None:
    first = subjects[0].config
    for other in (subject.config for subject in subjects[1:]):
        if other.task != first.task:
            raise InvalidValueError(f"the runs are of different tasks, {first.task} and {other.task}: compare one task")
        if other.episode_steps != first.episode_steps:
            raise InvalidValueError(
                f"the runs have different action repeats, with {first.episode_steps} and {other.episode_steps} steps "
                "in an episode: compare runs of one action repeat"
            )


class Episode(NamedTuple):
    """An episode through an agent's eyes: before each step what its networks see, and the action it prefers there."""

    seen: Tensor  # (T, C, H, W) uint8
    actions: Tensor  # (T, A)
    rewards: np.ndarray  # (T,)
    fps: int
    renderer: str
    backgrounds: str
    truth: Tensor | None = None  # (T, frames, H, W) bool: the controlled system, where it was asked for


def play(
    subject: Subject,
    shift: str = "train",
    seed: int = 0,
    renderer: str = "auto",
    steps: int | None = None,
    actions: Tensor | None = None,
    report: Report | None = None,
    truth: bool = False,
) -> Episode:
    """Episode 0 of the seed, or its first `steps`, by the agent's own actions or by those given.

    `truth`: also which pixels show the controlled system.
    """
    agent, config = subject.agent, subject.config
    total = steps or config.episode_steps
    env = make(
        config.task,
        shift,
        seed,
        renderer,
        action_repeat=config.action_repeat,
        image_size=agent.spec.render_size,
        frame_stack=config.frame_stack,
        masks=truth,
    )
    seen: list[Tensor] = []
    bodies: list[Tensor] = []
    preferred: list[Tensor] = []
    rewards: list[float] = []
    over = False
    try:
        obs, info = env.reset(seed=seed)
        while not over and len(rewards) < total:
            shown = torch.from_numpy(obs.copy()).to(agent.device)
            seen.append(center_crop(shown, agent.spec.image_size))
            if truth:
                bodies.append(center_crop(torch.from_numpy(info["mask"].copy()), agent.spec.image_size))
            preferred.append(agent.act(shown, deterministic=True))
            action = preferred[-1] if actions is None else actions[len(rewards)]
            obs, reward, terminated, truncated, info = env.step(action.cpu().numpy())
            rewards.append(reward)
            over = terminated or truncated
            if report is not None:
                report(f"{subject.name}: episode", len(rewards), total)
        about = env.metadata
    finally:
        env.close()
    fps = max(1, about["render_fps"])
    return Episode(
        torch.stack(seen),
        torch.stack(preferred),
        np.array(rewards),
        fps,
        about["renderer"],
        about["backgrounds"],
        torch.stack(bodies).to(agent.device) if truth else None,
    )


def attribute(agent: Agent, seen: Tensor, actions: Tensor, method: str, on_step: OnStep | None = None) -> Tensor:
    """The attribution (B, C, H, W) of Q(s, a) to what the networks see, by the method of that name."""
    chosen: Any = attribution.get(method)
    if on_step is not None and "on_step" in inspect.signature(chosen).parameters:
        chosen = functools.partial(chosen, on_step=on_step)
    result: Tensor = chosen(q_of(agent), seen, actions)
    return result


@dataclass(frozen=True)
class Block:
    """Moments of an episode as one agent sees them by one method and rho: the newest frame of each stack, numpy."""

    subject: Subject
    shift: str
    method: str
    rho: float
    observation: np.ndarray  # (B, H, W, 3) uint8
    attribution: np.ndarray  # (B, H, W), the largest magnitude over RGB
    mask: np.ndarray  # (B, H, W) bool
    predicted: np.ndarray | None  # (B, H, W) in [0, 1], or None without a decoder

    @property
    def masked(self) -> np.ndarray:
        return self.observation * self.mask[..., None]

    @property
    def scale(self) -> float:
        """The attribution that gets the brightest colour."""
        high = float(np.percentile(self.attribution, PERCENTILE))
        return high or float(self.attribution.max()) or 1.0


def look_at(
    subject: Subject,
    episode: Episode,
    moments: np.ndarray,
    shift: str,
    method: str,
    rhos: Sequence[float],
    report: Report,
) -> Iterator[Block]:
    """One block for each rho; the attribution, which is the same for all, is computed once."""
    agent = subject.agent
    last = len(episode.seen) - 1
    picked = torch.from_numpy(moments.clip(max=last)).to(episode.seen.device)
    seen, actions = episode.seen[picked], episode.actions[picked]
    what, count = f"{subject.name}: {method}", len(seen)
    maps, guesses = [], []
    for start in range(0, count, AT_ONCE):
        part = slice(start, start + AT_ONCE)

        def on_step(done: int, total: int, start: int = start) -> None:
            size = min(AT_ONCE, count - start)
            report(what, 100 * start + 100 * size * done // total, 100 * count)

        maps.append(attribute(agent, seen[part], actions[part], method, on_step)[:, -3:].float().cpu())
        on_step(1, 1)
        if hasattr(agent, "decoder"):
            with torch.no_grad():
                guesses.append(agent.mask_probabilities(seen[part], actions[part])[:, -3:].mean(dim=1).cpu())
    newest = torch.cat(maps)
    for rho in rhos or (subject.config.settings.rho,):
        yield Block(
            subject,
            shift,
            method,
            rho,
            observation=seen[:, -3:].permute(0, 2, 3, 1).cpu().numpy(),
            attribution=newest.abs().amax(dim=1).nan_to_num().numpy(),
            mask=attribution.quantile_mask(newest, rho)[:, -1].numpy(),
            predicted=torch.cat(guesses).numpy() if guesses else None,
        )


# Drawing

CELL, GAP, LABELS, HEADER, BAR, MARGIN = 168, 8, 64, 76, 40, 20
COLUMNS = ("observation", "attribution", "mask", "masked", "predicted mask")
BLOCK = (LABELS + len(COLUMNS) * (CELL + GAP), HEADER + BAR)
"""Width of a block, and its height without its rows."""
PER_LINE = 2
TITLE, FOOTER = 48, 84
BLACK, GREY, PALE = (20, 20, 20), (110, 110, 110), (235, 235, 235)
INFERNO = (0x000004, 0x210C4A, 0x57106E, 0x8A226A, 0xBC3754, 0xE45A31, 0xF98E09, 0xF9CB35, 0xFCFFA4)
"""Nine evenly spaced colours, from 0 to 1."""


def inferno(values: np.ndarray) -> np.ndarray:
    """Numbers, clipped to [0, 1], as colours (..., 3) uint8 from black over red to pale yellow."""
    table = np.array([[color >> 16, color >> 8 & 255, color & 255] for color in INFERNO])
    at = np.linspace(0, 1, len(table))
    return np.stack([np.interp(values, at, table[:, i]) for i in range(3)], axis=-1).round().astype(np.uint8)


def grey(values: np.ndarray) -> np.ndarray:
    """Numbers in [0, 1] as shades (..., 3) uint8 from black to white."""
    return np.repeat((values * 255).round().astype(np.uint8)[..., None], 3, axis=-1)


def sheet_size(blocks: int, moments: int) -> tuple[int, int]:
    """Width and height of a sheet."""
    across, down = min(blocks, PER_LINE), -(-blocks // PER_LINE)
    width = MARGIN + across * (BLOCK[0] + MARGIN)
    return width, TITLE + down * (BLOCK[1] + moments * (CELL + GAP)) + FOOTER


def draw_sheet(blocks: Sequence[Block], moments: np.ndarray, title: str, episode: Episode) -> Image.Image:
    """All blocks, two to a line, under a title and over a footer that says how to read them."""
    sheet = Image.new("RGB", sheet_size(len(blocks), len(moments)), "white")
    pen = ImageDraw.Draw(sheet)
    _text(pen, (MARGIN, 14), title, 22)
    height = BLOCK[1] + len(moments) * (CELL + GAP)
    for i, block in enumerate(blocks):
        left, top = MARGIN + i % PER_LINE * (BLOCK[0] + MARGIN), TITLE + i // PER_LINE * height
        _draw_block(sheet, pen, block, moments, left, top)
    notes = (
        "Newest frame of each stack. Attribution: largest magnitude over RGB; the brightest colour is its "
        f"{PERCENTILE}th percentile over the block.",
        "Mask: pixels at or above the rho-quantile of their frame. Masked: the rest is black. "
        "Predicted mask: the decoder's probability.",
        f"Renderer {episode.renderer}, backgrounds {episode.backgrounds}.",
    )
    for i, note in enumerate(notes):
        _text(pen, (MARGIN, sheet.height - FOOTER + 10 + 20 * i), note, 14, GREY)
    return sheet


def _draw_block(
    sheet: Image.Image, pen: ImageDraw.ImageDraw, block: Block, moments: np.ndarray, left: int, top: int
) -> None:
    columns = [left + LABELS + i * (CELL + GAP) for i in range(len(COLUMNS))]
    _draw_header(pen, block, dict(zip(COLUMNS, columns, strict=True)), top)
    heat = inferno(block.attribution / block.scale)
    for row, moment in enumerate(moments):
        y = top + HEADER + row * (CELL + GAP)
        _text(pen, (left, y + CELL // 2 - 18), "step", 14, GREY)
        _text(pen, (left, y + CELL // 2), str(moment), 18)
        pictures = (
            block.observation[row],
            heat[row],
            grey(block.mask[row]),
            block.masked[row],
            None if block.predicted is None else grey(block.predicted[row]),
        )
        for picture, x in zip(pictures, columns, strict=True):
            _paste(sheet, pen, picture, x, y, CELL)
    y = top + HEADER + len(moments) * (CELL + GAP)
    _draw_bar(sheet, pen, inferno, f"{block.scale:.2g}", columns[1], y)
    if block.predicted is not None:
        _draw_bar(sheet, pen, grey, "1", columns[4], y)


def _draw_header(pen: ImageDraw.ImageDraw, block: Block, columns: dict[str, int], top: int) -> None:
    """What the block shows, and the names of its columns, each at its x."""
    left = min(columns.values())
    _text(pen, (left, top), block.subject.name, 20)
    _text(pen, (left, top + 26), f"{block.method}, rho {block.rho:g}, {block.shift}", 16, GREY)
    for name, x in columns.items():
        _text(pen, (x, top + HEADER - 22), name, 16)


def _draw_bar(
    sheet: Image.Image, pen: ImageDraw.ImageDraw, colors: Callable[[np.ndarray], np.ndarray], high: str, x: int, y: int
) -> None:
    """A colour bar from 0 to `high`, as wide as a cell."""
    sheet.paste(Image.fromarray(colors(np.linspace(0, 1, CELL))[None].repeat(10, axis=0)), (x, y))
    _text(pen, (x, y + 13), "0", 14, GREY)
    _text(pen, (x + CELL, y + 13), high, 14, GREY, anchor="ra")


def _paste(sheet: Image.Image, pen: ImageDraw.ImageDraw, picture: np.ndarray | None, x: int, y: int, size: int) -> None:
    """A picture, enlarged without smoothing, or the place where the agent has none."""
    if picture is None:
        pen.rectangle((x, y, x + size - 1, y + size - 1), fill=PALE)
        _text(pen, (x + size // 2, y + size // 2), "no decoder", 16, GREY, anchor="mm")
    else:
        sheet.paste(Image.fromarray(picture).resize((size, size), Image.Resampling.NEAREST), (x, y))


def _text(
    pen: ImageDraw.ImageDraw,
    at: tuple[int, int],
    text: str,
    size: int,
    fill: tuple[int, int, int] = BLACK,
    anchor: str = "la",
) -> None:
    pen.text(at, text, fill=fill, font=_font(size), anchor=anchor)


@functools.cache
def _font(size: int) -> Any:
    return ImageFont.load_default(size)


# Film

PANEL = 252
PANELS = ("observation", "mask over it", "predicted mask, 0 to 1", "return so far")
STRIP = (MARGIN + len(PANELS) * (PANEL + GAP) - GAP + MARGIN, HEADER + PANEL + MARGIN)
"""Width and height of one block in a film."""
TINT = np.array([255, 0, 200])
"""Magenta: no task and no scene has it."""


def film_size(blocks: int) -> tuple[int, int]:
    """Width and height of a film's pictures."""
    return STRIP[0], TITLE + blocks * STRIP[1]


def draw_frame(blocks: Sequence[Block], returns: Sequence[np.ndarray], row: int, steps: int, title: str) -> Image.Image:
    """Picture `row` of a film of `steps`: one strip for each block. `returns`: each block's summed rewards by step."""
    frame = Image.new("RGB", film_size(len(blocks)), "white")
    pen = ImageDraw.Draw(frame)
    _text(pen, (MARGIN, 14), title, 22)
    _text(pen, (frame.width - MARGIN, 14), f"step {row + 1} of {steps}", 22, anchor="ra")
    top_return = max(1e-9, *(float(values.max()) for values in returns))
    for i, (block, values) in enumerate(zip(blocks, returns, strict=True)):
        top = TITLE + i * STRIP[1]
        columns = [MARGIN + j * (PANEL + GAP) for j in range(len(PANELS))]
        _draw_header(pen, block, dict(zip(PANELS, columns, strict=True)), top)
        pictures = (
            block.observation[row],
            overlaid(block.observation[row], block.mask[row]),
            None if block.predicted is None else grey(block.predicted[row]),
        )
        for picture, x in zip(pictures, columns, strict=False):
            _paste(frame, pen, picture, x, top + HEADER, PANEL)
        _draw_return(pen, values[: row + 1], steps, top_return, columns[3], top + HEADER)
    return frame


def overlaid(observation: np.ndarray, mask: np.ndarray) -> np.ndarray:
    """The picture (H, W, 3) dimmed, with the mask's pixels in colour."""
    lit = 0.4 * observation + 0.6 * TINT
    return np.where(mask[..., None], lit, 0.4 * observation).round().astype(np.uint8)


def _draw_return(pen: ImageDraw.ImageDraw, values: np.ndarray, steps: int, top_return: float, x: int, y: int) -> None:
    """The number, and a curve below the line of `top_return`, the best return in the film."""
    pen.rectangle((x, y, x + PANEL - 1, y + PANEL - 1), fill=PALE)
    _text(pen, (x + 12, y + 8), f"{values[-1]:.1f}", 36)
    height = PANEL - 72
    across = x + 10 + (PANEL - 20) * np.arange(1, len(values) + 1) / steps
    up = y + PANEL - 10 - height * values.clip(min=0) / top_return
    points = [(x + 10.0, y + PANEL - 10.0), *zip(across.tolist(), up.tolist(), strict=True)]
    _text(pen, (x + PANEL - 10, y + 54), f"{top_return:.1f}", 14, GREY, anchor="rs")
    pen.line([(x + 10, y + 62), (x + PANEL - 10, y + 62)], fill="white")
    pen.line(points, fill=(190, 60, 20), width=3)
    pen.line([(x + 10, y + PANEL - 10), (x + PANEL - 10, y + PANEL - 10)], fill=GREY)


def _write_film(path: Path, blocks: Sequence[Block], title: str, episodes: Sequence[Episode], report: Report) -> None:
    """One picture a step, as fast as the agent acts, as H.264 where the encoder is there."""
    import av

    steps = len(blocks[0].observation)
    each = len(blocks) // len(episodes)  # blocks come run by run
    sums = [np.cumsum(episode.rewards) for episode in episodes]
    returns = [np.append(total, np.full(steps - len(total), total[-1])) for total in sums for _ in range(each)]
    codec = "libx264" if "libx264" in av.codecs_available else "mpeg4"
    with av.open(str(path), "w", format="mp4") as container:
        stream = container.add_stream(codec, rate=episodes[0].fps)
        assert isinstance(stream, av.VideoStream)
        stream.width, stream.height = film_size(len(blocks))
        stream.pix_fmt = "yuv420p"
        for row in range(steps):
            picture = draw_frame(blocks, returns, row, steps, title)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(np.asarray(picture), format="rgb24")))
            report("film", row + 1, steps)
        container.mux(stream.encode())
