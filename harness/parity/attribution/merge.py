"""What the bench showed, put into the verdict: causes proven, confirmed, withdrawn, and what is still unexplained."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from harness.parity.answers import Answer, divergent
from harness.parity.attribution.outcome import Attribution
from harness.parity.causes.family import OnBench, best, differences
from harness.parity.causes.registry import family
from harness.parity.causes.unexplained import COMPUTATION, UNEXPLAINED
from harness.parity.explain import find
from harness.parity.facts.evidence import Learned
from harness.parity.interventions.situation import LEAST, Named
from harness.parity.rivals import noted, told_apart
from harness.parity.subjects.precision.observed_lifted import STAGE as LIFTED
from harness.parity.subjects.sampling.checks import measured
from harness.parity.suspected import confirm_suspicions, in_words
from harness.parity.verdict import Judged
from probes.format import SIDES
from probes.plugins import PluginError
from reports.model import RESIDUE, Cause, CauseKey, Finding, Verdict
from reports.text import figure

T = TypeVar("T")


@dataclass
class _Families:
    """Questions to families of causes. `failed`: those of other packages that raised."""

    failed: list[PluginError] = field(default_factory=list)

    def ask(self, question: Callable[[Any], T], of: Any, otherwise: T) -> T:
        """The answer; `otherwise` where the family raises."""
        try:
            return question(of)
        except PluginError as error:
            if str(error) not in map(str, self.failed):
                self.failed.append(error)
            return otherwise


def merged(judged: Judged, found: Attribution) -> Verdict:
    """The verdict with live proofs added to its causes, new causes named, and causes withdrawn that live interventions
    contradict."""
    verdict, e = judged.verdict, judged.evidence
    if verdict.verdict != "DIVERGENT" or e is None:
        return verdict
    recorded, families = verdict.causes, _Families()
    if found.learned != Learned():
        e = dataclasses.replace(e, learned=found.learned)
        recorded = find(e, judged.kinds)
    lifted = [one for one in recorded if one.details.get("stage") == LIFTED]  # of other engines: not found's to judge
    causes, fresh = _proven([one for one in recorded if one not in lifted], found)
    causes = [_confirmed(one, found, families) for one in causes]
    contradicted = [_contradicted(one, found, families) for one in causes]
    withdrawn = [(cause, said) for cause, said in zip(causes, contradicted, strict=True) if said]
    kept = [_noted(cause, found, families) for cause, said in zip(causes, contradicted, strict=True) if not said]
    explained = bool(fresh or (found.named and found.reproduced)) and _explained(found)
    unexplained = [one for one in kept if UNEXPLAINED.has(one.key)]
    kept = [one for one in kept if not UNEXPLAINED.has(one.key)]
    if not explained:
        kept += [_narrowed(one, found) for one in unexplained]
    if withdrawn and not kept:
        kept = [_nothing_left(found)]
    if not any(UNEXPLAINED.has(one.key) for one in kept):
        kept += [_narrowed(_remainder(side, kept, found), found) for side in _remaining(kept, found)]
    own = [one for one in kept if not UNEXPLAINED.has(one.key)]
    judged_causes = [told_apart(one) for one in kept]
    judged_causes += [one for one in lifted if not any(_meant_by(one, other) for other in own)]
    findings = [
        *verdict.findings,
        *(_withdrawn(cause, said) for cause, said in withdrawn),
        *_told(found, families.failed),
    ]
    answer = divergent(e, judged.kinds, judged_causes) if judged_causes else Answer(verdict.reason, verdict.evidence)
    changed = dataclasses.replace(
        verdict,
        causes=judged_causes,
        reason=answer.reason,
        evidence=answer.evidence,
        findings=measured(findings, judged_causes),
        figures=verdict.figures | {"attribution": _figures(found)},
    )
    return confirm_suspicions(changed, removed_by=_removed_by(kept) if _explained(found) else [])


def _removed_by(causes: list[Cause]) -> list[str]:
    """The live interventions that removed every difference; [] where a cause has none, or something is unexplained."""
    if not all(_live(cause) for cause in causes):
        return []
    live = [proof.intervention for cause in causes for proof in cause.proofs if proof.on == "live engines"]
    return list(dict.fromkeys(live))


def same_cause(live: CauseKey, recorded: CauseKey) -> bool:
    """Do a cause that was proven live and one from the recordings mean the same, or the second a part of the first?"""
    try:
        if live == recorded or family(recorded).covers(live, recorded):
            return True
    except PluginError:  # then they are the same by the rules for every family
        pass
    cure = family(live).cured_by
    alike = live.family == recorded.family or (bool(cure) and cure == family(recorded).cured_by)
    what, which = {*live.parts}, {*recorded.parts}
    return alike and (not what or not which or which <= what or (live.many and recorded.many))


def _meant_by(one: Cause, other: Cause) -> bool:
    """Do two causes of one party mean the same, whichever of them names more of it?"""
    alike = same_cause(one.key, other.key) or same_cause(other.key, one.key)
    return one.party == other.party and alike


def _settled(found: Attribution, side: str) -> bool:
    """Does nothing of the side differ on the bench, or nothing any more?"""
    first = found.first.get(side)
    return first is not None and (not first.total or _gone(found, side))


def _confirmed(cause: Cause, found: Attribution, families: _Families) -> Cause:
    """The cause with the proof that the bench makes without an intervention."""
    shown = None if _live(cause) else families.ask(family(cause.key).confirmed, _on_bench(cause, found), None)
    if shown is None:
        return cause
    proof, seen = shown
    return noted(dataclasses.replace(cause, proofs=[*cause.proofs, proof]), [seen])


def _proven(recorded: list[Cause], found: Attribution) -> tuple[list[Cause], list[Named]]:
    """The recorded causes with the live proofs of the same cause; and the live causes that no recording named."""
    causes, fresh = list(recorded), []
    for named in found.named:
        known = [i for i, one in enumerate(causes) if same_cause(named.cause, one.key) and _party(one, named)]
        for i in known:
            causes[i] = noted(dataclasses.replace(causes[i], proofs=[*causes[i].proofs, named.proof]), named.seen)
        key = _unnamed(named.cause, [causes[i].key for i in known])
        if key:
            fresh.append(named)
            evidence = f"live: {in_words(named.proof)}"
            details, proofs = dict(named.details), [named.proof]
            causes.append(Cause.of(key, named.party, named.summary, evidence, details, proofs, named.seen))
    return causes, fresh


def _unnamed(live: CauseKey, known: list[CauseKey]) -> CauseKey | None:
    """What of a live cause no recorded one names: all of it, some of several parameters, or nothing."""
    if not known:
        return live
    missing = {*live.parts}.difference(*(key.parts for key in known))
    if len(live.parts) < 2 or not missing or not all(key.parts for key in known):
        return None
    return dataclasses.replace(live, parts=tuple(sorted(missing)))


def _party(cause: Cause, named: Named) -> bool:
    return cause.party in (named.party, named.side) or cause.party not in SIDES


def _side(cause: Cause) -> str:
    return cause.party if cause.party in SIDES else str(cause.details.get("side", ""))


def _live(cause: Cause) -> bool:
    return any(proof.on == "live engines" for proof in cause.proofs)


def _contradicted(cause: Cause, found: Attribution, families: _Families) -> str:
    """Why a recorded cause does not stand: its own intervention removed nothing, and others removed everything; or it
    was read off by way of what a live intervention shows not to be so."""
    side = _side(cause)
    if cause.details.get("stage") == "native" and family(cause.key).drawn and not _live(cause) and _gone(found, side):
        used = [str(one.cause) for one in found.named if one.side == side and family(one.cause).premise]
        if used:
            return f"its samples were held against a prompt or weights that the engine did not use: {', '.join(used)}"
    if UNEXPLAINED.has(cause.key):
        return ""
    return families.ask(family(cause.key).contradicted, _on_bench(cause, found), "")


def _on_bench(cause: Cause, found: Attribution) -> OnBench:
    side = _side(cause)
    first, left = found.first.get(side), found.left.get(side)
    return OnBench(
        tuple(one for one in found.tried if one.side == side and same_cause(one.cause, cause.key)),
        tuple(one.cause for one in found.named if one.side == side),
        _live(cause),
        _gone(found, side),
        _settled(found, side),
        None if left is None else left.total,
        first is not None and bool(first.noise),
        found.drawn,
    )


def _noted(cause: Cause, found: Attribution, families: _Families) -> Cause:
    """The cause with what the bench has to say of it where it could not prove it; without any proof, why none was
    made."""
    side = _side(cause)
    if _live(cause) or UNEXPLAINED.has(cause.key):
        return cause
    own = [one for one in found.tried if one.side == side and same_cause(one.cause, cause.key)]
    if side in found.first and not found.first[side].total:
        said = "the engine agrees with the reference at the last weights, so that only the recordings speak for it"
    elif own:
        tried = best(own)
        said = families.ask(family(tried.cause).in_words, tried, differences(tried))
    elif cause.proofs:
        return cause  # what recordings prove needs no excuse
    else:
        said = f"no intervention was tried: {_why_not(cause, side, found)}"
    if cause.party == "trainer" and not cause.proofs:
        said = "no intervention was tried: the bench does not make the trainer's own numbers again"
    return dataclasses.replace(cause, evidence="; ".join(filter(None, (cause.evidence, f"live: {said}"))))


def _why_not(cause: Cause, side: str, found: Attribution) -> str:
    first, left = found.first.get(side), found.left.get(side)
    if first is None or left is None:
        ended = "attribution ended before its turn"
        return ended if found.broken else f"the engine of the {side or 'side at fault'} was not on the bench"
    if first.noise:
        return f"the {side}'s engine does not repeat itself, and nothing can be undone on it"
    if not left.total:
        return "nothing of the difference was left when its turn came"
    return "attribution ended before its turn" if found.broken else "the bench has none for it"


def _gone(found: Attribution, side: str) -> bool:
    """Did the side differ, and does it no longer?"""
    first, left = found.first.get(side), found.left.get(side)
    return first is not None and left is not None and first.total > 0 and left.total <= RESIDUE * first.total


def _explained(found: Attribution) -> bool:
    differing = [side for side, first in found.first.items() if first.total]
    return bool(differing) and all(_gone(found, side) for side in differing)


def _narrowed(cause: Cause, found: Attribution) -> Cause:
    """UNEXPLAINED with what the bench adds: which side moved, whether it still does, what is left of it."""
    if not found.first:
        return cause
    differing = [side for side, first in found.first.items() if first.total]
    if not differing:
        said = "live: at the last weights every engine on the bench agrees with the reference; the fault has passed"
        return dataclasses.replace(cause, evidence=f"{cause.evidence}; {said}")
    parts = []
    for side in differing:
        left = found.left.get(side, found.first[side])
        kinds = ", ".join(f"{count} {kind}" for kind, count in left.counts.items()) or "nothing"
        place = next((f"; first sample {p[0][0]}, position {p[0][1]}" for p in left.places.values() if p), "")
        parts.append(f"the {side} differs from the reference, {len(found.tried)} interventions leave {kinds}{place}")
    party = differing[0] if len(differing) == 1 and cause.party == "unknown" else cause.party
    said = "; ".join([*parts, *found.layers.values()])
    evidence = "; ".join(filter(None, (cause.evidence, f"live: {said}")))
    layer = found.computes.get(party)
    if layer and differing == [party]:
        summary = f"the {party}'s engine computes otherwise with the learner's own weights; what differs first: {layer}"
        return Cause.of(COMPUTATION.key(layer), party, summary, evidence, cause.details, cause.proofs)
    return dataclasses.replace(cause, party=party, evidence=evidence)


def _remaining(causes: list[Cause], found: Attribution) -> list[str]:
    """Sides of which every cause was proven live and a part of the difference is left all the same."""
    return [
        side
        for side, left in found.left.items()
        if not (found.broken or found.first[side].noise or _gone(found, side))
        and LEAST <= left.total < found.first[side].total
        and (own := [one for one in causes if _side(one) == side])
        and all(_live(one) for one in own)
    ]


def _remainder(side: str, causes: list[Cause], found: Attribution) -> Cause:
    first, left = found.first[side].total, found.left[side].total
    names = " and ".join(one.name for one in causes if _side(one) == side)
    return Cause.of(UNEXPLAINED.key(), side, f"{left} of {first} differences are left without {names}", "")


def _nothing_left(found: Attribution) -> Cause:
    return Cause.of(
        UNEXPLAINED.key(), "unknown", "the cause that the recordings named does not stand on the live engines"
    )


def _withdrawn(cause: Cause, said: str) -> Finding:
    return Finding(
        f"withdrawn: {cause.name}",
        f"the recordings named it ({cause.summary}); live, {said}",
        severity="info",
        where=_side(cause),
    )


def _told(found: Attribution, failed: list[PluginError]) -> list[Finding]:
    """One finding that lists every intervention and what could not be tested."""
    notes = list(dict.fromkeys([*found.notes, *map(str, failed)]))
    if not (found.tried or notes):
        return []
    removed = [one for one in found.tried if one.removed]
    summary = f"{len(found.tried)} in {figure(found.seconds)} s, {len(removed)} of them removed a difference"
    if notes:
        summary += f"; {'; '.join(notes[:3])}"
    details: dict[str, Any] = {
        "tried": [{**dataclasses.asdict(one), "cause": str(one.cause)} for one in found.tried],
        "notes": notes,
    }
    return [Finding("live interventions", summary, details=details)]


def _figures(found: Attribution) -> dict[str, Any]:
    figures: dict[str, Any] = {"seconds": round(found.seconds, 2), "interventions": len(found.tried)}
    if found.named_after is not None:
        figures["seconds_to_cause"] = round(found.named_after, 2)
    return figures
