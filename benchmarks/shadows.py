"""Measure how much an agent relies on shadows: its returns in the training scene with and without them.

    python benchmarks/shadows.py pretrained:robot-reach              # also runs and exported agents, several at once
    python benchmarks/shadows.py --tiny                              # check that the script works, in seconds

Nothing else changes: the same episodes, the same colours and textures. Prints a Markdown table.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import tyro
from rich.progress import track

from sgqn.envs.simulation import MujocoSimulation
from sgqn.inspect import Subject, environment
from sgqn.inspect.episode import roll


@dataclass
class Options:
    """What to measure."""

    agents: tyro.conf.Positional[list[str]] = field(default_factory=lambda: ["pretrained:walker-walk"])
    """Anything that `sgqn.load_agent` accepts."""
    episodes: int = 30
    renderer: str = "gl"
    """gl or warp."""
    tiny: bool = False
    """Two steps of one episode, to check that the script works."""


def play(subject: Subject, shadows: bool, options: Options) -> tuple[list[float], list[bool]]:
    """The returns of all episodes and, if the task can be solved, whether it was."""
    env = environment(subject, "train", renderer=options.renderer)
    for simulation in env.unwrapped._stage.simulations:  # type: ignore[attr-defined]
        assert isinstance(simulation, MujocoSimulation), "only MuJoCo draws shadows"
        simulation.model.light_castshadow[:] &= shadows
    returns, solved = [], []
    try:
        for episode in track(range(1 if options.tiny else options.episodes), f"shadows: {shadows}", transient=True):
            total = 0.0
            for number, step in enumerate(roll(env, subject.agent.act, seed=0, episode=episode)):
                total += step.reward
                if step.over or (options.tiny and number == 2):
                    break
            returns.append(total)
            if "success" in step.info:
                solved.append(bool(step.info["success"]))
    finally:
        env.close()
    return returns, solved


def main(options: Options) -> None:
    print("| agent | task | shadows | return | solved |", "|---|---|---|---|---|", sep="\n")
    for path in options.agents:
        subject = Subject.load(path)
        for shadows in (True, False):
            returns, solved = play(subject, shadows, options)
            rate = f"{np.mean(solved):.0%}" if solved else ""
            shown = f"{np.mean(returns):.1f} ± {np.std(returns):.1f}"
            about = f"{subject.config.agent} | {subject.config.task} | {'yes' if shadows else 'no'}"
            print(f"| {about} | {shown} | {rate} |", flush=True)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
