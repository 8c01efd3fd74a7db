"""The cause ARITHMETIC, and the causes of the lifted stage: what differs in float32 too, and what in half precision
only.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np

from harness.parity.causes.family import CauseFamily, OnBench, contradicted
from harness.parity.causes.proof import supported
from harness.parity.causes.unexplained import UNEXPLAINED
from harness.parity.facts.divergence import DivergenceKey, Kind
from harness.parity.facts.evidence import Evidence, Side
from harness.parity.facts.explanation import Explained, Explanation, among
from harness.parity.subjects.log_probabilities.observed_outliers import outliers
from harness.parity.subjects.precision.observed_lifted import STAGE, LiftedResult
from harness.parity.subjects.precision.observed_rounding import BELIEVED, FARTHEST
from reports.model import Cause
from reports.text import figure

# Times the learner's rounding. Two engines that round independently are 1.4 times as far from each other as each is
# from the exact value.
BULK = 3.0
NATIVE_TAIL = 0.01  # share of the tokens; between vLLM and its learner, both in bfloat16, 4 of 1,158 lay beyond the cap
# A fault that moves log-probabilities in float32 also shows as these in half precision: in the mean of a run, and in
# the native stage.
_ALSO = frozenset({Kind.ENGINE_DRIFT, Kind.DRIFT, Kind.BEHIND, Kind.NATIVE_LEARNER})


def logic(e: Evidence, so_far: Explained) -> Iterator[Explanation]:
    """Yield the causes of the lifted stage, UNEXPLAINED among them.

    Where all of them are named and of one engine, they also explain that engine's differences that are left in half
    precision and that the stage shows too.
    """
    result = e.lifted
    if result is None or result.verdict is None or not len(so_far.left(Kind.LIFTED.of())):
        return
    for cause in result.verdict.causes:
        details = {**cause.details, "stage": STAGE}
        computed = f"computed in float32 with the same {result.dtype} weights"
        evidence = f"{cause.evidence}; {computed}" if cause.evidence else computed
        named = dataclasses.replace(cause, evidence=evidence, details=details)
        yield Explanation(named, (Kind.LIFTED.of(), *_of_the_same_engine(e, so_far, result)))


def _of_the_same_engine(e: Evidence, so_far: Explained, result: LiftedResult) -> tuple[DivergenceKey, ...]:
    """Return the open differences of the one engine that all causes of the stage blame, and that the stage shows."""
    causes = result.verdict.causes if result.verdict is not None else []
    parties = {cause.party for cause in causes}
    if len(parties) != 1 or any(UNEXPLAINED.has(cause.key) for cause in causes):
        return ()
    (party,) = parties
    if party not in {side.name for side in e.sides}:
        return ()
    moved = bool(result.kinds & {Kind.LOGPROB.of(), Kind.ENGINE.of(party)})
    in_stage = [key for key in e.first if key in result.kinds or (moved and key.kind in _ALSO)]
    return tuple(key for key in in_stage if key.side in (None, party) and len(so_far.left(key)))


def arithmetic(e: Evidence, so_far: Explained) -> Iterator[Explanation]:
    """Find differences of log-probabilities that float32 does not show and that are no larger than the learner's own
    rounding.

    A sample with a token that is further off than rounding reaches (`_out_of_reach`) is not explained. In the native
    stage such differences may be few only. Tokens, lengths and finish reasons that differ are not explained: rounding
    is only one of their possible reasons.
    """
    result = e.lifted
    if result is None or not result.equal:
        return
    names = [side.name for side in e.sides]
    candidates = [Kind.LOGPROB.of(), *map(Kind.ENGINE.of, names)]
    candidates += [Kind.NATIVE_LEARNER.of(name) for name in names if _tail(e, name)]
    kinds = tuple(kind for kind in candidates if len(so_far.left(kind)))
    # Each engine must be about as far from its learner as the learner's own rounding explains.
    compared_sides = [side for side in e.sides if side.to_learner.tokens]
    means = {side.name: side.to_learner.sums["delta"] / side.to_learner.tokens for side in compared_sides}
    rounding = {side.name: _rounding(side) for side in e.sides}
    if not kinds or not all(means.get(name, np.inf) <= BULK * mean for name, mean in rounding.items()):
        return
    evidence = "; ".join(
        f"the {name} is {figure(means[name])} nats from its learner on average, which rounds by {figure(mean)} itself"
        for name, mean in rounding.items()
    )
    away = {key.side for key in kinds if key.side is not None}
    party = away.pop() if len(away) == 1 else "comparison"
    yield Explanation(
        Cause.of(
            ARITHMETIC.key(result.dtype),
            party,
            f"log-probabilities part beyond what is tolerated in {result.dtype}, and agree {result.in_words()}",
            f"{evidence}; a defect of a kernel that only {result.dtype} runs would look the same and was not "
            "told apart",
            {"kinds": [key.label for key in kinds], "mean": means, "rounding of the learner": rounding},
        ),
        kinds,
        not_explained={key: _out_of_reach(e, key) for key in kinds},
    )


def _out_of_reach(e: Evidence, key: DivergenceKey) -> Callable[[np.ndarray], np.ndarray]:
    """Select the samples with a token further off than rounding reaches, or with NaN or infinity.

    Rounding reaches as far as a single token may be off. Where many tokens are far off it reaches `FARTHEST` times the
    largest of them without the allowed outliers, since rounding has a tail: a token far beyond that of all others has
    another reason.
    """
    tail = e.log_probabilities.tails.get(key)
    if tail is None:
        return lambda items: np.ones(len(items), bool)
    samples, largest = tail.samples, tail.largest
    allowed = outliers(tail.compared)
    ordered = np.sort(largest[np.isfinite(largest)])
    level = min(float(ordered[-1 - allowed]), BELIEVED * e.tolerance.cap) if len(ordered) > allowed else 0.0
    return among(samples[~(largest <= max(e.extreme(key.kind), FARTHEST * level))])


def _tail(e: Evidence, side: str) -> bool:
    """Whether the native stage's log-probabilities differ from the learner's by a tail of rounding only."""
    tail = e.log_probabilities.tails.get(Kind.NATIVE_LEARNER.of(side))
    return tail is not None and tail.beyond <= NATIVE_TAIL * tail.compared


def _rounding(side: Side) -> float:
    """Return the mean |Δ| of the learner's own rounding, nats; 0, which excuses nothing, where it was not recorded."""
    values: list[np.ndarray] = []
    for step in side.recording.steps("floor"):
        rounding = side.recording.rows("floor", step, "rounding", variant="rounding")
        if rounding is not None:
            values.append(rounding.values)
    numbers = np.concatenate(values or [np.zeros(0)])
    finite = numbers[np.isfinite(numbers)]
    return float(finite.mean()) if len(finite) else 0.0


def _another_cause(bench: OnBench) -> str:
    """Contradict the cause where the difference has another explanation: the sync of the lifted stage may cure the
    run's fault.
    """
    explains = f"the differences go without arithmetic in another format: {bench.named_text} explains them"
    return explains if bench.removed_all and bench.named else contradicted(bench)


ARITHMETIC = CauseFamily(
    "ARITHMETIC",
    meaning="rounding in half precision: the difference is gone in float32",
    named="the type in which both engines compute",
    contradicted=_another_cause,
    fix="compute in a wider type: the difference is rounding beyond what was believed",
    alone="it is gone in float32, and was there in half precision",
    proof=supported("float32 agrees, and every engine was started again for it"),
)

FAMILIES = (ARITHMETIC,)
