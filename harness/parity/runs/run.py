"""The commands as functions: run one scenario on two backends and judge it, record one run, judge two recorded runs."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from harness import config, envs
from harness.cluster.experiment import Experiment
from harness.cluster.side import Side
from harness.cluster.waiting import RunCut
from harness.errors import BadInput
from harness.parity.runs import user_mapping
from harness.parity.runs.command_line import command_line, scenario_word
from harness.parity.runs.draws import draw_on
from harness.parity.runs.engines import cluster_for
from harness.parity.runs.lifting import Lifting, wanted
from harness.parity.runs.options import JudgeOptions, ParityOptions, RunOptions, command_options, silent
from harness.parity.runs.preflight import (
    check_environment,
    check_machine,
    check_pair,
    check_resume,
    environment_for,
    preflight,
)
from harness.parity.runs.recording import check_ranks, compacted, guarded, judged, recording_in, written
from harness.parity.runs.scenario_check import with_scenario
from harness.recordings.library import Library
from harness.triage.watch.guard import Guard
from probes.format import SIDES
from reports.model import Verdict
from reports.progress import ProgressEvent
from scenarios.plants import NOTHING, Plants
from scenarios.settings import Scenario

if TYPE_CHECKING:
    from harness.parity.attribution.outcome import Attribution


def run_parity(baseline: str, candidate: str, options: ParityOptions | None = None, **changes: Any) -> Verdict:
    """Run one scenario on two backends with identical seeds, diff the recordings, and return the verdict.

    `changes`: fields of ParityOptions, instead of or on top of `options`. Raises HarnessError for what could not start;
    a run that was cut short is INCONCLUSIVE, not an exception.
    """
    started = time.monotonic()
    options = dataclasses.replace(options or ParityOptions(), **changes)
    named = {"scenario": options.scenario} | command_options(options)
    reproduce = command_line("parity", str(baseline), str(candidate), **named)
    maps, baseline_scenario, candidate_scenario, plants = _planned(baseline, candidate, options)
    with _option_of(options.candidate_overrides), recording_in(options.out, f"parity-{baseline}-{candidate}") as folder:
        baseline_side, candidate_side = (
            Side(
                name,
                str(envs.parse(backend)),
                environment_for(backend, settings, options.address, mapping=maps[name], say=options.say),
                settings,
                folder / name,
                plants=plants.get(name, NOTHING),
                mapping=maps[name],
            )
            for name, backend, settings in (
                ("baseline", baseline, baseline_scenario),
                ("candidate", candidate, candidate_scenario),
            )
        )
        lift, library = wanted(baseline_side, candidate_side, options.lifted), Library()
        figures: dict[str, Any] = {"environments_ready_s": round(time.monotonic() - started, 1)}
        guard = guarded(folder, options)
        outcome = _record_pair(
            baseline_side,
            candidate_side,
            options,
            guard,
            lift=lift,
            figures=figures,
            command=reproduce,
            library=library,
        )
        verdict = _concluded(baseline_side, candidate_side, outcome, options, library=library)
        if outcome.cut is None:
            verdict = with_scenario(verdict, library.open(baseline_side.run_dir))
        compacted(baseline_side.run_dir, candidate_side.run_dir, library=library)
    figures["total_s"] = round(time.monotonic() - started, 1)
    verdict = dataclasses.replace(verdict, figures=verdict.figures | figures, reproduce=reproduce)
    return written(verdict.strict if options.strict else verdict, folder)


def check_parity(baseline: str, candidate: str, options: ParityOptions) -> None:
    """Refuse what `run_parity` would refuse before it starts anything, and make nothing. Raises BadInput."""
    maps, baseline_scenario, candidate_scenario, _ = _planned(baseline, candidate, options)
    with _option_of(options.candidate_overrides):
        check_environment(baseline, baseline_scenario, mapping=maps["baseline"], say=options.say)
        check_environment(candidate, candidate_scenario, mapping=maps["candidate"], say=options.say)


def _planned(
    baseline: str, candidate: str, options: ParityOptions
) -> tuple[dict[str, dict[str, Any]], Scenario, Scenario, dict[str, Plants]]:
    """(the users' mappings by side, the scenario of each side, what is planted in which), each of them possible."""
    maps = {
        name: user_mapping.load(file, envs.parse(backend).engine) if file else {}
        for name, file, backend in (
            ("baseline", options.baseline_mapping, baseline),
            ("candidate", options.mapping, candidate),
        )
    }
    shared = options.shared()
    baseline_scenario, candidate_scenario, plants = (
        _planted(shared, options.fault) if options.fault else (shared, shared, {})
    )
    with _option_of(options.candidate_overrides):
        candidate_scenario = config.changed(candidate_scenario, options.candidate_overrides)
        check_pair(baseline_scenario, candidate_scenario)
        preflight(baseline_scenario, baseline, maps["baseline"])
        preflight(candidate_scenario, candidate, maps["candidate"])
        check_machine((baseline_scenario, candidate_scenario), options.address, options.say)
    return maps, baseline_scenario, candidate_scenario, plants


@contextlib.contextmanager
def _option_of(candidate_overrides: Iterable[str]) -> Iterator[None]:
    """An error whose fix is a setting of the candidate alone names the option that sets it there."""
    try:
        yield
    except BadInput as error:
        keys = {override.partition("=")[0] for override in candidate_overrides}
        if error.fix and error.fix.removeprefix("--set ").partition("=")[0] in keys:
            error.fix = "--candidate-set " + error.fix.removeprefix("--set ")
        raise


def run_scenario(
    scenario: str,
    options: RunOptions | None = None,
    *,
    backend: str = "hf",
    resume: str | None = None,
    **changes: Any,
) -> Path:
    """One recorded run; returns its directory.

    `resume`: continue from this checkpoint. `changes`: fields of RunOptions, instead of or on top of `options`. Raises
    RunCut when it ends early (what was recorded stays readable).
    """
    options = dataclasses.replace(options or RunOptions(), **changes)
    command = command_line(
        "run", scenario_word(scenario), backend=backend, resume=resume and Path(resume), **command_options(options)
    )
    base = options.settings(scenario)
    map_of_user = user_mapping.load(options.mapping, envs.parse(backend).engine) if options.mapping else {}
    preflight(base, backend, map_of_user)
    check_machine((base,), options.address, options.say)
    if resume is not None:
        check_resume(resume, base)
    with recording_in(options.out, f"run-{base.name}-{backend}") as folder:
        environment = environment_for(backend, base, options.address, mapping=map_of_user, say=options.say)
        side = Side("run", str(envs.parse(backend)), environment, base, folder, mapping=map_of_user)
        with guarded(folder, options) as guard, cluster_for([side], options) as (cluster, warm):
            experiment = Experiment(
                cluster, [side], progress=options.progress, device=options.device, guard=guard, command=command,
                warm=warm,
            )  # fmt: skip
            experiment.begin()
            experiment.record(side, resume=resume)
        compacted(side.run_dir)
        check_ranks(side.run_dir)
    return folder


def diff(
    baseline: str | os.PathLike[str],
    candidate: str | os.PathLike[str] | None = None,
    *,
    again: str | os.PathLike[str] | None = None,
    cap: float | None = None,
    strict: bool = False,
    progress: Callable[[ProgressEvent], None] = silent,
) -> Verdict:
    """Judge two recorded runs, ours or another framework's, or without `candidate` the pair in one directory; each
    may be a bundle. `again`: a second run of the baseline's job, with which its floor is measured. `strict`: the exit
    code of a pass with reservations is 3. Raises BadInput for a directory that holds no run."""
    from harness.bundle.opening import resolve_runs
    from harness.parity.runs.directory import is_run, no_pair, no_run

    words = [Path(run) for run in (baseline, candidate) if run is not None]
    if candidate is None:
        [alone] = resolve_runs(baseline)
        if not all(is_run(alone / side) for side in SIDES):
            raise no_pair(alone, baseline)
        baseline, candidate = (Path(baseline) / side for side in SIDES)
    run_paths = [baseline, candidate, *([again] if again is not None else [])]
    runs = resolve_runs(*run_paths)
    for path, named in zip(runs, run_paths, strict=True):
        if not is_run(path):
            raise no_run(path, "diff", named)
    from harness.parity.facts.progress_messages import Patience
    from harness.parity.verdict import judged as judgement

    library = Library()
    tell = Patience(lambda doing: progress(ProgressEvent("", "", message=doing)))
    second = {"baseline": runs[2]} if again is not None else None
    verdict = judgement(runs[0], runs[1], cap=cap, again=second, library=library, tell=tell).verdict
    if verdict.verdict == "EQUIVALENT":
        verdict = with_scenario(verdict, library.open(Path(runs[0])))
    again_path = None if again is None else Path(again)
    return dataclasses.replace(
        verdict.strict if strict else verdict,
        reproduce=command_line("diff", *words, again=again_path, cap=cap, strict=strict),
        paths={"baseline": str(baseline), "candidate": str(candidate)},
    )


def audit(
    run: str | os.PathLike[str],
    *,
    cap: float | None = None,
    strict: bool = False,
    progress: Callable[[ProgressEvent], None] = silent,
) -> Verdict:
    """Judge one recorded run by itself, ours or another framework's, which may be a bundle or lie in one. `strict`: the
    exit code of a pass with reservations is 3. Raises BadInput for what is no run."""
    from harness.bundle.opening import resolve
    from harness.parity.runs.directory import is_run, no_run

    path = resolve(run)
    if not is_run(path):
        raise no_run(path, "audit", run)
    from harness.parity.audit import audit as judge
    from harness.parity.facts.progress_messages import Patience

    verdict = judge(path, cap=cap, tell=Patience(lambda doing: progress(ProgressEvent("", "", message=doing))))
    reproduce = command_line("audit", Path(run), cap=cap, strict=strict)
    return dataclasses.replace(verdict.strict if strict else verdict, reproduce=reproduce, paths={"run": str(run)})


def _record_pair(
    baseline_side: Side,
    candidate_side: Side,
    options: ParityOptions,
    guarded: contextlib.AbstractContextManager[Guard | None],
    *,
    lift: bool,
    figures: dict[str, Any],
    command: str,
    library: Library,
) -> _Outcome:
    """Record both runs, look for the cause of a difference on the engines as the runs left them, record the lifted and
    the native stage."""
    attribution: Attribution | None = None
    lifting: Lifting | None = None
    clock = _Clock(figures)
    try:
        native = options.native and baseline_side.scenario.native.samples > 0
        refused = "the lifted stage starts engines in float32 (--no-lifted runs without)" if lift else ""
        refused = "a fault is planted in an engine of its own" if options.fault else refused
        with (
            guarded as guard,
            cluster_for([baseline_side, candidate_side], options, native=native, refused=refused) as (cluster, warm),
        ):
            experiment = Experiment(
                cluster,
                [baseline_side, candidate_side],
                progress=options.progress,
                device=options.device,
                guard=guard,
                command=command,
                warm=warm,
            )
            threading.Thread(target=_load_judge, name="load-judge", daemon=True).start()
            experiment.begin()
            clock.lap("start_s")
            figures["warm"] = warm is not None
            policy = experiment.record(baseline_side)
            clock.lap("baseline_s")
            lifting = Lifting(experiment, baseline_side, candidate_side, options.lifted is True) if lift else None
            # The start of an engine takes most of the stages: the baseline's goes on beside the candidate's run, unless
            # it may be at fault itself and is wanted on the bench as it is.
            early = (native or lift) and (
                not options.attribution or _clean(baseline_side.run_dir, cap=options.cap, library=library)
            )
            if early and lifting is not None:
                lifting.begin(baseline_side)
            elif early:
                experiment.begin_native(baseline_side, policy)
            experiment.record(candidate_side, guide=baseline_side.run_dir if candidate_side.scenario.guided else None)
            clock.lap("candidate_s")
            if options.attribution:
                attribution = _attributed(
                    experiment, baseline_side, candidate_side, early=early, cap=options.cap, library=library
                )
                clock.lap("attribution_s")
            broken = attribution.broken if attribution is not None else ""
            if lifting is not None and broken:
                lifting.skip(broken)
            elif lifting is not None:
                lifting.begin(*([candidate_side] if early else [baseline_side, candidate_side]))
                lifting.run(policy, attribution=options.attribution)
                clock.lap("lifted_s")
            if native and not broken and not (lifting and lifting.broken):
                if lifting is not None or not early:
                    experiment.begin_native(baseline_side, policy)
                experiment.begin_native(candidate_side, policy)
                experiment.native(baseline_side, candidate_side, policy=policy)
                clock.lap("native_s")
                draw_on(experiment, baseline_side, candidate_side, policy, cap=options.cap, library=library)
                clock.lap("native_looks_s")
        clock.lap("teardown_s")
    except RunCut as cut:
        return _Outcome(cut, attribution, lifting)
    return _Outcome(None, attribution, lifting)


def _load_judge() -> None:
    """Import what judges and shows the runs, which takes a second or two, while they are made."""
    import importlib

    for module in ("harness.parity.attribution.clean", "matplotlib.figure"):
        with contextlib.suppress(ImportError):  # told where it is needed
            importlib.import_module(module)


def _clean(run: Path, *, cap: float | None, library: Library) -> bool:
    from harness.parity.attribution.clean import clean  # the judge's libraries, which no run needs

    return clean(run, cap=cap, library=library)


def _attributed(
    experiment: Experiment,
    baseline_side: Side,
    candidate_side: Side,
    *,
    early: bool,
    cap: float | None,
    library: Library,
) -> Attribution | None:
    """What interventions on the live engines show of a divergence; None without one."""
    from harness.parity.attribution import search
    from harness.parity.subjects.engines.observed import suspect
    from harness.parity.verdict import judged as judgement

    before = judgement(baseline_side.run_dir, candidate_side.run_dir, native=False, cap=cap, library=library)
    if before.verdict.verdict != "DIVERGENT":
        return None
    experiment.tell(candidate_side, "looking for the cause")
    sides = (side.name for side in (baseline_side, candidate_side) if not (early and side is baseline_side))
    bench = experiment.bench(*sides, engine=suspect(before.evidence))
    attribution = search(before, bench)
    if early:
        note = "the baseline's engine, clean by its own recording, was not on the bench"
        return dataclasses.replace(attribution, notes=[*attribution.notes, note])
    return attribution


def _concluded(
    baseline_side: Side,
    candidate_side: Side,
    outcome: _Outcome,
    options: JudgeOptions,
    *,
    library: Library,
) -> Verdict:
    """The verdict on both recordings, with what the benches showed of a divergence."""
    from harness.parity.attribution import merged
    from harness.parity.verdict import judged as judgement

    cut, attribution, lifting = outcome
    if cut is not None:
        return judged(
            baseline_side.run_dir, candidate_side.run_dir, cut, native=options.native, cap=options.cap, library=library
        )
    broken = (attribution and attribution.broken) or (lifting and lifting.broken) or ""
    native = options.native and not broken
    lifted = lifting.verdict if lifting is not None else None
    judged_pair = judgement(
        baseline_side.run_dir,
        candidate_side.run_dir,
        native=native,
        cap=options.cap,
        lifted_verdict=lifted,
        library=library,
    )
    verdict = judged_pair.verdict if attribution is None else merged(judged_pair, attribution)
    if not (options.native and broken):
        return verdict
    return dataclasses.replace(verdict, missing=[*verdict.missing, f"the native stage: {broken}"])


class _Outcome(NamedTuple):
    """What became of the recording of a pair: what cut it short, what the bench showed, the lifted stage."""

    cut: RunCut | None
    attribution: Attribution | None
    lifting: Lifting | None


class _Clock:
    """Seconds of each part of the experiment, into the verdict's figures."""

    def __init__(self, figures: dict[str, Any]) -> None:
        self._figures, self._last = figures, time.monotonic()

    def lap(self, name: str) -> None:
        now = time.monotonic()
        self._figures[name], self._last = round(now - self._last, 1), now


def _planted(shared: Scenario, fault: str) -> tuple[Scenario, Scenario, dict[str, Plants]]:
    """Both sides' scenarios with the planted fault of this name, and what is planted in which side."""
    from harness.planted.differences.option import fault_of_a_run

    planted = fault_of_a_run(fault)
    sound = config.changed(shared, planted.scenario)
    scenarios = {"baseline": sound, "candidate": sound, planted.side: config.changed(sound, planted.settings)}
    return scenarios["baseline"], scenarios["candidate"], {planted.side: planted.plants()}
