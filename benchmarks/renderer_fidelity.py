"""Compare images of Warp and OpenGL: mean absolute difference (0 to 255) and IoU of the ground-truth masks.

python benchmarks/renderer_fidelity.py            # the paper's five tasks, one episode of random actions each
python benchmarks/renderer_fidelity.py --tiny     # check that the script works, in seconds
"""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace

import numpy as np
import torch
import tyro
from rich.console import Console
from rich.progress import track
from rich.table import Table

from sgqn.envs.families import find_task
from sgqn.envs.gl import GLRenderer
from sgqn.envs.opengl import gl_error
from sgqn.envs.simulation import MujocoSimulation
from sgqn.envs.warp import WarpRenderer
from sgqn.results.paper import TASKS as PAPER_TASKS


@dataclass
class Options:
    """What to compare."""

    tasks: list[str] = field(default_factory=lambda: list(PAPER_TASKS))
    shift: str = "train"
    every: int = 2
    """Agent steps between two compared frames."""
    tiny: bool = False
    """Compare a few frames of one task only, to check that the script works."""


def main(options: Options) -> int:
    if gl_error() is not None:
        print(f"skipped: there is no OpenGL to compare with ({gl_error()})")
        return 0 if options.tiny else 2
    if options.tiny:
        options = replace(options, tasks=["cartpole-swingup"], every=50)
    table = Table(title=f"Warp compared with OpenGL, shift {options.shift}, one episode of random actions")
    for name in ("task", "frames", "mean difference (of 255)", "largest frame", "mask IoU"):
        table.add_column(name, justify="left" if name == "task" else "right")
    for task in track(options.tasks, description="tasks"):
        differences, overlap = compare(task, options.shift, options.every)
        table.add_row(
            task, str(len(differences)), f"{np.mean(differences):.2f}", f"{max(differences):.2f}", f"{overlap:.3f}"
        )
    Console(width=100).print(table)
    return 0


def compare(name: str, shift_name: str, every: int) -> tuple[list[float], float]:
    """Mean absolute difference of each compared frame, and the IoU of the masks over all of them."""
    task = find_task(name)
    simulation = task.load(shift_name)
    assert isinstance(simulation, MujocoSimulation)
    warp = WarpRenderer(simulation, 1, 84, torch.device("cpu"), masks=True)
    gl = GLRenderer(simulation, 84)
    simulation.reset(0)
    gl.start()
    warp.set_appearances([0], [simulation.appearance])
    row = np.zeros((1, simulation.scene.size), dtype=np.float32)
    random = np.random.RandomState(0)
    differences: list[float] = []
    both = either = 0
    for step in range(task.episode_steps):
        simulation.step(random.uniform(-1, 1, simulation.action_dim))
        if step % every:
            continue
        simulation.write_scene(row[0])
        drawn = warp.frames(row)[0].numpy().astype(int)
        differences.append(float(np.abs(gl.frame().astype(int) - drawn).mean()))
        a, b = gl.mask(), warp.masks()[0].numpy()
        both, either = both + int((a & b).sum()), either + int((a | b).sum())
    warp.close()
    simulation.close()
    return differences, both / max(either, 1)


if __name__ == "__main__":
    sys.exit(main(tyro.cli(Options, description=__doc__)))
