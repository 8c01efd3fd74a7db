"""The cause STALE_KV: a prefix cache with keys and values of earlier weights. Only samples with cached tokens
differ.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from harness.parity.causes.family import CauseFamily, OnBench, Rival, Seen, best, differences, of_each_side
from harness.parity.causes.proof import either
from harness.parity.facts.divergence import ROLLOUT, Kind, keys
from harness.parity.facts.evidence import Evidence, Side
from harness.parity.facts.explanation import Explained, Explanation, among, keys_of, scored_otherwise, when
from harness.parity.facts.probabilities import all_among
from harness.parity.interventions.situation import LEAST, Situation, Tried, improves, vanished
from harness.parity.interventions.steps import Undone, add_cause, tell, undo
from reports.model import Cause, Proof
from reports.text import counted, figure, part_of

CHANCE = 1e-3  # greatest probability that so many differing samples all have cached tokens by chance
FEWEST = 3  # samples that each part of a comparison needs


@of_each_side
def stale_cache(e: Evidence, side: Side, so_far: Explained) -> Iterator[Explanation]:
    """Find sides of which only samples with cached tokens differ from the learner."""
    cached_only = only_cached(e, side, so_far)
    if cached_only is None:
        return
    affected, warm, cold, observed = cached_only
    yield Explanation(
        Cause.of(
            key=STALE_KV.key(),
            party=side.name,
            summary="the engine differs from its learner on samples with cached tokens only, "
            f"{when(e, affected[:, 0])}",
            evidence=f"{part_of(len(affected), warm, 'sample')} with cached tokens, 0 of {cold:,} others",
            details={
                "samples": len(affected),
                "steps": np.unique(affected[:, 0]).tolist(),
            },
            proofs=[Proof("leave out the samples with cached tokens", len(affected), 0, "samples")],
            observed=observed,
        ),
        # Scoring reads no cache. Where drawing reads a stale one, the engine differs from itself between the two.
        (*keys(ROLLOUT, side.name), *scored_otherwise(e, side.name)),
        among(affected),
    )


def only_cached(e: Evidence, side: Side, so_far: Explained) -> tuple[np.ndarray, int, int, list[Seen]] | None:
    """Return the samples that differ, where only ones with cached tokens do, and more of them than chance gives; else
    None.

    The tuple holds: (step, sample) of those that differ, the number of samples with cached tokens, the number without,
    and what tells the cache apart from the place in the group and from the prompt's length. Only samples that no cause
    named so far explains count, in the steps in which they differ.
    """
    kind = Kind.ENGINE.of(side.name)
    readings = e.log_probabilities.readings.get(kind)
    if readings is None or not len(so_far.left(kind)):
        return None
    open_ = so_far.left(kind)
    wrong = np.isin(keys_of(readings.keys), keys_of(open_)) & (readings["beyond"] > 0)
    steps = np.isin(readings["step"], readings["step"][wrong])
    explained = np.isin(keys_of(readings.keys), keys_of(e.found(kind))) & ~wrong
    comparable = steps & (readings["tokens"] > 0) & ~explained
    warm, cold = comparable & (readings["cached"] > 0), comparable & (readings["cached"] == 0)
    wrong &= comparable
    if (wrong & ~warm).any() or wrong.sum() < FEWEST or cold.sum() < FEWEST:
        return None
    chance = all_among(int(warm.sum()), int(warm.sum() + cold.sum()), int(wrong.sum()))
    if chance > CHANCE:
        return None
    # Chance alone does not clear the rivals; each needs a comparison of its own.
    # Where the first sample of each prompt fills the cache for the others, a fault of all but the first looks the same.
    first = _first_of_group(e, readings.keys)
    crossed = (wrong & first).sum() >= FEWEST or (cold & ~first).sum() >= FEWEST
    observed = [Seen.CACHE_CROSSED] if crossed else []
    # Short prompts fill no cache block. A fault of long prompts looks the same where only those have cached tokens.
    prompt = readings["prompt"]
    if (cold & (prompt >= prompt[wrong].min()) & (prompt[wrong].min() >= 0)).sum() >= FEWEST:
        observed.append(Seen.AS_LONG_AGREE)
    return readings.keys[wrong], int(warm.sum()), int(cold.sum()), observed


def _first_of_group(e: Evidence, keys: np.ndarray) -> np.ndarray:
    """Return a mask: whether each (step, sample) is the first of its prompt in its step."""
    leaders: set[tuple[int, int]] = set()
    for step in np.unique(keys[:, 0]).tolist():
        table = e.baseline.recording.table("rollout", step)
        if table is None or (prompts := table.rows("prompt")) is None:
            continue
        first: dict[bytes, int] = {}
        for row, sample in enumerate(table.sample.tolist()):
            ids = prompts.row(row).tobytes()
            first[ids] = min(sample, first.get(ids, sample))
        leaders |= {(step, sample) for sample in first.values()}
    return np.array([(int(step), int(sample)) in leaders for step, sample in keys], bool)


def untried_cache(e: Evidence, side: Side, so_far: Explained) -> str:
    """Return why a stale cache is suspected but cannot be proven; "" where it is not suspected.

    The side repeats its draws and scores the same tokens otherwise. All its differing samples had cached tokens, and
    too few samples had none. A cache with keys of earlier weights shows like this, and so does an engine whose decode
    differs from its prefill.
    """
    if side.name in e.learned.past_cache:
        return ""
    kind = Kind.ENGINE.of(side.name)
    readings, open_ = e.log_probabilities.readings.get(kind), so_far.left(kind)
    has_open_floor = bool(len(so_far.left(Kind.FLOOR.of(side.name))))
    if readings is None or not len(open_) or not has_open_floor or not scored_otherwise(e, side.name):
        return ""
    wrong = np.isin(keys_of(readings.keys), keys_of(open_)) & (readings["beyond"] > 0)
    comparable = np.isin(readings["step"], readings["step"][wrong]) & (readings["tokens"] > 0)
    wrong &= comparable
    cold = int((comparable & (readings["cached"] == 0)).sum())
    if not wrong.any() or (wrong & (readings["cached"] <= 0)).any():
        return ""
    return (
        f"the {side.name} draws the same in other batches and orders, and scores the same tokens differently, by up to "
        f"{figure(side.floor.largest)} nats; suspected, not proven: a stale prefix cache (STALE_KV), as all "
        f"{counted(int(wrong.sum()), 'sample')} that differ from the learner had cached tokens, and to leave those "
        f"out leaves {cold} of the same steps: too few to compare with; a decode that is not the prefill looks the same"
    )


def differ_past_cache(tried: Iterable[Tried]) -> tuple[str, ...]:
    """Return the sides that still differ when nothing comes from a cache, for `Learned.past_cache`."""
    past = [attempt for attempt in tried if STALE_KV.has(attempt.cause)]
    still_differing = {attempt.side for attempt in past if attempt.after}
    helped = {attempt.side for attempt in past if attempt.removed}
    return tuple(sorted(still_differing - helped))


def repeats_past_cache(s: Situation) -> bool:
    """Whether an engine that gives other numbers in two equal draws agrees with the reference, and repeats itself, past
    its prefix cache.

    A stale cache looks like noise, since a draw renews a part of it. Noise may also be absent by chance: the engine is
    read twice past its cache, and the difference must come back with the cache. `s.symptoms` are then those of one draw
    with it.
    """
    if not s.symptoms.cached:
        return False
    noisy = s.symptoms
    s.bench.past_cache(s.side, True)
    past = s.bench.read(s.side, again=True)
    s.bench.past_cache(s.side, False)
    is_quiet = not past.noise and vanished(noisy, s.settled(past, s.alteration))
    with_cache = s.bench.read(s.side, again=not is_quiet)
    if is_quiet and with_cache.total >= LEAST:
        s.symptoms = with_cache
        return True
    return False


def past_cache(s: Situation) -> None:
    """Read the engine without its prefix cache from now on. STALE_KV is named where the difference disappears.

    A flush is not relied on for this: an engine may report success without flushing, which the summary then says.
    """
    if not s.symptoms.cached:
        s.notes.append(f"STALE_KV ({s.side}): no prompt token of the case came from a cache")
        return
    what, cached = "draw past the prefix cache", s.symptoms.cached
    done = undo(s, lambda: s.bench.past_cache(s.side, True))
    # From here on every reading is made without the cache, helpful or not: what it kept would spoil them.
    s.past_cache, before = True, s.symptoms
    good = improves(before, done.after)
    tell(s, what, STALE_KV.key(), done, good)
    s.symptoms = done.after
    if not good:
        return
    # The cache is at fault. Whether a flush would have helped is asked for the report only.
    s.bench.past_cache(s.side, False)
    flushed = undo(s, lambda: s.bench.flush(s.side))
    kept = not improves(before, flushed.after)
    tell(s, "flush the prefix cache", STALE_KV.key(), flushed, not kept)
    s.bench.past_cache(s.side, True)
    summary = f"the {s.side}'s engine reuses keys and values of earlier weights from its prefix cache"
    if kept:
        summary += "; it answers an order to flush it with success, and does not follow it"
    details = {"cached prompt tokens before": cached, "a flush removes it": not kept}
    done = Undone(before, done.after, done.seconds)
    add_cause(
        s=s,
        cause=STALE_KV.key(),
        proof=done.proof(what),
        summary=summary,
        details=details,
        exclusions=(Seen.PAST_CACHE_AGREES,),
    )


def _past_cache_differs(bench: OnBench) -> str:
    if bench.tried and not bench.removed:
        return f"{Seen.PAST_CACHE_DIFFERS}: {differences(best(bench.tried))}"
    return ""


STALE_KV = CauseFamily(
    "STALE_KV",
    meaning="samples were drawn from cached keys and values of earlier weights",
    contradicted=_past_cache_differs,
    fix="flush the prefix cache after every weight sync",
    rivals=(
        Rival("a fault of the place in the group", (Seen.PAST_CACHE_AGREES, Seen.CACHE_CROSSED)),
        Rival("a fault of long prompts", (Seen.PAST_CACHE_AGREES, Seen.AS_LONG_AGREE)),
    ),
    suspicion=8,
    premise=True,
    proof=either("the same samples agree when nothing comes from the cache", history=(Seen.RIGHT_BEFORE,)),
)

FAMILIES = (STALE_KV,)
