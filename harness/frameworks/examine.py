"""What `harness doctor -- COMMAND` reports of a framework's job before it starts; and its traps, for any
configuration."""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence

from harness.amended_command import amended
from harness.doctor.checks.builds import judge_locks
from harness.doctor.gather.builds import Builds, Lock
from harness.doctor.gather.builds import look as look_at
from harness.doctor.outcome import Fine, Item, Outcome, Problem, Unseen, item
from harness.frameworks.argv import Start, taken_apart
from harness.frameworks.detection import AUTO, Job, detect, of, without_prefixes
from harness.frameworks.engine_arguments import drawing_engine, judged
from harness.frameworks.launcher import launched
from harness.frameworks.settings import SHELL, Settings
from harness.frameworks.shared_traps import shared_traps
from harness.frameworks.spec import Examined, Framework
from harness.program import CommandNotRun, find_program
from probes import redaction

SETTINGS, VERSION, OPTIONS = "framework-settings", "framework-version", "framework-options"
ARGUMENTS = "engine-arguments"
RULES = {
    SETTINGS: "The settings of the job are known, so that they can be examined before it starts.",
    VERSION: "The framework is installed, in a version that the harness knows.",
    OPTIONS: "The options of the command are those of the installed version.",
    ARGUMENTS: "The arguments that the command passes on to its engine are ones that the engine takes.",
}


def look(
    command: Sequence[str], framework: str = AUTO, environ: Mapping[str, str] = os.environ, *, seed: int | None = None
) -> list[Item]:
    """What will break the job that this command starts.

    `seed`: of the prompts' order, if the harness gives one. Raises BadInput for a command of no framework, or of
    several.
    """
    job = detect(command, framework, environ)
    start = taken_apart(command, job.framework.starts, environ)
    report_items = items(VERSION, _version(job))
    if not start.entry:
        report_items += items(SETTINGS, [_at_the_start(start, command, job.framework)])
    else:
        examined = read(job, start)
        if job.installed is None or not job.installed.version:
            why = f"the {job.framework.name} that will run is not known: its options cannot be looked up"
            report_items += items(OPTIONS, [Unseen(why)])
        else:
            report_items += items(OPTIONS, examined.options)
        engine = drawing_engine(job.framework, examined.settings)
        engines = (engine,) if engine else job.framework.engines
        report_items += items(ARGUMENTS, judged(job.framework, examined.settings.values, engines, job.python))
        settings = dataclasses.replace(examined.settings, seed=seed)
        report_items += trapped(job.framework, settings, job.installed.version if job.installed else "")
    return report_items + items("build-locks", _builds(start, environ))


def absent_program(
    command: Sequence[str], framework: str = AUTO, environ: Mapping[str, str] = os.environ
) -> list[Item]:
    """What is wrong with the program that the command starts: nothing where it is there. Raises BadInput for a command
    of no framework, or of several.
    """
    its = of(command, framework)
    program = without_prefixes(command)
    if not program or SHELL.search(program[0]):
        return []
    try:
        find_program(program, taken_apart(command, its.starts, environ).variables)
    except CommandNotRun as error:
        prefixes = shlex.join(command[: len(command) - len(program)])
        change = error.fix or ""
        if prefixes:  # env, nice and the like were typed in front of the program, and stay there
            change = change.replace("-- ", f"-- {prefixes} ", 1)
        fix = amended(["doctor", "--framework", its.name, "--", *command], change)
        return items("command-program", [Problem("error", error.message, "", "the job ends before it starts", fix)])
    return []


def read(job: Job, start: Start) -> Examined:
    """What the framework reads of a command, with the processes that its launcher starts."""
    examined = job.framework.examine(start, job.installed)
    settings = launched(start, start.variables).added_to(examined.settings)
    return dataclasses.replace(examined, settings=settings)


def trapped(framework: Framework, settings: Settings, version: str) -> list[Item]:
    """Check a configuration for every trap of that version."""
    return [
        hazard
        for trap in (*framework.traps, *shared_traps(framework))
        if trap.applies(version)
        for hazard in items(trap.check, trap.look(settings))
    ]


def items(check: str, outcomes: Iterable[Outcome], where: str = "the command") -> list[Item]:
    """The outcomes of a check as items of the doctor's report."""
    return [item(check, where, outcome) for outcome in outcomes]


def _at_the_start(start: Start, command: Sequence[str], framework: Framework) -> Unseen:
    what = (
        f"the settings inside {start.script}" if start.script else f"the command does not start {framework.name} itself"
    )
    reason = f"{what}{' are examined' if start.script else '; its settings are examined'} when the job starts"
    # The words may not name the framework: `--framework` of the doctor said it.
    job = shlex.join(redaction.arguments(command))
    return Unseen(reason, f"harness record --framework {framework.name} -- {job}   # or under harness watch")


def _version(job: Job) -> Iterator[Outcome]:
    """What `harness record` would say about the command before it starts it."""
    effect = "the recording, and what is checked here, may be about another version"
    for caution in job.cautions:
        yield Problem("warning", caution.what, "", effect, caution.fix)
    if not job.cautions and job.installed is not None:
        yield Fine(f"{job.framework.name} {job.installed.version} in {job.installed.python}")


def _builds(start: Start, environ: Mapping[str, str]) -> Iterator[Outcome]:
    """Check for lock files in an extension folder that the command sets. The shell's own folder is checked with the
    machine."""
    extensions_dir = start.variables.get("TORCH_EXTENSIONS_DIR", "")
    if extensions_dir == environ.get("TORCH_EXTENSIONS_DIR", ""):
        return
    if SHELL.search(extensions_dir):
        yield Unseen(f"TORCH_EXTENSIONS_DIR is {extensions_dir}, which only the shell knows")
        return
    folder = re.sub(r"^~(?=/|$)", start.variables.get("HOME", "~"), extensions_dir)
    folder_state = look_at(folder)
    if folder_state["locks"] and start.script:
        yield Unseen(f"{folder} holds a lock file of a build: whether {start.script} removes it is not known")
    else:
        yield from judge_locks(
            Builds(**{**folder_state, "locks": tuple(Lock(**lock) for lock in folder_state["locks"])})
        )
