"""The commands as functions: run one scenario on two backends and judge it, record one run, judge two recorded runs."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness import config, envs
from harness.cluster.experiment import Experiment
from harness.cluster.launch import Cluster
from harness.cluster.side import Side
from harness.cluster.waiting import RunCut
from harness.parity.runs import user_mapping
from harness.parity.runs.command_line import command_line
from harness.parity.runs.lifting import Lifting, wanted
from harness.parity.runs.preflight import check_pair, check_resume, preflight
from harness.parity.runs.recording import STALL_S, compacted, guarded, judged, machine, recording_in, written
from harness.triage.watch.guard import Guard
from reports.model import Finding, Verdict
from reports.progress import ProgressEvent
from scenarios.plants import NOTHING, Plants
from scenarios.settings import Mode, Scenario

if TYPE_CHECKING:
    from harness.parity.attribution.outcome import Attribution


def run_parity(
    baseline: str,
    candidate: str,
    *,
    scenario: str = "ppo-tiny",
    overrides: Iterable[str] = (),
    candidate_overrides: Iterable[str] = (),
    mode: Mode | None = None,
    seed: int | None = None,
    steps: int | None = None,
    rollout_only: bool = False,
    free: bool = False,
    native: bool = True,
    lifted: bool | None = None,
    attribution: bool = True,
    fault: str | None = None,
    mapping: str | None = None,
    baseline_mapping: str | None = None,
    cap: float | None = None,
    out: str | os.PathLike[str] | None = None,
    address: str | None = None,
    device: str = "auto",
    stall_s: float = STALL_S,
    progress: Callable[[ProgressEvent], None] = lambda event: None,
) -> Verdict:
    """Run one scenario on two backends with identical seeds, diff the recordings, and return the verdict.

    `overrides` (section.key=value) change both sides, `candidate_overrides` the candidate only. `mapping`,
    `baseline_mapping`: the candidate's and the baseline's own parameter mapping, a file (docs/reference/parameters.md).
    `lifted`: compute once more in float32 with the weights of half precision (docs/explanation/lifted.md); None: where
    they fit. `attribution`: when the runs diverge, intervene on the engines that are still up
    (docs/explanation/attribution.md). `cap`: the largest rounding noise that is believed, in nats, instead of the
    dtype's own. `out`: the parity directory, made under runs/ when None. `stall_s`: without progress for so long, a run
    is looked at and ended if it hangs; 0: nobody watches. Raises HarnessError for what could not start; a run that was
    cut short is INCONCLUSIVE, not an exception.
    """
    started = time.monotonic()
    overrides, candidate_overrides = list(overrides), list(candidate_overrides)
    reproduce = command_line(
        "parity", str(baseline), str(candidate), scenario=scenario, set=overrides, candidate_set=candidate_overrides,
        mode=mode, steps=steps, seed=seed, rollout_only=rollout_only, free=free, no_native=not native,
        lifted=lifted is True, no_lifted=lifted is False, no_attribution=not attribution, fault=fault, mapping=mapping,
        baseline_mapping=baseline_mapping, cap=cap,
        **machine(address, device, stall_s),
    )  # fmt: skip
    maps = {
        name: user_mapping.load(file, envs.parse(backend).engine) if file else {}
        for name, file, backend in (("baseline", baseline_mapping, baseline), ("candidate", mapping, candidate))
    }
    shared = _scenario(scenario, overrides, mode=mode, seed=seed, steps=steps, rollout_only=rollout_only, free=free)
    base, other, plants = _planted(shared, fault) if fault else (shared, shared, {})
    other = config.changed(other, candidate_overrides)
    check_pair(base, other)
    preflight(base, baseline, maps["baseline"])
    preflight(other, candidate, maps["candidate"])
    with recording_in(out, f"parity-{baseline}-{candidate}") as folder:
        left, right = (
            Side(
                name,
                str(envs.parse(one)),
                envs.resolve(one),
                settings,
                folder / name,
                plants=plants.get(name, NOTHING),
                mapping=maps[name],
            )
            for name, one, settings in (("baseline", baseline, base), ("candidate", candidate, other))
        )
        lift = wanted(left, right, lifted)
        figures: dict[str, Any] = {"environments_ready_s": round(time.monotonic() - started, 1)}
        cut, found, lifting = _record_pair(
            left, right, address=address, device=device, native=native, guarded=guarded(folder, stall_s, progress),
            progress=progress, figures=figures, command=reproduce, attribution=attribution, cap=cap, lift=lift,
            forced=lifted is True,
        )  # fmt: skip
        verdict = _concluded(left, right, cut, found, lifting, native=native, cap=cap)
        if cut is None:
            verdict = _could_fail(verdict, left)
        compacted(left.run_dir, right.run_dir)
    figures["total_s"] = round(time.monotonic() - started, 1)
    verdict = dataclasses.replace(
        verdict,
        figures=verdict.figures | figures,
        reproduce=reproduce,
    )
    return written(verdict, folder)


def run_scenario(
    scenario: str,
    *,
    backend: str = "hf",
    overrides: Iterable[str] = (),
    mode: Mode | None = None,
    seed: int | None = None,
    steps: int | None = None,
    rollout_only: bool = False,
    mapping: str | None = None,
    resume: str | None = None,
    out: str | os.PathLike[str] | None = None,
    address: str | None = None,
    device: str = "auto",
    stall_s: float = STALL_S,
    progress: Callable[[ProgressEvent], None] = lambda event: None,
) -> Path:
    """One recorded run; returns its directory. `mapping`: your own parameter mapping (docs/reference/parameters.md).

    Raises RunCut when it ends early (what was recorded stays readable)."""
    overrides = list(overrides)
    command = command_line(
        "run", scenario, backend=backend, set=overrides, mode=mode, steps=steps, seed=seed, rollout_only=rollout_only,
        mapping=mapping, resume=resume, **machine(address, device, stall_s),
    )  # fmt: skip
    base = _scenario(scenario, overrides, mode=mode, seed=seed, steps=steps, rollout_only=rollout_only, free=False)
    map_of_user = user_mapping.load(mapping, envs.parse(backend).engine) if mapping else {}
    preflight(base, backend)
    if resume is not None:
        check_resume(resume, base)
    with recording_in(out, f"run-{base.name}-{backend}") as folder:
        side = Side("run", str(envs.parse(backend)), envs.resolve(backend), base, folder, mapping=map_of_user)
        with guarded(folder, stall_s, progress) as guard, Cluster(address) as cluster:
            experiment = Experiment(
                cluster, [side], progress=progress, device=device, guard=guard, command=command
            )  # fmt: skip
            experiment.begin()
            experiment.record(side, resume=resume)
        compacted(side.run_dir)
    return folder


def diff(
    baseline: str | os.PathLike[str],
    candidate: str | os.PathLike[str],
    *,
    again: str | os.PathLike[str] | None = None,
    cap: float | None = None,
    progress: Callable[[ProgressEvent], None] = lambda event: None,
) -> Verdict:
    """Judge two recorded runs, ours or another framework's. `again`: a second run of the baseline's job, with which
    its floor is measured. Raises BadInput for a directory that holds no run."""
    from harness.parity.facts.patience import Patience
    from harness.parity.runs.source import no_run
    from harness.parity.verdict import judge

    for path in (Path(baseline), Path(candidate), *([Path(again)] if again is not None else [])):
        if not (path / "run.json").exists():
            raise no_run(path, "diff")
    tell = Patience(lambda doing: progress(ProgressEvent("", "", message=doing)))
    second = {"baseline": Path(again)} if again is not None else None
    verdict = judge(Path(baseline), Path(candidate), cap=cap, again=second, tell=tell)
    own = None if again is None else str(again)
    return dataclasses.replace(
        verdict,
        reproduce=command_line("diff", str(baseline), str(candidate), again=own, cap=cap),
        paths={"baseline": str(baseline), "candidate": str(candidate)},
    )


def _record_pair(
    left: Side,
    right: Side,
    *,
    address: str | None,
    device: str,
    native: bool,
    guarded: contextlib.AbstractContextManager[Guard | None],
    progress: Callable[[ProgressEvent], None],
    figures: dict[str, Any],
    command: str,
    attribution: bool,
    cap: float | None,
    lift: bool,
    forced: bool,
) -> tuple[RunCut | None, Attribution | None, Lifting | None]:
    """Record both runs, look for the cause of a difference on the engines as the runs left them, record the lifted and
    the native stage; returns (what cut it short, what the bench showed, the lifted stage)."""
    clock, found, lifting = _Clock(figures), None, None
    try:
        with guarded as guard, Cluster(address) as cluster:
            experiment = Experiment(
                cluster, [left, right], progress=progress, device=device, guard=guard, command=command
            )  # fmt: skip
            experiment.begin()
            clock.lap("start_s")
            native = native and left.scenario.native.samples > 0
            policy = experiment.record(left)
            clock.lap("baseline_s")
            lifting = Lifting(experiment, left, right, forced) if lift else None
            # The start of an engine takes most of the stages: the baseline's goes on beside the candidate's run, unless
            # it may be at fault itself and is wanted on the bench as it is.
            early = (native or lift) and (not attribution or _clean(left.run_dir, cap=cap))
            if early and lifting is not None:
                lifting.begin(left)
            elif early:
                experiment.begin_native(left, policy)
            experiment.record(right, guide=left.run_dir if right.scenario.guided else None)
            clock.lap("candidate_s")
            if attribution:
                found = _attributed(experiment, left, right, early=early, cap=cap)
                clock.lap("attribution_s")
            if lifting is not None and found and found.broken:
                lifting.skip("an engine failed in an intervention on it")
            elif lifting is not None:
                lifting.begin(*([right] if early else [left, right]))
                lifting.run(policy, attribution=attribution)
                clock.lap("lifted_s")
            if native and not (found and found.broken) and not (lifting and lifting.broken):
                if lifting is not None or not early:
                    experiment.begin_native(left, policy)
                experiment.begin_native(right, policy)
                experiment.native(left, policy)
                experiment.native(right, policy)
                clock.lap("native_s")
        clock.lap("teardown_s")
    except RunCut as cut:
        return cut, found, lifting
    return None, found, lifting


def _clean(run: Path, *, cap: float | None) -> bool:
    from harness.parity.attribution.clean import clean  # the judge's libraries, which no run needs

    return clean(run, cap=cap)


def _attributed(
    experiment: Experiment, left: Side, right: Side, *, early: bool, cap: float | None
) -> Attribution | None:
    """What interventions on the live engines show of a divergence; None without one."""
    from harness.parity.attribution import search
    from harness.parity.verdict import judged as judgement

    before = judgement(left.run_dir, right.run_dir, native=False, cap=cap)
    if before.verdict.verdict != "DIVERGENT":
        return None
    experiment.tell(right, "looking for the cause")
    bench = experiment.bench(*(side.name for side in (left, right) if not (early and side is left)))
    found = search(before, bench)
    if early:
        found.notes.append("the baseline's engine, clean by its own recording, was not on the bench")
    return found


def _concluded(
    left: Side, right: Side, cut: RunCut | None, found: Attribution | None, lifting: Lifting | None, *, native: bool,
    cap: float | None,
) -> Verdict:  # fmt: skip
    """The verdict on both recordings, with what the benches showed of a divergence."""
    from harness.parity.attribution import merged
    from harness.parity.verdict import judged as judgement

    if cut is not None:
        return judged(left.run_dir, right.run_dir, cut, native=native, cap=cap)
    broken = "an engine failed in an intervention on it" if found is not None and found.broken else ""
    broken = broken or (lifting.broken if lifting is not None else "")
    lifted = lifting.verdict if lifting is not None else None
    judged_ = judgement(left.run_dir, right.run_dir, native=native and not broken, cap=cap, lifted_verdict=lifted)
    whole = judged_.verdict if found is None else merged(judged_, found)
    if not (native and broken):
        return whole
    return dataclasses.replace(whole, missing=[*whole.missing, f"the native stage: {broken}"])


def _could_fail(verdict: Verdict, baseline: Side) -> Verdict:
    """Say of the scenario itself whether its faults would have shown: an EQUIVALENT of lengths without spread proves
    little."""
    from probes.format import Run
    from scenarios.ppo import selfcheck

    figures = verdict.parity.floor if verdict.parity else {}
    floor, tolerance = figures.get("combined"), figures.get("tolerance", selfcheck.TOLERANCE)
    known = floor if isinstance(floor, float) and floor > 0 else selfcheck.FLOOR
    checks = selfcheck.report(Run(baseline.run_dir, strict=False), floor=known, tolerance=tolerance)
    weak = [
        Finding(
            "scenario cannot fail",
            f"{check.name}: {check.value:.3g}, at least {check.threshold:.3g} is needed for a fault to show",
            effect="equality says less than it seems to",
            severity="warning",
            where="baseline",
        )
        for check in checks
        if check.applies and not check.ok
    ]
    measured = {check.name: round(check.value, 6) for check in checks if check.applies}
    return dataclasses.replace(
        verdict, findings=[*verdict.findings, *weak], coverage=verdict.coverage | {"scenario": measured}
    )


class _Clock:
    """Seconds of each part of the experiment, into the verdict's figures."""

    def __init__(self, figures: dict[str, Any]) -> None:
        self._figures, self._last = figures, time.monotonic()

    def lap(self, name: str) -> None:
        now = time.monotonic()
        self._figures[name], self._last = round(now - self._last, 1), now


def _scenario(
    scenario: str,
    overrides: Iterable[str],
    *,
    mode: Mode | None,
    seed: int | None,
    steps: int | None,
    rollout_only: bool,
    free: bool,
) -> Scenario:
    extra = [f"rollout.mode={mode}"] if mode else []
    top: dict[str, Any] = {
        "seed": seed,
        "steps": steps,
        "train": False if rollout_only else None,
        "guided": False if free else None,
    }
    return config.load(scenario, [*overrides, *extra], **top)


def _planted(shared: Scenario, fault: str) -> tuple[Scenario, Scenario, dict[str, Plants]]:
    """Both sides' scenarios with the planted fault of this name, and what is planted in which side."""
    from harness.planted.differences.option import fault_of_a_run

    planted = fault_of_a_run(fault)
    sound = config.changed(shared, planted.scenario)
    scenarios = {"baseline": sound, "candidate": sound, planted.side: config.changed(sound, planted.settings)}
    return scenarios["baseline"], scenarios["candidate"], {planted.side: planted.plants()}
