"""MLflow: one run in a SQLite store. `mlflow ui --backend-store-uri sqlite:///FOLDER/mlflow.db` shows it."""

from __future__ import annotations

import math
from pathlib import Path

from reports.exporters import PROJECT, scalars
from reports.run_model import RecordedRun

MOST = 1000  # most metrics of one call; MLflow refuses more
_LARGEST = 1.7976931348623157e308  # what MLflow's SQL store keeps for an infinity


def write(run: RecordedRun, folder: Path) -> None:
    """Write the run's metrics, its backend and its command."""
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param

    client = MlflowClient(tracking_uri=f"sqlite:///{folder.resolve()}/mlflow.db")
    name = client.get_experiment_by_name(PROJECT)
    experiment = name.experiment_id if name else client.create_experiment(PROJECT, str(folder.resolve() / "artifacts"))
    target = client.create_run(experiment, run_name=Path(run.run).name).info.run_id
    points = [
        Metric(metric, max(-_LARGEST, min(_LARGEST, value)) if not math.isnan(value) else value, 0, step)
        for step, values in scalars(run)
        for metric, value in values.items()
    ]
    params = [Param("backend", run.backend or ""), Param("command", run.command)]
    client.log_batch(target, params=params)
    for first in range(0, len(points), MOST):
        client.log_batch(target, metrics=points[first : first + MOST])
    client.set_terminated(target, "FINISHED" if run.complete else "FAILED")
