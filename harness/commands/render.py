"""`harness render`: what starts the harness elsewhere, as a file. One command for each launcher."""

from __future__ import annotations

import inspect

from harness.commands.doors import group
from harness.launchers import launchers

app = group(
    "Write the file that starts a job under the harness elsewhere: a workflow, a script, a manifest.",
    "harness render slurm -- python train.py",
)
for name, command in launchers().items():
    words = "words" in inspect.signature(command).parameters  # the job's command, whose options are its own
    app.command(name, context_settings={"allow_interspersed_args": not words})(command)


@app.callback()
def _group() -> None:
    pass
