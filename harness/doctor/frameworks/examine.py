"""All checks of a framework's command."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence

from harness.doctor.checks.builds import told
from harness.doctor.facts import Builds, Lock
from harness.doctor.frameworks import flags, plan, traps
from harness.doctor.gather.builds import look as look_at
from harness.doctor.outcome import Fine, Outcome, Problem, Unseen
from harness.frameworks.detection import AUTO, detect
from reports.doctor_model import Hazard, Passed, Unchecked

WHERE = "the command"


def look(
    command: Sequence[str], framework: str = AUTO, environ: Mapping[str, str] = os.environ
) -> list[Hazard | Passed | Unchecked]:
    """What will break the job that this command starts. Raises BadInput for one of no framework, or of several."""
    job = detect(command, framework, environ)
    starts = plan.plans(job, command, environ)
    found = [_item("framework-version", outcome, WHERE) for outcome in _version(starts[0])]
    for number, asked in enumerate(starts, 1):
        where = f"start {number} of {len(starts)}: {asked.entry}" if len(starts) > 1 else WHERE
        checks = [("framework-options", flags.known), *traps.of(asked), ("build-locks", _builds(environ))]
        found += [_item(name, outcome, where) for name, check in checks for outcome in check(asked)]
    return found


def _version(asked: plan.Plan) -> Iterator[Outcome]:
    """What `harness record` would say of the command before it starts it."""
    for warning in asked.job.warnings:
        yield Problem("warning", warning, "", "the recording, and what is checked here, may be about another version")
    installed = asked.job.installed
    if not asked.job.warnings and installed is not None:
        yield Fine(f"{asked.job.adapter.framework} {installed.version} in {installed.python}")


def _builds(environ: Mapping[str, str]) -> Callable[[plan.Plan], Iterator[Outcome]]:
    """Lock files in a folder of the command's own; the shell's is looked at with the machine."""

    def found(asked: plan.Plan) -> Iterator[Outcome]:
        own = asked.variables.get("TORCH_EXTENSIONS_DIR", "")
        if own == environ.get("TORCH_EXTENSIONS_DIR", ""):
            return
        if "$" in own or "`" in own:
            yield Unseen(f"TORCH_EXTENSIONS_DIR is {own}, which only the shell knows")
            return
        folder = re.sub(r"^~(?=/|$)", asked.variables.get("HOME", "~"), own)
        removes = [one for one in asked.removed if re.search(r"lock|torch_extensions|TORCH_EXTENSIONS_DIR", one)
                   or own.rstrip("/") in one or folder.rstrip("/") in one]  # fmt: skip
        held = look_at(folder)
        if removes and held["locks"]:
            yield Unseen(f"a script of the command removes {removes[0]} itself: whether that is the lock file in "
                         f"{folder} is not known")  # fmt: skip
        else:
            yield from told(Builds(**{**held, "locks": tuple(Lock(**one) for one in held["locks"])}))

    return found


def _item(name: str, outcome: Outcome, at: str) -> Hazard | Passed | Unchecked:
    where = (at,)
    if isinstance(outcome, Problem):
        return Hazard(name, outcome.severity, outcome.what, where, outcome.measured, outcome.why, outcome.fix)
    if isinstance(outcome, Fine):
        return Passed(name, where, outcome.measured)
    return Unchecked(name, where, outcome.reason, outcome.fix)
