"""The lifted stage: its recordings are judged by themselves with float32's floor, and then speak about the run.

What differs there is no rounding of the half-precision format, and gets its causes there. What differs only in half
precision is arithmetic of the format, a kernel that no other type runs, or a state that the stage's fresh engines do
not have.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from harness.parity.causes.unexplained import COMPUTATION, UNEXPLAINED
from harness.parity.facts.divergence import Kind
from harness.parity.facts.evidence import Evidence
from harness.parity.facts.evidence_builder import EvidenceBuilder
from harness.parity.subjects.native_sampler.observed import NOT_RUN
from harness.parity.subjects.precision.observed_floor import RESOLUTION
from harness.parity.subjects.precision.observed_lifted import LiftedResult
from harness.parity.subjects.sampling.observed import engine_infos, tf32_devices
from harness.recordings.records.run_settings import RunManifest
from harness.recordings.records.weight_sync import LEARNER
from harness.recordings.store import Recording
from probes.format import EVENTS, FormatError, read_manifest
from reports.model import Place, Verdict, place_of_step
from reports.text import counted, figure
from scenarios.lifted import FOLDER, HALF

Judge = Callable[[Path, Path], tuple[Verdict, Evidence | None]]
# Spacing of TF32 at 1: its mantissa has 10 bits. A GPU may compute products of float32 in it, Triton kernels by
# default. Never measured here.
TF32_EPSILON = 2.0**-10
UNRECORDED_TYPE = "a type that was not recorded"
_NUMERIC = {Kind.LOGPROB, Kind.LEARNER, Kind.ENGINE, Kind.FLIP, Kind.CHOICE, Kind.SYNC}


def lifted_stage(e: EvidenceBuilder, judge: Judge, proven_verdict: Verdict | None = None) -> None:
    """Judge the recordings of both lifted stages into `e.lifted`, and add their difference as a divergence.

    Nothing is noted for runs that have neither such a stage nor half precision. `proven_verdict`: the verdict on the
    same recordings with what interventions proved.
    """
    folders = [side.recording.path / FOLDER for side in e.sides]
    types = {side.recording.records.settings.model.dtype for side in e.sides}
    if not any(folder.is_dir() for folder in folders) and not types & set(HALF):
        return
    weight_dtype = e.baseline.recording.records.settings.model.dtype or UNRECORDED_TYPE
    unread = LiftedResult(weight_dtype, required=any(map(_recorded, folders)))
    # The stage says something only if both sides have it, it was not skipped, and its recordings could be judged.
    if why := _absent(e, folders) or next(filter(None, map(_skipped, folders)), ""):
        e.lifted = replace(unread, skipped=why)
        return
    verdict, stage_evidence = judge(folders[0], folders[1])
    verdict = proven_verdict or verdict
    if stage_evidence is None or verdict.verdict not in ("EQUIVALENT", "DIVERGENT"):
        e.lifted = replace(unread, skipped=f"{verdict.verdict}: {verdict.reason}")
        return
    result = replace(unread, first=min(stage_evidence.steps, default=0), facts=_facts(stage_evidence, verdict))
    # Equal results with other weights, or in another type, would say nothing about the run.
    if why := _other_weights(e, stage_evidence) or _other_type(stage_evidence, verdict):
        e.lifted = replace(result, skipped=why)
    elif why := _tensor_cores(stage_evidence, verdict):
        e.lifted = replace(result, skipped=why, required=False)
    else:
        e.lifted = result = replace(result, verdict=verdict, kinds=frozenset(stage_evidence.first))
        if result.differs:
            e.note_divergence(Kind.LIFTED.of(), [], _place(result, verdict, stage_evidence))


def _absent(e: EvidenceBuilder, folders: list[Path]) -> str:
    """Say which sides have no lifted stage; "" if all have one."""
    absent = [side.name for side, folder in zip(e.sides, folders, strict=True) if not folder.is_dir()]
    if len(absent) > 1:
        return NOT_RUN
    return f"no lifted stage was recorded of the {absent[0]}" if absent else ""


def stage_steps(recordings: list[Recording]) -> range | None:
    """Return the steps that recordings of two lifted stages must hold, from their run.json; None for other recordings.

    Where the two promise different steps, all of them are returned.
    """
    starts, stops = list[int](), list[int]()
    for recording in recordings:
        if (steps := recording.records.manifest.lifted_steps) is not None:
            starts.append(steps.start)
            stops.append(max(steps.stop, recording.promised_steps))
    return range(min(starts), max(stops)) if starts else None


def _recorded(folder: Path) -> bool:
    """Whether a process wrote there, or a run.json, complete or not, promises that one would."""
    return folder.is_dir() and (any(folder.glob(f"{EVENTS}/*")) or not _is_skip(folder))


def _is_skip(folder: Path) -> bool:
    try:
        return bool(RunManifest.of(read_manifest(folder)).lifted_skipped)
    except (FormatError, OSError):
        return False


def _skipped(folder: Path) -> str:
    try:
        return RunManifest.of(read_manifest(folder)).lifted_skipped
    except (FormatError, OSError) as error:
        return str(error)


def _facts(stage_evidence: Evidence, verdict: Verdict) -> dict[str, Any]:
    return {
        "verdict": verdict.verdict,
        "steps": list(stage_evidence.steps),
        "samples": stage_evidence.counts.samples,
        "compared_tokens": stage_evidence.counts.compared_tokens,
        "flips": stage_evidence.counts.flips,
        "flips_beyond_margin": stage_evidence.counts.flips_beyond_margin,
        "largest": stage_evidence.between_engines.largest[0],
        "tolerance": stage_evidence.of_engines.value,
        "floor": stage_evidence.tolerance.floor,
        **{f"{side.name} against learner": side.to_learner.largest[0] for side in stage_evidence.sides},
    }


def _other_weights(e: EvidenceBuilder, stage_evidence: Evidence) -> str:
    """Return why the stage did not compute with the weights that the baseline ended with; "" where it did."""
    last = _last_weights(e.baseline.recording)
    for side in stage_evidence.sides:
        stage_weights = _last_weights(side.recording)
        if not last or not stage_weights:
            return "no digests of the weights say that the stage held those of the run"
        wrong = sorted(name for name in {*last, *stage_weights} if last.get(name) != stage_weights.get(name))
        if wrong:
            return (
                f"the {side.name}'s stage held other weights than the baseline ended with: "
                f"{counted(len(wrong), 'tensor')}, the first is {wrong[0]}"
            )
    return ""


def _last_weights(recording: Recording) -> dict[str, str]:
    sent = [record for record in recording.records.digests if record.source == LEARNER]
    last = max((record.version for record in sent if record.version is not None), default=None)
    digests: dict[str, str] = {}
    for record in sent:
        if record.version == last:
            digests |= record.digests
    return digests


def _other_type(stage_evidence: Evidence, verdict: Verdict) -> str:
    """Return why nothing was lifted: the engines agree, but one did not compute in float32; "" otherwise."""
    if verdict.verdict == "DIVERGENT":
        return ""
    for side in stage_evidence.sides:
        types = {
            (info.resolved.dtype or UNRECORDED_TYPE).removeprefix("torch.")
            for info in engine_infos(side, stage_evidence.mode)
        }
        run_dtype = side.recording.records.settings.model.dtype or UNRECORDED_TYPE
        if run_dtype != "float32":
            return f"the {side.name}'s stage was run in {run_dtype} by its run.json, not in float32"
        if types != {"float32"}:
            type_names = " and ".join(sorted(types)) or "a type that it does not say"
            return f"the {side.name}'s engine computed in {type_names}, not in float32"
    return ""


def _tensor_cores(stage_evidence: Evidence, verdict: Verdict) -> str:
    """Return why TF32 may have made a difference without a cause; "" where it cannot have."""
    devices = set().union(*(tf32_devices(side, stage_evidence.mode) for side in stage_evidence.sides))
    kinds = {key.kind for key in stage_evidence.first}
    largest = max(
        stage_evidence.between_engines.largest[0],
        *(side.to_learner.largest[0] for side in stage_evidence.sides),
    )
    unnamed = all(UNEXPLAINED.has(cause.key) or COMPUTATION.has(cause.key) for cause in verdict.causes)
    if verdict.verdict != "DIVERGENT" or not devices or not unnamed or not kinds <= _NUMERIC:
        return ""
    if not largest <= RESOLUTION * TF32_EPSILON:
        return ""
    return (
        f"max |Δ| {figure(largest)} nats in float32, which TF32 may have made: on {' and '.join(sorted(devices))} "
        "kernels may multiply float32 numbers in it"
    )


def _place(result: LiftedResult, verdict: Verdict, stage_evidence: Evidence) -> Place:
    first = verdict.parity.first_divergence if verdict.parity is not None else None
    prefix = f"in float32 with the same {result.dtype} weights"
    if first is None:
        return place_of_step(
            step=result.first,
            phase="lifted",
            field="lifted stage",
            baseline=None,
            candidate=None,
            context=f"{prefix}: {verdict.reason}",
        )
    step = first.step if first.step >= result.first else result.first
    context = f"{prefix}: {first.context}" if first.context else prefix
    return replace(first, step=step, phase="lifted", context=context)


def lifted_sentences(e: Evidence) -> list[str]:
    """Return what the stage showed, as evidence of a verdict that found no difference; [] where there is no stage."""
    result = e.lifted
    if result is None:
        return []
    return [result.in_words() if result.equal else f"in float32: not tested ({result.skipped})"]


def remark(e: Evidence) -> str:
    """Return what the stage says about an unexplained difference in half precision; "" where it says nothing."""
    result = e.lifted
    if result is None or result.verdict is None:
        return ""
    if result.differs:
        return f"{result.in_words()}: what differs there is no arithmetic of {result.dtype}"
    text = f"{result.in_words()}: the difference is arithmetic of {result.dtype}, a kernel that only {result.dtype} "
    return text + "runs, or a state that the stage's fresh engines do not have"
