"""Interventions on the engine itself: undo one thing, read again, and see whether the difference disappeared with it.

The cheapest come first: read without the cache, read the weights back, send one tensor after another, restart with the
same weights. What is undone stays undone, and the reference keeps the alterations that were found before.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

from harness.parity.attribution.put_back import engine_parameters
from harness.parity.causes import registry
from harness.parity.causes.family import Intervention, Seen
from harness.parity.causes.registry import Slot
from harness.parity.interventions.bench import Bench
from harness.parity.interventions.situation import LEAST, Situation, Tried, improves
from harness.parity.interventions.steps import add_cause, tell, undo
from harness.parity.subjects.engines.causes_self_disagreement import itself
from harness.parity.subjects.order.causes import other_sample_numbers
from harness.parity.subjects.prefix_cache.causes import past_cache
from harness.parity.subjects.weights.causes import WEIGHTS
from harness.parity.subjects.weights.causes_derived import STALE_DERIVED
from harness.parity.subjects.weights.live_read_back import equal_weights, in_words, past, read_back
from harness.parity.subjects.weights.live_tensors import (
    LISTED,
    other,
    recorded,
    sent_again,
    sent_or_not,
    tensors,
    weights_key,
)
from reports.model import RESIDUE, CauseKey
from reports.text import counted, part_of
from scenarios.bench.case import HeadReport, Symptoms

REGROUP = "draw the case again in other batches"
FRESH = "a fresh engine with the same weights"


def resent(bench: Bench, side: str) -> Symptoms:
    """Read the case right after a sync that changed the weights: send other weights, draw with them, then send the
    learner's.

    This shows what an engine keeps over a sync, even where a flush or other requests after the run had removed it.
    """
    bench.send_otherwise(side, [name for group in bench.tensors(side) for name in group])
    # Otherwise the draw reuses what is cached for the learner's weights, and leaves nothing of its own. The engine may
    # ignore a flush, or may have no cache keys.
    bench.unused_cache(side)
    bench.flush(side)
    bench.read(side)
    bench.sync(side)
    return bench.read(side, again=True)


def restart(s: Situation) -> None:
    """Start a fresh engine that loads the same weights from disk, and then send it the same weights by a sync.

    If the fresh engine agrees, also after the sync, the old one kept something made of earlier weights: STALE_DERIVED.
    If the sync spoils it, what the engine then holds tells WEIGHTS from STALE_DERIVED.
    """
    what = FRESH

    def anew() -> None:
        s.bench.restart(s.side)
        s.bench.hold(s.side, [])  # it holds the learner's tensors again, and so does the reference

    done = undo(s, anew)
    good = improves(s.symptoms, done.after)
    tell(s, what, STALE_DERIVED.key(), done, good)
    if good:
        synced = undo(s, lambda: s.bench.sync(s.side))
        spoilt = synced.after.total > max(LEAST, 2 * done.after.total)
        tell(s, "the same weights sent to the fresh engine", WEIGHTS.key(), synced, spoilt)
        names = [] if sent_again(s) else recorded(s)
        if names and not spoilt:  # the recordings say what it held; a fresh engine confirms that and nothing else
            for name in names[:LISTED]:
                exclusions = sent_or_not(s, [name])
                add_cause(
                    s=s,
                    cause=weights_key(s, [name]),
                    proof=done.proof(what),
                    summary=other(s, name),
                    details={"tensor": name},
                    exclusions=exclusions,
                )
            s.symptoms = done.after
            return
        # A fresh engine has both new weights and nothing kept. The sync of the same weights tells which of them helped.
        details = {"after a sync of the same weights": synced.after.total}
        if spoilt:
            cause, summary, exclusions = _spoilt_by_a_sync(s)
        else:
            cause, exclusions = STALE_DERIVED.key(), equal_weights(s)
            summary = f"the {s.side}'s engine keeps something made of earlier weights: sending them again does not "
            summary += "help, a fresh engine agrees"
        add_cause(
            s=s,
            cause=cause,
            proof=done.proof(what),
            summary=summary,
            details=details,
            exclusions=(Seen.FRESH_AGREES, *exclusions, *past(s)),
        )
    s.symptoms = done.after


def _spoilt_by_a_sync(s: Situation) -> tuple[CauseKey, str, tuple[Seen, ...]]:
    """Return (cause, summary, what was seen) for an engine that agrees when loaded from disk, but not after a sync."""
    held_report = s.bench.held(s.side)
    s.notes.append(f"read back from the {s.side}'s engine after that sync: {in_words(held_report)}")
    if held_report.all_equal:
        buffers = ", ".join(held_report.of_buffers("differs")[:3])
        return (
            STALE_DERIVED.key(*held_report.of_buffers("differs")[:3]),
            f"a sync spoils {buffers or 'what'} the {s.side}'s engine makes of its weights, which are the learner's",
            (Seen.HELD_EQUAL,),
        )
    names = held_report.names if 0 < len(held_report.names) <= LISTED else ["loading"]
    summary = f"the {s.side}'s engine holds something else than a sync sends: from disk it agrees, synced it does not"
    return WEIGHTS.key(*names), summary, (Seen.HELD_OTHERWISE, Seen.CHANGED) if held_report.names else ()


def regroup(s: Situation) -> None:
    """Draw the case in other batches and another order, once no difference is left.

    An engine that is noisy by itself then disagrees with itself. One whose noise had another cause agrees.
    """
    started = s.clock()
    apart, places = s.bench.regrouped(s.side)
    seconds = s.clock() - started
    s.tried.append(
        Tried(
            intervention=REGROUP,
            cause=itself(s.side),
            side=s.side,
            before=places,
            after=apart,
            seconds=seconds,
            removed=False,
        )
    )


INTERVENTIONS: tuple[Intervention | Slot, ...] = (
    Intervention(other_sample_numbers, "order", "the responses are there already: nothing is drawn again"),
    Intervention(past_cache, "cache", "one draw; what a cache kept would spoil the readings that follow"),
    Intervention(
        engine_parameters,
        "parameters",
        "a record says what was given; another type moves every score",
        starts_engine=True,
    ),
    Intervention(read_back, "read back", "what the engine holds, before anything is sent to it"),
    Intervention(tensors, "tensors", "sent again where it cannot be read"),
    Slot.PLUGINS,  # a fresh engine would remove what they undo
    Intervention(restart, "restart", "last: a fresh engine agrees, whatever the old one kept", starts_engine=True),
)


@functools.cache
def interventions() -> tuple[Intervention, ...]:
    """Return everything that is undone on an engine, cheapest first."""
    return registry.interventions(INTERVENTIONS)


def search(s: Situation, *, restarts: bool = True, then: Callable[[Situation], None] = lambda s: None) -> None:
    """Undo one thing after another until nothing is left, or time runs out.

    `then`: called after each one that removed something, for differences that it may have hidden.
    """
    for intervention in interventions():
        if not s.remaining.total:
            return
        # What is left out is noted only where it would have applied: parameters only if any differ from what was asked.
        if intervention.starts_engine and not restarts:
            if intervention.run is not engine_parameters or s.changed:
                s.notes.append(f"a fresh engine for the {s.side} ({intervention.title}): not tried, restarts are off")
            continue
        # The restart has no share in the time for interventions (`attribute.BUDGET_S`).
        if s.over and intervention.run is not restart:
            s.notes.append(f"not tried for lack of time: {intervention.title} ({s.side})")
            continue
        named_before = len(s.named)
        intervention.run(s)
        if len(s.named) > named_before and s.remaining.total:
            then(s)


def attention_lengths(s: Situation) -> str:
    """Return in words where the engine's attention reads another number of keys and values than it should.

    It should read those of the token and of all before it. Returns "" where it does so on the sample that differs most,
    or where the engine does not show it.
    """
    number = max(s.remaining.by_sample, key=lambda sample: s.remaining.by_sample[sample])
    read = s.bench.keys_read(s.side, number)
    if read is None:
        s.notes.append(
            f"keys and values that the {s.side}'s attention reads: not tested, its engine does not show them"
        )
        return ""
    unequal_reads = [(position, keys) for position, keys in read if keys != position + 1]
    if not unequal_reads:
        s.notes.append(
            f"the {s.side}'s attention reads the keys and values of each token and of all before it, at all "
            f"{counted(len(read), 'token')} of sample {number} that were looked at"
        )
        return ""
    position, keys = unequal_reads[0]
    return (
        f"drawing sample {number}, attention reads {counted(keys, 'key')} at position {position}, where there are "
        f"{position + 1}, and so at {part_of(len(unequal_reads), len(read), 'token')}"
    )


def _place(number: int, layer: int, apart: float, head: HeadReport | None) -> tuple[str, str]:
    """Return the place where a forward pass departs from the reference's, and how that is known.

    States may part before the head by more than they round and by too little to matter: Transformers' attention leaves
    out a soft cap that an engine applies, for example. What enters the engine's head is given to the reference's, too.
    """
    if not apart:
        return "head", f"hidden states of sample {number} agree in all {layer} layers: the difference comes after them"
    first = "in the embeddings" if layer < 0 else f"in layer {layer}"
    place, description = (
        first.removeprefix("in ").removeprefix("the "),
        (f"hidden states of sample {number} differ first {first}, by {apart:.2g} of their size"),
    )
    if head is None or head.before < LEAST:
        return place, description
    description += (
        f"; given what enters the engine's head, the reference's head differs from it at {head.after} of "
        f"{head.before} tokens, and from itself at {head.by_states}"
    )
    if head.after <= RESIDUE * head.before:
        return place, description
    # The head differs by itself. The layers do not matter where the reference's own head hardly notices their states.
    layers_matter = head.by_states > RESIDUE * head.before
    return (f"{place} and head" if layers_matter else "head"), description


def narrowest(s: Situation) -> tuple[str, str]:
    """Return in words the first layer at which the engine differs from the reference, on the sample that differs most.

    The second value is that place alone, where the engine was seen to hold everything that the reference holds, or
    where what could be read is equal and a fresh engine differs as well; else "". In half precision it is always "",
    because hidden states differ by rounding there.
    """
    number = max(s.remaining.by_sample, key=lambda sample: s.remaining.by_sample[sample])
    first_layer = s.bench.first_layer(s.side, number)
    if first_layer is None:
        return f"the first divergent layer of the {s.side}: not tested, its engine does not show hidden states", ""
    place, description = _place(number, *first_layer, s.bench.head(s.side, number))
    # Only where all that the engine holds is known to be right can the layer itself be blamed.
    untested = 1
    nothing_wrong = s.held is not None and not s.held.otherwise and not s.held.of_buffers("differs")
    if s.held is not None and s.held.all_equal and nothing_wrong:
        untested = len(s.held.of_buffers("not tested"))
        more = f" ({untested} more not tested)" if untested else ""
        description += (
            "; every tensor that the engine holds is the learner's, and so is every buffer that the configuration "
            f"computes{more}: it computes other numbers with them"
        )
    fresh_differs_too = any(tried.intervention == FRESH and tried.side == s.side for tried in s.tried)
    if nothing_wrong and fresh_differs_too:
        untested = 0  # what a fresh engine does as well, no earlier state did
    return description, "" if untested or s.evidence.tolerance.half else place
