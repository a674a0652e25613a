"""Draw the galleries of the documentation in docs/images: gallery.png, robots.png, renderers.png, distracted.png and
restored.png.

    python docs/make_gallery.py
    python docs/make_gallery.py --tiny --out FOLDER     # one task only, which takes seconds

Backgrounds come from the data directory, or are generated if it has none. The robots need `sgqn[robot]`.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from rich.progress import track

import sgqn
from sgqn.agents import Agent, build_agent
from sgqn.agents.restored import Restored
from sgqn.augmentations import ImageBank, make_augmentation
from sgqn.envs.families import find_task
from sgqn.envs.opengl import gl_error
from sgqn.pretrained import available
from sgqn.results.paper import ROBOT_TASKS
from sgqn.results.paper import TASKS as PAPER_TASKS

Act: TypeAlias = Callable[[np.ndarray], np.ndarray]
IMAGES = Path(__file__).resolve().parent / "images"
SCALE = 2
SIDE = 84 * SCALE
MARGIN = 150
HEADER = 30
STEPS = 12
DRAWS = 4
"""Distracted observations of each task."""
RESTORED = "sgqn_restored"
SHIFTED = ("color_hard", "video_easy", "video_hard")
"""The scenes whose observations are restored."""


def frame(task: str, shift: str, renderer: str, masks: bool = False) -> np.ndarray:
    """The latest frame after some steps of a fixed episode, enlarged. With `masks`, other pixels are darkened."""
    env = sgqn.make(task, shift=shift, renderer=renderer, masks=masks, seed=0)
    random = np.random.RandomState(1)
    env.reset(seed=0, options={"episode": 2})
    for _ in range(STEPS):
        obs, _, _, _, info = env.step(random.uniform(-1, 1, env.action_space.shape))
    env.close()
    if masks:
        obs = np.where(np.repeat(info["mask"], 3, axis=0), obs, obs // 5)
    return enlarged(obs)


def enlarged(obs: np.ndarray) -> np.ndarray:
    """The latest frame of an observation (C, H, W)."""
    return obs[-3:].transpose(1, 2, 0).repeat(SCALE, 0).repeat(SCALE, 1)


def sheet(rows: Sequence[tuple[str, Sequence[np.ndarray]]], columns: Sequence[str]) -> Image.Image:
    """Images in labelled rows and columns."""
    font = ImageFont.load_default(size=15)
    gap = 4
    width = MARGIN + len(columns) * (SIDE + gap)
    result = Image.new("RGB", (width, HEADER + len(rows) * (SIDE + gap)), "white")
    draw = ImageDraw.Draw(result)
    for x, name in enumerate(columns):
        draw.text((MARGIN + x * (SIDE + gap) + SIDE / 2, HEADER / 2), name, "black", font, anchor="mm")
    for y, (name, images) in enumerate(rows):
        top = HEADER + y * (SIDE + gap)
        draw.text((MARGIN - 8, top + SIDE / 2), name, "black", font, anchor="rm", align="right")
        for x, image in enumerate(images):
            result.paste(Image.fromarray(image), (MARGIN + x * (SIDE + gap), top))
    return result


def gallery(tasks: Sequence[str], shifts: Sequence[str]) -> Image.Image:
    """Every task under every shift, with both renderers."""
    cases = [(task, renderer) for task in tasks for renderer in ("gl", "warp")]
    rows = []
    for task, renderer in track(cases, description="shifts"):
        rows.append((f"{task}\n{renderer}", [frame(task, shift, renderer) for shift in shifts]))
    return sheet(rows, shifts)


def renderers(tasks: Sequence[str]) -> Image.Image:
    """Both renderers side by side, their difference and the ground-truth masks."""
    rows = []
    for task in track(tasks, description="renderers"):
        gl, warp = (frame(task, "train", renderer) for renderer in ("gl", "warp"))
        difference = np.clip(np.abs(gl.astype(int) - warp) * 4, 0, 255).astype(np.uint8)
        masks = [frame(task, "train", renderer, masks=True) for renderer in ("gl", "warp")]
        rows.append((task, [gl, warp, difference, *masks]))
    return sheet(rows, ["gl", "warp", "difference x 4", "mask, gl", "mask, warp"])


def distracted(tasks: Sequence[str]) -> Image.Image:
    """Observations of pretrained agents, the pixels that `sgqn_restored` keeps, and its distracted observations."""
    bank, rows = ImageBank(256), []
    for task in track(tasks, description="distracted"):
        name = f"pretrained:{task}"
        trained = sgqn.load_agent(name)
        config = sgqn.configure(task=task, agent="sgqn_restored", start_from=name)
        augmentation = make_augmentation(config.settings.augmentation, bank)
        agent = build_agent(config.agent, trained.spec, config.settings, augmentation, seed=config.seed, device="cpu")
        assert isinstance(agent, Restored)
        agent.start_from(trained)
        obs = played(task, "train", trained.act, "warp")
        batch = torch.as_tensor(obs)[None].repeat(DRAWS, 1, 1, 1)
        _, mask = agent.lesson(batch)
        seen = agent.distraction(batch, mask, agent.generator).obs.clamp(0, 255).to(torch.uint8)
        pairs = zip(torch.where(mask, batch, 0).numpy(), seen.numpy(), strict=True)
        rows.append((task, [enlarged(obs), *(enlarged(image) for pair in pairs for image in pair)]))
    return sheet(rows, ["observation", *["kept", "distracted"] * DRAWS])


def restored(tasks: Sequence[str]) -> Image.Image:
    """One state of every task in the training scene and in others, and what restored agents get instead."""
    rows = []
    for task in track(tasks, description="restored"):
        agent = sgqn.load_agent(f"pretrained:{task}/{RESTORED}")
        actions: list[np.ndarray] = []
        images = [enlarged(played(task, "train", recording(agent, actions)))]
        for shift in SHIFTED:
            obs = played(task, shift, replaying(actions))
            with torch.no_grad():
                seen = agent.restored(torch.as_tensor(obs)[None])
            assert seen is not None
            images += [enlarged(obs), enlarged(seen[0].clamp(0, 255).to(torch.uint8).numpy())]
        rows.append((task, images))
    return sheet(rows, ["train", *(name for shift in SHIFTED for name in (shift, "restored"))])


def recording(agent: Agent, actions: list[np.ndarray]) -> Act:
    """The agent's policy, which also appends its actions to a list."""

    def act(obs: np.ndarray) -> np.ndarray:
        actions.append(agent.act(obs))
        return actions[-1]

    return act


def replaying(actions: Sequence[np.ndarray]) -> Act:
    """A policy that repeats actions."""
    left = iter(actions)
    return lambda _: next(left)


def played(task: str, shift: str, act: Act, renderer: str = "gl") -> np.ndarray:
    """The observation after some steps of an episode."""
    with sgqn.make(task, shift=shift, renderer=renderer, seed=0) as env:
        obs, _ = env.reset()
        for _ in range(3 * STEPS):
            obs, *_ = env.step(act(obs))
    return obs


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="draw one task only, to check that the script works")
    parser.add_argument("--out", type=Path, default=IMAGES, help="folder of the images (default: docs/images)")
    options = parser.parse_args()
    if gl_error() is not None:
        parser.exit(0 if options.tiny else 2, f"skipped: the galleries need OpenGL ({gl_error()})\n")
    tasks, shifts = (
        (("cartpole-swingup",), ("train",)) if options.tiny else (PAPER_TASKS, find_task(PAPER_TASKS[0]).shifts)
    )
    options.out.mkdir(parents=True, exist_ok=True)
    gallery(tasks, shifts).quantize(192).save(options.out / "gallery.png", optimize=True)
    robots = find_task(ROBOT_TASKS[0])
    if robots.family.missing() is None and not options.tiny:
        gallery(ROBOT_TASKS, robots.shifts).quantize(192).save(options.out / "robots.png", optimize=True)
    renderers(tasks).quantize(192).save(options.out / "renderers.png", optimize=True)
    distracted(tasks).quantize(192).save(options.out / "distracted.png", optimize=True)
    packed = [task for task in tasks if f"{task}/{RESTORED}" in available()]
    restored(packed).quantize(192).save(options.out / "restored.png", optimize=True)
