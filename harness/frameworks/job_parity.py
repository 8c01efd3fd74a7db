"""`harness parity A B --framework NAME -- COMMAND`: runs the user's own job on two rollout engines, and judges the
pair.

The framework's own switch changes the engine: verl reads it from `actor_rollout_ref.rollout.name`. A framework with one
engine compares two interpreters, `vllm@A` with `vllm@B`, which serves to test an upgrade. Nothing else in the command
changes, and any difference between the recordings beyond the engine is a confounder of the verdict. Both sides get the
same seed and coupled sampling (`steering`). Running a side a second time measures the floor: how far the job is from
itself.
"""

from __future__ import annotations

import dataclasses
import os
import re
import shlex
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from harness import envs, extras
from harness.command_options import command_line
from harness.envs import recipe
from harness.envs.creation import choose_device
from harness.errors import BadInput
from harness.frameworks.argv import taken_apart
from harness.frameworks.configured import of_recording
from harness.frameworks.detection import (
    AUTO,
    Job,
    detect,
    interpreter,
    recognised,
    refuse_absent,
    refuse_absent_script,
    refuse_unhooked,
    refuse_unknown_option,
    without_prefixes,
)
from harness.frameworks.engine_arguments import unknown_arguments
from harness.frameworks.examine import SETTINGS, look
from harness.frameworks.installed import ask
from harness.frameworks.record import record
from harness.frameworks.shared_traps import shared_traps
from harness.frameworks.spec import Framework, frameworks
from harness.frameworks.steering import refuse, steered, unsteered
from harness.parity.runs.recording import recording_in, written
from harness.program import CommandNotRun, find_program
from harness.triage.collect.proc import STDERR
from harness.triage.watch.watched_command import why_of
from probes import redaction
from probes.format import SIDES, Run, write_manifest
from reports.doctor_model import Hazard, Unchecked
from reports.model import EXIT_CODES, Finding, Verdict
from scenarios.engines import registry

PYTHON = "{python}"  # stands for the interpreter of the side in a command
Repeat = Literal["baseline", "both", "none"]
AGAIN = "-again"  # suffix of the directory of a second run
UNSAID = "which engine drew is not recorded"


@dataclass(frozen=True)
class Side:
    """One of the two runs: its command and variables, ready to start.

    `python`: empty if the command keeps its own interpreter; then the `version` of the engine is not known.
    """

    name: str
    backend: str
    engine: str
    command: tuple[str, ...]
    environ: Mapping[str, str]
    python: str = ""
    version: str = ""


@dataclass(frozen=True, kw_only=True)
class JobOptions:
    """How a job is run on both engines and judged.

    `digests`: record digests of the weights, without which equal weights cannot be shown. `stall_s`: watch the job as
    `harness watch` does; None: do not watch. `cap`: the largest rounding noise that is accepted, in nats, instead of
    the dtype's own. `seed`: of the prompts' order, for a framework that does not seed it. `coupled`: a seed with which
    both engines draw the same samples as long as they agree; None: each draws with its own sampler. `repeat`: which
    sides run a second time at the end, to measure the floor without which nothing is EQUIVALENT; None: the baseline, if
    sampling is coupled, since only then can two runs agree. `strict`: a pass with reservations has exit code 3.
    """

    framework: str = AUTO
    out: str | os.PathLike[str] | None = None
    digests: bool = True
    stall_s: float | None = None
    cap: float | None = None
    seed: int | None = None
    coupled: int | None = None
    repeat: Repeat | None = None
    strict: bool = False

    @property
    def data_seed(self) -> int | None:
        """The seed of the prompts' order: with coupled sampling that of the samples, since both need equal prompts."""
        return self.seed if self.coupled is None else self.coupled

    @property
    def second_runs(self) -> Repeat:
        return self.repeat or ("none" if self.coupled is None else "baseline")


def plan(
    baseline: str,
    candidate: str,
    command: Sequence[str],
    options: JobOptions,
    environ: Mapping[str, str] = os.environ,
) -> tuple[Job, Side, Side]:
    """Prepare both runs without starting anything, with a seed of the prompts' order or of coupled sampling if there is
    one.

    Raises BadInput for a pair that cannot run.
    """
    if not command:
        framework = "verl" if options.framework == AUTO else options.framework
        if baseline.partition("@")[0] not in registry.names():  # the first words of the command were taken for engines
            words = shlex.join(redaction.arguments([baseline, candidate]))
            raise BadInput(
                "two engines come before the command of the job",
                fix=f"harness parity vllm sglang --framework {framework} -- {words}",
            )
        fix = f"--framework {framework} -- python train.py   # the command of the job"
        raise BadInput("there is no command to run twice", fix=fix)
    placed = _with_own_python(command, environ)
    engines = {envs.parse(backend).engine for backend in (baseline, candidate)}
    fitting = [framework.name for framework in frameworks().values() if engines <= {*framework.engines}]
    if not fitting and options.framework == AUTO and not recognised(placed):
        raise BadInput(
            f"no framework here draws with {' and with '.join(sorted(engines))}: no job can be run on both",
            fix="   # compares them with a scenario",
            instead="--",
        )
    job = detect(placed, options.framework, environ, fitting=fitting)
    its = job.framework
    refuse(its, seed=options.seed, coupled=options.coupled)
    refuse_unhooked(job, placed, environ)
    refuse_unknown_option(job, placed, environ)
    # Check the engines before looking for installations: nobody should install a framework that cannot run the engine.
    for backend in (baseline, candidate):
        check_pair(its, backend, command)
        _refuse_unknown_arguments(job, backend, command, placed, environ)
    baseline_name, candidate_name = SIDES
    return (
        job,
        _side(baseline_name, baseline, job, command, options, environ),
        _side(candidate_name, candidate, job, command, options, environ),
    )


def _refuse_unknown_arguments(
    job: Job, backend: str, command: Sequence[str], placed: Sequence[str], environ: Mapping[str, str]
) -> None:
    """Raise BadInput for an argument that the engine of this side does not take, by the list of its own version."""
    if not job.framework.engine_kwargs:
        return
    wanted = envs.parse(backend)
    named = envs.resolve(backend, create=False).python if wanted.environment or wanted.version else job.python
    start = taken_apart(placed, job.framework.starts, environ)
    values = job.framework.examine(start, None).settings.values  # what stands in the command: nothing is asked
    unknown = unknown_arguments(job.framework, values, wanted.engine, named) or []
    for argument in (argument for argument in unknown if argument.is_of_job):
        mended = [word.replace(argument.setting, argument.mended) for word in command]
        remark = f"   # {argument.listed} lists what it takes"
        fix = f"-- {shlex.join(mended)}{remark}" if argument.mended else f"{argument.listed}   # lists what it takes"
        raise BadInput(f"on {backend}: {argument.what}", fix=fix)


def _with_own_python(command: Sequence[str], environ: Mapping[str, str]) -> list[str]:
    """The command with its own interpreter where one of a side may stand."""
    return [word.replace(PYTHON, interpreter(command, environ) or PYTHON) for word in command]


def _side(
    name: str, backend: str, job: Job, command: Sequence[str], options: JobOptions, environ: Mapping[str, str]
) -> Side:
    """One side, with the interpreter of its backend where that names an environment or a version."""
    its, wanted = job.framework, envs.parse(backend)
    python = version = ""
    if wanted.environment or wanted.version:
        environment = envs.resolve(backend, create=False)
        python, version = environment.python, environment.version
    words, variables = _with_python(
        _with_engine(list(command), its.switch, wanted.engine), python, dict(environ), backend
    )
    if not python:
        refuse_absent(job, _with_own_python(command, environ), environ)
    elif not ask(python, its.adapter, environ).version:
        raise BadInput(
            f"{python} of {backend} has no {its.adapter.distribution}",
            fix=extras.install_into(python, its.adapter.distribution),
        )
    words, variables = steered(its, words, variables, seed=options.seed, coupled=options.coupled)
    return Side(
        name=name, backend=backend, engine=wanted.engine, command=tuple(words), environ=variables, python=python,
        version=version,
    )  # fmt: skip


def check_pair(framework: Framework, backend: str, command: Sequence[str] = ("COMMAND",)) -> envs.Backend:
    """The backend, if the framework can generate with its engine. Raises BadInput otherwise."""
    wanted = envs.parse(backend)
    job = shlex.join(redaction.arguments(list(command)))
    if wanted.engine in framework.engines:
        return wanted
    if wanted.engine in framework.unpaired:
        raise BadInput(
            f"{framework.name} generates with {wanted.engine} {framework.unpaired[wanted.engine]}: no pair with it can "
            "be judged; two recordings of such jobs can be compared",
            fix=f"harness record --digests --out runs/mine -- {job}   # each job; then: harness diff RUN RUN",
        )
    engines = framework.engines
    backends = engines if len(engines) > 1 else _two_of(engines[0])
    creation = [f"harness env create {name} && " for name in backends if len(engines) == 1 and not envs.exists(name)]
    capable_names = [
        other_framework.name for other_framework in frameworks().values()
        if wanted.engine in (*other_framework.engines, *other_framework.unpaired)
    ]  # fmt: skip
    does = f"; {' and '.join(capable_names)} can" if capable_names else "; no framework here does"
    raise BadInput(
        f"{framework.name} does not generate with {wanted.engine} ({' and '.join(engines)} only){does}",
        fix=f"{''.join(creation)}harness parity {backends[0]} {backends[1]} --framework {framework.name} -- {job}",
    )


def _two_of(engine: str) -> tuple[str, str]:
    """Two backends with one engine: environments of two releases, else its recipe's version with the one before."""
    names = {each.version: each.name for each in envs.all_environments() if each.engine == engine}
    if len(names) > 1:
        first, second, *_ = names.values()
        return f"{engine}@{first}", f"{engine}@{second}"
    major, minor, *_ = recipe.load(engine, choose_device("auto")).version.split(".")
    return f"{engine}@{major}.{int(minor) - 1}", f"{engine}@{major}.{minor}"


def run_framework_parity(
    baseline: str,
    candidate: str,
    command: Sequence[str],
    options: JobOptions,
    say: Callable[[str], None] = lambda line: None,
) -> Verdict:
    """Run the command on both engines, one after the other, and judge the recordings.

    If a job fails, the verdict is INCONCLUSIVE; a failed second run only means that there is no floor. Raises BadInput
    before anything starts, also for settings that will break the job (`harness doctor`).
    """
    started = time.monotonic()
    if command and PYTHON not in command[0]:
        refuse_absent_script(command)
        try:
            find_program(without_prefixes(command), os.environ)
        except CommandNotRun as error:  # its exit code is that of a command which the harness runs in its own place
            raise BadInput(error.message, fix=error.fix) from error
    job, baseline_side, candidate_side = plan(baseline, candidate, command, options)
    its = job.framework
    # Both sides are checked before either runs, because a run may take hours.
    data_seed = options.data_seed if its.seeds_prompts else None
    hazards = {side.name: _hazards(side, its, data_seed, say) for side in (baseline_side, candidate_side)}
    for side in (baseline_side, candidate_side):
        _refuse_what_breaks(side, hazards[side.name], say)
    runs = _Runs(its, options, say)
    with recording_in(options.out, f"parity-{its.name}-{baseline}-{candidate}") as folder:
        # If the first run fails, the second is not started: the pair cannot be judged any more.
        failed = runs.record(baseline_side, folder / baseline_side.name)
        failed = failed or runs.record(candidate_side, folder / candidate_side.name)
        verdict = _verdict(folder, options.cap, failed=failed)
        twice = {"none": [], "baseline": [baseline_side], "both": [baseline_side, candidate_side]}[options.second_runs]
        # The second runs come last, and only if their floor can still change the verdict.
        if twice and (failed or verdict.verdict == "CONFOUNDED"):
            say(f"no second run: the pair is {verdict.verdict} whatever it shows")
        elif twice:
            verdict = _with_floor(folder, runs, twice)
    total = {"total_s": round(time.monotonic() - started, 1)}
    traps = _traps(candidate_side, its, hazards[candidate_side.name], folder / candidate_side.name)
    verdict = dataclasses.replace(
        verdict,
        figures=verdict.figures | runs.seconds | total,
        reproduce=f"{_command_line(baseline, candidate, its, options)} -- {_quoted(command)}",
        findings=[*verdict.findings, *traps],
    )
    return written(verdict.strict if options.strict else verdict, folder)


def _with_floor(folder: Path, runs: _Runs, sides: list[Side]) -> Verdict:
    """The verdict on the pair with a second run of these sides, which measures the floor."""
    broken = {side.name: runs.record(side, folder / f"{side.name}{AGAIN}") for side in sides}
    again = {name: folder / f"{name}{AGAIN}" for name, failure in broken.items() if failure is None}
    lost = [f"the {name}'s second run: {failure.why}" for name, failure in broken.items() if failure]
    verdict = _verdict(folder, runs.options.cap, again=again)
    return dataclasses.replace(verdict, missing=[*verdict.missing, *lost])


def _command_line(baseline: str, candidate: str, framework: Framework, options: JobOptions) -> str:
    """The command line that repeats the comparison, up to the job's own command."""
    return command_line(
        "parity",
        baseline,
        candidate,
        framework=framework.name,
        cap=options.cap,
        repeat=options.repeat,
        strict=options.strict,
        mode=None if options.coupled is None else "coupled",
        seed=options.data_seed,
    )


@dataclass(frozen=True)
class _Failure:
    """Why a run's recording cannot be used, and what to do about it."""

    why: str
    fix: str


@dataclass
class _Runs:
    """Runs of a job, recorded one after the other. `seconds`: of each."""

    framework: Framework
    options: JobOptions
    say: Callable[[str], None]
    seconds: dict[str, float] = field(default_factory=dict)

    def record(self, side: Side, place: Path) -> _Failure | None:
        """Record one run. Returns why its recording cannot be used; None if it can."""
        self.say(f"{place.name}: {side.backend}")
        began, options = time.monotonic(), self.options
        result = record(
            side.command, framework=self.framework.name, out=place, digests=options.digests, stall_s=options.stall_s,
            say=self.say, environ=side.environ, stdout=STDERR,
        )  # fmt: skip
        self.seconds[f"{place.name}_s"] = round(time.monotonic() - began, 1)
        _named(place, side)
        if result.exit_code:
            why = f": {why_of(result)}" if why_of(result) else ""
            return _Failure(
                f"the job on {side.backend} ended with exit code {result.exit_code}{why}",
                f"{_quoted(side.command)}   # the job alone, until it ends with 0",
            )
        if result.unrecorded:
            python = next(filter(None, [side.python, interpreter(side.command, side.environ)]), "PATH")
            return _Failure(
                f"on {side.backend} {result.unrecorded}",
                f"harness adapters check --framework {self.framework.name} --python {shlex.quote(python)}   # has "
                "the job's interpreter what the hooks need?",
            )
        why = _another_engine(place, side) or unsteered(
            place, self.framework, seed=options.seed, coupled=options.coupled
        )
        fix = f"harness audit {shlex.quote(str(place))}   # what was recorded"
        return _Failure(f"on {side.backend} {why}", fix) if why else None


def _verdict(
    folder: Path,
    cap: float | None,
    *,
    failed: _Failure | None = None,
    again: Mapping[str, Path] | None = None,
) -> Verdict:
    from harness.parity.answers import cut_short
    from harness.parity.verdict import judge

    if failed is None:
        return judge(folder / "baseline", folder / "candidate", native=False, cap=cap, again=again)
    answer, code = cut_short(failed.why), EXIT_CODES["INCONCLUSIVE"]
    if not (folder / "candidate" / "run.json").exists():
        return Verdict("parity", "INCONCLUSIVE", code, answer.reason, evidence=answer.evidence, fix=failed.fix)
    return dataclasses.replace(
        judge(folder / "baseline", folder / "candidate", native=False, cap=cap, again=again),
        verdict="INCONCLUSIVE", exit_code=code, reason=answer.reason, evidence=answer.evidence, fix=failed.fix,
    )  # fmt: skip


def _refuse_what_breaks(side: Side, hazards: list[Hazard], say: Callable[[str], None]) -> None:
    for item in hazards:
        if item.severity == "error":
            raise BadInput(
                f"on {side.backend} this job would not run as asked: {item.what} ({item.measured})", fix=item.fix
            )
        if item.severity == "warning":
            say(f"{side.backend}: {item.what}; {item.why}")


def _trap_names(framework: Framework) -> set[str]:
    return {trap.check for trap in (*framework.traps, *shared_traps(framework))}


def _traps(side: Side, framework: Framework, hazards: list[Hazard], recorded: Path) -> list[Finding]:
    """Settings that make a difference without a fault of an engine, as findings of the verdict.

    They come from the configuration that the job recorded, or from its command if it recorded none.
    """
    resolved = of_recording(framework, recorded)
    items = hazards if resolved is None else [item for item in resolved if isinstance(item, Hazard)]
    traps = _trap_names(framework)
    return [
        Finding(item.check, f"{item.what} ({item.measured})", effect=item.why, severity="warning", where=side.name)
        for item in items
        if item.severity in ("warning", "error") and item.check in traps
    ]


def _hazards(side: Side, framework: Framework, seed: int | None, say: Callable[[str], None]) -> list[Hazard]:
    """What `harness doctor` says about the job. What cannot be checked before the start is reported, and refuses
    nothing."""
    reported = {*_trap_names(framework), SETTINGS}
    items = look(side.command, framework.name, side.environ, seed=seed)
    for item in items:
        if isinstance(item, Unchecked) and item.check in reported:
            say(f"{side.backend}: {item.check} is not checked: {item.reason}")
    return [item for item in items if isinstance(item, Hazard)]


def _with_engine(words: list[str], switch: str, engine: str) -> list[str]:
    """The words with the framework's own switch set to that engine; appended if the command does not have the
    switch."""
    if not switch:
        return words
    pattern = re.compile(rf"\+{{0,2}}{re.escape(switch)}=")
    places = [place for place, word in enumerate(words) if pattern.match(word)]
    for place in places:
        words[place] = f"{switch}={engine}"
    return words if places else [*words, f"{switch}={engine}"]


def _with_python(
    words: list[str], python: str, environ: dict[str, str], backend: str
) -> tuple[list[str], dict[str, str]]:
    """The command with that interpreter instead of its own, and with it first on PATH for programs started by name."""
    job_python = interpreter(words, environ)
    if not python:
        return [word.replace(PYTHON, job_python) for word in words], environ
    places = [place for place, word in enumerate(words) if PYTHON in word or _is(word, job_python, environ)]
    if not places:
        raise BadInput(
            f"the command does not say which Python it runs, so {backend} cannot take its place",
            fix=f"write {PYTHON} where the interpreter stands in the command",
        )
    for place in places:
        words[place] = words[place].replace(PYTHON, python) if PYTHON in words[place] else python
    folder = os.path.dirname(python)
    return words, {**environ, "PATH": f"{folder}{os.pathsep}{environ.get('PATH', os.defpath)}"}


def _is(word: str, python: str, environ: Mapping[str, str]) -> bool:
    named_python = bool(python) and os.path.basename(word).startswith("python")
    return named_python and shutil.which(word, path=environ.get("PATH")) == python


def _another_engine(folder: Path, side: Side) -> str:
    """Why the samples were not drawn by this side's engine, or why that cannot be known; empty if they were.

    It happens if a script does not pass its arguments on, if a job generates without vLLM, or if workers belong to an
    older Ray cluster. Two runs of one engine would agree and be taken for proof about the other engine. So would two
    runs whose engines recorded nothing about themselves.
    """
    if not (folder / "run.json").exists():
        return UNSAID
    infos = [event for event in Run(folder, strict=False).events("engine_info") if event.get("engine")]
    for info in infos:
        engine, version = str(info["engine"]), str(info.get("version") or "")
        if engine != side.engine:
            return f"{engine} drew the samples, not {side.engine}: the command does not hand the engine on"
        if side.version and not version:
            return f"which version of {engine} drew is not recorded"
        if side.version and version.partition("+")[0] != side.version.partition("+")[0]:
            return f"{engine} {version} drew the samples, not the environment's {side.version}"
    return "" if infos else UNSAID


def _named(folder: Path, side: Side) -> None:
    """Write into run.json which side a recording is. A job that recorded nothing has no run.json."""
    if (folder / "run.json").exists():
        run = Run(folder, strict=False)
        write_manifest(
            folder, {**run.manifest, "side": side.name, "backend": run.manifest.get("backend") or side.backend}
        )


def _quoted(command: Sequence[str]) -> str:
    import shlex

    return shlex.join(redaction.arguments(command))
