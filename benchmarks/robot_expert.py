"""Return and success of the scripted experts of the robot tasks, and of random actions, next to the paper's SGQN.

    python benchmarks/robot_expert.py [--episodes 100]

The experts read the simulator's state. It prints the Markdown table of docs/robots.md.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

import numpy as np
from rich.progress import track

from sgqn.envs.families import find_task
from sgqn.envs.families.robot.tasks import RobotSimulation
from sgqn.results import paper


def play(simulation: RobotSimulation, episode: int, policy: Callable[[], np.ndarray]) -> tuple[float, bool]:
    """The return of an episode, and whether it ended with the task solved."""
    simulation.reset(episode, seed=0)
    total, over = 0.0, False
    while not over:
        reward, _, over = simulation.step(policy())
        total += reward
    return total, simulation.success


def _uniform(random: np.random.Generator, size: int) -> np.ndarray:
    return random.uniform(-1, 1, size)


def papers_return(task: str) -> str:
    """The paper's SGQN in the training scene."""
    found = paper.score(task, "sgqn", "train")
    return "" if found is None else f"{found.mean:.1f} ± {found.std:.0f}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=100)
    parser.add_argument("--tiny", action="store_true", help="play two episodes, to check that the script works")
    options = parser.parse_args()
    missing = find_task(paper.ROBOT_TASKS[0]).family.missing()
    if missing is not None:
        parser.exit(0 if options.tiny else 2, f"skipped: {missing}\n")
    rows = []
    for task in paper.ROBOT_TASKS:
        simulation = find_task(task).load("train")
        assert isinstance(simulation, RobotSimulation)
        draw = partial(_uniform, np.random.default_rng(0), simulation.action_dim)
        policies: dict[str, Callable[[], np.ndarray]] = {"expert": simulation.expert, "random": draw}
        for name, policy in policies.items():
            count = 2 if options.tiny else options.episodes
            episodes = track(range(count), description=f"{task}, {name}", transient=True)
            results = [play(simulation, episode, policy) for episode in episodes]
            returns, solved = zip(*results, strict=True)
            shown = f"{np.mean(returns):.1f} ± {np.std(returns):.1f}"
            rows.append(f"| {task} | {name} | {shown} | {sum(solved)} of {len(solved)} | {papers_return(task)} |")
    print("| task | policy | return | solved | paper, SGQN |", "|---|---|---|---|---|", *rows, sep="\n")
