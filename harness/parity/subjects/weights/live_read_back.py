"""Read the weights back: what the engine holds says whether a tensor, a buffer, or neither is at fault.

A tensor that is not the learner's is sent once more. If it then is, it had been missed or altered on its way; if not,
something else is sent on purpose: an engine that does not change refuses it, one that changes alters what it loads.
"""

from __future__ import annotations

import dataclasses

from harness.parity.causes.family import Seen
from harness.parity.interventions.situation import Named, Situation, improves
from harness.parity.interventions.steps import Undone, add_cause, tell, undo
from harness.parity.subjects.weights.causes import STALE_WEIGHTS, WEIGHTS
from harness.parity.subjects.weights.causes_derived import STALE_DERIVED
from harness.parity.subjects.weights.live_tensors import LISTED, of_version, other, sent_or_not, weights_key
from reports.model import Proof
from reports.text import counted
from scenarios.bench.case import HeldOtherwise, HeldReport

HELD = "the reference computes with {} as the engine holds it"


def read_back(s: Situation) -> None:
    """Compare every tensor that the engine holds with the learner's, then its buffers with the configuration."""
    if not s.rest.of("scores"):
        return
    s.held = held = s.bench.held(s.side)
    s.notes.append(f"read back from the {s.side}'s engine: {in_words(held)}")
    if held.otherwise:
        _tensors(s, held)
    if s.rest.total and held.of_buffers("differs"):
        _buffers(s, held.of_buffers("differs"))


def in_words(held: HeldReport) -> str:
    said = [f"{counted(held.equal, 'tensor')} equal to the learner's"]
    if held.otherwise:
        said.append(f"{len(held.otherwise)} other: {', '.join(_told(one) for one in held.otherwise[:LISTED])}")
    for name, why in list(held.unreadable.items())[:1]:
        said.append(f"{len(held.unreadable)} not readable, {name} for one: {why}")
    states = ((state, held.of_buffers(state)) for state in ("equal", "differs", "not tested"))
    said += [f"{counted(len(names), 'buffer')} {state}" for state, names in states if names]
    return ", ".join(said)


def _told(one: HeldOtherwise) -> str:
    said = ", ".join(filter(None, (one.where, one.how)))
    return f"{one.name} in {one.rows} of {counted(one.of, 'row')}{f' ({said})' if said else ''}"


def _tensors(s: Situation, held: HeldReport) -> None:
    """Send what is not the learner's once more; whatever it then holds, the reference computes with what is left."""
    names = held.names
    before, started = s.symptoms, s.clock()
    # A recorded digest is of a whole tensor, and says nothing of one that only some workers hold otherwise.
    versions = {one.name: () if one.where else of_version(s, [one.name]) for one in held.otherwise}
    s.bench.hold(s.side, names)
    as_held = s.bench.compare(s.side, s.alteration)
    what = HELD.format(_few([f"{one.name} ({one.where})" if one.where else one.name for one in held.otherwise]))
    proof = _proof(what, Undone(before, as_held, s.clock() - started))
    shown = improves(before, as_held)
    tell(s, what, WEIGHTS.key(), Undone(before, as_held, s.clock() - started), shown)
    s.bench.hold(s.side, [])
    done = undo(s, lambda: s.bench.sync(s.side))
    left = s.bench.held(s.side, names)
    taken = [one for one in held.otherwise if one.name not in left.names]
    helped = improves(before, done.after)
    tell(s, "send the weights again", STALE_WEIGHTS.key(), done, helped)
    if taken and helped:
        _name_taken(s, taken, held, done, versions)
        s.symptoms = done.after
        s.held = dataclasses.replace(held, otherwise=left.otherwise)
    if left.otherwise and shown:
        _kept(s, left, held, proof)
        s.held = dataclasses.replace(held, otherwise=[])  # the reference computes with the rest
    elif not (taken and helped):
        s.symptoms = done.after
        s.notes.append(f"the {s.side}'s engine holds {_few(names)} otherwise, which is not what the case shows")


def _name_taken(
    s: Situation,
    taken: list[HeldOtherwise],
    held: HeldReport,
    done: Undone,
    versions: dict[str, tuple[Seen, ...]],
) -> None:
    """Tensors that became the learner's when they were sent again."""
    seen = (Seen.HELD_OTHERWISE, Seen.TAKEN)
    names = [one.name for one in taken]
    if len(names) > LISTED:
        what = f"{len(names)} of {len(names) + held.equal + len(held.unreadable):,} tensors"
        summary = f"the {s.side}'s engine held {what} otherwise than the learner: sending all of them again removes it"
        alike = versions[names[0]] if len({versions[name] for name in names}) == 1 else ()
        key = dataclasses.replace(weights_key(s, names[:1], alike), parts=(what,), many=True)
        add_cause(s, key, "send the weights again", done, summary, {"tensors": names},
                  (*seen, *alike, *sent_or_not(s, names)))  # fmt: skip
        return
    for one in taken:
        details = {"tensor": one.name, "rows": one.rows, "of": one.of}
        own = versions[one.name]
        what = "send the weights again" + (f", of which {one.where} held another part" if one.where else "")
        add_cause(s, weights_key(s, [one.name], own), what, done, _summary(s, one), details,
                  (*seen, *own, *sent_or_not(s, [one.name])))  # fmt: skip


def _kept(s: Situation, left: HeldReport, held: HeldReport, proof: Proof) -> None:
    """Tensors that stay what they are, or are altered anew, whenever they are sent."""
    names = left.names
    s.bench.send_otherwise(s.side, names)
    moved = _rows(s, left)
    s.bench.sync(s.side)
    s.bench.read(s.side)
    s.bench.hold(s.side, names)
    s.symptoms = s.bench.compare(s.side, s.alteration)
    refused = [one for one in left.otherwise if one.name not in moved]
    altered = [one for one in left.otherwise if one.name in moved]
    for kind, some in ((STALE_WEIGHTS, refused), (WEIGHTS, altered)):
        seen = [Seen.HELD_OTHERWISE, Seen.REFUSED if kind is STALE_WEIGHTS else Seen.CHANGED]
        seen += [Seen.REARRANGED] * (kind is WEIGHTS and all(one.how for one in some))
        if len(some) > LISTED:
            what = f"{len(some)} of {left.equal + held.equal + len(some):,} tensors"
            summary = f"the {s.side}'s engine {'refuses' if kind is STALE_WEIGHTS else 'alters'} {what}"
            s.named.append(Named(kind.key(what, many=True), s.side, s.side, summary, proof, {}, tuple(seen)))
            continue
        for one in some:
            refusing = f"{one.where} of the {s.side}'s engine" if one.where else f"the {s.side}'s engine"
            summary = (
                f"{refusing} refuses {one.name}: it keeps another one, whatever it is sent"
                if kind is STALE_WEIGHTS
                else f"{_summary(s, one)}; sent again, it is altered again"
            )
            details = {"tensor": one.name, "rows": one.rows, "of": one.of, "how": one.how}
            s.named.append(Named(kind.key(one.name), s.side, s.side, summary, proof, details, tuple(seen)))


def _rows(s: Situation, before: HeldReport) -> set[str]:
    """Names of the tensors of which a worker that held its part otherwise holds something else now."""
    after = {one.name: one.marks for one in s.bench.held(s.side, before.names).otherwise}
    return {
        one.name
        for one in before.otherwise
        if any(after.get(one.name, {}).get(rank) != mark for rank, mark in one.marks.items())
    }


def _buffers(s: Situation, names: list[str]) -> None:
    """Write what the configuration computes into the buffers that hold something else."""
    what = f"write what the configuration computes into {_few(names)}"
    done = undo(s, lambda: s.bench.write_buffers(s.side, names))
    good = improves(s.symptoms, done.after)
    tell(s, what, STALE_DERIVED.key(), done, good)
    if good:
        summary = f"the {s.side}'s engine computes with a {_few(names)} that is not what the configuration says"
        seen = (Seen.BUFFER_WRITTEN, *equal_weights(s), *past(s))
        add_cause(s, STALE_DERIVED.key(_few(names)), what, done, summary, {"buffers": names}, seen)
    s.symptoms = done.after


def equal_weights(s: Situation) -> tuple[Seen, ...]:
    return (Seen.HELD_EQUAL,) if s.held is not None and s.held.all_equal else ()


def past(s: Situation) -> tuple[Seen, ...]:
    """The prefix cache is excluded where the difference is there without it."""
    return (Seen.PAST_CACHE_DIFFERS,) if s.past_cache or not s.symptoms.cached else ()


def _summary(s: Situation, one: HeldOtherwise) -> str:
    said = "".join(f", {part}" for part in (one.where, one.how) if part)
    return f"{other(s, one.name)}: {one.rows} of {counted(one.of, 'row')} differ{said}"


def _few(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _proof(what: str, done: Undone) -> Proof:
    return Proof(what, done.before.total, done.after.total, "differences", "live engines", round(done.seconds, 3))
