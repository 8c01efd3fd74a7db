"""What is known of every cause of one name: its rivals, the suspicion that it belongs to, what it is a premise of.

A proof removes a difference; so would the same intervention with another cause, now and then. Each family says which
other causes would look the same, and which observation tells each apart; or why there are none.
docs/explanation/attribution.md has the table for readers, `reports.model.CAUSES` what to do about each.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


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


@dataclass(frozen=True)
class CauseFamily:
    """All causes of one name; a detail in parentheses tells them apart.

    `rivals`: what would look the same; `alone`: else, why nothing would. `suspicion`: the number of the one of the
    eleven that it belongs to, 0 for none of them; `suspicions`: of a detail that belongs to another one. `drawn`: it is
    read off what native samples are likely under; `premise`: under it that likelihood is another one. `cured_by`: the
    intervention that removes it, where other families share that.
    """

    name: str
    rivals: tuple[Rival, ...] = ()
    alone: str = ""
    suspicion: int = 0
    suspicions: Mapping[str, int] = field(default_factory=dict)
    drawn: bool = False
    premise: bool = False
    cured_by: str = ""


_HELD = (Seen.HELD_OTHERWISE, Seen.NOT_SENT, Seen.ARRIVED_OTHERWISE)
_SENT_AGAIN = "the tensor is sent again"
_FAMILIES = (
    CauseFamily("TOKENIZATION", alone="its proof compares whole prompts, id by id", suspicion=10, premise=True),
    CauseFamily("TRUNCATION", alone="its proof compares whole prompts, id by id", suspicion=10, premise=True),
    CauseFamily("TEMPLATE", alone="its proof compares whole prompts, id by id", suspicion=10, premise=True),
    CauseFamily(
        "RETOKENIZATION",
        alone="its proof makes the very ids by encoding the text of the others",
        suspicion=1,
        premise=True,
    ),
    CauseFamily(
        "STOP",
        alone="its proof finds the end at the same token in every sample; a limit ends samples at any token",
        suspicion=7,
        suspicions={"end token dropped": 2},
    ),
    CauseFamily("LENGTH", alone="its proof ends every sample at one length; a pool that runs full ends them at any"),
    CauseFamily(
        "CAPACITY",
        alone="the engine's own figures say that the pool ran full, or is as large as the samples are long",
        suspicion=6,
    ),
    CauseFamily("ORDER", alone="its proof finds each response, whole, under another sample number"),
    CauseFamily("VOCAB", alone="the id itself is not in the tokenizer"),
    CauseFamily(
        "SAMPLING_PARAM",
        rivals=(
            Rival("another sampling parameter", (Seen.GIVEN, Seen.ALONE_EXPLAINS, Seen.LIKELIER, Seen.AT_THE_LIMIT)),
        ),
        suspicion=7,
        drawn=True,
    ),
    CauseFamily(
        "SAMPLER",
        alone="its rule names it only once a parameter, a filter and other random numbers are excluded",
        suspicion=7,
        drawn=True,
    ),
    CauseFamily(
        "RNG", alone="its proof draws every choice with another seed; without one it carries none", suspicion=7
    ),
    CauseFamily(
        "RNG_COLLISION", alone="its proof finds what another sample of the group should have drawn", suspicion=7
    ),
    CauseFamily("ALIGNMENT", alone="its proof finds every number at a neighbouring position"),
    CauseFamily(
        "LOGPROB_SEMANTICS", alone="its proof gives every number again, from the whole distribution of its position"
    ),
    CauseFamily("NUMERIC_FATAL", alone="the number itself is not finite"),
    CauseFamily(
        "CONFIG",
        alone="its proof puts the parameter back, and takes it away again where others were put back beside it",
        suspicion=6,
    ),
    CauseFamily(
        "STALE_WEIGHTS",
        rivals=(
            Rival("WEIGHTS", (Seen.NOT_SENT, Seen.REFUSED, Seen.OLDER_HELD, Seen.OLDER_AGREES)),
            Rival("STALE_DERIVED", (*_HELD, Seen.MOVED, Seen.OLDER_AGREES)),
        ),
        premise=True,
        cured_by=_SENT_AGAIN,
    ),
    CauseFamily(
        "WEIGHTS",
        rivals=(
            Rival("STALE_WEIGHTS", (Seen.NEVER_LEARNERS, Seen.ARRIVED_OTHERWISE, Seen.CHANGED, Seen.REARRANGED)),
            Rival("STALE_DERIVED", (*_HELD, Seen.MOVED)),
        ),
        premise=True,
        cured_by=_SENT_AGAIN,
    ),
    CauseFamily(
        "STALE_KV",
        rivals=(
            Rival("a fault of the place in the group", (Seen.PAST_CACHE_AGREES, Seen.CACHE_CROSSED)),
            Rival("a fault of long prompts", (Seen.PAST_CACHE_AGREES, Seen.AS_LONG_AGREE)),
        ),
        suspicion=8,
        premise=True,
    ),
    CauseFamily(
        "STALE_DERIVED",
        rivals=(
            Rival("STALE_WEIGHTS", (Seen.HELD_EQUAL,)),
            Rival("WEIGHTS", (Seen.HELD_EQUAL,)),
            Rival("STALE_KV", (Seen.PAST_CACHE_DIFFERS, Seen.BUFFER_WRITTEN)),
            Rival("a wrong kernel", (Seen.FRESH_AGREES, Seen.BUFFER_WRITTEN)),
        ),
        premise=True,
    ),
    CauseFamily("MIXED_VERSION", rivals=(Rival("a fault of the position", (Seen.CUTS_VARY, Seen.ONE_VERSION_AGREES)),)),
    CauseFamily("TRAINER", alone="its proof fits one factor to every number, which no engine reports"),
    CauseFamily("SHAPE", alone="the shapes themselves are recorded", suspicion=3),
    CauseFamily("baseline-itself", alone="the engine is held against itself", suspicion=4),
    CauseFamily("candidate-itself", alone="the engine is held against itself"),
    CauseFamily(
        "COMPUTATION",
        alone="it carries no proof: every tensor and buffer was read back and is the learner's, and given the same ids "
        "its hidden states are others",
    ),
    CauseFamily("ARITHMETIC", alone="it is gone in float32, and was there in half precision"),
    CauseFamily("UNEXPLAINED", alone="it carries no proof"),
)
FAMILIES = {family.name: family for family in _FAMILIES}


def family(cause: str) -> CauseFamily:
    """The family of a cause by its printed name; one that nothing is known of where there is none."""
    name = cause.partition("(")[0]
    return FAMILIES.get(name) or CauseFamily(name)


def suspicion(cause: str) -> int:
    """The number of the suspicion that a cause belongs to, by its printed name; 0 for none."""
    known, detail = family(cause), cause.partition("(")[2].removesuffix(")")
    return known.suspicions.get(detail, known.suspicion)
