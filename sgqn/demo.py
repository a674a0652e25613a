"""`sgqn demo`: a trained agent in the clean scene and in a distracting one, as a table, a web page and an animation."""

from __future__ import annotations

import base64
import html
import io
import math
import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from sgqn import attribution, pretrained, saliency
from sgqn.envs.tasks import check_seed, check_shift
from sgqn.errors import InvalidValueError
from sgqn.explain import AT_ONCE, PERCENTILE, Episode, Report, Subject, attribute, grey, inferno, overlaid, play
from sgqn.files import write_atomically

CLEAN = "train"
MOST_STEPS = 250
"""Steps of an episode that are played unless told otherwise."""
PAGE, ANIMATION = "index.html", "demo.webp"


class Numbers(NamedTuple):
    """What the table says of one scene; shares are means over the frames of all steps."""

    score: float
    base_rate: float
    """Share of the picture that shows the body."""
    mask_share: float
    """Share of the attribution mask that lies on the body."""
    agreement: float
    """IoU of the predicted mask with the attribution mask; NaN without a decoder."""


@dataclass(frozen=True)
class Scene:
    """An episode in one scene and what the agent looks at: pictures of the newest frame of each step."""

    shift: str
    episode: Episode
    heat: np.ndarray  # (T, H, W), the largest magnitude over RGB
    mask: np.ndarray  # (T, H, W) bool
    predicted: np.ndarray | None  # (T, H, W) in [0, 1], or None without a decoder
    numbers: Numbers

    @property
    def name(self) -> str:
        return scene_name(self.shift)

    @property
    def heading(self) -> str:
        return "the scene it was trained in" if self.shift == CLEAN else f"a scene it never saw: {self.shift}"

    @property
    def observations(self) -> np.ndarray:
        return self.episode.seen[:, -3:].permute(0, 2, 3, 1).cpu().numpy()


def scene_name(shift: str) -> str:
    return "clean scene" if shift == CLEAN else shift


@dataclass(frozen=True)
class Demo:
    """What `demo` made."""

    source: str
    """What was asked for: a pretrained name or a folder."""
    subject: Subject
    scenes: tuple[Scene, Scene]
    page: Path
    animation: Path

    @property
    def steps(self) -> int:
        return max(len(scene.episode.rewards) for scene in self.scenes)


def demo(
    path: str | Path = "pretrained:walker-walk",
    out: str | Path = "demo",
    shift: str = "video_hard",
    steps: int | None = None,
    seed: int = 0,
    renderer: str = "auto",
    report: Report | None = None,
) -> Demo:
    """Take an agent through the same episode in the clean scene and under `shift`; write a page and an animation.

    `path` is all that `sgqn.load_agent` takes. Everything is computed on the CPU.
    """
    out = Path(out)
    check_shift(shift)
    _check(out, shift, steps, seed)
    say = report or (lambda what, done, total: None)
    with _one_thread():
        subject = Subject.load(path)
        most = subject.config.episode_steps
        if steps is not None and steps > most:
            raise InvalidValueError(f"steps must be at most {most}, the steps of an episode, not {steps}")
        count = steps or min(most, MOST_STEPS)
        clean, other = (look(subject, name, count, seed, renderer, say) for name in (CLEAN, shift))
    shown = Demo(str(path), subject, (clean, other), out / PAGE, out / ANIMATION)
    frames = Frames(shown)
    film, animation = frames.film(say), frames.animation(say)
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(shown.animation, animation)
    write_atomically(shown.page, page(shown, film, animation))
    return shown


def _check(out: Path, shift: str, steps: int | None, seed: int) -> None:
    if shift == CLEAN:
        raise InvalidValueError(f"{shift!r} is the clean scene: choose a distracting one, such as --shift video_hard")
    if out.exists() and not out.is_dir():
        raise InvalidValueError(f"{out} is not a folder: choose another --out")
    if steps is not None and steps < 1:
        raise InvalidValueError(f"steps must be at least 1, not {steps}")
    check_seed(seed)


@contextmanager
def _one_thread() -> Iterator[None]:
    """One observation at a time is too little work to share: on busy cores the threads would wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


# Looking


def look(subject: Subject, shift: str, steps: int, seed: int, renderer: str, report: Report) -> Scene:
    """Play, attribute every step's value, and measure against the simulator's own mask of the body."""
    name = scene_name(shift)

    def playing(_: str, done: int, total: int) -> None:
        report(f"{name}: episode", done, total)

    playing("", 0, steps)
    episode = play(subject, shift, seed, renderer, steps, report=playing, truth=True)
    assert episode.truth is not None
    heat, masks, guesses, found = [], [], [], []
    count, frames = len(episode.seen), episode.truth.shape[1]
    for part in torch.arange(count).split(AT_ONCE):
        seen, actions, truth = episode.seen[part], episode.actions[part], episode.truth[part]
        attributed = attribute(subject.agent, seen, actions, subject.config.settings.attribution)
        mask = attribution.quantile_mask(attributed, subject.config.settings.rho, frames)
        predicted = _predicted(subject, seen, actions)
        found.append(_measures(mask, predicted, truth))
        heat.append(attributed[:, -3:].abs().amax(dim=1))
        masks.append(mask[:, -1])
        if predicted is not None:
            guesses.append(predicted[:, -3:].mean(dim=1))
        report(f"{name}: where it looks", int(part[-1]) + 1, count)
    means = [float(values.nanmean()) for values in torch.cat(found, dim=1)]
    return Scene(
        shift,
        episode,
        torch.cat(heat).nan_to_num().numpy(),
        torch.cat(masks).numpy(),
        torch.cat(guesses).numpy() if guesses else None,
        Numbers(float(episode.rewards.sum()), *means),
    )


def _predicted(subject: Subject, seen: Tensor, actions: Tensor) -> Tensor | None:
    if not hasattr(subject.agent, "decoder"):
        return None
    with torch.no_grad():
        return subject.agent.mask_probabilities(seen, actions)


def _measures(mask: Tensor, predicted: Tensor | None, truth: Tensor) -> Tensor:
    """Base rate, share of the mask on the body and agreement of each observation, (3, B)."""
    base, share = saliency.base_rate(truth), saliency.mask_share(mask, truth)
    agree = torch.full_like(base, math.nan) if predicted is None else _overlap(predicted > 0.5, mask, truth.shape[1])
    return torch.stack([values.nanmean(dim=1) for values in (base, share, agree)])


def _overlap(one: Tensor, other: Tensor, frames: int) -> Tensor:
    """IoU of two masks, (B, frames): what `saliency.agreement` has, without its costly parts."""
    ours, theirs = (mask.unflatten(1, (frames, -1)).flatten(2) for mask in (one, other))
    return (ours & theirs).sum(dim=2).double() / (ours | theirs).sum(dim=2)


# Drawing

PANEL, GAP, TITLE, HEADER = 252, 8, 34, 38
INK, GREY = (24, 24, 24), (110, 110, 110)
LOOP = 60
"""Pictures of the animation, one for each step."""
MOST_BYTES = 3_000_000
"""Of the animation: its quality is lowered until it fits."""


class Frames:
    """The film's pictures: a row for each scene, with what the agent sees, what matters to it, what it predicts."""

    def __init__(self, demo: Demo):
        self.demo = demo
        self.titles = ["what it sees", "what matters to its value"]
        if demo.scenes[0].predicted is not None:
            self.titles.append("what it predicts to matter")
        self.size = (len(self.titles) * (PANEL + GAP) - GAP, TITLE + 2 * (HEADER + PANEL))
        self.columns = [i * (PANEL + GAP) for i in range(len(self.titles))]
        self._blank = self._ground()
        self._sums = [np.cumsum(scene.episode.rewards) for scene in demo.scenes]
        self._seen = [scene.observations for scene in demo.scenes]

    def draw(self, step: int) -> Image.Image:
        """The picture of one step; a scene whose episode has ended keeps its last."""
        frame = self._blank.copy()
        pen = ImageDraw.Draw(frame)
        for row, scene in enumerate(self.demo.scenes):
            at = min(step, len(self._sums[row]) - 1)
            top = TITLE + row * (HEADER + PANEL)
            text = f"return {self._sums[row][at]:.0f}"
            pen.text((self.size[0] - 2, top + HEADER - 10), text, fill=INK, font=_font(22), anchor="rs")
            for x, picture in zip(self.columns, self._panels(row, scene, at), strict=True):
                large = Image.fromarray(picture).resize((PANEL, PANEL), Image.Resampling.NEAREST)
                frame.paste(large, (x, top + HEADER))
        return frame

    def _panels(self, row: int, scene: Scene, at: int) -> Iterator[np.ndarray]:
        seen = self._seen[row][at]
        yield seen
        yield overlaid(seen, scene.mask[at])
        if scene.predicted is not None:
            yield grey(scene.predicted[at])

    def _ground(self) -> Image.Image:
        """What no step changes."""
        ground = Image.new("RGB", self.size, "white")
        pen = ImageDraw.Draw(ground)
        for x, title in zip(self.columns, self.titles, strict=True):
            pen.text((x + PANEL // 2, TITLE - 8), title, fill=GREY, font=_font(20), anchor="ms")
        for row, scene in enumerate(self.demo.scenes):
            y = TITLE + row * (HEADER + PANEL) + HEADER - 10
            pen.text((2, y), scene.heading, fill=INK, font=_font(22), anchor="ls")
        return ground

    def film(self, report: Report) -> bytes | None:
        """The whole episode as H.264, which browsers play, or None where the encoder is not there."""
        import av

        if "libx264" not in av.codecs_available:
            return None
        file, steps = io.BytesIO(), self.demo.steps
        with av.open(file, "w", format="mp4") as container:
            stream = container.add_stream("libx264", rate=self.fps, options={"preset": "veryfast", "crf": "25"})
            assert isinstance(stream, av.VideoStream)
            stream.width, stream.height = (side + side % 2 for side in self.size)
            stream.pix_fmt = "yuv420p"
            for step in range(steps):
                picture = av.VideoFrame.from_ndarray(np.asarray(self.draw(step)), format="rgb24")
                container.mux(stream.encode(picture))
                report("film", step + 1, steps)
            container.mux(stream.encode())
        return file.getvalue()

    def animation(self, report: Report) -> bytes:
        """A few seconds from the middle, as an animated WebP that repeats."""
        steps = self.demo.steps
        first = max(0, min(steps // 3, steps - LOOP))
        chosen = range(first, min(steps, first + LOOP))
        report("animation", 0, 1)
        start, *others = (self.draw(step) for step in chosen)
        for quality in (70, 50, 30, 10):
            file = io.BytesIO()
            options = {"duration": 1000 // self.fps, "loop": 0, "quality": quality, "method": 2}
            start.save(file, format="WEBP", save_all=True, append_images=others, **options)
            if file.tell() <= MOST_BYTES:
                break
        report("animation", 1, 1)
        return file.getvalue()

    @property
    def fps(self) -> int:
        return self.demo.scenes[0].episode.fps


def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)


# The page

MOMENTS = 5


def page(demo: Demo, film: bytes | None, animation: bytes) -> str:
    """One HTML file that needs nothing else."""
    clean, other = demo.scenes
    config = demo.subject.config
    return Template(_PAGE).substitute(
        task=html.escape(config.task),
        agent=html.escape(f"{config.agent}, {demo.subject.step:,} training steps, seed {config.seed}"),
        shift=html.escape(other.shift),
        film=_film(film, animation, *Frames(demo).size),
        about=_about(demo),
        rows="\n".join(_rows(demo)),
        notes=re.sub(r"`(.*?)`", r"<code>\1</code>", html.escape(notes(demo))),
        scenes="\n".join(_strips(scene) for scene in (other, clean)),
        commands=html.escape("\n".join(next_commands(demo))),
    )


def _film(film: bytes | None, animation: bytes, width: int, height: int) -> str:
    size = f'width="{width}" height="{height}"'
    if film is None:
        return f'<img {size} alt="the episode" src="{_data(animation, "image/webp")}">'
    return f'<video {size} autoplay muted loop playsinline controls src="{_data(film, "video/mp4")}"></video>'


def _data(content: bytes, kind: str) -> str:
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def _about(demo: Demo) -> str:
    """What is to be seen, in a paragraph."""
    config, other = demo.subject.config, demo.scenes[1]
    change = {
        "color_easy": "other colours",
        "color_hard": "colours far from those it knows",
        "video_easy": "a film in place of the sky",
        "video_hard": "a film in place of sky and floor",
    }[other.shift]
    kept = f"{100 * (1 - config.settings.rho):.3g} %"
    method = config.settings.attribution.replace("_", " ")
    text = (
        "This agent was trained in the clean scene alone. Here it starts the same episode twice: there, and in a scene "
        f"that it never saw, with {change}. In colour: the {kept} of the pixels that its value Q(s, a) depends on "
        f"most, by {method}. "
    )
    if other.predicted is not None:
        text += (
            "In white: what its decoder predicts of that mask. SGQN trains the value to rest on the mask alone, and "
            "the features to tell the mask even in pictures with another laid over them: that is how the background "
            "loses its hold."
        )
    return html.escape(text)


def table(demo: Demo) -> list[tuple[str, str, str]]:
    """The numbers: what, in the clean scene, in the other."""
    numbers = [scene.numbers for scene in demo.scenes]
    steps, most = demo.steps, demo.subject.config.episode_steps
    first = "return" if steps == most else f"return, first {steps} of {most} steps"
    rows = [
        (first, *(f"{n.score:.0f}" for n in numbers)),
        ("share of the mask on the body", *(_percent(n.mask_share) for n in numbers)),
        ("by chance: the body's share of the picture", *(_percent(n.base_rate) for n in numbers)),
    ]
    if demo.scenes[0].predicted is not None:
        rows.append(("predicted mask against mask, IoU", *(f"{n.agreement:.2f}" for n in numbers)))
    return [(row[0], row[1], row[2]) for row in rows]


def _percent(share: float) -> str:
    return "none" if math.isnan(share) else f"{100 * share:.0f} %"


def _rows(demo: Demo) -> Iterator[str]:
    for row in table(demo):
        what, *values = map(html.escape, row)
        yield f"<tr><th>{what}</th>{''.join(f'<td>{value}</td>' for value in values)}</tr>"


def notes(demo: Demo) -> str:
    """What made the pictures, and how much it is worth."""
    episode = demo.scenes[1].episode
    text = f"One episode, renderer {episode.renderer}."
    if episode.backgrounds == "generated":
        what = "films" if demo.scenes[1].shift.startswith("video") else "colours"
        text += f" The {what} are generated, not the benchmark's: `sgqn data` tells how to get those."
    return text


def next_commands(demo: Demo) -> list[str]:
    """What to try next."""
    run = shlex.quote(pretrained.short(demo.source))
    return [
        f"sgqn evaluate {run} --shift train {demo.scenes[1].shift} --episodes 10",
        f"sgqn explain {run} --method guided_backprop occlusion --out look.png",
        f"sgqn watch {run}",
        f"sgqn train --task {demo.subject.config.task} --preset tiny",
    ]


def _strips(scene: Scene) -> str:
    """Moments of a scene: a strip of pictures for each thing to see."""
    moments = np.unique(np.linspace(0, len(scene.mask) - 1, MOMENTS).round().astype(int))
    truth = scene.episode.truth
    assert truth is not None
    top = float(np.percentile(scene.heat, PERCENTILE)) or float(scene.heat.max()) or 1.0
    kinds = {
        "observation": scene.observations[moments],
        "attribution": inferno(scene.heat[moments] / top),
        "mask": grey(scene.mask[moments]),
        "predicted mask": None if scene.predicted is None else grey(scene.predicted[moments]),
        "the body, by the simulator": grey(truth[:, -1].cpu().numpy()[moments]),
    }
    figures = [_strip(name, pictures) for name, pictures in kinds.items() if pictures is not None]
    at = ", ".join(str(moment + 1) for moment in moments)
    heading = html.escape(scene.heading[0].upper() + scene.heading[1:])
    return f'<h2>{heading}</h2>\n<p class="notes">steps {at}</p>\n' + "\n".join(figures)


def _strip(name: str, pictures: Sequence[np.ndarray]) -> str:
    gap = np.full((pictures[0].shape[0], 3, 3), 255, dtype=np.uint8)
    parts = [part for picture in pictures for part in (gap, picture)][1:]
    file = io.BytesIO()
    Image.fromarray(np.concatenate(parts, axis=1)).save(file, format="PNG")
    source = _data(file.getvalue(), "image/png")
    return f'<figure><figcaption>{name}</figcaption><img alt="{name}" src="{source}"></figure>'


_PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>sgqn demo: $task</title>
<style>
  body { font: 16px/1.5 system-ui, sans-serif; color: #181818; max-width: 772px; margin: 2rem auto; padding: 0 1rem; }
  h1 { font-size: 1.7rem; line-height: 1.2; margin: 0; }
  h2 { font-size: 1.15rem; line-height: 1.3; margin: 2.2rem 0 .3rem; }
  .sub, figcaption, .notes { color: #666; }
  .sub { margin: .2rem 0 1.4rem; }
  video, img { display: block; width: 100%; height: auto; }
  figure { margin: 0 0 .7rem; }
  figure img { image-rendering: pixelated; }
  figcaption, .notes { font-size: .875rem; }
  h2 + .notes { margin: 0 0 .6rem; }
  table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
  th, td { padding: .35rem .3rem; border-bottom: 1px solid #ddd; text-align: right; }
  th:first-child { text-align: left; font-weight: normal; }
  pre { background: #f4f4f4; padding: .8rem 1rem; overflow-x: auto; font-size: .875rem; }
</style>
</head>
<body>
<h1>$task, and where the agent looks</h1>
<p class="sub">$agent</p>
$film
<p>$about</p>
<table>
<thead><tr><th></th><th>clean scene</th><th>$shift</th></tr></thead>
<tbody>
$rows
</tbody>
</table>
<p class="notes">$notes</p>
$scenes
<h2>Go on</h2>
<pre>$commands</pre>
</body>
</html>
"""


def show(demo: Demo) -> None:
    """Print the numbers, and where the page is."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    console = Console(highlight=False)
    shown = Table(demo.subject.config.task, *(scene.name for scene in demo.scenes), box=box.SIMPLE_HEAD)
    for column in shown.columns[1:]:
        column.justify = "right"
    for row in table(demo):
        shown.add_row(*row)
    console.print(shown)
    console.print(notes(demo), soft_wrap=True, markup=False)
    console.print(f"page: {demo.page.resolve()}", soft_wrap=True, markup=False)
    console.print(f"animation: {demo.animation.resolve()}", soft_wrap=True, markup=False)
