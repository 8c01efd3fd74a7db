"""Causes that look the same, and the observation that tells them apart.

A proof removes a difference; so would the same intervention with another cause, now and then. A cause is proven only
when each of its rivals is excluded by one of the observations that are listed beside it. Otherwise the rival is listed
with the cause, and neither is proven. docs/attribution.md has the table for readers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from reports.model import Cause


class Seen(StrEnum):
    """An observation that excludes a rival, in the words of a report."""

    NOT_SENT = "a recorded sync left it out"
    ARRIVED_OTHERWISE = "what arrived has another digest than what was sent"
    WAS_SENT = "every recorded sync sent it"
    HELD_OTHERWISE = "read back from the engine, it is not the learner's"
    HELD_EQUAL = "every tensor was read back from the engine and is the learner's"
    REFUSED = "sent otherwise on purpose, it did not change"
    TAKEN = "sent once more, it became the learner's"
    MOVED = "sent once more alone, it changed what the engine computes"
    CHANGED = "sent otherwise on purpose, it changed"
    REARRANGED = "it holds the learner's own numbers in other places"
    BUFFER_WRITTEN = "with what the configuration computes written into the buffer the difference is gone"
    PAST_CACHE_AGREES = "drawn past the prefix cache, the same samples agree"
    PAST_CACHE_DIFFERS = "with nothing from a prefix cache the same samples still differ"
    CACHE_CROSSED = "samples with cached tokens differ whatever their place in their group"
    FRESH_AGREES = "a fresh engine with the same weights agrees"
    CUTS_VARY = "the position of the change is not the same in all samples"
    OLDER_AGREES = "held against the learner's weights before its last update, it agrees"
    ALONE_EXPLAINS = "no other parameter explains every choice"
    LIKELIER = "its samples are likelier so than under any other change, by a likelihood ratio of 100 at least"
    GIVEN = "the engine's own record says that it was given so"
    ANY_MARGIN = "the best token is passed over at wide margins too, where no parameter moves a choice (error rate 0.01)"
    LIKELY_TOKENS = "likely tokens are passed over as often as others, which no filter does (error rate 0.01)"
    SECOND_BEST = "it takes the second best token each time, as other random numbers would not (error rate 0.01)"
    ONE_VERSION_AGREES = "drawn again with one version of the weights, the same samples agree"


@dataclass(frozen=True)
class Rival:
    """`cause` would look the same; any of `excluded_by` tells them apart."""

    cause: str
    excluded_by: tuple[Seen, ...]


_HELD = (Seen.HELD_OTHERWISE, Seen.NOT_SENT, Seen.ARRIVED_OTHERWISE)
RIVALS: dict[str, tuple[Rival, ...]] = {
    "STALE_WEIGHTS": (
        Rival("WEIGHTS", (Seen.NOT_SENT, Seen.REFUSED, Seen.OLDER_AGREES)),
        Rival("STALE_DERIVED", (*_HELD, Seen.MOVED, Seen.OLDER_AGREES)),
    ),
    "WEIGHTS": (
        Rival("STALE_WEIGHTS", (Seen.WAS_SENT, Seen.ARRIVED_OTHERWISE, Seen.CHANGED, Seen.REARRANGED)),
        Rival("STALE_DERIVED", (*_HELD, Seen.MOVED)),
    ),
    "STALE_DERIVED": (
        Rival("STALE_WEIGHTS", (Seen.HELD_EQUAL,)),
        Rival("WEIGHTS", (Seen.HELD_EQUAL,)),
        Rival("STALE_KV", (Seen.PAST_CACHE_DIFFERS, Seen.BUFFER_WRITTEN)),
        Rival("a wrong kernel", (Seen.FRESH_AGREES, Seen.BUFFER_WRITTEN)),
    ),
    "STALE_KV": (Rival("a fault of the place in the group", (Seen.PAST_CACHE_AGREES, Seen.CACHE_CROSSED)),),
    "MIXED_VERSION": (Rival("a fault of the position", (Seen.CUTS_VARY, Seen.ONE_VERSION_AGREES)),),
}


def noted(cause: Cause, seen: Iterable[Seen]) -> Cause:
    """The cause with further observations."""
    known = [*cause.details.get("observed", []), *(str(one) for one in seen)]
    return cause if not known else dataclasses.replace(
        cause, details={**cause.details, "observed": list(dict.fromkeys(known))}
    )  # fmt: skip


def open_rivals(cause: Cause) -> list[Rival]:
    """The rivals of a cause that none of its observations excludes."""
    observed = set(cause.details.get("observed", []))
    return [one for one in RIVALS.get(kind(cause), ()) if not observed & {str(seen) for seen in one.excluded_by}]


def told_apart(cause: Cause) -> Cause:
    """The cause with its rivals in `details`, each with what excludes it; without its proofs where one is not excluded,
    and the evidence then says which and what was not observed."""
    if kind(cause) not in RIVALS:
        return cause
    observed = set(cause.details.get("observed", []))
    rivals: list[dict[str, Any]] = [
        {
            "cause": one.cause,
            "excluded": next((str(seen) for seen in one.excluded_by if str(seen) in observed), ""),
            "would exclude it": [str(seen) for seen in one.excluded_by],
        }
        for one in RIVALS[kind(cause)]
    ]
    left = [one["cause"] for one in rivals if not one["excluded"]]
    if cause.details.get("rivals") == rivals:  # said before
        return dataclasses.replace(cause, proofs=[]) if left else cause
    changed = dataclasses.replace(cause, details={**cause.details, "rivals": rivals})
    if not left:
        said = "; ".join(dict.fromkeys(f"not {one['cause']}: {one['excluded']}" for one in rivals))
        return dataclasses.replace(changed, evidence=_beside(cause.evidence, said)) if cause.proofs else changed
    said = f"not told apart from {' and '.join(left)}, which would look the same"
    return dataclasses.replace(changed, proofs=[], evidence=_beside(cause.evidence, said))


def kind(cause: Cause) -> str:
    return cause.name.partition("(")[0]


def _beside(evidence: str, said: str) -> str:
    return "; ".join(filter(None, (evidence, said)))
