"""The demo's table and web page."""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined

from sgqn import pretrained
from sgqn.demo.frames import Frames
from sgqn.demo.scene import Demo, Scene
from sgqn.inspect.drawing import data_url, grey, inferno, png

MOMENTS = 5
"""Steps that are shown as still images."""
TITLE = "<title>sgqn demo: "
"""Near the beginning of every page, by which an earlier one is recognised."""


def page(demo: Demo, video: bytes | None, animation: bytes) -> str:
    """One HTML file that needs nothing else."""
    clean, other = demo.scenes
    config = demo.subject.config
    width, height = Frames(demo).size
    environment = Environment(
        loader=PackageLoader("sgqn.demo"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    return environment.get_template("page.html").render(
        task=config.task,
        agent=f"{config.agent}, {demo.subject.step:,} training steps, seed {config.seed}",
        shift=other.shift,
        width=width,
        height=height,
        video=video and data_url(video, "video/mp4"),
        animation=data_url(animation, "image/webp"),
        about=_about(demo),
        rows=table(demo),
        notes=notes(demo),
        scenes=[_moments(scene) for scene in (other, clean)],
        commands=next_commands(demo),
    )


def _about(demo: Demo) -> str:
    """What the video shows, in a paragraph."""
    subject, other = demo.subject, demo.scenes[1]
    method = subject.method.replace("_", " ")
    if other.images.soft:
        salient = f"its soft mask of the pixels that its value Q(s, a) depends on, by {method}"
    else:
        kept = f"{100 * (1 - subject.rho):.3g} %"
        salient = f"the {kept} of the pixels that its value Q(s, a) depends on most, by {method}"
    text = (
        "This agent was trained in the clean scene only. Here it starts the same episode twice: in the clean scene, "
        f"and in one that it never saw, {other.shift}. In magenta: {salient}. "
    )
    if other.images.predicted is not None:
        text += (
            "In white: that mask as its decoder predicts it. SGQN trains the value to depend on the masked pixels "
            "only, and the features to predict the mask even from augmented images. That makes the agent robust to "
            "the background."
        )
    return text


def table(demo: Demo) -> list[tuple[str, str, str]]:
    """The numbers: name, in the clean scene, in the other."""
    numbers = [scene.numbers for scene in demo.scenes]
    steps, most = demo.steps, demo.subject.config.episode_steps
    first = "return" if steps == most else f"return, first {steps} of {most} steps"
    rows = [
        (first, *(f"{n.score:.0f}" for n in numbers)),
        ("share of the mask on the body", *(_percent(n.mask_share) for n in numbers)),
        ("by chance: the body's share of the image", *(_percent(n.base_rate) for n in numbers)),
    ]
    if demo.scenes[0].images.predicted is not None:
        rows.append(("predicted mask against mask, IoU", *(f"{n.agreement:.2f}" for n in numbers)))
    return [(row[0], row[1], row[2]) for row in rows]


def _percent(share: float) -> str:
    return "none" if math.isnan(share) else f"{100 * share:.0f} %"


def notes(demo: Demo) -> str:
    """How the images were made."""
    episode = demo.scenes[1].episode
    text = f"One episode, renderer {episode.renderer}."
    if episode.backgrounds == "generated":
        text += " Colours and backgrounds are generated, not the benchmark's: `sgqn data` shows how to get those."
    return text


def next_commands(demo: Demo) -> list[str]:
    """What to try next."""
    run = shlex.quote(pretrained.short(demo.source))
    clean, other = (scene.shift for scene in demo.scenes)
    return [
        f"sgqn evaluate {run} --shift {clean} {other} --episodes 10",
        f"sgqn explain {run} --method guided_backprop occlusion --out look.png",
        f"sgqn watch {run}",
        f"sgqn train --task {demo.subject.config.task} --preset tiny",
    ]


def _moments(scene: Scene) -> dict[str, Any]:
    """Moments of a scene: a strip of images for each kind."""
    shown, truth = scene.images, scene.episode.truth
    assert truth is not None
    moments = np.unique(np.linspace(0, len(shown.mask) - 1, MOMENTS).round().astype(int))
    kinds = {
        "observation": shown.observation[moments],
        "attribution": inferno(shown.attribution[moments] / shown.scale),
        "mask": grey(shown.mask[moments]),
        "predicted mask": None if shown.predicted is None else grey(shown.predicted[moments]),
        "the body, by the simulator": grey(truth[:, -1].cpu().numpy()[moments]),
    }
    return {
        "heading": scene.heading[0].upper() + scene.heading[1:],
        "steps": [int(moment) + 1 for moment in moments],
        "strips": {name: _strip(images) for name, images in kinds.items() if images is not None},
    }


def _strip(images: Sequence[np.ndarray]) -> str:
    """The images in a row, as a URL."""
    gap = np.full((images[0].shape[0], 3, 3), 255, dtype=np.uint8)
    parts = [part for image in images for part in (gap, image)][1:]
    return data_url(png(np.concatenate(parts, axis=1)))


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
