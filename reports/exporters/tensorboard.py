"""TensorBoard: one event file. `tensorboard --logdir FOLDER` shows it."""

from __future__ import annotations

from pathlib import Path

from reports.exporters import scalars
from reports.run_model import RecordedRun


def write(run: RecordedRun, folder: Path) -> None:
    """Write the run's metrics as scalars. Steps have no times: a recording's journals have them, its metrics do not."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    writer = EventFileWriter(str(folder))
    for step, values in scalars(run):
        points = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        writer.add_event(Event(step=step, wall_time=float(step), summary=Summary(value=points)))
    writer.close()
