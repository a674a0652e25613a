"""MLflow. MLFLOW_TRACKING_URI, MLFLOW_EXPERIMENT_NAME (default sgqn) and its other variables apply."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from sgqn.callbacks import Callback, Reason
from sgqn.errors import SgqnError
from sgqn.loggers import register_logger, remember, remembered, required, scores, title_of

AT_ONCE = 100
"""Parameters in one request, at most."""

STATUS: dict[Reason, str] = {
    "complete": "FINISHED",
    "stopped": "FINISHED",
    "interrupted": "KILLED",
    "failed": "FAILED",
}


@register_logger("mlflow")
class MlflowLogger(Callback):
    """Metrics, evaluations and the configuration, as one run."""

    def __init__(self) -> None:
        self._mlflow = required("mlflow", "mlflow")
        try:
            self._client = self._mlflow.MlflowClient()
            name = os.environ.get("MLFLOW_EXPERIMENT_NAME", "sgqn")
            found = self._client.get_experiment_by_name(name)
            self._experiment = found.experiment_id if found else self._client.create_experiment(name)
        except self._mlflow.MlflowException as error:
            where = self._mlflow.get_tracking_uri()
            raise SgqnError(f"MLflow cannot log to {where}: {error} (set MLFLOW_TRACKING_URI)") from error
        self._run = ""

    def on_start(self, config: dict[str, Any], folder: Path, step: int) -> None:
        if earlier := remembered(folder, "mlflow"):
            self._run = earlier
            self._client.update_run(earlier, status="RUNNING")
            return
        self._run = self._client.create_run(self._experiment, run_name=title_of(config)).info.run_id
        remember(folder, "mlflow", self._run)
        entities = self._mlflow.entities
        values = {**config, **config["settings"]}
        parameters = [entities.Param(name, str(value)) for name, value in values.items() if name != "settings"]
        for start in range(0, len(parameters), AT_ONCE):
            self._client.log_batch(self._run, params=parameters[start : start + AT_ONCE])

    def on_log(self, step: int, values: dict[str, float]) -> None:
        now = int(1000 * time.time())
        metrics = [self._mlflow.entities.Metric(name, value, now, step) for name, value in values.items()]
        self._client.log_batch(self._run, metrics=metrics)

    def on_evaluation(self, step: int, values: dict[str, Any]) -> None:
        self.on_log(step, scores(values))

    def on_end(self, step: int, reason: Reason) -> None:
        self._client.set_terminated(self._run, STATUS[reason])
