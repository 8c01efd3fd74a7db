"""Gather everything that two recordings show, or one alone, before any decision: facts, floor and native stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from harness.parity.facts.compare import compare
from harness.parity.facts.comparison import ALONE, Comparison, RecordedSide
from harness.parity.facts.evidence import Evidence
from harness.parity.facts.evidence_builder import EvidenceBuilder, SideBuilder
from harness.parity.facts.own_faults import note_own_faults
from harness.parity.facts.progress_messages import ProgressCallback, ignore_progress
from harness.parity.subjects.engines import observed_second_run
from harness.parity.subjects.engines.observed_against_learner import note_floors
from harness.parity.subjects.engines.observed_repetition import SecondRun
from harness.parity.subjects.learner import observed_experience
from harness.parity.subjects.learner.observed import learners
from harness.parity.subjects.learner.observed_learners import Learners
from harness.parity.subjects.log_probabilities import observed_drifts
from harness.parity.subjects.native_sampler.observed_stage import native_stage
from harness.parity.subjects.precision.observed_floor import CAP_TF32, CAPS, EngineFloor, Tolerance, measure
from harness.parity.subjects.precision.observed_rounding import Rounding
from harness.parity.subjects.recording.observed_confounders import CUTS, Confounder, Weights, learner_devices
from harness.parity.subjects.recording.observed_confounders import find as find_confounders
from harness.parity.subjects.sampling import observed_unjudged_flips
from harness.parity.subjects.sampling.observed import engine_infos, tf32_devices
from harness.parity.subjects.sampling.observed_modes import REPLAY, drawn_in, unclear
from harness.parity.subjects.sampling.observed_seeds import same_sampler
from harness.parity.subjects.weights.observed_sync import weight_syncs
from harness.recordings.store import Recording
from probes.format import number
from reports.text import figure
from scenarios.lifted import HALF


def gather(
    baseline: Recording,
    candidate: Recording | None,
    *,
    native: bool,
    cap: float | None,
    again: Mapping[str, Recording] | None = None,
    tell: ProgressCallback = ignore_progress,
) -> EvidenceBuilder:
    """Collect everything that two recordings show, before any decision. Raises FormatError for a malformed recording.

    Without a candidate it is what the baseline shows by itself.
    """
    e = before_steps(baseline, candidate, cap=cap, again=again, tell=tell)
    note_floors(e)
    compare(e, tell)  # the one pass over the steps
    # What only the whole run shows. Syncs are judged after the steps, whose rollouts say which weights were used.
    weight_syncs(e)
    note_own_faults(e)
    if not e.alone:
        learners(e)
    observed_experience.note_means(e)
    if native:
        native_stage(e)
    # Log-probabilities and flips that no step counted as divergences. Means come after outliers: a mean is no
    # divergence where single tokens are one already.
    e.note_outliers()
    observed_drifts.note_means(e)
    observed_unjudged_flips.note_improbable_flips(e)
    return e


def native_stage_alone(baseline: Recording, candidate: Recording, *, cap: float | None) -> Evidence:
    """Return what the native stages show, without reading any step. Raises FormatError for a malformed recording."""
    e = before_steps(baseline, candidate, cap=cap)
    native_stage(e)
    return e.build()


def before_steps(
    baseline: Recording,
    candidate: Recording | None,
    *,
    cap: float | None,
    again: Mapping[str, Recording] | None = None,
    tell: ProgressCallback = ignore_progress,
) -> EvidenceBuilder:
    """Return evidence with what must be known before the first step is compared.

    That is floors, tolerances, modes and confounders.
    """
    first = {ALONE: baseline} if candidate is None else {"baseline": baseline, "candidate": candidate}
    candidate = candidate or baseline
    repeated = _second_runs(first, again or {}, cap, tell)
    sides = [_side(name, recording, repeated.get(name, SecondRun())) for name, recording in first.items()]
    alone = len(sides) == 1
    # Confounders decide what is compared at all. Those that cut batches otherwise also say what rounding explains.
    # Then come the mode, the floors and the caps, since the tolerance is made of them.
    confounders = [] if alone else find_confounders(baseline, candidate, (sides[0].ranks, sides[1].ranks))
    drawn = drawn_in(baseline)
    # A replay's candidate only scored what the baseline had drawn.
    mode = REPLAY if REPLAY in candidate.field_texts("rollout", "mode") else drawn
    # With second runs, only measured floors count for the sides that were not run again.
    floors = [side.floor for side in sides if not repeated or side.name in repeated or side.floor.measured]
    precision = _precision(baseline, sides, floors, mode, _temperature(baseline, drawn), cap)
    tolerance = _tolerance(precision, baseline, candidate)
    finer = _finer(precision, tolerance, _engines_type(sides, mode)) if cap is None else None
    comparison = Comparison(
        baseline=sides[0],
        candidate=sides[-1],
        tolerance=tolerance,
        confounders=_acting(confounders, [*first.values()]),
        weights=Weights(baseline, candidate),
        mode=mode,
        finer=finer,
        cap=cap,
        seeded=mode == "native" and not alone and same_sampler(baseline, candidate),
        train=_trains(baseline, candidate),
        second_runs=repeated,
        modes_unclear=tuple(why for name, recording in first.items() for why in unclear(recording, name)),
    )
    cuts = tuple(confounder.finding for confounder in confounders if confounder.finding.name in CUTS)
    e = EvidenceBuilder(comparison, Learners(cuts=cuts))
    if precision.dtype not in CAPS and cap is None:
        e.missing.append(
            f"the model's dtype is {precision.dtype or 'not recorded'}: the strictest cap, "
            f"{figure(CAPS['float32'])}, was used"
        )
    return e


def _second_runs(
    first: Mapping[str, Recording], again: Mapping[str, Recording], cap: float | None, tell: ProgressCallback
) -> dict[str, SecondRun]:
    """Return what the sides that were run again show: how far each is from its own repetition."""
    return {
        name: observed_second_run.compared(
            gather(first[name], rerun, native=False, cap=cap, tell=tell).build(), first.values()
        )
        for name, rerun in again.items()
    }


def _trains(baseline: Recording, candidate: Recording) -> bool:
    """Whether the runs train, by their scenario, else by events of a learner."""
    trains = baseline.records.settings.trains
    return bool(baseline.count("learner") or candidate.count("learner")) if trains is None else trains


def _side(name: str, recording: Recording, repetition: SecondRun) -> SideBuilder:
    return SideBuilder(name, recording, measure(recording, repetition.pairs, drawn=repetition.drawn))


def _acting(confounders: list[Confounder], recordings: list[Recording]) -> list[Confounder]:
    """Return the confounders that act in a recorded step. Another cut of the batch may act only after the last one."""
    last = max((step for recording in recordings for step in recording.steps("experience")), default=0)
    return [confounder for confounder in confounders if confounder.finding.name not in CUTS or confounder.step <= last]


def _temperature(baseline: Recording, drawn: str) -> float:
    """Return the temperature at which the baseline drew, by its scenario, else by its first sampling request."""
    return 1.0 if drawn == "greedy" else number(baseline.records.requested_sampling.get("temperature"), 1.0)


# An error of the logits moves log-probabilities of logits/T by 1/T times as much, so caps of raw ones are divided by T:
# a sound TRL job in bfloat16 was within 0.051 nats at T = 1 and within 0.076 at 0.7. By no more than this (chosen: jobs
# train at 0.5 and above), so that a small T of a recording excuses nothing.
SHARPEST = 2.0


@dataclass(frozen=True)
class _Precision:
    """How precisely the runs compute.

    `dtype`: of the model, "" where not recorded. `scale`: the largest |log-probability|. `tf32`: an engine may multiply
    float32 in TF32. `cap`: set by the user. `limit`: that, or the cap of TF32; None for the cap of the dtype.
    """

    dtype: str
    floors: list[EngineFloor]
    scale: float
    temperature: float
    tf32: bool
    cap: float | None
    limit: float | None


def _precision(
    baseline: Recording,
    sides: Sequence[RecordedSide],
    floors: list[EngineFloor],
    mode: str,
    temperature: float,
    cap: float | None,
) -> _Precision:
    dtype = baseline.records.settings.model.dtype or ""
    tf32 = any(_in_tf32(side, mode) for side in sides)
    limit = cap
    if tf32 and dtype == "float32" and not baseline.records.manifest.is_lifted:  # lifted stages must see finer
        # TF32 truncates alike in every batch, so an engine is nearer to itself than to a learner that does not use it.
        limit, floors = CAP_TF32 if cap is None else cap, [EngineFloor()]  # measured, but not that gap
    if cap is None and temperature > 0 and _are_after_temperature(baseline):
        believed = CAPS.get(dtype, CAPS["float32"]) if limit is None else limit
        limit = believed * min(1 / temperature, SHARPEST)
    return _Precision(
        dtype=dtype,
        floors=floors,
        scale=_scale(baseline),
        temperature=temperature,
        tf32=tf32,
        cap=cap,
        limit=limit,
    )


def _are_after_temperature(recording: Recording) -> bool:
    """Whether the engine's log-probabilities, and so its learner's, are those of logits/T."""
    steps = recording.steps("rollout")
    first = recording.table("rollout", steps[0]) if steps else None
    return first is not None and first.header.tempered


def _tolerance(precision: _Precision, baseline: Recording, candidate: Recording) -> Tolerance:
    """Return the tolerance between an engine and its learner."""
    dtype, limit = precision.dtype, precision.limit
    believed = CAPS.get(dtype, CAPS["float32"]) if limit is None else limit
    if dtype in HALF:
        rounding = Rounding.of(baseline, believed, candidate)
    else:
        rounding = Rounding.of_float32((baseline, candidate), believed)
    tolerance = Tolerance.of(
        dtype,
        precision.floors,
        scale=precision.scale,
        temperature=precision.temperature,
        cap=limit,
        rounding=rounding,
    )
    if precision.cap is not None:  # single tokens then may differ by what the user set
        tolerance = replace(tolerance, within=float("nan"))
    return tolerance


def _finer(precision: _Precision, tolerance: Tolerance, engines: str) -> Tolerance | None:
    """Return the tolerance between engines that compute in a finer type than the learner; None for others.

    `engines`: that type, "" where there is none.
    """
    if not engines:
        return None
    coarsest = CAP_TF32 if precision.tf32 and engines == "float32" else CAPS[engines]
    if coarsest < tolerance.cap:
        return Tolerance.of(
            engines, precision.floors, scale=precision.scale, temperature=precision.temperature, cap=coarsest
        )
    return None


def _in_tf32(side: RecordedSide, mode: str) -> bool:
    """Whether an engine of this side may multiply float32 in TF32. The learner's device decides where no engine reports
    one.
    """
    if any(info.resolved.device for info in engine_infos(side, mode)):
        return bool(tf32_devices(side, mode))
    return "cuda" in learner_devices(side.recording).get("device", [])


def _engines_type(sides: Sequence[RecordedSide], mode: str) -> str:
    """Return the coarsest type in which the engines compute, by what they resolved.

    Returns "" where one does not report it, or keeps its KV cache in another type.
    """
    # Keys and values of another type round otherwise than the engine's own type says.
    all_types = set()
    for side in sides:
        engines = [info.resolved for info in engine_infos(side, mode)]
        types = {(resolved.dtype or "").removeprefix("torch.") for resolved in engines}
        caches = {
            str(resolved.parameters.get("kv_cache_dtype") or "auto").removeprefix("torch.") for resolved in engines
        }
        if not types or not types <= set(CAPS) or not caches <= {"auto", *types}:
            return ""
        all_types |= types
    return max(all_types, key=lambda name: CAPS[name])


def _scale(baseline: Recording) -> float:
    """Return the largest |log-probability| of the first step that the baseline's learner computed; else its
    engine's.
    """
    for kind, name in (("experience", "actor_logprob"), ("rollout", "logprob")):
        for step in baseline.steps(kind)[:1]:
            rows = baseline.rows(kind, step, name)
            finite = np.empty(0) if rows is None else rows.values[np.isfinite(rows.values)]
            if len(finite):
                return float(np.abs(finite).max())
    return float("nan")
