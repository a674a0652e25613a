"""Callbacks: hooks for user code during training."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

Reason = Literal["complete", "stopped", "interrupted", "failed"]
"""How training ended: at its last step, by a callback's `stop`, by a signal, or with an error."""


class Callback:
    """Override any of the hooks. `self.stop()` in any of them ends training after the current step.

    The run is then saved and can be resumed. An exception in a hook ends training as any other error does.
    """

    stopping = False

    def stop(self) -> None:
        """End training after the current step."""
        self.stopping = True

    def on_start(self, config: dict[str, Any], folder: Path, step: int) -> None:
        """Training starts at `step`, which is 0 unless the run is resumed; `config` is the content of config.json."""

    def on_step(self, step: int) -> None:
        """Every environment has made a step: `step` has increased by their number."""

    def on_log(self, step: int, values: dict[str, float]) -> None:
        """A line was written to metrics.jsonl: losses, episode returns, speed."""

    def on_evaluation(self, step: int, values: dict[str, Any]) -> None:
        """A line was written to evaluations.jsonl: `shift`, `returns`, `mean`, `std`, `renderer`, `backgrounds`, ..."""

    def on_checkpoint(self, step: int, path: Path) -> None:
        """A checkpoint was written to the folder `path`; `sgqn.load_agent(path)` loads it."""

    def on_end(self, step: int, reason: Reason) -> None:
        """Training has ended; called after every `on_start`, also after an error."""
