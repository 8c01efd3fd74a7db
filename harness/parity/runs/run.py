"""The commands as functions: run one scenario on two backends and judge it, record one run, judge recorded runs."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import config, envs
from harness.bundle.opening import resolve, resolve_runs
from harness.cluster.experiment import Experiment
from harness.cluster.side import Side
from harness.cluster.waiting import RunCut
from harness.command_options import command_line, command_options, scenario_word
from harness.envs.environment import Environment
from harness.errors import BadInput, HarnessError, collected, mistakes_of, refuse
from harness.parity.facts.progress_messages import Patience
from harness.parity.runs import user_mapping
from harness.parity.runs.directory import is_run, no_pair, no_rollouts, no_run, no_runs
from harness.parity.runs.lifting import Lifting, wanted
from harness.parity.runs.more_draws import draw_on
from harness.parity.runs.own_arguments import mapped_on
from harness.parity.runs.preflight import (
    check_device,
    check_environment,
    check_machine,
    check_pair,
    check_resume,
    environment_for,
    preflight,
)
from harness.parity.runs.recording import check_ranks, compacted, guarded, recording_in, verdict_with_cut, written
from harness.parity.runs.run_engines import cluster_for
from harness.parity.runs.run_options import ParityOptions, RunOptions, silent
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
    """Run one scenario on two backends with identical seeds, compare the recordings, and return the verdict.

    `changes`: fields of ParityOptions, instead of or on top of `options`. Raises HarnessError for what could not start.
    A run that was cut short is INCONCLUSIVE and raises nothing.
    """
    started = time.monotonic()
    options = dataclasses.replace(options or ParityOptions(), **changes)
    named = {"scenario": options.scenario} | command_options(options)
    reproduce = command_line("parity", str(baseline), str(candidate), **named)
    # Everything that can be refused is refused before an environment is made or an engine starts.
    maps, baseline_scenario, candidate_scenario, plants = _planned(baseline, candidate, options)
    with (
        _fixes_name_candidate_set(options.candidate_overrides),
        recording_in(options.out, f"parity-{baseline}-{candidate}") as folder,
    ):
        sides = {"baseline": (baseline, baseline_scenario), "candidate": (candidate, candidate_scenario)}
        environments = _environments(sides, maps, options)
        baseline_side, candidate_side = (
            Side(
                name,
                str(envs.parse(backend)),
                environments[name],
                settings,
                folder / name,
                plants=plants.get(name, NOTHING),
                mapping=maps[name],
                command=reproduce,
            )
            for name, (backend, settings) in sides.items()
        )
        lift, library = wanted(baseline_side, candidate_side, options.lifted), Library()
        figures: dict[str, Any] = {"environments_ready_s": round(time.monotonic() - started, 1)}
        pair = _Pair(baseline_side, candidate_side, options, library)
        cut, attribution, lifting = _record_pair(pair, guarded(folder, options), lift=lift, figures=figures)
        verdict = _concluded(pair, cut, attribution, lifting)
        if cut is None:
            verdict = with_scenario(verdict, library.open(baseline_side.run_dir), library.open(candidate_side.run_dir))
        compacted(baseline_side.run_dir, candidate_side.run_dir, library=library)
    figures["total_s"] = round(time.monotonic() - started, 1)
    verdict = dataclasses.replace(verdict, figures=verdict.figures | figures, reproduce=reproduce)
    return written(verdict.strict if options.strict else verdict, folder)


def _environments(
    sides: Mapping[str, tuple[str, Scenario]], maps: Mapping[str, dict[str, Any]], options: ParityOptions
) -> dict[str, Environment]:
    """Return the environment of each side, made where it is missing. Raises BadInput with the mistakes of both sides:
    behind those of the first, no environment is made for the second.
    """
    mistakes: list[HarnessError] = []
    environments = {}
    for backend, _ in sides.values():  # before minutes of making the first side's
        with collected(mistakes):
            envs.refuse_unreleased(backend)
    refuse(mistakes)
    for name, (backend, settings) in sides.items():
        with collected(mistakes):
            if mistakes:
                check_environment(backend, settings, mapping=maps[name], say=options.say)
            else:
                environments[name] = environment_for(
                    backend, settings, options.address, mapping=maps[name], say=options.say
                )
    refuse(mistakes)
    return environments


def check_parity(baseline: str, candidate: str, options: ParityOptions) -> None:
    """Refuse what `run_parity` would refuse before it starts anything, and make nothing. Raises BadInput."""
    maps, baseline_scenario, candidate_scenario, _ = _planned(baseline, candidate, options)
    with _fixes_name_candidate_set(options.candidate_overrides):
        mistakes: list[HarnessError] = []
        with collected(mistakes):
            check_environment(baseline, baseline_scenario, mapping=maps["baseline"], say=options.say)
        with collected(mistakes):
            check_environment(candidate, candidate_scenario, mapping=maps["candidate"], say=options.say)
        refuse(mistakes)


def _planned(
    baseline: str, candidate: str, options: ParityOptions
) -> tuple[dict[str, dict[str, Any]], Scenario, Scenario, dict[str, Plants]]:
    """Return (users' mappings by side, the baseline's scenario, the candidate's, what is planted in which side).

    Each was checked. Raises BadInput.
    """
    mistakes: list[HarnessError] = []
    maps: dict[str, dict[str, Any]] = {"baseline": {}, "candidate": {}}
    for name, file, backend in (
        ("baseline", options.baseline_mapping, baseline),
        ("candidate", options.mapping, candidate),
    ):
        with collected(mistakes):
            engine = envs.parse(backend).engine
            maps[name] = user_mapping.load(file, engine) if file else {}
    for line in dict.fromkeys(line for spec in maps.values() for line in user_mapping.uncalled_lines(spec)):
        options.say(line)
    shared = Scenario()
    sides = {"--baseline-mapping": baseline, "--mapping": candidate}
    with collected(mistakes), mapped_on(sides):
        shared = options.shared()
    with collected(mistakes):
        check_device(options.device, options.address)
    # All mistakes of a command are told at once, so that nobody corrects one and meets the next.
    if mistakes:
        mistakes += _misspelt(shared, options.candidate_overrides, candidate)
    refuse(mistakes)
    baseline_scenario, candidate_scenario, plants = (
        _planted(shared, options.fault) if options.fault else (shared, shared, {})
    )
    with _fixes_name_candidate_set(options.candidate_overrides):
        candidate_scenario = _candidate(candidate_scenario, options.candidate_overrides, candidate)
        check_pair(baseline_scenario, candidate_scenario)
        with collected(mistakes):
            preflight(baseline_scenario, baseline, maps["baseline"])
        with collected(mistakes):
            preflight(candidate_scenario, candidate, maps["candidate"])
        refuse(mistakes)
        check_machine((baseline_scenario, candidate_scenario), options.address, options.say)
    return maps, baseline_scenario, candidate_scenario, plants


def _misspelt(shared: Scenario, overrides: Iterable[str], candidate: str) -> list[HarnessError]:
    """Return the candidate's overrides whose keys are wrong, beside a scenario that is wrong itself.

    Which values fit depends on that scenario; which keys there are does not.
    """
    try:
        _candidate(shared, overrides, candidate)
    except BadInput as error:
        return [mistake for mistake in mistakes_of(error) if mistake.instead]
    return []


def _candidate(scenario: Scenario, overrides: Iterable[str], backend: str) -> Scenario:
    """Return the scenario with the candidate's settings. Only they can be wrong, since the scenario was checked
    before.
    """
    try:
        with mapped_on({"--mapping": backend}):
            return config.changed(scenario, overrides)
    except BadInput as error:
        for mistake in mistakes_of(error):
            mistake.fix = (mistake.fix or "").replace("--set ", "--candidate-set ") or None
        raise


@contextlib.contextmanager
def _fixes_name_candidate_set(candidate_overrides: Iterable[str]) -> Iterator[None]:
    """Rewrite the fix of an error about a candidate's setting so that it names the option that sets it there."""
    try:
        yield
    except BadInput as error:
        keys = {override.partition("=")[0].strip() for override in candidate_overrides}
        for mistake in mistakes_of(error):
            fix = mistake.fix or ""
            fix = fix.replace("--model ", "--set model.path=").replace("--prompts ", "--set prompts.path=")
            if fix.removeprefix("--set ").partition("=")[0] in keys:
                mistake.fix = "--candidate-set " + fix.removeprefix("--set ")
        raise


def run_scenario(
    scenario: str,
    options: RunOptions | None = None,
    *,
    backend: str = "hf",
    resume: str | None = None,
    **changes: Any,
) -> Path:
    """Record one run, and return its directory.

    `resume`: continue from this checkpoint. `changes`: fields of RunOptions, instead of or on top of `options`. Raises
    RunCut when it ends early; what was recorded stays readable.
    """
    options = dataclasses.replace(options or RunOptions(), **changes)
    command = command_line(
        "run", scenario_word(scenario), backend=backend, resume=resume and Path(resume), **command_options(options)
    )
    with mapped_on({"--mapping": backend}):
        base = options.settings(scenario)
    map_of_user = user_mapping.load(options.mapping, envs.parse(backend).engine) if options.mapping else {}
    for line in user_mapping.uncalled_lines(map_of_user):
        options.say(line)
    preflight(base, backend, map_of_user)
    check_device(options.device, options.address)
    check_machine((base,), options.address, options.say)
    if resume is not None:
        check_resume(resume, base)
    with recording_in(options.out, f"run-{base.name}-{backend}") as folder:
        environment = environment_for(backend, base, options.address, mapping=map_of_user, say=options.say)
        side = Side("run", str(envs.parse(backend)), environment, base, folder, mapping=map_of_user, command=command)
        with guarded(folder, options) as guard, cluster_for([side], options) as (cluster, warm):
            experiment = Experiment(
                cluster, [side], progress=options.progress, device=options.device, guard=guard, warm=warm,
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
    """Judge two recorded runs, or without `candidate` the pair in one directory. Each may be a bundle.

    The runs may be ours or a framework's. `again`: a second run of the baseline's job, with which its floor is
    measured. `strict`: a pass with reservations has exit code 3. Raises BadInput for a directory that holds no run.
    """
    words = [Path(run) for run in (baseline, candidate) if run is not None]
    if candidate is None:
        [alone] = resolve_runs(baseline)
        if not all(is_run(alone / side) for side in SIDES):
            raise no_pair(alone, baseline)
        baseline, candidate = (Path(baseline) / side for side in SIDES)
    run_paths = [baseline, candidate, *([again] if again is not None else [])]
    runs = resolve_runs(*run_paths)
    refuse(no_runs(runs, run_paths))
    # Imported late, so that a wrong argument is refused without the judge's libraries.
    from harness.parity.verdict import FurtherEvidence, judged_pair

    library = Library(Patience(lambda doing: progress(ProgressEvent("", "", message=doing))))
    second: dict[str, Path | str] = {"baseline": runs[2]} if again is not None else {}
    verdict = judged_pair(runs[0], runs[1], cap=cap, further=FurtherEvidence(second), library=library).verdict
    if verdict.verdict == "EQUIVALENT":
        verdict = with_scenario(verdict, *map(library.open, runs[:2]))
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
    """Judge one recorded run by itself, ours or a framework's, which may be a bundle or lie in one.

    `strict`: a pass with reservations has exit code 3. Raises BadInput for what is no run.
    """
    path = resolve(run)
    if not is_run(path):
        raise no_run(path, run)
    if refusal := no_rollouts(path, run):
        raise refusal
    from harness.parity.audit import audit as judge

    verdict = judge(path, cap=cap, tell=Patience(lambda doing: progress(ProgressEvent("", "", message=doing))))
    reproduce = command_line("audit", Path(run), cap=cap, strict=strict)
    return dataclasses.replace(verdict.strict if strict else verdict, reproduce=reproduce, paths={"run": str(run)})


@dataclasses.dataclass(frozen=True)
class _Pair:
    """Two runs that one command makes, with its options and the library that reads them."""

    baseline: Side
    candidate: Side
    options: ParityOptions
    library: Library


def _record_pair(
    pair: _Pair,
    guarded: contextlib.AbstractContextManager[Guard | None],
    *,
    lift: bool,
    figures: dict[str, Any],
) -> tuple[RunCut | None, Attribution | None, Lifting | None]:
    """Record both runs, attribute a difference on the live engines, then record the lifted and the native stage.

    Returns (what cut it short, what the bench showed, the lifted stage).
    """
    baseline_side, candidate_side, options = pair.baseline, pair.candidate, pair.options
    clock = _Clock(figures)
    native = options.native and baseline_side.scenario.native.samples > 0
    stages = _Stages(
        baseline_side, candidate_side, options, library=pair.library, native=native, lift=lift, clock=clock
    )
    try:
        with (
            guarded as guard,
            cluster_for(
                [baseline_side, candidate_side], options, native=native, refused=_unfit_for_warm(options, lift=lift)
            ) as (cluster, warm),
        ):
            experiment = Experiment(
                cluster,
                [baseline_side, candidate_side],
                progress=options.progress,
                device=options.device,
                guard=guard,
                warm=warm,
            )
            # The judge's imports take seconds, which pass while engines start.
            threading.Thread(target=_load_judge, name="load-judge", daemon=True).start()
            experiment.begin()
            clock.lap("start_s")
            figures["warm"] = warm is not None
            stages.record(experiment)
        clock.lap("teardown_s")
    except RunCut as cut:
        return cut, stages.attribution, stages.lifting
    return None, stages.attribution, stages.lifting


def _unfit_for_warm(options: ParityOptions, *, lift: bool) -> str:
    """Return why engines that are already up cannot be used for this pair; "" where they can."""
    if options.fault:
        return "a fault is planted in an engine of its own"
    return "the lifted stage starts engines in float32 (--no-lifted runs without)" if lift else ""


@dataclasses.dataclass
class _Stages:
    """The stages of a pair, one after the other on the engines of one experiment.

    `attribution`, `lifting`: the results, which stay where a later stage is cut short.
    """

    baseline: Side
    candidate: Side
    options: ParityOptions
    library: Library
    native: bool
    lift: bool
    clock: _Clock
    attribution: Attribution | None = None
    lifting: Lifting | None = None

    def record(self, experiment: Experiment) -> None:
        """Record both runs, then what the options ask for: attribution, the lifted stage, the native stage. Raises
        RunCut.
        """
        policy = experiment.record(self.baseline)
        self.clock.lap("baseline_s")
        if self.lift:
            self.lifting = Lifting(experiment, self.baseline, self.candidate, self.options.lifted is True)
        early = self._begin_early(experiment, policy)
        experiment.record(self.candidate, guide=self.baseline.run_dir if self.candidate.scenario.guided else None)
        self.clock.lap("candidate_s")
        # The bench needs both engines as the runs left them. The stages after it start engines of their own.
        if self.options.attribution:
            self.attribution = _attributed(
                experiment, self.baseline, self.candidate, early=early, cap=self.options.cap, library=self.library
            )
            self.clock.lap("attribution_s")
        broken = self.attribution.broken if self.attribution is not None else ""
        self._record_lifted(policy, early=early, broken=broken)
        if self.native and not broken and not (self.lifting and self.lifting.broken):
            self._record_native(experiment, policy, begun=early and self.lifting is None)

    def _begin_early(self, experiment: Experiment, policy: str) -> bool:
        """Start the baseline's engine for its next stage while the candidate runs, since the start takes most of the
        stage.

        Not where the baseline itself may be at fault: it is then needed on the bench as it is. Returns whether it was
        started.
        """
        if not (self.native or self.lift):
            return False
        if self.options.attribution and not _clean(self.baseline.run_dir, cap=self.options.cap, library=self.library):
            return False
        if self.lifting is not None:
            self.lifting.begin(self.baseline)
        else:
            experiment.begin_native(self.baseline, policy)
        return True

    def _record_lifted(self, policy: str, *, early: bool, broken: str) -> None:
        """Record the lifted stage, where there is one and attribution did not break the engines."""
        if self.lifting is None:
            return
        if broken:
            self.lifting.skip(broken)
            return
        self.lifting.begin(*([self.candidate] if early else [self.baseline, self.candidate]))
        self.lifting.run(policy, attribution=self.options.attribution)
        self.clock.lap("lifted_s")

    def _record_native(self, experiment: Experiment, policy: str, *, begun: bool) -> None:
        """Record the native stage of both sides, with more draws where they decide more.

        `begun`: the baseline's engine is starting already.
        """
        if not begun:
            experiment.begin_native(self.baseline, policy)
        experiment.begin_native(self.candidate, policy)
        experiment.native(self.baseline, self.candidate, policy=policy)
        self.clock.lap("native_s")
        draw_on(experiment, self.baseline, self.candidate, policy, cap=self.options.cap, library=self.library)
        self.clock.lap("native_looks_s")


def _load_judge() -> None:
    """Import what judges and shows the runs while they are made, which takes a second or two."""
    import importlib

    of_a_report = ("matplotlib.figure", "matplotlib.style", "matplotlib.backends.backend_svg", "jinja2")
    for module in ("harness.parity.attribution.clean", *of_a_report):
        with contextlib.suppress(ImportError):  # reported where it is needed
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
    """Return what interventions on the live engines show about a divergence; None without one."""
    from harness.parity.attribution import search
    from harness.parity.subjects.engines.observed import suspect
    from harness.parity.verdict import judged_pair

    before = judged_pair(baseline_side.run_dir, candidate_side.run_dir, native=False, cap=cap, library=library)
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


def _concluded(pair: _Pair, cut: RunCut | None, attribution: Attribution | None, lifting: Lifting | None) -> Verdict:
    """Return the verdict on both recordings, with what the benches showed about a divergence."""
    from harness.parity.attribution import merged
    from harness.parity.verdict import FurtherEvidence, judged_pair

    baseline_side, candidate_side, options, library = pair.baseline, pair.candidate, pair.options, pair.library
    if cut is not None:
        return verdict_with_cut(
            baseline_side.run_dir, candidate_side.run_dir, cut, native=options.native, cap=options.cap, library=library
        )
    broken = (attribution and attribution.broken) or (lifting and lifting.broken) or ""
    native = options.native and not broken
    lifted = lifting.verdict if lifting is not None else None
    judgement = judged_pair(
        baseline_side.run_dir,
        candidate_side.run_dir,
        native=native,
        cap=options.cap,
        further=FurtherEvidence(lifted=lifted),
        library=library,
    )
    verdict = judgement.verdict if attribution is None else merged(judgement, attribution)
    if not (options.native and broken):
        return verdict
    return dataclasses.replace(verdict, missing=[*verdict.missing, f"the native stage: {broken}"])


class _Clock:
    """Write the seconds of each part of the experiment into the verdict's figures."""

    def __init__(self, figures: dict[str, Any]) -> None:
        self._figures, self._last = figures, time.monotonic()

    def lap(self, name: str) -> None:
        now = time.monotonic()
        self._figures[name], self._last = round(now - self._last, 1), now


def _planted(shared: Scenario, fault: str) -> tuple[Scenario, Scenario, dict[str, Plants]]:
    """Return both sides' scenarios with the planted fault of this name, and what is planted in which side."""
    from harness.planted.differences.option import fault_of_a_run  # an ordinary run loads no planted fault

    planted = fault_of_a_run(fault)
    sound = config.changed(shared, planted.scenario)
    scenarios = {"baseline": sound, "candidate": sound, planted.side: config.changed(sound, planted.settings)}
    return scenarios["baseline"], scenarios["candidate"], {planted.side: planted.plants()}
