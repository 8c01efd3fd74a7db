"""The results of the bench, merged into the verdict: causes proven, confirmed or withdrawn, and what is left
unexplained.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from harness.parity.answers import Answer, divergent
from harness.parity.attribution.outcome import Attribution
from harness.parity.causes.family import OnBench, Seen, best, differences, refuted
from harness.parity.causes.registry import family
from harness.parity.causes.unexplained import COMPUTATION, UNEXPLAINED
from harness.parity.explain import find
from harness.parity.facts.divergence import Kind
from harness.parity.facts.evidence import Evidence, Learned
from harness.parity.facts.odd_one import TRAINER as LEARNER_MOVED
from harness.parity.facts.odd_one import UNKNOWN, engines_compared, odd_one, repeat_themselves
from harness.parity.interventions.situation import LEAST, Named, Tried
from harness.parity.rivals import noted, told_apart
from harness.parity.subjects.learner.causes import TRAINER
from harness.parity.subjects.precision.observed_lifted import STAGE as LIFTED
from harness.parity.subjects.sampling.checks_findings import measured
from harness.parity.suspected import confirm_suspicions, in_words
from harness.parity.verdict import Judged
from probes.format import SIDES
from probes.plugins import PluginError
from reports.model import Cause, CauseKey, Finding, Verdict
from reports.text import figure, part_of

T = TypeVar("T")


@dataclass
class _Families:
    """Calls of functions of cause families. `failed`: families of other packages that raised."""

    failed: list[PluginError] = field(default_factory=list)

    def ask(self, question: Callable[[Any], T], of: Any, otherwise: T) -> T:
        """Return the answer; `otherwise` where the family raises."""
        try:
            return question(of)
        except PluginError as error:
            if str(error) not in map(str, self.failed):
                self.failed.append(error)
            return otherwise


def merged(judged: Judged, attribution: Attribution) -> Verdict:
    """Return the verdict with live proofs added to its causes, new causes named, and contradicted causes withdrawn."""
    verdict, e = judged.verdict, judged.evidence
    if verdict.verdict != "DIVERGENT" or e is None:
        return verdict
    recorded, families = verdict.causes, _Families()
    # 1. What live engines showed may let the recordings name other causes: they are read again with it.
    if attribution.learned != Learned():
        e = dataclasses.replace(e, learned=attribution.learned)
        recorded = find(e, judged.kinds)
    # 2. The lifted stage had other engines, which attribution did not judge: its causes are set aside.
    lifted = [cause for cause in recorded if cause.details.get("stage") == LIFTED]
    # 3. Live proofs join the recorded causes. What only the bench named is added.
    causes, fresh = _proven([cause for cause in recorded if cause not in lifted], attribution)
    causes = [_confirmed(cause, attribution, families) for cause in causes]
    # 4. Causes that the bench contradicts are withdrawn. UNEXPLAINED stays where a difference then has no cause.
    standing, withdrawn = _standing(causes, attribution, families)
    is_named_live = bool(fresh) or (bool(attribution.named) and attribution.reproduced)
    explained = is_named_live and attribution.explained
    kept = _with_unexplained(standing, attribution, e, explained=explained, withdrawn=bool(withdrawn))
    # 5. Causes of the lifted stage come last, unless the run itself shows them too.
    judged_causes = [told_apart(cause, e) for cause in kept]
    judged_causes += [cause for cause in lifted if not _is_among(cause, kept)]
    findings = [*verdict.findings, *withdrawn, *_findings(attribution, families.failed)]
    answer = divergent(e, judged.kinds, judged_causes) if judged_causes else Answer(verdict.reason, verdict.evidence)
    changed = dataclasses.replace(
        verdict,
        causes=judged_causes,
        reason=answer.reason,
        evidence=answer.evidence,
        findings=measured(findings, judged_causes),
        figures=verdict.figures | {"attribution": _figures(attribution)},
    )
    return confirm_suspicions(changed, removed_by=_removed_by(kept) if attribution.explained else [])


def _is_among(cause: Cause, causes: list[Cause]) -> bool:
    """Whether a cause is one of these, under a name of its own or of theirs. UNEXPLAINED names nothing."""
    return any(_meant_by(cause, other) for other in causes if not UNEXPLAINED.has(other.key))


def _standing(causes: list[Cause], attribution: Attribution, families: _Families) -> tuple[list[Cause], list[Finding]]:
    """Return the causes that the bench does not contradict, with its notes, and a finding for each of the others."""
    contradicted = [(cause, _contradicted(cause, attribution, families)) for cause in causes]
    standing = [_noted(cause, attribution, families) for cause, reason in contradicted if not reason]
    return standing, [_withdrawn(cause, reason) for cause, reason in contradicted if reason]


def _with_unexplained(
    standing: list[Cause], attribution: Attribution, e: Evidence, *, explained: bool, withdrawn: bool
) -> list[Cause]:
    """Return the causes, with UNEXPLAINED last where a difference has no cause.

    UNEXPLAINED is the one of the recordings unless the bench explained it, one where every named cause was withdrawn,
    or one for what is left of a side without its causes.
    """
    causes = [cause for cause in standing if not UNEXPLAINED.has(cause.key)]
    if not explained:
        causes += [_narrowed(cause, attribution, e) for cause in standing if UNEXPLAINED.has(cause.key)]
    if withdrawn and not causes:
        summary = "the cause that the recordings named does not stand on the live engines"
        causes = [Cause.of(UNEXPLAINED.key(), "unknown", summary)]
    if not any(UNEXPLAINED.has(cause.key) for cause in causes):
        remainders = [_remainder(side, causes, attribution) for side in _remaining(causes, attribution)]
        causes += [_narrowed(remainder, attribution, e) for remainder in remainders]
    return causes


def _removed_by(causes: list[Cause]) -> list[str]:
    """Return the live interventions that removed every difference; [] where some cause has none."""
    if not all(_live(cause) for cause in causes):
        return []
    live = [proof.intervention for cause in causes for proof in cause.proofs if proof.on == "live engines"]
    return list(dict.fromkeys(live))


def same_cause(live: CauseKey, recorded: CauseKey) -> bool:
    """Whether a cause that was proven live and one from the recordings are the same, or the second is a part of the
    first.
    """
    try:
        if live == recorded or family(recorded).covers(live, recorded):
            return True
    except PluginError:  # then the rule for every family decides
        pass
    cure = family(live).cured_by
    # Families that one intervention cures are one family here: nothing on the bench could tell them apart.
    is_same_family = live.family == recorded.family or (bool(cure) and cure == family(recorded).cured_by)
    live_parts, recorded_parts = {*live.parts}, {*recorded.parts}
    # A cause without parts is of its whole family. Two that count their parts ("12 tensors") name none to compare.
    names_no_part = not live_parts or not recorded_parts or (live.many and recorded.many)
    return is_same_family and (names_no_part or recorded_parts <= live_parts)


def _meant_by(first: Cause, second: Cause) -> bool:
    """Whether two causes of one party are the same, whichever of them names more parts."""
    means_the_same = same_cause(first.key, second.key) or same_cause(second.key, first.key)
    return first.party == second.party and means_the_same


def _confirmed(cause: Cause, attribution: Attribution, families: _Families) -> Cause:
    """Return the cause with the proof that the bench gives without an intervention."""
    if _live(cause):
        return cause
    confirmation = families.ask(family(cause.key).confirmed, _on_bench(cause, attribution), None)
    if confirmation is None:
        return cause
    proof, exclusion = confirmation
    return noted(dataclasses.replace(cause, proofs=[*cause.proofs, proof]), [exclusion])


def _proven(recorded: list[Cause], attribution: Attribution) -> tuple[list[Cause], list[Named]]:
    """Return the recorded causes with the live proofs of the same cause, and the live causes that no recording
    named.
    """
    causes, fresh = list(recorded), []
    # One intervention may prove several recorded causes. What it removed beyond them is a cause of its own.
    for named in attribution.named:
        matches = [i for i, cause in enumerate(causes) if same_cause(named.cause, cause.key) and _party(cause, named)]
        for i in matches:
            causes[i] = noted(dataclasses.replace(causes[i], proofs=[*causes[i].proofs, named.proof]), named.seen)
        key = _unnamed(named.cause, [causes[i].key for i in matches])
        if key:
            fresh.append(named)
            causes.append(_of_the_bench(named, key))
    return [cause for cause in causes if not _is_named_in_parts(cause, attribution)], fresh


def _is_named_in_parts(cause: Cause, attribution: Attribution) -> bool:
    """Whether the bench named each tensor of a recorded cause that counts them ("4 tensors") and proves nothing."""
    tensors = set(map(str, cause.details.get("tensors", ())))
    if not cause.key.many or cause.proofs or not tensors:
        return False
    named_live = [
        named for named in attribution.named if named.cause.family == cause.key.family and _party(cause, named)
    ]
    return tensors <= {part for named in named_live for part in named.cause.parts}


def _of_the_bench(named: Named, key: CauseKey) -> Cause:
    """Return the cause that an intervention named and no recording did."""
    return Cause.of(
        key=key,
        party=named.party,
        summary=named.summary,
        evidence=f"live: {in_words(named.proof)}",
        details=dict(named.details),
        proofs=[named.proof],
        observed=named.seen,
    )


def _unnamed(live: CauseKey, recorded_keys: list[CauseKey]) -> CauseKey | None:
    """Return the part of a live cause that no recorded one names: all of it, some of several parameters, or None."""
    if not recorded_keys:
        return live
    # Only a cause of several parameters can have a part that is unnamed; one without parts covers its whole family.
    missing = {*live.parts}.difference(*(key.parts for key in recorded_keys))
    if len(live.parts) < 2 or not missing or not all(key.parts for key in recorded_keys):
        return None
    return dataclasses.replace(live, parts=tuple(sorted(missing)))


def _party(cause: Cause, named: Named) -> bool:
    return cause.party in (named.party, named.side) or cause.party not in SIDES


def _side(cause: Cause) -> str:
    return cause.party if cause.party in SIDES else str(cause.details.get("side", ""))


def _live(cause: Cause) -> bool:
    return any(proof.on == "live engines" for proof in cause.proofs)


def _contradicted(cause: Cause, attribution: Attribution, families: _Families) -> str:
    """Return why a recorded cause does not stand; "" where it does.

    It does not stand if its own interventions removed nothing and others removed everything, or if they made the
    difference larger and no record speaks for it. Nor does it if it was read from the likelihood of native samples, and
    a live intervention shows that their prompts or weights were others.
    """
    if premises := _wrong_premises(cause, attribution):
        return f"its samples were held against a prompt or weights that the engine did not use: {', '.join(premises)}"
    if UNEXPLAINED.has(cause.key):
        return ""
    bench = _on_bench(cause, attribution)
    if not (cause.proofs or Seen.GIVEN in cause.observed) and (refutation := refuted(bench)):
        return refutation
    return families.ask(family(cause.key).contradicted, bench, "")


def _wrong_premises(cause: Cause, attribution: Attribution) -> list[str]:
    """Return the live causes without which the likelihood of a side's native samples says nothing; [] for a cause that
    was not read from it.
    """
    side = _side(cause)
    from_samples = cause.details.get("stage") == "native" and family(cause.key).drawn
    if not from_samples or _live(cause) or not attribution.removed(side):
        return []
    return [str(named.cause) for named in attribution.named if named.side == side and family(named.cause).premise]


def _on_bench(cause: Cause, attribution: Attribution) -> OnBench:
    side = _side(cause)
    first, remaining = attribution.first.get(side), attribution.remaining.get(side)
    return OnBench(
        tried=_attempts(cause, attribution),
        named=tuple(named.cause for named in attribution.named if named.side == side),
        proven=_live(cause),
        removed_all=attribution.removed(side),
        settled=attribution.settled(side),
        remaining=None if remaining is None else remaining.total,
        noise=first is not None and bool(first.noise),
        drawn=attribution.drawn,
    )


def _attempts(cause: Cause, attribution: Attribution) -> tuple[Tried, ...]:
    """Return the interventions that were tried for a cause on its side."""
    of_side = [attempt for attempt in attribution.tried if attempt.side == _side(cause)]
    return tuple(attempt for attempt in of_side if same_cause(attempt.cause, cause.key))


def _noted(cause: Cause, attribution: Attribution, families: _Families) -> Cause:
    """Return the cause with the bench's note where it was not proven live: what was tried, or why nothing was."""
    side = _side(cause)
    if _live(cause) or UNEXPLAINED.has(cause.key):
        return cause
    attempts = _attempts(cause, attribution)
    if side in attribution.first and not attribution.first[side].total:
        note = "the engine agrees with the reference at the last weights, so that only the recordings speak for it"
    elif attempts:
        tried = best(attempts)
        note = families.ask(family(tried.cause).in_words, tried, differences(tried))
    elif cause.proofs:
        return cause  # what recordings prove needs no excuse
    else:
        note = f"no intervention was tried: {_why_not(cause, side, attribution)}"
    if cause.party == "trainer" and not cause.proofs:
        note = "no intervention was tried: the bench does not make the trainer's own numbers again"
    return dataclasses.replace(cause, evidence=_with_note(cause, note))


def _with_note(cause: Cause, note: str) -> str:
    """Return the evidence of a cause with what the bench says of it."""
    return "; ".join(filter(None, (cause.evidence, f"live: {note}")))


def _why_not(cause: Cause, side: str, attribution: Attribution) -> str:
    first, remaining = attribution.first.get(side), attribution.remaining.get(side)
    if first is None or remaining is None:
        ended = "attribution ended before its turn"
        return ended if attribution.broken else f"the engine of the {side or 'side at fault'} was not on the bench"
    if first.noise:
        return f"the {side}'s engine does not repeat itself, and nothing can be undone on it"
    if not remaining.total:
        return "nothing of the difference was left when its turn came"
    return "attribution ended before its turn" if attribution.broken else "the bench has none for it"


def _narrowed(cause: Cause, attribution: Attribution, e: Evidence) -> Cause:
    """Return UNEXPLAINED with what the bench adds: which side moved, whether it still does, and what is left."""
    if not attribution.first:
        return cause
    differing = attribution.differing
    if not differing and _learner_moved(e, attribution):
        return _of_the_learner(cause)
    if not differing:
        note = f"at the last weights every engine on the bench agrees with the reference{_passed(cause, e)}"
        return dataclasses.replace(cause, evidence=f"{cause.evidence}; live: {note}")
    party = differing[0] if len(differing) == 1 and cause.party == "unknown" else cause.party
    note = "; ".join([*(_left(side, attribution) for side in differing), *attribution.layers.values()])
    evidence = _with_note(cause, note)
    layer = attribution.computes.get(party)
    if layer and differing == [party]:
        excluded = attribution.excluded.get(party, ())
        what = "with the learner's own weights" if excluded else "with what could be read of the learner's weights"
        summary = f"the {party}'s engine computes other numbers {what}; what differs first: {layer}"
        return Cause.of(COMPUTATION.key(layer), party, summary, evidence, cause.details, observed=excluded)
    return dataclasses.replace(cause, party=party, evidence=evidence)


def _left(side: str, attribution: Attribution) -> str:
    """Return what all interventions left of a side's difference, in words."""
    remaining = attribution.remaining.get(side, attribution.first[side])
    kinds = ", ".join(f"{count} {kind}" for kind, count in remaining.counts.items()) or "nothing"
    place = next((f"; first sample {p[0][0]}, position {p[0][1]}" for p in remaining.places.values() if p), "")
    return f"the {side} differs from the reference, {len(attribution.tried):,} interventions leave {kinds}{place}"


def _passed(cause: Cause, e: Evidence) -> str:
    """Return what follows for a cause when no engine differs from the reference any more; "" for one of a trainer."""
    if cause.party not in SIDES:
        return ""
    if (e.found(Kind.ENGINE.of(cause.party))[:, 0] == max(e.steps, default=-1)).any():
        return (
            "; it differed from its learner up to the last step: reference and engine share a fault of their code, or "
            "the few samples of the bench do not show it"
        )
    return "; the fault has passed"


def _learner_moved(e: Evidence, attribution: Attribution) -> bool:
    """Whether the learner is the odd one out: both engines agree with each other and with the reference, each repeats
    itself in other batches and by scoring, and both differ from their learners up to the last step.
    """
    if set(attribution.first) != set(SIDES) or not repeat_themselves(e):
        return False
    kinds = [Kind.ENGINE.of(side) for side in SIDES]
    to_the_end = all((e.found(kind)[:, 0] == max(e.steps, default=-1)).any() for kind in kinds)
    return to_the_end and odd_one(e, SIDES[0]) in (LEARNER_MOVED, UNKNOWN) and engines_compared(e)


def _of_the_learner(cause: Cause) -> Cause:
    summary = "the learner's forward pass differs from both engines, which agree with each other and with the reference"
    note = "each engine repeats itself in other batches and by scoring; what a learner does that a score of one "
    note += "sample does not is next: packing, padding, positions"
    return Cause.of(TRAINER.key("forward pass"), LEARNER_MOVED, summary, _with_note(cause, note), cause.details)


def _remaining(causes: list[Cause], attribution: Attribution) -> list[str]:
    """Return the sides of which every cause was proven live, while a part of the difference is left."""
    sides = []
    for side, remaining in attribution.remaining.items():
        first = attribution.first[side]
        if attribution.broken or first.noise or attribution.removed(side):
            continue
        live = [_live(cause) for cause in causes if _side(cause) == side]
        if live and all(live) and LEAST <= remaining.total < first.total:
            sides.append(side)
    return sides


def _remainder(side: str, causes: list[Cause], attribution: Attribution) -> Cause:
    first, remaining = attribution.first[side].total, attribution.remaining[side].total
    names = " and ".join(cause.name for cause in causes if _side(cause) == side)
    return Cause.of(UNEXPLAINED.key(), side, f"{part_of(remaining, first, 'difference')} are left without {names}", "")


def _withdrawn(cause: Cause, reason: str) -> Finding:
    return Finding(
        f"withdrawn: {cause.name}",
        f"the recordings named it ({cause.summary}); live, {reason}",
        severity="info",
        where=_side(cause),
    )


def _findings(attribution: Attribution, failed: list[PluginError]) -> list[Finding]:
    """Return one finding that lists every intervention, and what could not be tested."""
    notes = list(dict.fromkeys([*attribution.notes, *map(str, failed)]))
    if not (attribution.tried or notes):
        return []
    removed = [attempt for attempt in attribution.tried if attempt.removed]
    summary = (
        f"{len(attribution.tried)} in {figure(attribution.seconds)} s, {len(removed):,} of them removed a difference"
    )
    if notes:
        summary += f"; {'; '.join(notes[:3])}"
    details: dict[str, Any] = {
        "tried": [{**dataclasses.asdict(attempt), "cause": str(attempt.cause)} for attempt in attribution.tried],
        "notes": notes,
    }
    return [Finding("live interventions", summary, details=details)]


def _figures(attribution: Attribution) -> dict[str, Any]:
    figures: dict[str, Any] = {"seconds": round(attribution.seconds, 2), "interventions": len(attribution.tried)}
    if attribution.named_after is not None:
        figures["seconds_to_cause"] = round(attribution.named_after, 2)
    return figures
