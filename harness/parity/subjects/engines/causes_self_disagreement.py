"""The causes baseline-itself and candidate-itself (an engine that disagrees with itself), and BATCH (an engine whose
answer depends on what else is in the batch).

They explain differences of that size, and nothing beyond. An engine that repeats its draws and scores them otherwise is
not noisy: it does not decode as it scores.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import numpy as np

from harness.parity.causes.family import CauseFamily, OnBench, contradicted, of_each_side
from harness.parity.causes.proof import supported
from harness.parity.facts.divergence import ROLLOUT, DivergenceKey, Kind, keys
from harness.parity.facts.evidence import Evidence, Side
from harness.parity.facts.explanation import Explained, Explanation, among, scored_otherwise
from harness.parity.subjects.precision.observed_floor import HEADROOM, implausible
from harness.parity.subjects.prefix_cache.causes import untried_cache
from harness.parity.subjects.sampling.causes_random_numbers import RNG
from reports.model import Cause, CauseKey
from reports.text import figure, part_of

if TYPE_CHECKING:
    from harness.parity.interventions.situation import Tried


@of_each_side
def noisy(e: Evidence, side: Side, so_far: Explained) -> Iterator[Explanation]:
    """Find an engine whose own floor exceeds the cap, or that does not draw the same tokens twice."""
    if not len(so_far.left(Kind.FLOOR.of(side.name))):
        return
    floor = side.floor
    place = e.first[Kind.FLOOR.of(side.name)].place
    if not floor.exceeds(e.of_engines):  # log-probabilities agree, tokens do not
        yield Explanation(
            Cause.of(
                RNG.key("seed ignored"),
                side.name,
                place.context,
                f"{floor.flips} samples were drawn differently at equal weights and seeds, though "
                f"log-probabilities of equal tokens agree within {figure(floor.largest)} nats",
                {"variants": floor.variants},
            ),
            keys((Kind.FLOOR, Kind.FLIP, Kind.LENGTH, Kind.FINISH, Kind.CHOICE), side.name),
        )
        return
    if untried_cache(e, side, so_far) or floor.of_one_sample(e.of_engines):
        return  # no recording tells the engine from its cache, or from one wrong number: UNEXPLAINED reports them
    if _of_the_batch(e, side):
        yield _batched(e, side)
        return
    # Noise of this size explains differences up to a multiple of it. Larger ones stay open.
    reach = HEADROOM * max(floor.largest, e.of_engines.cap)
    largest = e.between_engines.largest[0]
    # A difference of the engines beyond that reach is no noise, so noise then explains nothing but the floor.
    within = not np.isfinite(largest) or largest <= reach
    kinds: tuple[Kind, ...] = (Kind.FLOOR,)
    if within:
        kinds += (Kind.LOGPROB, Kind.FLIP, Kind.ENGINE, Kind.CHOICE, Kind.SYNC, Kind.NATIVE_LEARNER)
    otherwise = bool(scored_otherwise(e, side.name))
    drawn = "; its draws agree with each other in other batches and orders: it does not draw as it scores, or "
    drawn = drawn + "was sent other prompts than it says" if otherwise else ""
    summary = f"the {side.name} scores its own samples differently than it drew them, by more than the cap"
    yield Explanation(
        Cause.of(
            itself(side.name, DECODING if otherwise else ""),
            side.name,
            summary if otherwise else place.context,
            f"max |Δ| {figure(floor.largest)} nats of the engine against "
            f"itself at equal weights and randomness, cap {figure(e.of_engines.cap)}{drawn}",
            {"variants": floor.variants},
        ),
        keys(kinds, side.name),
        not_explained=_out_of_reach(e, side, reach),
    )


def _out_of_reach(e: Evidence, side: Side, reach: float) -> dict[DivergenceKey, Callable[[np.ndarray], np.ndarray]]:
    """Return the flips that noise of `reach` nats cannot cause, for an engine that draws the same tokens each time.

    Their margin, in nats of logits over T, is larger.
    """
    if side.floor.implausible_flips(e.of_engines.cap, e.tolerance.temperature):
        return {}
    far = np.abs(e.flips.margin) > reach * max(1.0, 1.0 / (e.tolerance.temperature or 1.0))
    where = among(e.flips.table[far][:, :2])
    return {Kind.FLIP.of(): where, Kind.CHOICE.of(side.name): where}


def _of_the_batch(e: Evidence, side: Side) -> bool:
    """Whether an engine repeats its draws in another order, and draws otherwise in other batches."""
    order, batch = (side.floor.variants.get(name, {}) for name in ("order", "batch"))
    if not order.get("tokens") or order["flips"] or order["max"] > e.of_engines.cap or side.floor.not_finite:
        return False
    tokens = batch.get("tokens", 0) + batch.get("flips", 0)
    return implausible(batch.get("flips", 0), tokens, e.of_engines.cap, e.tolerance.temperature)


def _batched(e: Evidence, side: Side) -> Explanation:
    order, batch = side.floor.variants["order"], side.floor.variants["batch"]
    cause = Cause.of(
        BATCH.key(),
        side.name,
        f"the {side.name}'s engine draws other tokens for the same samples when other samples are in the batch",
        f"in other batches it drew {batch['flips']} samples differently, in another order of the same batch none of "
        f"{order['tokens']} tokens; padding is one reason, kernels that depend on the batch are another",
        {"variants": side.floor.variants},
    )
    kinds = (Kind.FLOOR, *ROLLOUT, Kind.SYNC, Kind.NATIVE_LEARNER)
    return Explanation(cause, keys(kinds, side.name))


def itself(side: str, part: str = "") -> CauseKey:
    """Return the cause for this side's engine against itself. `part`: in what it differs; "" for noise."""
    return (BASELINE_ITSELF if side == "baseline" else CANDIDATE_ITSELF).key(*filter(None, [part]))


def _in_words(tried: Tried) -> str:
    places = part_of(tried.after, tried.before, "drawn or scored token")
    return f"{tried.intervention}: {places} changed, or got another log-probability"


def _repeats_itself(bench: OnBench) -> str:
    if not contradicted(bench) or bench.tried[0].after:
        return ""
    first = bench.tried[0]
    unchanged = f"changes none of {first.before} drawn and scored tokens"
    return f"{bench.named_text} explains it: without that, to {first.intervention} {unchanged}"


DECODING = "decoding"
_DECODING = {DECODING: "it decodes other log-probabilities than it scores of the same tokens"}
_DECODES = {
    DECODING: "look at what decoding does and scoring does not: the type of the KV cache, its kernel, numbers "
    "that are put in afterwards; the engine repeats its draws, so this is no noise"
}
BASELINE_ITSELF = CauseFamily(
    "baseline-itself",
    meaning="the baseline gives other tokens or log-probabilities when it is asked the same again",
    fix="make the baseline repeat itself first: it differs from itself under equal inputs",
    details=_DECODING,
    alone="the engine is held against itself",
    fixes=_DECODES,
    contradicted=_repeats_itself,
    in_words=_in_words,
    suspicion=4,
    proof=supported("an engine that is asked again gives a second answer; nothing is undone"),
)
CANDIDATE_ITSELF = CauseFamily(
    "candidate-itself",
    meaning="the candidate gives other tokens or log-probabilities when it is asked the same again",
    fix="make the candidate repeat itself first: it differs from itself under equal inputs",
    details=_DECODING,
    fixes=_DECODES,
    alone="the engine is held against itself",
    contradicted=_repeats_itself,
    in_words=_in_words,
    proof=supported("an engine that is asked again gives a second answer; nothing is undone"),
)

BATCH = CauseFamily(
    "BATCH",
    meaning="what an engine draws for a sample depends on the other samples in its batch",
    fix="draw a sample alone and in its batch: look at padding, attention masks and positions of the batch first, then "
    "at kernels that depend on its size",
    alone="the same samples in another order of the same batch agree, so it is no noise",
    proof=supported("other batches give other draws; no sample was drawn alone"),
)

FAMILIES = (BASELINE_ITSELF, CANDIDATE_ITSELF, BATCH)
