"""Families of causes: the name, what to do about it, and what tells it from its rivals.

A proof removes a difference. Sometimes the same intervention would remove the difference of another cause too. So each
family lists the causes that would look the same, with the observations that exclude each, or says why there are none.
The table docs/reference/causes.md is generated from them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from harness.parity.causes.proof import UNSTATED, ProofStandard
from reports.model import CauseKey, Proof

if TYPE_CHECKING:
    from harness.parity.facts.evidence import Evidence, Side
    from harness.parity.facts.explanation import Explained, Explanation
    from harness.parity.interventions.situation import Situation, Tried
    from harness.parity.interventions.trial import Trial


class Seen(StrEnum):
    """An observation that excludes a rival, in the words of a report."""

    NOT_SENT = "a recorded sync left it out"
    ARRIVED_OTHERWISE = "what arrived has another digest than what was sent"
    OLDER_HELD = "it held the learner's values of an earlier weight version"
    NEVER_LEARNERS = "it held values that the learner had at no recorded weight version"
    HELD_OTHERWISE = "read back from the engine, it is not the learner's"
    HELD_EQUAL = "every tensor was read back from the engine and is the learner's"
    SCORES_AGREE = "it scores the same tokens as the learner does"
    REFERENCES = "its numbers are those of the reference, which has the weights of the start"
    KEPT_ON_LOAD = "read back after the load, it was still what it had been before"
    LOADED_OTHERWISE = "read back after the load, it was neither what arrived nor what it had been before"
    REFUSED = "sent with other values on purpose, it did not change"
    TAKEN = "sent once more, it became the learner's"
    MOVED = "sent once more alone, it changed what the engine computes"
    CHANGED = "sent with other values on purpose, it changed"
    REARRANGED = "it holds the learner's own numbers in other places"
    BUFFER_WRITTEN = "with the configured values written into the buffer, the difference disappears"
    PAST_CACHE_AGREES = "drawn past the prefix cache, the same samples agree"
    PAST_CACHE_DIFFERS = "with nothing from a prefix cache the same samples still differ"
    CACHE_CROSSED = "samples with cached tokens differ whatever their place in their group"
    AS_LONG_AGREE = "samples with equally long prompts and no cached tokens agree"
    FRESH_AGREES = "a fresh engine with the same weights agrees"
    CUTS_VARY = "the position of the change is not the same in all samples"
    OLDER_AGREES = "held against the learner's weights before its last update, it agrees"
    ALONE_EXPLAINS = "no other parameter explains every choice"
    LIKELIER = "its samples are likelier under this change than under any other, by a likelihood ratio of 100 at least"
    GIVEN = "the engine's own record says that it was given this value"
    AT_THE_LIMIT = "every differing sample ends, or does not end, where this parameter alone decides it"
    ANY_MARGIN = (
        "the best token is passed over at wide margins too, where no parameter moves a choice (error rate 0.01)"
    )
    LIKELY_TOKENS = "likely tokens are passed over as often as others, which no filter does (error rate 0.01)"
    SECOND_BEST = "it takes the second best token each time, as other random numbers would not (error rate 0.01)"
    FROM_START = "it differed from its learner in the first step already, when it was freshly started"
    RIGHT_BEFORE = "it agreed with its learner with the weights before a recorded sync, and no longer after it"
    MOST_SPLIT = "most samples of these steps that go on past the change are split by it"
    PADS_ALONE = "prompts of one length differ in every step that pads them and agree in every step that does not"
    ONE_VERSION_AGREES = "drawn again with one version of the weights, the same samples agree"


@dataclass(frozen=True)
class Rival:
    """A cause that would look the same. Any of `excluded_by` tells it apart."""

    cause: str
    excluded_by: tuple[StrEnum, ...]


@dataclass(frozen=True)
class OnBench:
    """What live interventions showed about a recorded cause.

    - `tried`: the interventions for this cause; `named`: causes that other interventions proved on its side.
    - `proven`: an intervention proved it. `removed_all`: the side differed, and does not differ any more.
    - `settled`: nothing of the side differs on the bench. `remaining`: places that differ; None where the side was not
      on the bench.
    - `noise`: its engine does not repeat itself. `drawn`: samples that were drawn again with one version of the
      weights.
    """

    tried: tuple[Tried, ...] = ()
    named: tuple[CauseKey, ...] = ()
    proven: bool = False
    removed_all: bool = False
    settled: bool = False
    remaining: int | None = None
    noise: bool = False
    drawn: int = 0

    @property
    def removed(self) -> bool:
        """Whether one of its own interventions removed anything."""
        return any(attempt.removed for attempt in self.tried)

    @property
    def named_text(self) -> str:
        return ", ".join(map(str, self.named))


def differences(tried: Tried) -> str:
    """Return in words what an intervention did. It can also add differences."""
    return f"{tried.intervention}: {tried.before} differences before, {tried.after} after"


def contradicted(bench: OnBench) -> str:
    """Return why a recorded cause does not stand; "" where it does.

    It does not stand if its own interventions removed nothing and others removed everything.
    """
    if bench.proven or not bench.removed_all or not bench.tried or bench.removed or not bench.named:
        return ""
    return f"{differences(best(bench.tried))}; {bench.named_text} explains them all"


def refuted(bench: OnBench) -> str:
    """Return why an intervention refutes a recorded cause; "" where none does: each of its own left more differences
    than there were.
    """
    if not bench.tried or any(attempt.after <= attempt.before for attempt in bench.tried):
        return ""
    return f"{differences(best(bench.tried))}, so it refutes the cause"


def best(attempts: Iterable[Tried]) -> Tried:
    """Return the attempt that leaves the fewest differences."""
    return min(attempts, key=lambda attempt: attempt.after)


@dataclass(frozen=True)
class Rule:
    """How recordings show a cause.

    `run`: (evidence, what is explained so far) -> explanations. `because`: why it has its place in the order. `alone`:
    it needs one run only, and says as much about it as about either of two.
    """

    run: Callable[[Evidence, Explained], Iterable[Explanation]]
    because: str
    alone: bool = field(default=False, kw_only=True)


def of_each_side(
    rule: Callable[[Evidence, Side, Explained], Iterator[Explanation]],
) -> Callable[[Evidence, Explained], Iterator[Explanation]]:
    """Make the `run` of a `Rule` from a function that explains the divergences of one side."""

    @functools.wraps(rule)
    def run(e: Evidence, so_far: Explained) -> Iterator[Explanation]:
        for side in e.sides:  # the second side sees what was explained of the first
            yield from rule(e, side, so_far)

    return run


@dataclass(frozen=True)
class Contest:
    """Mistakes that the reference makes on purpose, as rivals of each other.

    The trials of all `rivals` are weighed against each other, and the best is taken. `because`: why they have their
    place in the order.
    """

    rivals: tuple[Callable[[Situation], Iterable[Trial]], ...]
    because: str


@dataclass(frozen=True)
class Intervention:
    """An intervention: what is undone on the engine of a situation.

    `title`: its name in notes. `because`: why it has its place in the order. `starts_engine`: it takes seconds that a
    caller may not have.
    """

    run: Callable[[Situation], object]
    title: str
    because: str
    starts_engine: bool = field(default=False, kw_only=True)


@dataclass(frozen=True)
class CauseFamily:
    """All causes of one name. The parts of their keys tell them apart.

    - `meaning`: what is wrong. `fix`: what to do about it.
    - `fixes`: part of a key -> what to do about such a cause instead.
    - `details`: part of a key -> what it says. `named`: what any other part names, such as a tensor of the model; ""
      where there are no others.
    - `rivals`: causes that would look the same. `alone`: why there are none.
    - `proof`: what proves it, or what supports it where nothing does.
    - `suspicion`: the number of its suspicion among the eleven, or 0. `suspicions`: numbers of single parts that
      differ.
    - `drawn`: the likelihood of native samples names it. `premise`: it changes that likelihood.
    - `cured_by`: the intervention that removes it, where several families share one.
    - `prompts`: kind of change of prompts under this cause (`prompts.observed.how`) -> the parts of its key.

    How it is found. Only families of other packages list these, and each takes the slot that the order keeps for
    plug-ins. Those of the harness have their places in `harness.parity.explain`, `harness.parity.attribution.reference`
    and `harness.parity.attribution.live`.

    - `rules`: how recordings show it.
    - `trials`: mistakes that the reference makes on purpose: situation -> trials.
    - `interventions`: what is undone on an engine.

    On a bench:

    - `contradicted`: why a recorded cause does not stand; "" where it does.
    - `confirmed`: the proof that a bench gives without an intervention, and what it shows.
    - `in_words`: what one of its interventions did.
    - `covers`: whether a recorded cause (second) is one of another name that was proven live (first).
    """

    name: str
    meaning: str = ""
    fix: str = ""
    fixes: Mapping[str, str] = field(default_factory=dict)
    details: Mapping[str, str] = field(default_factory=dict)
    named: str = ""
    rivals: tuple[Rival, ...] = ()
    alone: str = ""
    proof: ProofStandard = UNSTATED
    suspicion: int = 0
    suspicions: Mapping[str, int] = field(default_factory=dict)
    drawn: bool = False
    premise: bool = False
    cured_by: str = ""
    prompts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    rules: tuple[Rule, ...] = ()
    trials: tuple[Callable[[Situation], Iterable[Trial]], ...] = ()
    interventions: tuple[Intervention, ...] = ()
    contradicted: Callable[[OnBench], str] = contradicted
    confirmed: Callable[[OnBench], tuple[Proof, Seen] | None] = lambda bench: None
    in_words: Callable[[Tried], str] = differences
    covers: Callable[[CauseKey, CauseKey], bool] = lambda live, recorded: False

    def key(self, *parts: str, many: bool = False) -> CauseKey:
        """Return the key of a cause of this family. `many`: its parts are counted and not named."""
        return CauseKey(self.name, parts, many)

    def has(self, key: CauseKey) -> bool:
        return key.family == self.name

    @property
    def every_rival(self) -> tuple[Rival, ...]:
        """Return its rivals. Of a cause that tells a history, the same fault from the start is one of them."""
        if not self.proof.history:
            return self.rivals
        return *self.rivals, Rival("a fault from the first start on", self.proof.history)

    def fix_of(self, key: CauseKey) -> str:
        """Return what to do about a cause of this family."""
        return next((self.fixes[part] for part in key.parts if part in self.fixes), self.fix)

    def suspicion_of(self, key: CauseKey) -> int:
        """Return the number of the suspicion that a cause of this family belongs to; 0 for none."""
        return next((self.suspicions[part] for part in key.parts if part in self.suspicions), self.suspicion)
