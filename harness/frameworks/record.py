"""`harness record`: a job of a known framework under the hooks of its adapter; its exit code passes through."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from harness import dates
from harness.errors import BadInput
from harness.frameworks.configured import Configured
from harness.frameworks.detection import AUTO, Job, detect, refuse_absent
from harness.frameworks.recording import Hooks, finish, lines
from harness.frameworks.steering import refuse, steered
from harness.triage.watch.command import OnStall, WatchResult, watch, words_of
from probes import redaction
from probes.format import FormatError, RecordingError

if TYPE_CHECKING:
    from harness.triage.watch import Stall


def record(
    command: Sequence[str],
    *,
    framework: str = AUTO,
    out: Path | None = None,
    digests: bool = False,
    seed: int | None = None,
    stall_s: float | None = None,
    on_stall: OnStall = "report",
    say: Callable[[str], None] = lambda line: None,
    show: Callable[[Stall], None] = lambda stall: None,
    environ: Mapping[str, str] | None = None,
    stdout: int | None = None,
) -> WatchResult:
    """Run `command` with the hooks of its framework in every process; the recording is in the result's directory.

    `digests`: digests of the weights as well, which reads all of them at each sync. `seed`: of the order of the
    prompts, for a framework that seeds it nowhere. `stall_s`: also under the watchdog, as `harness watch`. `stdout`: as
    of `watch`. Raises BadInput for a command of no framework or of several, and as `watch` does.
    """
    environment = dict(os.environ if environ is None else environ)
    if not command:
        raise BadInput("there is no command to record", fix="harness record -- python train.py")
    job = detect(command, framework, environment)
    refuse(job.framework, seed=seed, coupled=None)
    refuse_absent(job, command, environment)
    command, environment = steered(job.framework, command, environment, seed=seed)
    for caution in job.cautions:
        say(f"{caution.what}; fix: {caution.fix}")
    directory = out or Path("runs") / f"{job.framework.name}-{dates.stamp()}-{os.getpid()}"
    if directory.exists() and not directory.is_dir():
        raise BadInput(
            f"{directory} is a file, and a recording is a directory", fix="harness record --out DIR -- COMMAND"
        )
    if (directory / "run.json").exists():
        raise BadInput(
            f"{directory} holds another recording",
            fix=f"harness record --out {directory}-2 -- {shlex.join(redaction.arguments(command))}",
        )
    result = watch(
        command, stall_s=stall_s, out=directory, on_stall=on_stall, say=say, show=show, stdout=stdout,
        environ={**environment, **job.variables(digests=digests)},
        beside=lambda folder: Configured(job.framework, folder, say),
    )  # fmt: skip
    if ended := words_of(result):
        say(ended)
    finished(job, directory, result.exit_code, say)
    return result


def finished(job: Job, directory: Path, exit_code: int, say: Callable[[str], None]) -> Hooks | None:
    """Make the recording whole and say what the hooks did; a recording that cannot be finished costs only that."""
    try:
        hooks = finish(directory, job.framework.adapter, exit_code)
    except (FormatError, RecordingError) as error:
        say(f"the recording in {directory} could not be finished: {error}")
        return None
    for line in lines(hooks, job.framework.adapter):
        say(line)
    if hooks.processes:
        say(f"recorded in {directory}")
    return hooks
