"""Output of a training run: progress bar, metrics.jsonl, evaluations.jsonl, TensorBoard."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from torch import Tensor

from sgqn import run_folder
from sgqn.agents.base import Agent
from sgqn.augmentations import center_crop
from sgqn.config import TrainConfig
from sgqn.envs.families import find_task
from sgqn.evaluation import Evaluation
from sgqn.inspect.look import look_at, newest, predict
from sgqn.reading import number


class Logs:
    """The logs of a run."""

    def __init__(self, folder: Path, config: TrainConfig, progress: bool):
        self._folder, self._config = folder, config
        self._returns: list[float] = []
        self._successes: list[bool] = []
        self._last_return: float | None = None
        self._seconds = 0.0  # of earlier sessions of this run
        self._started = self._marked = time.monotonic()
        self._marked_step = 0
        self._board: Any = None
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=Console(stderr=True),
            disable=not progress,
        )
        name = f"{config.agent} on {config.task}, seed {config.seed}"
        self._task = self._progress.add_task(name, total=config.steps, rate="", note="")

    @contextmanager
    def open(self, step: int) -> Iterator[None]:
        """Show progress and keep TensorBoard's file open."""
        from torch.utils.tensorboard import SummaryWriter

        self._started = self._marked = time.monotonic()
        self._marked_step = step
        self._board = SummaryWriter(str(self._folder), purge_step=step + 1 if step else None)
        with ExitStack() as stack:
            stack.callback(self._board.close)
            stack.enter_context(self._progress)
            self._progress.update(self._task, completed=step)
            yield

    def episodes(self, returns: Any, successes: Any = ()) -> None:
        """Add the returns of finished episodes and, if the task can be solved, whether it was."""
        self._returns += [float(value) for value in returns]
        self._successes += [bool(value) for value in successes]

    def write(self, step: int, updates: int, means: dict[str, float]) -> dict[str, float]:
        """Write a line: the means of the updates' metrics since the last one, and the episodes that have ended."""
        values = dict(means)
        if self._returns:
            self._last_return = sum(self._returns) / len(self._returns)
            values["episode/return"] = self._last_return
            values["episode/count"] = float(len(self._returns))
        if self._successes:
            values["episode/success"] = sum(self._successes) / len(self._successes)
        now = time.monotonic()
        rate = (step - self._marked_step) / max(now - self._marked, 1e-9)
        self._marked, self._marked_step = now, step
        line = {"step": step, "updates": updates, **values, "steps_per_second": rate, "seconds": self.seconds}
        run_folder.append_line(self._folder / run_folder.METRICS, line)
        for name, value in values.items():
            self._board.add_scalar(name, value, step)
        self._board.add_scalar("steps_per_second", rate, step)
        self._returns, self._successes = [], []
        show = find_task(self._config.task).return_text
        shown = "" if self._last_return is None else f"return {show(self._last_return)}"
        loss = f", critic loss {values['loss/critic']:.3g}" if "loss/critic" in values else ""
        self._progress.update(self._task, completed=step, rate=f"{rate:,.0f} steps/s", note=shown + loss)
        return line

    def evaluation(self, step: int, result: Evaluation) -> dict[str, Any]:
        """Write a line about an evaluation."""
        line = {"step": step, **result.to_dict()}
        run_folder.append_line(self._folder / run_folder.EVALUATIONS, line)
        self._board.add_scalar(f"evaluation/{result.shift}", result.mean, step)
        solved = ""
        if result.success_rate is not None:
            self._board.add_scalar(f"success/{result.shift}", result.success_rate, step)
            solved = f", success {result.success_rate:.0%}"
        self._progress.console.print(
            f"step {step:,}: {result.shift} return {result.mean:.1f} ± {result.std:.1f}{solved} "
            f"({result.episodes} episodes)"
        )
        return line

    def images(self, step: int, agent: Agent, obs: Tensor) -> None:
        """Rows of observations, masked observations and predicted masks, as a TensorBoard image.

        Masks are shown for agents that learn with one, predictions for agents with a decoder.
        """
        action, seen = agent.act(obs), center_crop(obs, agent.spec.image_size)
        rows = [newest(seen).float() / 255]
        if agent.rho is not None:
            mask = look_at(agent, seen, action, agent.explained_by).mask(agent.rho)
            rows.append(rows[0] * newest(mask))
        predicted = predict(agent, seen, action)
        if predicted is not None:
            rows.append(newest(predicted))
        sheet = torch.cat([torch.cat(list(row), dim=2) for row in rows], dim=1)  # (3, rows * H, columns * W)
        self._board.add_image("observation, salient pixels, predicted mask", sheet.cpu(), step)

    def note(self, text: str) -> None:
        self._progress.update(self._task, note=text)

    def say(self, text: str) -> None:
        """Print a line next to the progress bar."""
        if not self._progress.disable:
            self._progress.console.print(text, highlight=False, markup=False, soft_wrap=True)

    @property
    def seconds(self) -> float:
        """Wall time of the run so far, earlier sessions included."""
        return self._seconds + time.monotonic() - self._started

    def state_dict(self) -> dict[str, Any]:
        return {
            "returns": list(self._returns),
            "successes": list(self._successes),
            "last_return": self._last_return,
            "seconds": self.seconds,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        returns, last = state["returns"], state["last_return"]
        successes, seconds = state.get("successes", []), state["seconds"]
        if not isinstance(returns, list) or not isinstance(successes, list) or number(seconds, "seconds") < 0:
            raise ValueError("the log's returns, successes or seconds are not valid")
        self._returns = [number(value, "a return") for value in returns]
        self._successes = [bool(value) for value in successes]
        self._last_return = None if last is None else number(last, "last_return")
        self._seconds = seconds
