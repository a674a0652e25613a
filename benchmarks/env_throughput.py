"""Measure agent steps per second of the environments, compared with a reference pipeline.

    python benchmarks/env_throughput.py                    # everything, a few minutes on two cores
    python benchmarks/env_throughput.py --device cuda --renderers warp --num-envs 16 64 --shifts train
    python benchmarks/env_throughput.py --tiny             # check that the script works, in seconds

Rates are for whole episodes: timed steps and one timed reset, weighted as in an episode. The reference pipeline is a
direct implementation of the benchmark's own: OpenGL, a per-pixel chroma key in Python, and a decoded clip at every
reset, all in one process.
"""

from __future__ import annotations

import colorsys
import json
import os
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import torch.nn.functional as F
import tyro
from rich.console import Console
from rich.progress import track
from rich.table import Table

import sgqn
from sgqn import data
from sgqn.envs.backgrounds import generate_clip
from sgqn.envs.families import find_task
from sgqn.envs.families.suite import SuiteSimulation
from sgqn.envs.gl import Painter
from sgqn.envs.opengl import gl_error


@dataclass
class Options:
    """What to measure."""

    task: str = "walker-walk"
    shifts: list[str] = field(default_factory=lambda: ["train", "video_hard"])
    renderers: list[str] = field(default_factory=lambda: ["gl", "warp"])
    num_envs: list[int] = field(default_factory=lambda: [1, 2, 8, 16])
    steps: int = 60
    """Timed steps per environment."""
    windows: int = 3
    """Number of timed windows, each with a reset. The reference is timed in between."""
    device: str = "cpu"
    """Device of the observations."""
    reference: bool = True
    """Measure the reference pipeline too (needs OpenGL)."""
    physics: bool = True
    """Measure physics without rendering, in processes and in threads."""
    json: Annotated[bool, tyro.conf.arg(help="Print JSON instead of a table.")] = False
    tiny: bool = False
    """Run a few steps only, to check that the script works."""


def main(options: Options) -> None:
    if options.tiny:
        options = replace(options, task="cartpole-swingup", shifts=["video_hard"], num_envs=[2], steps=2, windows=1)
    rows: list[dict] = []
    reference = None
    if options.reference and gl_error() is None:
        reference = Reference(options.task, clip_frames=10 if options.tiny else 500)
    cases = [
        (renderer, shift, count)
        for shift in options.shifts
        for renderer in options.renderers
        for count in options.num_envs
        if renderer != "gl" or gl_error() is None
    ]
    for renderer, shift, count in track(cases, description="environments", disable=options.json):
        rate, speedup = our_rate(options, renderer, shift, count, reference if shift == "video_hard" else None)
        rows.append(
            {"environment": f"sgqn, {renderer}", "shift": shift, "envs": count, "steps/s": rate, "speedup": speedup}
        )
    if reference is not None:
        row = {"environment": "reference", "shift": "video_hard", "envs": 1, "steps/s": reference.rate, "speedup": 1.0}
        rows.insert(0, row)
    if options.physics:
        for kind, rate in physics_rates(options).items():
            count = max(options.num_envs)
            rows.append(
                {"environment": f"physics only, {kind}", "shift": "-", "envs": count, "steps/s": rate, "speedup": None}
            )
    show(options, rows)


def show(options: Options, rows: list[dict]) -> None:
    if options.json:
        print(json.dumps(rows, indent=1))
        return
    device = torch.cuda.get_device_name() if options.device.startswith("cuda") else f"{os.cpu_count()} CPU cores"
    table = Table(title=f"{options.task}: agent steps/s ({device})")
    for name in ("environment", "shift", "envs", "steps/s", "speedup"):
        table.add_column(name, justify="left" if name in ("environment", "shift") else "right")
    for row in rows:
        speedup = row["speedup"]
        table.add_row(
            row["environment"],
            row["shift"],
            str(row["envs"]),
            f"{row['steps/s']:,.0f}",
            f"{speedup:.1f}" if speedup else "",
        )
    Console(width=100).print(table)


def our_rate(
    options: Options, renderer: str, shift: str, count: int, reference: Reference | None
) -> tuple[float, float | None]:
    """Agent steps/s (one environment through `make`, several through `make_vec`), and the ratio to the reference.

    Our windows and those of the reference alternate, so that a varying machine load affects both. Medians are returned.
    """
    task = find_task(options.task)
    synchronize = torch.cuda.synchronize if options.device.startswith("cuda") else lambda: None
    env: sgqn.envs.PixelEnv | sgqn.envs.PixelVectorEnv
    if count == 1 and options.device == "cpu":
        env = sgqn.make(options.task, shift=shift, renderer=renderer)
    else:
        env = sgqn.make_vec(options.task, count, shift=shift, renderer=renderer, device=options.device)
    shape = env.action_space.shape
    assert shape is not None
    actions = np.random.RandomState(0).uniform(-1, 1, (options.steps, *shape))
    env.reset(seed=0)
    for action in actions[:5]:
        env.step(action)
    rates, ratios = [], []
    for window in np.array_split(actions, options.windows):
        start = time.perf_counter()
        env.reset()
        env._pixels.settle()  # decoding ahead belongs to the reset, not to the steps of a short window
        synchronize()
        reset = time.perf_counter() - start
        start = time.perf_counter()
        for action in window:
            env.step(action)
        synchronize()
        step = (time.perf_counter() - start) / len(window)
        rates.append(count * task.episode_steps / (task.episode_steps * step + reset))
        if reference is not None:
            ratios.append(rates[-1] / reference.measure())
    env.close()
    return float(np.median(rates)), float(np.median(ratios)) if ratios else None


def physics_rates(options: Options) -> dict[str, float]:
    """dm_control steps/s without rendering, in worker processes and in threads of this process."""
    from sgqn.envs.workers import WorkerStage

    task, count = find_task(options.task), max(options.num_envs)
    simulations = [task.load("train") for _ in range(count)]
    actions = np.random.RandomState(0).uniform(-1, 1, (options.steps, count, simulations[0].action_dim))
    stage = WorkerStage(task, simulations[0].shift, count, 8, "warp", torch.device(options.device), masks=False)
    stage.reset(range(count), 0, range(count))
    start = time.perf_counter()
    for action in actions:
        stage.step_async(action)
        stage.step_wait()
    processes = time.perf_counter() - start
    stage.close()
    for i, simulation in enumerate(simulations):
        simulation.reset(i)
    with ThreadPoolExecutor(min(count, os.cpu_count() or 1)) as pool:
        start = time.perf_counter()
        for action in actions:
            list(pool.map(lambda simulation, a: simulation.step(a), simulations, action))
        threads = time.perf_counter() - start
    steps = options.steps * count
    return {"processes": steps / processes, "threads": steps / threads}


# ---- the reference pipeline


class Reference:
    """OpenGL, a per-pixel chroma key and a decoded clip at every reset; one environment in one process.

    `act` is a policy for single observations; without it, actions are random.
    """

    def __init__(self, task_name: str, act: Callable[[np.ndarray], np.ndarray] | None = None, clip_frames: int = 500):
        self._task = find_task(task_name)
        simulation = self._task.load("video_hard")
        assert isinstance(simulation, SuiteSimulation)
        self._simulation = simulation
        Painter(self._simulation.model).paint(self._simulation.shift.appearance(0, 0))
        self._clips = video_files(clip_frames)
        self._frames: list[np.ndarray] = []
        self._random = np.random.RandomState(0)
        self._act = act or (lambda obs: self._random.uniform(-1, 1, self._simulation.action_dim))
        self._rates: list[float] = []
        self._episode = 0
        self._reset()  # creates the OpenGL context

    @property
    def rate(self) -> float:
        return float(np.median(self._rates))

    def measure(self, steps: int = 8) -> float:
        """Agent steps/s over a window of one reset and some steps, weighted as in an episode."""
        start = time.perf_counter()
        clip, obs = self._reset()
        reset = time.perf_counter() - start
        start = time.perf_counter()
        for index in range(steps):
            self._simulation.step(self._act(obs))
            obs = self._observe(clip, index + 1)
        step = (time.perf_counter() - start) / steps
        self._rates.append(1 / (step + reset / self._task.episode_steps))
        return self._rates[-1]

    def _reset(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the clip and the first observation, which repeats the first frame three times."""
        self._episode += 1
        self._simulation.reset(self._episode)
        clip = read_video(self._clips[self._episode % len(self._clips)])
        self._frames = []
        self._observe(clip, 0)
        self._frames *= 3
        return clip, np.concatenate([frame.transpose(2, 0, 1) for frame in self._frames])

    def _observe(self, clip: np.ndarray, index: int) -> np.ndarray:
        image = self._simulation.env.physics.render(84, 84, camera_id=0)
        background = torch.from_numpy(clip[index % len(clip)]).permute(2, 0, 1)[None].float() / 255
        background = F.interpolate(background, size=(84, 84), mode="bilinear", align_corners=False)
        behind = (background * 255).byte()[0].permute(1, 2, 0).numpy()
        self._frames = [*self._frames[-2:], green_screen(image, behind)]
        return np.concatenate([frame.transpose(2, 0, 1) for frame in self._frames])


def green_screen(image: np.ndarray, background: np.ndarray) -> np.ndarray:
    """The benchmark's chroma key, pixel by pixel."""
    result = image.copy()
    for y in range(image.shape[0]):
        for x in range(image.shape[1]):
            r, g, b = (float(c) / 255 for c in image[y, x])
            h, s, v = colorsys.rgb_to_hsv(r, g, b)
            if 100 <= h * 360 <= 185 and 80 <= s * 255 <= 255 and 70 <= v * 255 <= 255:
                result[y, x] = background[y, x]
    return result


def read_video(path: Path) -> np.ndarray:
    """Decode all frames of a clip."""
    import av

    with av.open(str(path)) as container:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])


def video_files(frames: int) -> list[Path]:
    """The clips in the data directory, or two generated clips of the benchmark's size."""
    found = data.video_clips("video_hard")
    if found:
        return found
    import av

    folder = Path(tempfile.mkdtemp(prefix="sgqn-clips-"))
    for index in range(2):
        with av.open(str(folder / f"video{index}.mp4"), "w") as container:
            stream = container.add_stream("mpeg4", rate=25)
            stream.width = stream.height = 352
            small = generate_clip("video_hard", index, 84)
            for frame in np.resize(small.numpy(), (frames, 84, 84, 3)):
                large = np.ascontiguousarray(frame.repeat(5, 0).repeat(5, 1)[:352, :352])
                container.mux(stream.encode(av.VideoFrame.from_ndarray(large, format="rgb24")))
            container.mux(stream.encode())
    return sorted(folder.iterdir())


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
