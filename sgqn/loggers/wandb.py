"""Weights & Biases. WANDB_PROJECT (default sgqn), WANDB_MODE and its other variables apply."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from sgqn.callbacks import Callback, Reason
from sgqn.errors import SgqnError
from sgqn.loggers import register_logger, remember, remembered, required, scores, title_of


@register_logger("wandb")
class WandbLogger(Callback):
    """Metrics, evaluations and the configuration, as one run."""

    def __init__(self) -> None:
        self._wandb = required("wandb", "wandb")
        self._run: Any = None

    def on_start(self, config: dict[str, Any], folder: Path, step: int) -> None:
        try:
            self._run = self._wandb.init(
                project=os.environ.get("WANDB_PROJECT", "sgqn"),
                name=title_of(config),
                group=f"{config['task']}/{config['agent']}",
                id=remembered(folder, "wandb"),
                resume="allow",
                dir=str(folder),
                config=config,
            )
        except self._wandb.Error as error:
            raise SgqnError(f"wandb: {error} (WANDB_MODE=offline needs no account)") from error
        remember(folder, "wandb", self._run.id)
        self._run.define_metric("*", step_metric="step")  # a resumed run may repeat some steps

    def on_log(self, step: int, values: dict[str, float]) -> None:
        self._run.log({**values, "step": step})

    def on_evaluation(self, step: int, values: dict[str, Any]) -> None:
        self._run.log({**scores(values), "step": step})

    def on_end(self, step: int, reason: Reason) -> None:
        self._run.finish(exit_code=int(reason == "failed"))
