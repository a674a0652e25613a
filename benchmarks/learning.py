"""Check that an agent learns and looks at the right pixels, on a visual task that takes a minute or two on a CPU.

    python benchmarks/learning.py --agent sgqn --out docs/learning
    python benchmarks/learning.py --tiny                   # check that the script works, in seconds

Images show a bright square on a cluttered background. The action is a number in [-1, 1] and the reward is
1 - |action - position|, where position is the horizontal position of the square. Every episode is one step. Agent,
replay and augmentation are those of real training. The curves show, against the number of updates, the return of the
deterministic policy on the training background and on unseen backgrounds (compared with random actions), and the share
of the attribution mask on the square (compared with the square's share of the image).
"""

from __future__ import annotations

import csv
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
import tyro
from rich.console import Console
from rich.progress import track
from torch import Tensor

from sgqn.agents import Agent, Phase, Spec, build_agent
from sgqn.agents.sgqn import SGQN
from sgqn.augmentations import ImageBank, make_augmentation
from sgqn.config import preset
from sgqn.envs.backgrounds import generated_images
from sgqn.replay import Batch, Replay

SIZE, SIDE = 48, 8
Row = dict[str, float]


@dataclass
class Options:
    """What to train."""

    agent: str = "sgqn"
    """Agent to train."""
    updates: int = 1500
    """Number of updates."""
    seed: int = 0
    """Random seed."""
    every: int = 150
    """Updates between two points of the curve."""
    out: Path | None = None
    """Write <agent>.csv and learning_curve.png to this folder."""
    tiny: bool = False
    """Train for a few updates only, to check that the script works."""


class Squares:
    """The task. Observations are uint8 (n, 9, SIZE, SIZE): the same frame three times."""

    def __init__(self, num_backgrounds: int, seed: int):
        images = generated_images(num_backgrounds, SIZE, seed)
        self.backgrounds = (images // 3).permute(0, 3, 1, 2)  # dimmed, so that the square stands out
        self.generator = torch.Generator().manual_seed(seed)

    def draw(self, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """Observations, positions of the squares, which are the best actions (count,), and masks of the squares."""
        position = torch.rand(count, generator=self.generator) * 2 - 1
        height = torch.randint(SIZE - SIDE, (count,), generator=self.generator)
        left = ((position + 1) / 2 * (SIZE - SIDE)).round().long()
        chosen = torch.randint(len(self.backgrounds), (count,), generator=self.generator)
        frames = self.backgrounds[chosen].clone()
        rows, columns = torch.arange(SIZE), torch.arange(SIZE)
        inside_y = (rows >= height[:, None]) & (rows < height[:, None] + SIDE)
        inside_x = (columns >= left[:, None]) & (columns < left[:, None] + SIDE)
        mask = inside_y[:, :, None] & inside_x[:, None, :]
        orange = torch.tensor([255, 160, 60], dtype=torch.uint8)[None, :, None, None]
        frames = torch.where(mask[:, None], orange, frames)
        return frames.repeat(1, 3, 1, 1), position, mask


def reward_of(action: Tensor, position: Tensor) -> Tensor:
    return 1 - (action[:, 0] - position).abs()


def train(options: Options) -> list[Row]:
    """Train an agent and return its curve."""
    if options.tiny:
        options = replace(options, updates=4, every=2)
    settings = replace(preset("tiny", "walker-walk", options.agent).settings, batch_size=32)
    bank = ImageBank(256, SIZE, options.seed, paths=[])
    augmentation = make_augmentation("overlay", bank)
    agent = build_agent(options.agent, Spec(1, 9, SIZE, SIZE), settings, augmentation, seed=options.seed)
    envs, seen, unseen = 8, Squares(1, 1), Squares(64, 2)
    replay = Replay(8000, envs, (3, SIZE, SIZE), (1,), shortest_episode=1)
    sampler = torch.Generator().manual_seed(options.seed)
    obs, position, _ = seen.draw(envs)
    replay.start(obs)
    over, never = np.ones(envs, dtype=bool), np.zeros(envs, dtype=bool)
    curve = [measure(agent, 0, seen, unseen)]
    for update in track(range(1, options.updates + 1), description=f"training {options.agent}"):
        if update <= 20:
            action = torch.rand(envs, 1, generator=sampler) * 2 - 1
        else:
            action = agent.act(obs, deterministic=False)
        next_obs, next_position, _ = seen.draw(envs)
        replay.add(action, reward_of(action, position), obs, over, never, reset_obs=next_obs)
        obs, position = next_obs, next_position
        second = update % 2 == 0
        agent.update(replay.sample(settings.batch_size, sampler), Phase(second, second, second))
        if update % options.every == 0:
            curve.append(measure(agent, update, seen, unseen))
    return curve


def measure(agent: Agent, update: int, seen: Squares, unseen: Squares) -> Row:
    row: Row = {"update": update}
    for name, task in (("train", seen), ("unseen", unseen)):
        obs, position, mask = task.draw(256)
        row[f"return_{name}"] = float(reward_of(agent.act(obs), position).mean())
        if isinstance(agent, SGQN):
            row[f"on_square_{name}"] = share_on_square(agent, obs, mask)
    obs, position, mask = unseen.draw(256)
    row["return_random"] = float(reward_of(torch.rand(256, 1) * 2 - 1, position).mean())
    row["square"] = float(mask.float().mean())
    return row


def share_on_square(agent: SGQN, obs: Tensor, mask: Tensor) -> float:
    """Share of the attribution mask of (s, pi(s)) that lies on the square."""
    nothing = torch.zeros(len(obs))
    salient = agent.saliency(Batch(obs, agent.act(obs), nothing, nothing, obs))[:, -1].float()
    return float((salient * mask).sum() / salient.sum().clamp_min(1))


def main(options: Options) -> list[Row]:
    curve = train(options)
    for row in curve:
        Console().print("  ".join(f"{name} {value:.3g}" for name, value in row.items()))
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
        with open(options.out / f"{options.agent}.csv", "w", newline="") as file:
            writer = csv.DictWriter(file, list(curve[0]))
            writer.writeheader()
            writer.writerows({name: round(value, 4) for name, value in row.items()} for row in curve)
        plot(options.out)
    return curve


def plot(folder: Path) -> None:
    """Plot all curves in the folder. Needs matplotlib."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), constrained_layout=True)
    for path in sorted(folder.glob("*.csv")):
        with open(path) as file:
            rows = [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]
        updates = [row["update"] for row in rows]
        left.plot(updates, [row["return_train"] for row in rows], label=f"{path.stem}, training background")
        left.plot(updates, [row["return_unseen"] for row in rows], "--", label=f"{path.stem}, unseen backgrounds")
        if "on_square_train" in rows[0]:
            right.plot(updates, [row["on_square_unseen"] for row in rows], label=f"{path.stem}, unseen backgrounds")
    left.axhline(np.mean([row["return_random"] for row in rows]), color="grey", label="random actions")
    right.axhline(np.mean([row["square"] for row in rows]), color="grey", label="share of the square in the image")
    for axes, title in ((left, "return"), (right, "share of the mask on the square")):
        axes.set(xlabel="updates", title=title, ylim=(0, 1.02))
        axes.legend(fontsize=7)
    figure.savefig(folder / "learning_curve.png", dpi=110)


if __name__ == "__main__":
    main(tyro.cli(Options, description=__doc__))
