"""Rivals of causes (`CauseFamily.every_rival`): a cause is proven only once every rival is excluded.

Where no observation that was made excludes a rival, it is listed with the cause, and neither is proven.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from harness.parity.causes.family import Rival, Seen
from harness.parity.causes.registry import family
from harness.parity.facts.evidence import Evidence
from harness.parity.facts.history import right_before
from probes.format import SIDES
from reports.model import Cause


def noted(cause: Cause, observations: Iterable[str]) -> Cause:
    """Return the cause with further observations."""
    return dataclasses.replace(cause, observed=tuple(dict.fromkeys((*cause.observed, *observations))))


def open_rivals(cause: Cause) -> list[Rival]:
    """Return the rivals of a cause that none of its observations excludes."""
    return [rival for rival in family(cause.key).every_rival if not {*cause.observed} & {*rival.excluded_by}]


def with_history(cause: Cause, e: Evidence) -> Cause:
    """Return a cause that tells a history with what the recording shows of it."""
    if not family(cause.key).proof.history:
        return cause
    side = cause.party if cause.party in SIDES or e.alone else str(cause.details.get("side", ""))
    is_right_before = side in [recorded.name for recorded in e.sides] and right_before(e, side)
    return noted(cause, [Seen.RIGHT_BEFORE]) if is_right_before else cause


def told_apart(cause: Cause, e: Evidence) -> Cause:
    """Return the cause with its fix, its proofs, and its rivals in `details`, each with what excludes it.

    It keeps only what its family accepts as a proof. Where a rival is not excluded the cause loses its proofs, and its
    evidence says which rival that is.
    """
    cause_family, cause = family(cause.key), with_history(cause, e)
    cause = dataclasses.replace(cause, fix=cause_family.fix_of(cause.key), proofs=cause_family.proof.accepted(cause))
    if not cause_family.every_rival:
        return cause
    rivals = [_described(rival, cause) for rival in cause_family.every_rival]
    before = cause.details.get("rivals")  # an earlier call, with fewer observations, made this
    evidence = f"; {cause.evidence}" if cause.evidence else ""
    evidence = evidence.replace(_in_words(before), "") if before else evidence
    unexcluded = open_rivals(cause)
    rivals_text = _in_words(rivals) if unexcluded or cause.proofs else ""
    return dataclasses.replace(
        cause,
        details={**cause.details, "rivals": rivals},
        proofs=[] if unexcluded else cause.proofs,
        evidence=(evidence + rivals_text).removeprefix("; "),
    )


def _described(rival: Rival, cause: Cause) -> dict[str, Any]:
    """Return a rival as a verdict lists it. `excluded`: the first observation that excludes it; "" where none does."""
    made = [str(observation) for observation in rival.excluded_by if observation in cause.observed]
    return {
        "cause": rival.cause,
        "excluded": made[0] if made else "",
        "would exclude it": [str(observation) for observation in rival.excluded_by],
    }


def _in_words(rivals: list[dict[str, Any]]) -> str:
    """Return the words about rivals that follow the evidence."""
    if open_causes := [rival["cause"] for rival in rivals if not rival["excluded"]]:
        return f"; not told apart from {' and '.join(open_causes)}, which would look the same"
    return "; " + "; ".join(dict.fromkeys(f"not {rival['cause']}: {rival['excluded']}" for rival in rivals))
