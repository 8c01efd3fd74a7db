"""The checks of one engine: against its learner, its weights and itself, and of its own sampler."""

from __future__ import annotations

from typing import Any

import numpy as np

from harness.parity.checks.registry import Outcome, always, check, coupled, outcome, trains, unless_native
from harness.parity.facts.divergence import Kind, Stage
from harness.parity.facts.evidence import Evidence, Side
from harness.parity.facts.separated import separated
from harness.parity.subjects.engines import observed_second_run
from harness.parity.subjects.engines.observed_repetition import SecondRun
from harness.parity.subjects.precision.observed_floor import EngineFloor, asked_again
from harness.parity.subjects.recording.observed_copies import equality, own_kernels
from harness.parity.subjects.sampling.observed_modes import REPLAY
from harness.parity.subjects.weights.observed_sync_record import SyncRecord
from reports.limits import limit_of
from reports.model import SUSPICIONS, CheckState, Finding
from reports.text import counted, figure


@check("engine-against-learner", required=always, alone=True)
def engine_against_learner(e: Evidence) -> Outcome:
    """Each engine's log-probabilities, and its choices, against its own learner: the third opinion that says which
    engine moved.
    """
    kinds = e.diverged(Kind.ENGINE, Kind.CHOICE)
    details: dict[str, Any] = {
        side.name: {
            "buckets": side.to_learner.by_bucket(),
            "where": side.to_learner.where(),
            "published": published(side),
        }
        for side in e.sides
    }
    distances_text = "; ".join(
        f"{side.name} max |Δ| {figure(side.to_learner.largest[0])} over {counted(side.to_learner.tokens, 'token')}, "
        f"{e.beyond(Kind.ENGINE.of(side.name)):,} beyond the tolerance"
        for side in e.sides
    )
    if kinds:
        wrong = sorted({str(key.side) for key in kinds})
        choices = sum(side.counts.choices_against_learner for side in e.sides)
        text = f"the {' and the '.join(wrong)} moved away from its learner: {distances_text}, "
        text += f"tolerance {figure(e.tolerance.value)}"
        text += "".join(f"; {separation}" for separation in separated(e))
        if choices:
            text += f"; {counted(choices, 'token')} that the learner would not have drawn"
        return outcome("engine-against-learner", "confirmed", text, kinds=kinds, **details)
    # Nothing differs. That rules a fault out only where engine and learner were compared in every step.
    if untested := _not_compared_with_learner(e):
        return outcome("engine-against-learner", "not tested", untested, **details)
    blind = [side.name for side in e.sides if coupled(e) and not side.counts.choices]
    missing = [
        f"engine-against-learner: no margins of the {name}: are its tokens the learner's choice?" for name in blind
    ]
    text = f"{distances_text}, tolerance {figure(e.tolerance.value)}"
    return outcome("engine-against-learner", "ruled out", text, missing=missing, **details)


def published(side: Side) -> dict[str, dict[str, Any]]:
    """Return the field's metrics of engine against learner, with the limits that their authors publish."""
    metrics = {}
    for name, value in side.to_learner.result().items():
        limit = limit_of(name)
        if limit is not None:
            metrics[name] = {"value": value, "limit": limit.text, "outside": limit.outside(value)}
    return metrics


def _not_compared_with_learner(e: Evidence) -> str:
    """Say what of engine and learner was not compared; "" where everything was."""
    without = [side.name for side in e.sides if not side.to_learner.tokens]
    if without:
        return f"no log-probabilities of the learner to compare with in the {' and the '.join(without)}"
    copied = [side for side in e.sides if own_kernels(side.recording) and equality(side.to_learner)]
    if copied:
        names = " and the ".join(side.name for side in copied)
        text = f"the log-probabilities of the {names} are the learner's to the last bit "
        return text + f"{equality(copied[0].to_learner)}: an engine's own are not"
    partial = [f"step {step}" for side in e.sides for step in side.no_experience]
    if partial:
        return f"no log-probabilities of engine and learner side by side in {', '.join(partial[:5])}"
    return ""


@check("weight-sync", required=always, alone=True)
def weight_sync(e: Evidence) -> Outcome:
    """Transport digests, tensors that were not sent, and the proof, at each version that was used."""
    records: dict[str, SyncRecord] = {side.name: side.sync for side in e.sides}
    kinds = e.diverged(Kind.SYNC)
    if Kind.VERSION.of() in e.first:
        kinds += (Kind.VERSION.of(),)
    details: dict[str, Any] = {name: record.facts() for name, record in records.items()}
    findings = [
        _harmless_absence(name, record)
        for name, record in records.items()
        if record.absent and Kind.SYNC.of(name) not in e.first
    ]
    if kinds:
        firsts = sorted((e.first[kind] for kind in kinds), key=lambda divergence: divergence.order)
        texts = dict.fromkeys(divergence.place.context for divergence in firsts)
        return outcome("weight-sync", "confirmed", "; ".join(texts), kinds=kinds, findings=findings, **details)
    # No sync failed. That is ruled out only where every version was sent, arrived and was proven.
    for name, record in records.items():
        if untested := _untested_sync(e, name, record):
            return outcome("weight-sync", "not tested", untested, findings=findings, **details)
    missing = [
        f"weight-sync: nothing was drawn with weight version {record.unused[0]} of the {name}: no sample proves it"
        for name, record in records.items()
        if record.unused
    ]
    text = _arrived([*records.values()])
    return outcome("weight-sync", "ruled out", text, findings=findings, missing=missing, **details)


def _harmless_absence(side: str, record: SyncRecord) -> Finding:
    """Return a finding on tensors that were not sent, where no divergence came of it."""
    return Finding(
        "weight sync",
        f"{side}: {len(record.absent):,} tensors are not sent in a sync, the first is {next(iter(record.absent))}",
        "none measured: the proof stays within the tolerance",
        where=side,
        details={"tensors": dict(record.absent)},
    )


def _untested_sync(e: Evidence, side: str, record: SyncRecord) -> str:
    """Return why one side's syncs cannot be judged; "" where every version was sent, arrived and was proven."""
    if not record.versions:
        return f"no sync was recorded in the {side}"
    if None in e.side(side).versions and trains(e):
        return f"the {side}'s rollouts do not say with which weight version they were drawn"
    # In the order of a sync: it was made, proven, and both ends said what passed between them.
    for versions, what in (
        (record.unsynced, "rolled out without a recorded sync"),
        (record.unproven, "synced without a proof"),
        (record.undigested, "sent without the learner's digests"),
        (record.without_digests, "received without the engine's word on what arrived"),
    ):
        if versions:
            return f"{side}: weight version {versions[0]} was {what}"
    if record.unchanged:  # an engine that kept its first weights would look the same
        return f"{side}: no tensor changed from one weight version to another, so no sync could fail visibly"
    for version, unconfirmed in record.partly.items():
        return f"{side}: nothing says that {unconfirmed} of weight version {version} arrived"
    unlisted = _of_the_manifest(e, side, record)
    return f"{side}: {unlisted}" if unlisted else ""


def _arrived(records: list[SyncRecord]) -> str:
    """Return in words what the syncs of all sides brought, where nothing is wrong with any of them."""
    syncs = " and ".join(str(len(record.versions)) for record in records)
    arrived = counted(min(record.tensors or 0 for record in records), "tensor")
    # The weaker side speaks for both: the fewest tensors, the largest proof.
    proof = max(record.largest_proof for record in records)
    text = f"{syncs} syncs, {arrived} arrived each time, largest |Δ| of a proof {figure(proof)} nats"
    read = [record.loaded for record in records]
    if all(isinstance(count, int) for count in read):
        text += f", {min(filter(None, read), default=0)} read back after each load"
    if not all(record.manifest for record in records):
        text += "; the recording names no manifest, so that others were sent is not known"
    if any(record.by_samples for record in records):
        text += ", which are the samples that were drawn with the weights, engine against learner"
    return text


def _of_the_manifest(e: Evidence, side: str, record: SyncRecord) -> str:
    """Return why the tensors that arrived may not be all of them; "" where the recording lists the learner's tensors.

    Only the harness' own runs list them. A framework's sync may send fewer than the learner has. A single tensor is no
    model that could be trained.
    """
    if record.unlisted:
        return (
            f"{counted(len(record.unlisted), 'tensor')} sent that the learner does not name, {record.unlisted[0]} first"
        )
    if record.manifest:
        return ""
    if not e.side(side).recording.records.manifest.framework:
        return "the learner's tensors are not named, so that others were sent is not known"
    if record.tensors == 1 and e.train:
        return "one tensor arrived each time; a model that is trained has more, and the recording does not name them"
    return ""


def _not_covered(side: Side, again: SecondRun | None) -> list[str]:
    """Return what the comparison of the engine with itself does not cover."""
    if again is not None and not again.useless:
        later = [step for step in side.recording.steps("rollout") if step not in again.steps]
        weights = [f"the weights of the steps {', '.join(map(str, later[:5]))}"] if later else []
        return ["another machine, device or environment", *weights]
    floor_steps = side.recording.steps("floor")
    later = [step for step in side.recording.steps("rollout") if step not in floor_steps]
    steps_text = ", ".join(map(str, floor_steps[:5])) or "none"
    weights = [f"the weights of other steps than {steps_text}"] if later else []
    return [
        "another start of the engine, with which its own sampler may draw other samples",
        "another machine, device or environment",
        *weights,
        "batches larger than the sample that was drawn again",
    ]


def _shards(side: Side) -> int:
    """Return how many tensor-parallel ranks its engine was asked for; 0 where that is one, or was not recorded."""
    ranks = side.recording.records.settings.engine.tensor_parallel or 1
    return ranks if ranks > 1 else 0


def itself(e: Evidence, side: Side, number: int) -> Outcome:
    """Judge an engine against itself: within the cap, and with no more flips than ties explain."""
    name, floor, cap = f"{side.name}-itself", side.floor, e.of_engines.cap
    again = e.second_runs.get(side.name)
    details: dict[str, Any] = {
        "variants": floor.variants,
        "where": floor.where,
        "cap": cap,
        "tokens": floor.tokens,
        "flips": floor.flips,
        "not covered": _not_covered(side, again),
    }
    # From the strongest evidence to the weakest: the engine beyond the cap, a second run that became another run, no
    # floor, and a floor that was not taken under every variant.
    noise = _noise(floor, cap)
    kind = Kind.FLOOR.of(side.name)
    if kind in e.first:
        text = f"{e.first[kind].place.context}: {noise}"
        return outcome(name, "confirmed", text, number=number, kinds=(kind,), **details)
    if again is not None and again.parts is not None:
        details |= {
            "first step by kind": {key.label: step for key, step in again.kinds.items()},
            "parts at step": again.parts,
        }
        text = f"run again, the job is another run from step {again.parts} on: {again.why}"
        text += f"; what its engine drew before that: {noise}" if floor.tokens else ""
        return outcome(name, "confirmed", text, number=number, decides=False, **details)
    if not floor.measured:
        return outcome(name, "not tested", _unmeasured(e, side, again), number=number, **details)
    # The job of a framework draws no variants. A whole second run covers what they would show.
    lacking = _lacking_variants(e, floor)
    if lacking and not side.recording.records.manifest.framework and again is None:
        text = f"the engine was not held against itself {asked_again(lacking)}, though it can differ from itself then"
        text += f"; otherwise: {noise}" if floor.tokens else ""
        return outcome(name, "not tested", text, number=number, **details)
    text = "; ".join([noise, *_compared_with(floor, again)])
    scores_only = e.mode == REPLAY and side is e.candidate
    missing = [f"{name}: {reservation}" for reservation in _reservations(side, again, scores_only)]
    return outcome(name, "ruled out", text, number=number, missing=missing, **details)


def _noise(floor: EngineFloor, cap: float) -> str:
    """Return in words how far the engine is from itself."""
    if floor.largest == 0:
        noise = "not the slightest difference"
    elif floor.level == floor.largest:
        noise = f"largest |Δ| {figure(floor.largest)} nats"
    else:
        noise = f"|Δ| at most {figure(floor.level)} nats, on a few tokens up to {figure(floor.largest)},"
    return f"{noise} over {counted(floor.tokens, 'token')}, {counted(floor.flips, 'flip')}; cap {figure(cap)}"


def _unmeasured(e: Evidence, side: Side, again: SecondRun | None) -> str:
    """Return why there is no floor, and which tolerance holds instead."""
    floor = side.floor
    if again is not None and again.useless:
        text = f"the floor was not measured: {again.useless}; "
    elif again is not None and not floor.tokens and not _has_log_probabilities(again):
        text = "the floor was not measured: no engine gave log-probabilities with which the job could be compared "
        text += "with its second run, which is equal in every other respect; "
    else:
        amount = f"only {counted(floor.tokens, 'token')}" if floor.tokens else "nothing"
        text = f"the floor was not measured ({amount} of the engine against itself); "
    if not observed_second_run.required(e, side.name) and not np.isnan(e.tolerance.floor):
        return text + "the tolerance is of the other side's floor"
    return text + f"the tolerance is the cap, {figure(e.of_engines.cap)}"


def _has_log_probabilities(again: SecondRun) -> bool:
    return any(base.rows("logprob") is not None for _, _, base, _ in again.pairs)


def _lacking_variants(e: Evidence, floor: EngineFloor) -> list[str]:
    """Return the variants under which the floor was not taken, though it could have been."""
    taken_variants: set[str] = set()
    for side in e.sides:
        taken_variants.update(set(side.floor.variants).difference(side.floor.absent))
    if e.mode == REPLAY:
        taken_variants.discard("prefill")  # an engine that only scores has no decode to compare with
    # That no engine scores a prefill is no fault of one side. Where the other side's did, this one lacks it.
    return [variant for variant in floor.absent if variant != "prefill" or variant in taken_variants]


def _compared_with(floor: EngineFloor, again: SecondRun | None) -> list[str]:
    """Return what the engine was compared with to measure its floor."""
    comparisons = []
    variants = [variant for variant in floor.variants if variant != observed_second_run.VARIANT]
    if variants:
        comparisons.append(f"the engine against itself at equal seeds {asked_again(variants)}, in one start")
    if floor.sharded is not None:
        level = figure(floor.sharded.level)
        comparisons.append(f"its learner with the layers cut as the engine's are: {level} nats")
    if again is not None and not again.useless:
        comparisons.append(f"the whole job against its own second run, equal in all of {len(again.pairs):,} steps")
    return comparisons


def _reservations(side: Side, again: SecondRun | None, scores_only: bool) -> list[str]:
    """Return what the measured floor leaves open. `scores_only`: the engine decodes nothing."""
    floor, ranks, reservations = side.floor, _shards(side), []
    absent = [variant for variant in floor.absent if variant != "prefill" or not scores_only]
    if absent:
        reservations.append(f"the engine was not held against itself {asked_again(absent)}")
    if floor.sharded is None and ranks:
        why = "its learner has no plan to cut its layers, is too large to copy, or moved by more than rounding can"
        reservations.append(f"what {ranks} tensor-parallel ranks change was not measured: {why}")
    if again is not None and again.useless:
        reservations.append(f"no second run: {again.useless}")
    return reservations


@check(
    SUSPICIONS[4],
    4,
    required=lambda e: not e.alone and unless_native(e) and observed_second_run.required(e, "baseline"),
    alone=True,
)
def baseline_itself(e: Evidence) -> Outcome:
    """The baseline, or the only run, against itself: at equal seeds in other batches and orders."""
    return itself(e, e.baseline, 4)


@check("candidate-itself", required=lambda e: unless_native(e) and observed_second_run.required(e, "candidate"))
def candidate_itself(e: Evidence) -> Outcome:
    """The candidate against itself: at equal seeds in other batches and orders."""
    return itself(e, e.candidate, 0)


@check("native", required=lambda e: not unless_native(e), draws=True)
def native(e: Evidence) -> Outcome:
    """The engines' own samplers as distributions and against the learner, and their reported log-probabilities."""
    result = e.native
    if result is None:
        return outcome("native", "not tested", "the native stage was not asked for")
    # The worst first: a difference, nothing drawn, too few draws, then samples that could not be read.
    kinds = tuple(key for key in e.first if key.kind.stage is Stage.NATIVE)
    details: dict[str, Any] = {
        **result.details(),
        "collisions": {side.name: side.collisions and side.collisions.facts() for side in e.sides},
    }
    state: CheckState = "ruled out"
    text, missing = result.skipped or "; ".join(result.sentences()), list(result.not_compared)
    if kinds:
        place = e.first_place(*kinds)
        state, text = "confirmed", f"{place.field}: {place.context}; {text}"
    elif result.skipped:
        state, text = "not tested", f"{result.skipped}: the engines' own samplers"
        missing = []
    elif not result.adequate:
        state = "not tested" if result.absent else "undecided"
        missing = [f"native: {result.summary()}{result.remedy()}", *missing]
    elif result.unread:
        missing = [*(f"native: {reason}" for reason in result.unread), *missing]
        state, text = "not tested", f"{result.unread[0]}; {text}"
    return outcome("native", state, text, kinds=kinds, findings=[*result.findings], missing=missing, **details)
