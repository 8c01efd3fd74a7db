"""The checks that decide: each looks at one kind of evidence and rules a difference out, confirms it, or says that it
was not tested.

A check that finds no evidence is *not tested*, never a pass. `required` says for which runs a verdict of EQUIVALENT
needs the check. The user's eleven suspicions are in `suspicions`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from harness.parity.evidence import Evidence, Side
from harness.parity.native import NativeResult
from harness.parity.weightsync import SyncRecord
from reports.limits import limit_of
from reports.model import SUSPICIONS, Check, CheckState, Finding


@dataclass(frozen=True)
class Outcome:
    """A check's result. `decides`: confirmed makes the verdict DIVERGENT. `kinds`: the divergences of `Evidence` that
    it stands for.
    """

    check: Check
    decides: bool = False
    kinds: tuple[str, ...] = ()
    findings: list[Finding] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Registered:
    name: str
    number: int
    run: Callable[[Evidence], Outcome]
    required: Callable[[Evidence], bool]


CHECKS: list[Registered] = []


def check(
    name: str, number: int = 0, required: Callable[[Evidence], bool] = lambda e: False
) -> Callable[[Callable[[Evidence], Outcome]], Callable[[Evidence], Outcome]]:
    """Register a check under a name; the number is its place among the eleven suspicions, 0 for others."""

    def register(function: Callable[[Evidence], Outcome]) -> Callable[[Evidence], Outcome]:
        CHECKS.append(Registered(name, number, function, required))
        return function

    return register


def outcome(
    name: str,
    state: CheckState,
    evidence: str,
    *,
    number: int = 0,
    decides: bool = True,
    kinds: tuple[str, ...] = (),
    missing: list[str] | None = None,
    findings: list[Finding] | None = None,
    **details: Any,
) -> Outcome:
    if state == "not tested" and not missing:
        missing = [f"{name}: {evidence}"]
    return Outcome(Check(name, state, evidence, number, details), decides, kinds, findings or [], missing or [])


def coupled(e: Evidence) -> bool:
    """Do both runs draw the same samples, so that tokens compare one by one?"""
    return e.mode in ("coupled", "greedy")


def unless_native(e: Evidence) -> bool:
    return e.mode != "native"


def always(e: Evidence) -> bool:
    return True


def trains(e: Evidence) -> bool:
    return bool(e.notes.get("train")) and e.mode != "native"


# --- engine against engine ------------------------------------------------------------------------


@check("tokens", required=coupled)
def tokens(e: Evidence) -> Outcome:
    """Flips: benign only within the margin and to the learner's own second choice."""
    compared, flips = e.counts.get("compared_tokens", 0), e.counts.get("flips", 0)
    benign, beyond, unjudged = (
        e.counts.get(name, 0) for name in ("benign_flips", "flips_beyond_margin", "flips without margin")
    )
    details: dict[str, Any] = {
        "compared_tokens": compared,
        "flips": flips,
        "benign_flips": benign,
        "flips_beyond_margin": beyond,
        "without_margin": unjudged,
        "margin": e.tolerance.margin,
    }
    if not coupled(e):
        return outcome("tokens", "not tested", f"in {e.mode} mode the runs need not draw the same tokens", **details)
    if not compared:
        return outcome("tokens", "not tested", "no token could be compared", **details)
    if beyond:
        sides = e.counts.get("flips where the learner sides with the candidate", 0)
        text = f"{beyond} of {compared} tokens differ beyond the margin of {e.tolerance.margin:.3g} nats "
        text += f"(the learner sides with the baseline in {beyond - sides}, with the candidate in {sides}); "
        text += f"{benign} benign flips"
        return outcome("tokens", "confirmed", text, kinds=("flip",), **details)
    if unjudged:
        text = f"{unjudged} of {flips} flips cannot be judged: no margin of the learner was recorded at them"
        return outcome("tokens", "not tested", text, **details)
    return outcome(
        "tokens",
        "ruled out",
        f"{compared} tokens compared, {flips} flips, all benign" if flips else f"{compared} of {compared} tokens equal",
        **details,
    )


@check("lengths")
def lengths(e: Evidence) -> Outcome:
    if "length" in e.first:
        return outcome(
            "lengths",
            "confirmed",
            f"{len(e.found('length'))} samples have other lengths though their tokens agree",
            kinds=("length",),
        )
    if not e.counts.get("samples") or not coupled(e):
        return outcome("lengths", "not tested", "no samples were compared one by one")
    return outcome("lengths", "ruled out", f"equal in {e.counts['samples']} samples, but for those that a flip parted")


@check("finish-reasons")
def finish_reasons(e: Evidence) -> Outcome:
    if "finish" in e.first:
        place = e.first["finish"][1]
        first = f"{place.baseline} against {place.candidate}"
        text = f"{len(e.found('finish'))} samples end for another reason, the first {first}"
        return outcome("finish-reasons", "confirmed", text, kinds=("finish",))
    if not e.counts.get("finish reasons") or not coupled(e):
        return outcome("finish-reasons", "not tested", "no finish reasons were compared")
    return outcome("finish-reasons", "ruled out", f"equal in {e.counts['finish reasons']} samples")


@check("logprobs", required=unless_native)
def logprobs(e: Evidence) -> Outcome:
    """The two engines' log-probabilities of equal tokens."""
    n, beyond = e.engines.tokens + e.engines.not_finite, e.counts.get("logprobs_beyond_tolerance", 0)
    details: dict[str, Any] = {
        "buckets": e.engines.by_bucket(),
        "where": e.engines.where(),
        "tolerance": e.tolerance.value,
        "beyond": beyond,
    }
    if not n:
        return outcome("logprobs", "not tested", "no log-probabilities of equal tokens were compared", **details)
    largest = f"max |Δ| {e.engines.largest[0]:.3g} nats over {n} tokens"
    if beyond:
        text = f"{largest}; {beyond} beyond the tolerance of {e.tolerance.value:.3g}"
        if e.engines.not_finite:
            text += f"; {e.engines.not_finite} are not finite"
        return outcome("logprobs", "confirmed", text, kinds=("logprob",), **details)
    absent = e.notes.get("no logprobs", [])
    if absent:
        text = f"not every token of step {absent[0]} has a log-probability in both runs; {largest}"
        return outcome("logprobs", "not tested", text, **details)
    return outcome("logprobs", "ruled out", f"{largest}, tolerance {e.tolerance.value:.3g}", **details)


# --- engine and learner ---------------------------------------------------------------------------


@check("engine-against-learner", required=always)
def engine_against_learner(e: Evidence) -> Outcome:
    """Each engine's log-probabilities, and its choices, against its own learner: the third opinion that says which
    engine moved.
    """
    kinds = tuple(
        f"{kind}:{side.name}" for side in e.sides for kind in ("learner", "choice") if f"{kind}:{side.name}" in e.first
    )
    details: dict[str, Any] = {
        side.name: {
            "buckets": side.to_learner.by_bucket(),
            "where": side.to_learner.where(),
            "published": published(side),
        }
        for side in e.sides
    }
    shown = "; ".join(
        f"{side.name} max |Δ| {side.to_learner.largest[0]:.3g} over {side.to_learner.tokens} tokens" for side in e.sides
    )
    if kinds:
        wrong = sorted({kind.split(":")[1] for kind in kinds})
        choices = sum(e.counts.get(f"choices against the learner:{side.name}", 0) for side in e.sides)
        text = f"the {' and the '.join(wrong)} moved away from its learner: {shown}, tolerance {e.tolerance.value:.3g}"
        if choices:
            text += f"; {choices} tokens that the learner would not have drawn"
        return outcome("engine-against-learner", "confirmed", text, kinds=kinds, **details)
    without = [side.name for side in e.sides if not side.to_learner.tokens]
    if without:
        return outcome(
            "engine-against-learner",
            "not tested",
            f"no log-probabilities of the learner to compare with in the {' and the '.join(without)}",
            **details,
        )
    partial = [f"step {step}" for side in e.sides for step in e.notes.get(f"no experience:{side.name}", [])]
    if partial:
        text = f"no log-probabilities of engine and learner side by side in {', '.join(partial[:5])}"
        return outcome("engine-against-learner", "not tested", text, **details)
    return outcome("engine-against-learner", "ruled out", f"{shown}, tolerance {e.tolerance.value:.3g}", **details)


def published(side: Side) -> dict[str, dict[str, Any]]:
    """The field's metrics of engine against learner, with the limits that others publish."""
    found = {}
    for name, value in side.to_learner.result().items():
        limit = limit_of(name)
        if limit is not None:
            found[name] = {"value": value, "limit": limit.text, "outside": limit.outside(value)}
    return found


@check("weight-sync", required=always)
def weight_sync(e: Evidence) -> Outcome:
    """Transport digests, tensors that were not sent, and the proof, at each version that was used."""
    records: dict[str, SyncRecord] = {side.name: e.notes[f"sync:{side.name}"] for side in e.sides}
    kinds = tuple(kind for kind in ("sync:baseline", "sync:candidate", "version") if kind in e.first)
    details: dict[str, Any] = {name: vars(record) for name, record in records.items()}
    findings = [
        Finding(
            "weight sync",
            f"{name}: {len(record.absent)} tensors are not sent in a sync, the first is {next(iter(record.absent))}",
            "none measured: the proof stays within the tolerance",
            where=name,
            details={"tensors": dict(record.absent)},
        )
        for name, record in records.items()
        if record.absent and f"sync:{name}" not in e.first
    ]
    if kinds:
        place = e.earliest(*kinds)
        assert place is not None
        return outcome("weight-sync", "confirmed", place.context, kinds=kinds, findings=findings, **details)
    for name, record in records.items():
        if not record.versions:
            return outcome(
                "weight-sync", "not tested", f"no sync was recorded in the {name}", findings=findings, **details
            )
        if None in e.notes.get(f"versions:{name}", {}) and trains(e):
            text = f"the {name}'s rollouts do not say with which weight version they were drawn"
            return outcome("weight-sync", "not tested", text, findings=findings, **details)
        for versions, what in (
            (record.unsynced, "rolled out without a recorded sync"),
            (record.unproven, "synced without a proof"),
        ):
            if versions:
                text = f"{name}: weight version {versions[0]} was {what}"
                return outcome("weight-sync", "not tested", text, findings=findings, **details)
    missing = [
        f"weight-sync: the {name}'s engine did not say what it received at "
        f"{len(record.without_digests)} of {len(record.versions)} syncs"
        for name, record in records.items()
        if record.without_digests
    ]
    syncs = " and ".join(str(len(record.versions)) for record in records.values())
    digests = "" if missing else f", {max(record.tensors for record in records.values())} tensors arrived each time"
    proof = max(record.largest_proof for record in records.values())
    return outcome(
        "weight-sync",
        "ruled out",
        f"{syncs} syncs{digests}, largest proof {proof:.3g} nats",
        missing=missing,
        findings=findings,
        **details,
    )


@check("trained-tokens")
def trained_tokens(e: Evidence) -> Outcome:
    kinds = tuple(kind for kind in ("trained:baseline", "trained:candidate") if kind in e.first)
    if kinds:
        place = e.earliest(*kinds)
        assert place is not None
        return outcome(
            "trained-tokens",
            "confirmed",
            f"what was trained on is not what was rolled out: {place.context}",
            kinds=kinds,
        )
    if not all(side.to_learner.tokens for side in e.sides):
        return outcome("trained-tokens", "not tested", "no experience was recorded beside the rollouts")
    return outcome(
        "trained-tokens",
        "ruled out",
        "the tokens trained on are the tokens rolled out" + (" (the baseline's, in both runs)" if e.guided else ""),
    )


@check("experience")
def experience(e: Evidence) -> Outcome:
    samples = e.counts.get("experience samples", 0)
    if "experience" in e.first:
        place = e.first["experience"][1]
        return outcome(
            "experience",
            "confirmed",
            f"{place.field} differs from step {place.step} on, on the same tokens",
            kinds=("experience",),
        )
    if not samples:
        return outcome("experience", "not tested", "no experience of the same tokens in both runs")
    loose = e.notes.get("not bit-identical", {})
    findings = (
        [
            Finding(
                "experience",
                f"not bit-identical, though within the tolerance: {', '.join(loose)}",
                where="learner",
                details=loose,
            )
        ]
        if loose
        else []
    )
    identical = "within the tolerance" if loose else "bit-identical"
    return outcome(
        "experience",
        "ruled out",
        f"log-probabilities, values, KL, advantages of {samples} samples {identical}",
        findings=findings,
    )


@check("rewards")
def rewards(e: Evidence) -> Outcome:
    if "reward" in e.first:
        return outcome(
            "rewards",
            "confirmed",
            f"{len(e.found('reward'))} samples of the same tokens have another reward",
            kinds=("reward",),
        )
    if not e.counts.get("rewards"):
        return outcome("rewards", "not tested", "no rewards of the same tokens in both runs")
    return outcome("rewards", "ruled out", f"equal in {e.counts['rewards']} samples")


@check("learner", required=trains)
def learner(e: Evidence) -> Outcome:
    """Learners stay bit-identical, by their digests after every update."""
    equal, updates = e.notes.get("updates equal", []), e.notes.get("updates", {})
    details: dict[str, Any] = {"updates": updates, "equal": equal}
    if "learner" in e.first:
        return outcome("learner", "confirmed", e.first["learner"][1].context, kinds=("learner",), **details)
    if not e.notes.get("train"):
        return outcome("learner", "not tested", "a run without training", **details)
    if "learners confounded" in e.notes:
        text = f"the learners part at step {e.notes['learners parted']}, as they must: {e.notes['learners confounded']}"
        return outcome("learner", "not tested", text, **details)
    if "learners followed" in e.notes:
        return outcome(
            "learner",
            "not tested",
            f"the runs trained on other tokens from step {e.notes['learners followed']} on",
            **details,
        )
    absent = [step for step in e.steps if step not in equal]
    if absent:
        return outcome(
            "learner", "not tested", f"no digests of both learners after the update of step {absent[0]}", **details
        )
    return outcome("learner", "ruled out", f"bit-identical after {len(equal)} of {len(equal)} updates", **details)


# --- the floor ------------------------------------------------------------------------------------


def itself(e: Evidence, side: Side, number: int) -> Outcome:
    """An engine against itself: within the cap, and with no more flips than ties explain."""
    name, floor, cap = f"{side.name}-itself", side.floor, e.tolerance.cap
    details: dict[str, Any] = {
        "variants": floor.variants,
        "where": floor.where,
        "cap": cap,
        "tokens": floor.tokens,
        "flips": floor.flips,
    }
    shown = f"max |Δ| {floor.largest:.3g} nats over {floor.tokens} tokens, {floor.flips} flips; cap {cap:.3g}"
    if f"floor:{side.name}" in e.first:
        text = e.first[f"floor:{side.name}"][1].context
        return outcome(name, "confirmed", f"{text}: {shown}", number=number, kinds=(f"floor:{side.name}",), **details)
    if not floor.measured:
        few = f"only {floor.tokens} tokens" if floor.tokens else "nothing"
        text = f"the floor was not measured ({few} of the engine against itself); the tolerance is the cap, {cap:.3g}"
        return outcome(name, "not tested", text, number=number, **details)
    missing = [f"{name}: the floor was not taken under: {', '.join(floor.absent)}"] if floor.absent else []
    return outcome(name, "ruled out", shown, number=number, missing=missing, **details)


@check(SUSPICIONS[4], 4, required=unless_native)
def baseline_itself(e: Evidence) -> Outcome:
    return itself(e, e.baseline, 4)


@check("candidate-itself", required=unless_native)
def candidate_itself(e: Evidence) -> Outcome:
    return itself(e, e.candidate, 0)


# --- native ---------------------------------------------------------------------------------------


@check("native", required=lambda e: e.mode == "native")
def native(e: Evidence) -> Outcome:
    """The engines' own samplers as distributions, and their reported log-probabilities."""
    result: NativeResult | None = e.notes.get("native")
    kinds = tuple(kind for kind in e.first if kind.split(":")[0] in ("native", "native learner", "collision"))
    if result is None:
        return outcome("native", "not tested", "the native stage was not asked for")
    details: dict[str, Any] = {
        **vars(result),
        "collisions": {side.name: e.notes.get(f"collisions:{side.name}") for side in e.sides},
    }
    if kinds:
        place = e.earliest(*kinds)
        assert place is not None
        text = f"{place.field}: {place.context}" + (
            f"; rejected: {', '.join(result.rejected)}" if result.rejected else ""
        )
        return outcome("native", "confirmed", text, kinds=kinds, missing=list(result.not_compared), **details)
    if result.skipped:
        return outcome("native", "not tested", f"{result.skipped}: the engines' own samplers", **details)
    n = " and ".join(map(str, result.samples))
    if not result.adequate:
        text = f"insufficient: {n} samples could only have shown a large effect; {result.enough} a side would be enough"
        return outcome("native", "not tested", text, missing=[f"native: {text}", *result.not_compared], **details)
    smallest = min(test["p_holm"] for test in result.tests.values())
    length = result.tests["length: mean"]
    text = (
        f"{len(result.tests)} tests over {n} samples of {result.prompts} prompts, smallest corrected p {smallest:.2g}; "
    )
    text += f"a shift of the mean length by {length['detectable']:.2g} tokens would have been seen"
    return outcome("native", "ruled out", text, missing=list(result.not_compared), **details)
