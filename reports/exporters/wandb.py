"""Weights & Biases, offline: nothing is sent. `wandb sync FOLDER/wandb/offline-run-*` sends it."""

from __future__ import annotations

from pathlib import Path

from reports.exporters import PROJECT, scalars
from reports.run_model import RecordedRun


def write(run: RecordedRun, folder: Path) -> None:
    """Write the run's metrics, its backend and its command. The machine is neither described nor monitored."""
    import wandb

    quiet = wandb.Settings(
        silent=True, console="off", x_disable_stats=True, x_disable_meta=True, disable_git=True, disable_code=True
    )
    config = {"backend": run.backend, "command": run.command, "complete": run.complete}
    with wandb.init(
        project=PROJECT, name=Path(run.run).name, dir=str(folder), mode="offline", config=config, settings=quiet
    ) as target:
        for step, values in scalars(run):
            target.log(values, step=step)
