"""Causes that look the same, and the observation that tells them apart.

A proof removes a difference; so would the same intervention with another cause, now and then. A cause is proven only
when each of its rivals is excluded by one of the observations that are listed beside it. Otherwise the rival is listed
with the cause, and neither is proven. docs/explanation/attribution.md has the table for readers.
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
    OLDER_HELD = "what it held is the learner's own of an earlier weight version"
    NEVER_LEARNERS = "what it held is the learner's of no recorded weight version"
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
    AS_LONG_AGREE = "samples with prompts as long and no cached tokens agree"
    FRESH_AGREES = "a fresh engine with the same weights agrees"
    CUTS_VARY = "the position of the change is not the same in all samples"
    OLDER_AGREES = "held against the learner's weights before its last update, it agrees"
    ALONE_EXPLAINS = "no other parameter explains every choice"
    LIKELIER = "its samples are likelier so than under any other change, by a likelihood ratio of 100 at least"
    GIVEN = "the engine's own record says that it was given so"
    AT_THE_LIMIT = (
        "every sample of the difference is as the parameter alone makes it: ended, or barred from ending, there"
    )
    ANY_MARGIN = (
        "the best token is passed over at wide margins too, where no parameter moves a choice (error rate 0.01)"
    )
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
        Rival("WEIGHTS", (Seen.NOT_SENT, Seen.REFUSED, Seen.OLDER_HELD, Seen.OLDER_AGREES)),
        Rival("STALE_DERIVED", (*_HELD, Seen.MOVED, Seen.OLDER_AGREES)),
    ),
    "WEIGHTS": (
        Rival("STALE_WEIGHTS", (Seen.NEVER_LEARNERS, Seen.ARRIVED_OTHERWISE, Seen.CHANGED, Seen.REARRANGED)),
        Rival("STALE_DERIVED", (*_HELD, Seen.MOVED)),
    ),
    "STALE_DERIVED": (
        Rival("STALE_WEIGHTS", (Seen.HELD_EQUAL,)),
        Rival("WEIGHTS", (Seen.HELD_EQUAL,)),
        Rival("STALE_KV", (Seen.PAST_CACHE_DIFFERS, Seen.BUFFER_WRITTEN)),
        Rival("a wrong kernel", (Seen.FRESH_AGREES, Seen.BUFFER_WRITTEN)),
    ),
    "STALE_KV": (
        Rival("a fault of the place in the group", (Seen.PAST_CACHE_AGREES, Seen.CACHE_CROSSED)),
        Rival("a fault of long prompts", (Seen.PAST_CACHE_AGREES, Seen.AS_LONG_AGREE)),
    ),
    "MIXED_VERSION": (Rival("a fault of the position", (Seen.CUTS_VARY, Seen.ONE_VERSION_AGREES)),),
    "SAMPLING_PARAM": (
        Rival("another sampling parameter", (Seen.GIVEN, Seen.ALONE_EXPLAINS, Seen.LIKELIER, Seen.AT_THE_LIMIT)),
    ),
}
# Causes of which nothing else looks the same, each with the reason; for `docs/explanation/attribution.md` too.
ALONE: dict[str, str] = {
    "TOKENIZATION": "its proof compares whole prompts, id by id",
    "TRUNCATION": "its proof compares whole prompts, id by id",
    "TEMPLATE": "its proof compares whole prompts, id by id",
    "RETOKENIZATION": "its proof makes the very ids by encoding the text of the others",
    "STOP": "its proof finds the end at the same token in every sample; a limit ends samples at any token",
    "LENGTH": "its proof ends every sample at one length; a pool that runs full ends them at any",
    "CAPACITY": "the engine's own figures say that the pool ran full, or is as large as the samples are long",
    "ORDER": "its proof finds each response, whole, under another sample number",
    "VOCAB": "the id itself is not in the tokenizer",
    "SAMPLER": "its rule names it only once a parameter, a filter and other random numbers are excluded",
    "RNG": "its proof draws every choice with another seed; without one it carries none",
    "RNG_COLLISION": "its proof finds what another sample of the group should have drawn",
    "ALIGNMENT": "its proof finds every number at a neighbouring position",
    "LOGPROB_SEMANTICS": "its proof gives every number again, from the whole distribution of its position",
    "NUMERIC_FATAL": "the number itself is not finite",
    "CONFIG": "its proof puts the parameter back, and takes it away again where others were put back beside it",
    "TRAINER": "its proof fits one factor to every number, which no engine reports",
    "SHAPE": "the shapes themselves are recorded",
    "baseline-itself": "the engine is held against itself",
    "candidate-itself": "the engine is held against itself",
    "COMPUTATION": "it carries no proof: every tensor and buffer was read back and is the learner's, and given the "
    "same ids its hidden states are others",
    "ARITHMETIC": "it is gone in float32, and was there in half precision",
    "UNEXPLAINED": "it carries no proof",
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
    before = cause.details.get("rivals")  # it was said of fewer observations
    evidence = f"; {cause.evidence}" if cause.evidence else ""
    evidence = evidence.replace(_told(before), "") if before else evidence
    left = any(not one["excluded"] for one in rivals)
    said = _told(rivals) if left or cause.proofs else ""
    return dataclasses.replace(
        cause,
        details={**cause.details, "rivals": rivals},
        proofs=[] if left else cause.proofs,
        evidence=(evidence + said).removeprefix("; "),
    )


def kind(cause: Cause) -> str:
    return cause.name.partition("(")[0]


def _told(rivals: list[dict[str, Any]]) -> str:
    """What is said of them behind the evidence."""
    if left := [one["cause"] for one in rivals if not one["excluded"]]:
        return f"; not told apart from {' and '.join(left)}, which would look the same"
    return "; " + "; ".join(dict.fromkeys(f"not {one['cause']}: {one['excluded']}" for one in rivals))
