"""Shared by the GPU benchmarks: agents, synthetic transitions, tables."""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from sgqn.agents import AGENTS, Agent, Phase, Spec, build_agent
from sgqn.augmentations import overlay
from sgqn.config import TINY_SETTINGS, settings_for
from sgqn.fast.backend import FastBackend, choose_backend
from sgqn.replay import Batch

ACTIONS = 6
CYCLE = (Phase(False, False, False), Phase(True, True, True))
"""The schedule of the trainer: actor, target and auxiliary steps in every second update."""
NAMES = tuple(name for name in AGENTS if AGENTS[name].takes(discrete=False))


def sizes(name: str, tiny: bool) -> tuple[Spec, Any]:
    """The paper's sizes, or small ones to check that a script works."""
    image = 24 if tiny else 84
    spec = Spec(ACTIONS, image_size=image, render_size=image * 100 // 84 if AGENTS[name].crops else image)
    values = {**TINY_SETTINGS, "batch_size": 4, "soda_batch_size": 8} if tiny else {}
    return spec, settings_for(name, "walker-walk", **values)


def backend_for(device: torch.device, path: str = "auto", precision: str = "auto") -> FastBackend:
    """The device's backend; a CPU has one to check that scripts work."""
    return FastBackend(device, "CPU") if device.type == "cpu" else choose_backend(device, path, precision)


def make_agent(name: str, device: torch.device, tiny: bool) -> Agent:
    spec, settings = sizes(name, tiny)
    images = smooth(256, spec.image_size, torch.Generator(device).manual_seed(7)).mul(255).byte()
    return build_agent(name, spec, settings, partial(overlay, images=images), seed=0, device=device)


def smooth(count: int, size: int, generator: torch.Generator) -> Tensor:
    """Images (count, 3, size, size) in [0, 1] without sharp edges."""
    coarse = torch.rand(count, 3, 8, 8, generator=generator, device=generator.device)
    return F.interpolate(coarse, (size, size), mode="bilinear")


def scenes(count: int, steps: int, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Squares that move in front of smooth images: uint8 (count, steps, 3, size, size), and their positions."""
    device = generator.device
    start, speed = torch.rand(2, count, 1, 2, generator=generator, device=device)
    way = start + 0.1 * (speed - 0.5) * torch.arange(steps, device=device)[:, None]
    places = 1 - (way % 2 - 1).abs()  # reflected at the edges, (count, steps, 2)
    axis = torch.linspace(0, 1, size, device=device)
    down, across = ((axis - places[..., i, None]).abs() < 0.12 for i in range(2))
    square = (down[..., :, None] & across[..., None, :])[:, :, None]
    colour = torch.rand(count, 1, 3, 1, 1, generator=generator, device=device)
    images = torch.where(square, colour, 0.8 * smooth(count, size, generator)[:, None])
    return images.mul(255).byte(), places


def rewards(places: Tensor, action: Tensor) -> Tensor:
    """Rewards in [0, 4], as over four control steps: higher for low squares, lower for large actions."""
    return 4 * places[..., 0] * (1 - 0.3 * action.square().mean(dim=-1))


def make_batches(count: int, size: int, image: int, generator: torch.Generator) -> Batch:
    """`count` batches of `size` transitions; each field has shape (count, size, ...)."""
    batches = []
    for _ in range(count):
        frames, places = scenes(size, 4, image, generator)
        action = 2 * torch.rand(size, ACTIONS, generator=generator, device=generator.device) - 1
        discount = torch.full((size,), 0.99, device=generator.device)
        obs, next_obs = frames[:, :3].flatten(1, 2), frames[:, 1:].flatten(1, 2)
        batches.append(Batch(obs, action, rewards(places[:, 2], action), discount, next_obs))
    return Batch(*(torch.stack(part) for part in zip(*batches, strict=True)))


def table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a Markdown table with all columns but the first aligned to the right."""
    lines = [[str(cell) for cell in row] for row in (columns, *rows)]
    print(f"\n{title}\n")
    for number, cells in enumerate(lines):
        print("| " + " | ".join(cells) + " |")
        if number == 0:
            print("|---|" + "---:|" * (len(columns) - 1))
    print(flush=True)


class Report:
    """Runs sections, each of which may fail without stopping the others, and writes their results to a JSON file."""

    def __init__(self, file: Path | None):
        self.results: dict[str, Any] = {}
        self.failures: list[str] = []
        self._file = file

    def section(self, name: str, work: Callable[[], Any]) -> None:
        started = time.perf_counter()
        try:
            self.results[name] = work()
        except Exception as error:
            traceback.print_exc()
            print(f"{name} FAILED: {type(error).__name__}: {error}", flush=True)
            self.failures.append(name)
            self.results[name] = {"error": str(error)}
        print(f"[{name}: {time.perf_counter() - started:.1f} s]", flush=True)
        if self._file is not None:
            self._file.write_text(json.dumps(self.results, indent=1) + "\n")
