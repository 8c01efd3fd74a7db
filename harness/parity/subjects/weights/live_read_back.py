"""Read an engine's weights back, to tell a wrong tensor from a wrong buffer, and both from another cause.

A tensor that differs from the learner's is sent again. If it then equals the learner's, the sync had missed it or
altered it on its way. If it still differs, the fault is in the engine: it refuses the tensor (what it holds does not
change) or alters it while loading (what it holds changes).
"""

from __future__ import annotations

import dataclasses

from harness.parity.causes.family import Seen
from harness.parity.interventions.situation import Situation, improves
from harness.parity.interventions.steps import Undone, add_cause, tell, undo
from harness.parity.subjects.weights.causes import STALE_WEIGHTS, WEIGHTS
from harness.parity.subjects.weights.causes_derived import BUFFER, STALE_DERIVED
from harness.parity.subjects.weights.live_tensors import LISTED, of_version, other, sent_or_not, weights_key
from reports.model import Proof
from reports.text import counted, first_of, part_of
from scenarios.bench.case import HeldOtherwise, HeldReport

HELD = "the reference computes with {} as the engine holds it"


def read_back(s: Situation) -> None:
    """Compare every tensor that the engine holds with the learner's, then its buffers with its configuration."""
    if not s.remaining.of("scores"):
        return
    s.held = report = s.bench.held(s.side)
    s.notes.append(f"read back from the {s.side}'s engine: {in_words(report)}")
    if report.otherwise:
        _tensors(s, report)
    if s.remaining.total and report.of_buffers("differs"):
        _buffers(s, report.of_buffers("differs"))


def in_words(report: HeldReport) -> str:
    parts = [f"{counted(report.equal, 'tensor')} equal to the learner's"]
    if report.otherwise:
        parts.append(
            f"{len(report.otherwise):,} other: {', '.join(_in_words(tensor) for tensor in report.otherwise[:LISTED])}"
        )
    for name, why in list(report.unreadable.items())[:1]:
        parts.append(f"{len(report.unreadable):,} not readable, {name} for one: {why}")
    states = ((state, report.of_buffers(state)) for state in ("equal", "differs", "not tested"))
    parts += [f"{counted(len(names), 'buffer')} {state}" for state, names in states if names]
    return ", ".join(parts)


def _in_words(tensor: HeldOtherwise) -> str:
    detail = ", ".join(filter(None, (tensor.where, tensor.how)))
    return f"{tensor.name} in {part_of(tensor.rows, tensor.of, 'row')}{f' ({detail})' if detail else ''}"


def _tensors(s: Situation, report: HeldReport) -> None:
    """Send the tensors that differ again, and let the reference compute with those that still differ afterwards."""
    names = report.names
    before, started = s.symptoms, s.clock()
    # A recorded digest is of a whole tensor. It says nothing of a tensor that only some workers hold otherwise.
    versions = {tensor.name: () if tensor.where else of_version(s, [tensor.name]) for tensor in report.otherwise}
    # First on the reference: if it reproduces the difference with the engine's own tensors, they explain it.
    s.bench.hold(s.side, names)
    as_held = s.bench.compare(s.side, s.alteration)
    placed_names = [f"{item.name} ({item.where})" if item.where else item.name for item in report.otherwise]
    what = HELD.format(_first_names(placed_names))
    done = Undone(before, as_held, s.clock() - started)
    proof = done.proof(what)
    explains = improves(before, as_held)
    tell(s, what, WEIGHTS.key(), done, explains)
    # Then on the engine: if the difference is gone after a sync, the tensors that changed caused it.
    s.bench.hold(s.side, [])
    done = undo(s, lambda: s.bench.sync(s.side))
    report_after = s.bench.held(s.side, names)
    taken_tensors = [tensor for tensor in report.otherwise if tensor.name not in report_after.names]
    helped = improves(before, done.after)
    tell(s, "send the weights again", STALE_WEIGHTS.key(), done, helped)
    if taken_tensors and helped:
        _name_taken(s, taken_tensors, report, done, versions)
        s.symptoms = done.after
        s.held = dataclasses.replace(report, otherwise=report_after.otherwise)
    if report_after.otherwise and explains:
        _kept(s, report_after, report, proof)
        s.held = dataclasses.replace(report, otherwise=[])  # the reference computes with the tensors that are left
    elif not (taken_tensors and helped):
        s.symptoms = done.after
        s.notes.append(
            f"the {s.side}'s engine holds other values of {_first_names(names)}, which do not explain the difference"
        )


def _name_taken(
    s: Situation,
    taken_tensors: list[HeldOtherwise],
    report: HeldReport,
    done: Undone,
    versions: dict[str, tuple[Seen, ...]],
) -> None:
    """Name the tensors that equal the learner's after they were sent again."""
    exclusions = (Seen.HELD_OTHERWISE, Seen.TAKEN)
    names = [tensor.name for tensor in taken_tensors]
    if len(names) > LISTED:
        what = part_of(len(names), len(names) + report.equal + len(report.unreadable), "tensor")
        summary = (
            f"the {s.side}'s engine did not hold the learner's {what}: sending all of them again removes the difference"
        )
        shared_exclusions = versions[names[0]] if len({versions[name] for name in names}) == 1 else ()
        key = dataclasses.replace(weights_key(s, names[:1], shared_exclusions), parts=(what,), many=True)
        add_cause(
            s=s,
            cause=key,
            proof=done.proof("send the weights again"),
            summary=summary,
            details={"tensors": names},
            exclusions=(*exclusions, *shared_exclusions, *sent_or_not(s, names)),
        )
        return
    for tensor in taken_tensors:
        details = {"tensor": tensor.name, "rows": tensor.rows, "of": tensor.of}
        version_exclusions = versions[tensor.name]
        what = "send the weights again" + (f", of which {tensor.where} held another part" if tensor.where else "")
        add_cause(
            s=s,
            cause=weights_key(s, [tensor.name], version_exclusions),
            proof=done.proof(what),
            summary=_summary(s, tensor),
            details=details,
            exclusions=(*exclusions, *version_exclusions, *sent_or_not(s, [tensor.name])),
        )


def _kept(s: Situation, report_after: HeldReport, report: HeldReport, proof: Proof) -> None:
    """Name the tensors that stay wrong when they are sent again: those that the engine refuses, and those that it
    alters.
    """
    names = report_after.names
    # Other values than the learner's tell the two apart: a refused tensor stays as it is, an altered one changes.
    s.bench.send_otherwise(s.side, names)
    moved = _rows(s, report_after)
    s.bench.sync(s.side)
    s.bench.read(s.side)
    s.bench.hold(s.side, names)
    s.symptoms = s.bench.compare(s.side, s.alteration)
    refused = [tensor for tensor in report_after.otherwise if tensor.name not in moved]
    altered = [tensor for tensor in report_after.otherwise if tensor.name in moved]
    for kind, group in ((STALE_WEIGHTS, refused), (WEIGHTS, altered)):
        exclusions = [Seen.HELD_OTHERWISE, Seen.REFUSED if kind is STALE_WEIGHTS else Seen.CHANGED]
        if kind is WEIGHTS and all(tensor.how for tensor in group):
            exclusions.append(Seen.REARRANGED)
        if len(group) > LISTED:
            what = part_of(len(group), report_after.equal + report.equal + len(group), "tensor")
            summary = f"the {s.side}'s engine {'refuses' if kind is STALE_WEIGHTS else 'alters'} {what}"
            add_cause(s, kind.key(what, many=True), proof, summary, {}, tuple(exclusions))
            continue
        for tensor in group:
            summary = f"{_summary(s, tensor)}; sent again, it is altered again"
            if kind is STALE_WEIGHTS:
                refusing = f"{tensor.where} of the {s.side}'s engine" if tensor.where else f"the {s.side}'s engine"
                summary = f"{refusing} refuses {tensor.name}: it keeps another one, whatever it is sent"
            details = {"tensor": tensor.name, "rows": tensor.rows, "of": tensor.of, "how": tensor.how}
            add_cause(s, kind.key(tensor.name), proof, summary, details, tuple(exclusions))


def _rows(s: Situation, before: HeldReport) -> set[str]:
    """Return the tensors of which a worker whose part was wrong holds another value than `before`."""
    after = {tensor.name: tensor.marks for tensor in s.bench.held(s.side, before.names).otherwise}
    return {
        tensor.name
        for tensor in before.otherwise
        if any(after.get(tensor.name, {}).get(rank) != mark for rank, mark in tensor.marks.items())
    }


def _buffers(s: Situation, names: list[str]) -> None:
    """Write the values that the configuration implies into the buffers that hold others.

    A buffer is stale only if the engine was right before a sync. What is wrong from the first start on is BUFFER.
    """
    what = f"write what the configuration computes into {_first_names(names)}"
    done = undo(s, lambda: s.bench.write_buffers(s.side, names))
    good = improves(s.symptoms, done.after)
    family = BUFFER if s.from_start else STALE_DERIVED
    tell(s, what, family.key(), done, good)
    if good:
        summary = f"the {s.side}'s engine computes with a {_first_names(names)} that is not what the configuration says"
        exclusions = (Seen.BUFFER_WRITTEN, *equal_weights(s), *past(s), *(Seen.FROM_START,) * s.from_start)
        add_cause(
            s=s,
            cause=family.key(_first_names(names)),
            proof=done.proof(what),
            summary=summary,
            details={"buffers": names},
            exclusions=exclusions,
        )
    s.symptoms = done.after


def equal_weights(s: Situation) -> tuple[Seen, ...]:
    return (Seen.HELD_EQUAL,) if s.held is not None and s.held.all_equal else ()


def past(s: Situation) -> tuple[Seen, ...]:
    """Exclude the prefix cache where the difference exists without cached tokens."""
    return (Seen.PAST_CACHE_DIFFERS,) if s.past_cache or not s.symptoms.cached else ()


def _summary(s: Situation, tensor: HeldOtherwise) -> str:
    detail = "".join(f", {part}" for part in (tensor.where, tensor.how) if part)
    return f"{other(s, tensor.name)}: {part_of(tensor.rows, tensor.of, 'row')} differ{detail}"


def _first_names(names: list[str]) -> str:
    return first_of(names, 3)
