"""Run and judge the planted faults of parity, all on engines that are started once.

Faults of one scenario share a baseline.
"""

from __future__ import annotations

import dataclasses
import re
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from harness import config, verdict_file
from harness.cluster.experiment import Experiment
from harness.cluster.side import Side
from harness.cluster.waiting import RunCut
from harness.errors import HarnessError
from harness.parity.attribution import attribute
from harness.parity.runs import recording
from harness.parity.runs.preflight import environment_for, preflight
from harness.parity.runs.run_engines import cluster_for
from harness.parity.runs.run_options import LaunchOptions
from harness.parity.subjects.engines.observed import suspect
from harness.parity.verdict import judged_pair
from harness.planted.differences.damage import damage
from harness.planted.differences.files import reproduced_by
from harness.planted.differences.lifted_faults import lifting
from harness.planted.differences.native import natively
from harness.planted.differences.outcome import Outcome, started_since
from harness.planted.differences.setting import Setting
from probes.files import write_whole
from scenarios.planted.differences.fault import READY, Fault
from scenarios.settings import Scenario

Pair = tuple[str, str]
STARTED_WITH = ("engine.", "model.", "rollout.mode=", "placement.")  # settings that need a new start of the engine
REVIVALS = 8  # resources for engines that are started again after they died


def planned(faults: Sequence[Fault], pair: Pair) -> list[tuple[Pair, list[tuple[tuple[str, ...], list[Fault]]]]]:
    """Group the faults by pair of engines and by scenario, and leave out faults of other engines than the suite's.

    Within a group, faults that need a baseline of their own come last, and faults that restart an engine (half a
    minute) come after those that do not.
    """
    plans: dict[Pair, dict[tuple[str, ...], list[Fault]]] = {}
    for fault in faults:
        wanted = fault.pair or pair
        if sorted(wanted) == sorted(pair):
            plans.setdefault(wanted, {}).setdefault(fault.of_both, []).append(fault)
    order = sorted(plans, key=lambda engine_pair: engine_pair != pair)
    return [
        (
            engine_pair,
            [
                (shared, sorted(group, key=lambda fault: (fault.side == "baseline", restarts(fault))))
                for shared, group in sorted(plans[engine_pair].items())
            ],
        )
        for engine_pair in order
    ]


def restarts(fault: Fault) -> bool:
    """Whether an engine must be restarted for the fault."""
    return bool(fault.mapping.get("edits", {}).get("engine")) or any(
        setting.startswith(STARTED_WITH) for setting in fault.settings
    )


def inside_engines(faults: Sequence[Fault]) -> str:
    """Return why these faults need engines of their own; empty where no fault changes an engine."""
    for fault in faults:
        if fault.engine or "file" in fault.mapping or restarts(fault) or fault.stage not in ("coupled", "greedy"):
            return f"the fault {fault.name} changes an engine"
        if any(setting.startswith(STARTED_WITH) for setting in fault.of_both):
            return f"the fault {fault.name} is for another engine ({' '.join(fault.of_both)})"
    return ""


def outcomes(
    baseline: str,
    candidate: str,
    faults: Sequence[Fault],
    *,
    scenario: Scenario,
    out: Path,
    options: LaunchOptions | None = None,
) -> Iterator[Outcome]:
    """Run each fault that these two engines can have, judge it, and let live interventions prove its causes.

    The recordings stay under `out`, in a folder per fault. Faults that do not change an engine use warm engines,
    unless `options` say `cold`. Learner and engines load their model when they start, so each model has its own.
    """
    for model in dict.fromkeys(fault.model for fault in faults):
        of_model = [fault for fault in faults if fault.model == model]
        changed = config.changed(scenario, [f"model.path={model}"]) if model else scenario
        if plans := planned(of_model, (baseline, candidate)):
            yield from _on_one_model(plans, (baseline, candidate), changed, out, options or LaunchOptions())


def _on_one_model(
    plans: list[tuple[Pair, list[tuple[tuple[str, ...], list[Fault]]]]],
    pair: Pair,
    scenario: Scenario,
    out: Path,
    options: LaunchOptions,
) -> Iterator[Outcome]:
    """Run planned faults of one model, on one cluster."""
    for backend in pair:
        preflight(scenario, backend)
    baseline_side, candidate_side = (
        Side(name, backend, environment_for(backend, scenario, say=options.say), scenario, out / name, READY)
        for name, backend in zip(("baseline", "candidate"), pair, strict=True)
    )
    chosen = [fault for _, groups in plans for _, group in groups for fault in group]
    with cluster_for([baseline_side, candidate_side], options, refused=inside_engines(chosen)) as (cluster, warm):
        experiment = Experiment(
            cluster, [baseline_side, candidate_side], progress=options.progress, device=options.device, warm=warm
        )
        experiment.begin(spare=_spare(chosen, scenario))
        for number, (engines, groups) in enumerate(plans):
            if number:
                experiment.exchange()
                baseline_side, candidate_side = (
                    dataclasses.replace(side, backend=other_side.backend, environment=other_side.environment)
                    for side, other_side in ((baseline_side, candidate_side), (candidate_side, baseline_side))
                )
            for shared, group in groups:
                setting = Setting(
                    experiment=experiment,
                    baseline=baseline_side,
                    candidate=candidate_side,
                    pair=engines,
                    scenario=config.changed(scenario, shared),
                    out=out,
                )
                yield from _by_stage(setting, shared, group)


def _by_stage(setting: Setting, shared: tuple[str, ...], faults: list[Fault]) -> Iterator[Outcome]:
    """Run the faults of one scenario, stage after stage. The native stage comes last: its engines have no code of ours,
    and start anew.
    """
    yield from _group(setting, shared, [fault for fault in faults if fault.stage in ("coupled", "greedy")])
    if half := [fault for fault in faults if fault.stage == "lifted"]:
        yield from lifting(setting, half, setting.out / sound_name("lifted", setting.pair, shared))
    if native := [fault for fault in faults if fault.stage == "native"]:
        yield from natively(setting, native, setting.out / sound_name("native", setting.pair, shared))


def sound_name(what: str, pair: Pair, shared: tuple[str, ...]) -> str:
    """Return the name of the folder that the faults of one pair and scenario share: no character that a file system,
    an engine or an upload of CI refuses."""
    return re.sub(r"[^\w.@-]", "-", "-".join((what, *pair, *shared)))


def _spare(faults: Sequence[Fault], scenario: Scenario) -> int:
    """Return the number of actors beyond those of a sound pair.

    These are one set of roles for each other number of ranks, and the engines of both sides for each scenario with
    another number of engines and for the return from it.
    """
    engines = {fault.of_both: config.changed(scenario, fault.of_both).engine.engines for fault in faults}
    other_counts = [number for number in engines.values() if number != scenario.engine.engines]
    sizes = {config.changed(scenario, [*fault.of_both, *fault.settings]).ppo.world_size for fault in faults} - {
        scenario.ppo.world_size
    }
    return 4 * sum(sizes) + 2 * sum(number + scenario.engine.engines for number in other_counts) + REVIVALS


def _group(setting: Setting, shared: tuple[str, ...], faults: list[Fault]) -> Iterator[Outcome]:
    """Run the faults of one scenario. Faults of the candidate share a sound baseline; each fault of the baseline has
    its own.
    """
    experiment, pair, scenario, out = setting.experiment, setting.pair, setting.scenario, setting.out
    sound = out / sound_name("baseline", pair, shared)
    recorded = False
    for fault in faults:
        started, before = time.monotonic(), experiment.engine_starts()
        folder = out / fault.folder
        try:
            baseline = _side(
                setting.baseline, fault, scenario, sound if fault.side == "candidate" else folder / "baseline"
            )
            candidate = _side(setting.candidate, fault, scenario, folder / "candidate")
            if fault.side == "baseline" or not recorded:
                experiment.vary(baseline)
                experiment.record(baseline)
                recorded = fault.side == "candidate"
            if fault.side == "candidate":  # the time of the shared baseline is not counted for this fault
                started, before = time.monotonic(), experiment.engine_starts()
            experiment.vary(candidate)
            experiment.record(candidate, guide=baseline.run_dir if candidate.scenario.guided else None)
        except HarnessError as error:
            ran = round(time.monotonic() - started, 1)
            if isinstance(error, RunCut) and fault.expected == "INCONCLUSIVE":  # the fault is meant to end the run
                verdict = recording.verdict_with_cut(
                    baseline.run_dir, candidate.run_dir, error, native=False, cap=fault.cap
                )
                yield Outcome(fault, verdict, ran, pair=pair)
            else:
                yield Outcome(fault, None, ran, pair=pair, error=error.message)
            experiment.revive()
            sound, recorded = sound.with_name(sound.name + "-again"), False
            continue
        damage(candidate.run_dir if fault.side == "candidate" else baseline.run_dir, fault.recording)
        ran = time.monotonic()
        judgement = judged_pair(baseline.run_dir, candidate.run_dir, native=False, cap=fault.cap)
        judged_at = time.monotonic()
        verdict = judgement.verdict
        if verdict.verdict == "DIVERGENT":
            engine = suspect(judgement.evidence)
            verdict = attribute(judgement, experiment.bench(baseline.name, candidate.name, engine=engine))
        verdict = dataclasses.replace(verdict, reproduce=reproduced_by(fault, pair, scenario.model))
        seconds = round(judged_at - ran, 2), round(time.monotonic() - judged_at, 2)
        write_whole(folder / verdict_file.NAME, verdict.to_json().encode())
        starts = started_since(before, experiment.engine_starts())
        yield Outcome(fault, verdict, round(ran - started, 1), *seconds, starts, pair=pair)


def _side(side: Side, fault: Fault, scenario: Scenario, run_dir: Path) -> Side:
    """Return one side of a fault's run. The fault is planted where this side is the one at fault."""
    faulty = side.name == fault.side
    settings = config.changed(scenario, fault.settings) if faulty else scenario
    return dataclasses.replace(side, scenario=settings, run_dir=run_dir, plants=fault.plants() if faulty else READY)
