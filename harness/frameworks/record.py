"""`harness record`: runs a job of a known framework with the hooks of its adapter. Its exit code is passed through."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness import dates
from harness.amended_command import amended
from harness.errors import BadInput
from harness.frameworks.configured import Configured
from harness.frameworks.detection import (
    AUTO,
    Job,
    detect,
    refuse_absent,
    refuse_absent_script,
    refuse_unhooked,
    refuse_unknown_option,
)
from harness.frameworks.recording import finish, lines, unrecorded
from harness.frameworks.steering import refuse, steered
from harness.other_paths import another_out
from harness.program import find_program, missing_module_fix
from harness.triage.watch.watched_command import WatchOptions, WatchResult, watch, words_of
from probes.format import FormatError, RecordingError
from scenarios.engines.last_words import is_error


@dataclass(frozen=True, kw_only=True)
class RecordOptions(WatchOptions):
    """How a job of a framework is recorded.

    `digests`: also record digests of the weights, which reads all of them at each sync. `seed`: of the prompts' order,
    for a framework that does not seed it. `stall_s`: also run the watchdog, as `harness watch` does.
    """

    stall_s: float | None = None
    framework: str = AUTO
    digests: bool = False
    seed: int | None = None


@dataclass(frozen=True)
class RecordResult(WatchResult):
    """`unrecorded`: why the recording holds no rollout; empty where it holds one."""

    unrecorded: str = ""


def record(command: Sequence[str], options: RecordOptions | None = None, **changes: Any) -> RecordResult:
    """Run `command` with the hooks of its framework in every process; the recording is in the result's directory.

    `changes`: fields of RecordOptions that replace those of `options`. Raises BadInput for a command of no framework or
    of several, and as `watch` does.
    """
    options = replace(options or RecordOptions(), **changes)
    say = options.say
    environment = dict(os.environ if options.environ is None else options.environ)
    if not command:
        raise BadInput("there is no command to record", fix="harness record --help")
    refuse_absent_script(command)
    find_program(command, environment)  # a framework named for a command that is not there would be the next refusal
    job = detect(command, options.framework, environment)
    refuse(job.framework, seed=options.seed, coupled=None)
    refuse_absent(job, command, environment)
    refuse_unhooked(job, command, environment)
    refuse_unknown_option(job, command, environment)
    command, environment = steered(job.framework, command, environment, seed=options.seed)
    for caution in job.cautions:
        say(f"{caution.what}; fix: {caution.fix}")
    directory = options.out or Path("runs") / f"{job.framework.name}-{dates.stamp()}-{os.getpid()}"
    if directory.exists() and not directory.is_dir():
        raise BadInput(f"{directory} is a file, and a recording is a directory", fix=another_out(directory))
    if (directory / "run.json").exists():
        raise BadInput(
            f"{directory} holds another recording",
            fix=another_out(directory),
        )
    result = watch(
        command,
        options,
        out=directory,
        environ={**environment, **job.variables(digests=options.digests)},
        beside=lambda folder: Configured(job.framework, folder, say),
        indexed=True,
    )
    say_end(result, command, options, environment)
    why = finished(job, directory, result.exit_code, say)
    if why and is_error(result.last_words):  # which was said, and has to be mended first
        say(f"nothing to judge was recorded: {why}")
    elif why:
        python = shlex.quote(job.python) if job.python else "PATH"
        look = f"harness adapters check --framework {job.framework.name} --python {python}"
        say(f"nothing to judge was recorded: {why}; fix: {look}   # has the job's interpreter what the hooks need?")
    return RecordResult(**vars(result), unrecorded=why)


def say_end(result: WatchResult, command: Sequence[str], options: WatchOptions, environment: Mapping[str, str]) -> None:
    """Say how a failed command ended, and the fix where a module that it did not find is in this folder."""
    if ended := words_of(result):
        fix = missing_module_fix(result.last_words, command, environment, Path.cwd())
        if fix and options.out:  # it holds this run now
            fix = f"{another_out(options.out)} {fix}"
        options.say(f"{ended}; fix: {amended(sys.argv[1:], fix)}" if fix else ended)


def finished(job: Job, directory: Path, exit_code: int, say: Callable[[str], None]) -> str:
    """Make the recording whole, and say what the hooks did. Why it holds no rollout; empty where it holds one."""
    adapter = job.framework.adapter
    try:
        hooks = finish(directory, adapter, exit_code)
    except (FormatError, RecordingError) as error:
        say(f"the recording in {directory} could not be finished: {error}")
        return "the recording could not be finished"
    for line in lines(hooks, adapter):
        say(line)
    if hooks.processes:
        say(f"recorded in {directory}")
    return unrecorded(hooks, adapter)
