"""The demo's table and web page."""

from __future__ import annotations

import contextlib
import math
import os
import shlex
from collections.abc import Sequence
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined

from sgqn import pretrained
from sgqn.demo.frames import Frames
from sgqn.demo.scene import NEAR, Demo, Scene, Shown
from sgqn.envs.families import find_task
from sgqn.inspect.drawing import data_url, grey, inferno, png

PAPER = "https://arxiv.org/abs/2209.09203"
MOMENTS = 5
"""Steps that are shown as still images."""
TITLE = "<title>sgqn demo: "
"""Near the beginning of every page, by which an earlier one is recognised."""


def page(demo: Demo, video: bytes | None, animation: bytes) -> str:
    """One HTML file that needs nothing else."""
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
        agents=[
            {"name": name, "about": _agent(agent), "scenes": [_moments(scene) for scene in agent.scenes[::-1]]}
            for name, agent in zip(demo.names, demo.agents, strict=True)
        ],
        scenes=[scene.name for scene in demo.scenes],
        width=width,
        height=height,
        video=video and data_url(video, "video/mp4"),
        animation=data_url(animation, "image/webp"),
        about=_about(demo),
        rows=table(demo),
        off=[off_body(agent, name) for name, agent in zip(demo.names, demo.agents, strict=True)],
        near=NEAR,
        notes=notes(demo),
        commands=next_commands(demo),
        links=links(demo.page),
    )


def _agent(agent: Shown) -> str:
    config = agent.subject.config
    return f"{config.agent}, {agent.subject.step:,} training steps, seed {config.seed}"


def _about(demo: Demo) -> str:
    """What the video shows, in a paragraph."""
    shift, two = demo.scenes[1].shift, len(demo.agents) > 1
    text = (
        "These agents were trained in the clean scene only. Here they start the same episodes: one in the clean scene, "
        f"and one in a scene that they never saw, {shift}, with the same background. "
        if two
        else "This agent was trained in the clean scene only. Here it starts the same episode twice: in the clean "
        f"scene, and in one that it never saw, {shift}. "
    )
    salient = list(dict.fromkeys(_salient(agent) for agent in demo.agents))
    for what in salient:
        of = "" if len(salient) == 1 else f" ({demo.names[salient.index(what)]})"
        text += f"In magenta{of}: {what}. "
    if not two and demo.scenes[1].images.predicted is not None:
        text += "In white: that mask as its decoder predicts it. "
    if any(agent.scenes[1].images.predicted is not None for agent in demo.agents):
        text += (
            "SGQN trains the value to depend on the masked pixels only, and the features to predict the mask even from "
            "augmented images. That makes the agent robust to the background."
        )
    return text


def _salient(agent: Shown) -> str:
    """What the mask of an agent is."""
    subject = agent.subject
    method = subject.method.replace("_", " ")
    if agent.scenes[1].images.soft:
        return f"the soft mask of the pixels that the value Q(s, a) depends on, by {method}"
    kept = f"{100 * (1 - subject.rho):.3g} %"
    return f"the {kept} of the pixels that the value Q(s, a) depends on most, by {method}"


def off_body(agent: Shown, name: str) -> dict[str, str]:
    """How much of the mask lies off the body in the distracting scene, and where that is."""
    numbers = agent.scenes[1].numbers
    off, far = (round(100 * (1 - share), 0) for share in (numbers.mask_share, numbers.near_share))
    shares = {"off": off, "near": off - far, "far": far}  # so that the parts add up as they are shown
    return {"name": name, **{which: _percent(share / 100) for which, share in shares.items()}}


def table(demo: Demo) -> list[tuple[str, ...]]:
    """The numbers: name, then for each agent in the clean scene and in the other."""
    numbers = [scene.numbers for agent in demo.agents for scene in agent.scenes]
    steps, most = demo.steps, demo.subject.config.episode_steps
    first = "return" if steps == most else f"return, first {steps} of {most} steps"
    rows = [
        (first, *(find_task(demo.subject.config.task).return_text(n.score) for n in numbers)),
        ("share of the mask on the body", *(_percent(n.mask_share) for n in numbers)),
        ("by chance: the body's share of the image", *(_percent(n.base_rate) for n in numbers)),
        (f"share of the mask at most {NEAR} pixels from the body", *(_percent(n.near_share) for n in numbers)),
        ("by chance", *(_percent(n.near_rate) for n in numbers)),
    ]
    if any(not math.isnan(n.agreement) for n in numbers):
        agreement = ("none" if math.isnan(n.agreement) else f"{n.agreement:.2f}" for n in numbers)
        rows.append(("predicted mask against mask, IoU", *agreement))
    return rows


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
    sources = [agent.source for agent in demo.agents]
    short = [pretrained.short(name) if name.startswith(pretrained.PREFIX) else name for name in sources]
    runs = [shlex.quote(name) for name in short]
    clean, other = (scene.shift for scene in demo.scenes)
    return [
        *(f"sgqn evaluate {run} --shift {clean} {other} --episodes 10" for run in runs),
        f"sgqn explain {' '.join(runs)} --method guided_backprop occlusion --out look.png",
        f"sgqn watch {' '.join(runs)}",
        f"sgqn train --task {demo.subject.config.task} --preset tiny",
    ]


def links(page: Path) -> dict[str, str]:
    """Addresses of the paper and of the documentation: the one in the package's metadata, or the folder of a clone."""
    found = {"Paper": PAPER}
    with contextlib.suppress(PackageNotFoundError):
        addresses = (line.partition(", ") for line in metadata("sgqn").get_all("Project-URL") or [])
        found |= {name: address for name, _, address in addresses}
    docs = Path(__file__).parents[2] / "docs"
    if "Documentation" not in found and (docs / "demo.md").is_file():
        with contextlib.suppress(ValueError):  # on another drive
            found["Documentation"] = quote(Path(os.path.relpath(docs / "demo.md", page.resolve().parent)).as_posix())
    return found


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
    two = len(demo.agents) > 1
    columns = [
        f"{name}\n{scene.name}" if two else scene.name
        for name, agent in zip(demo.names, demo.agents, strict=True)
        for scene in agent.scenes
    ]
    shown = Table(demo.subject.config.task, *columns, box=box.SIMPLE_HEAD)
    for column in shown.columns[1:]:
        column.justify = "right"
    for row in table(demo):
        shown.add_row(*row)
    console.print(shown)
    console.print(notes(demo), soft_wrap=True, markup=False)
    console.print(f"page: {demo.page.resolve()}", soft_wrap=True, markup=False)
    console.print(f"animation: {demo.animation.resolve()}", soft_wrap=True, markup=False)
