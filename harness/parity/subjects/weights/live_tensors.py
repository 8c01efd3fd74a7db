"""Send the learner's tensors to an engine again, one after another, where the engine does not show what it holds."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import chain

from harness.parity.causes.family import Seen
from harness.parity.interventions.situation import Situation, improves
from harness.parity.interventions.steps import Undone, add_cause, tell, undo
from harness.parity.subjects.weights.causes import STALE_WEIGHTS, WEIGHTS
from harness.parity.subjects.weights.causes_derived import STALE_DERIVED
from reports.model import CauseKey, Proof
from reports.text import part_of

LISTED = 8  # up to this many stale tensors are named one by one; more are one cause


@dataclass(frozen=True)
class Sent:
    """Tensors that were sent alone and changed the engine.

    `tokens`, `nats`: scored tokens that differ, and their |Δ| in nats, each (before, after).
    """

    names: list[str]
    tokens: tuple[int, int]
    nats: tuple[float, float]
    seconds: float

    @property
    def proof(self) -> Proof:
        """Count tokens where fewer differ afterwards; else nats, since the first of two stale tensors may only reduce
        |Δ|.
        """
        what, seconds = f"send {', '.join(self.names)} again, alone", round(self.seconds, 3)
        fewer = self.tokens[1] < self.tokens[0]
        before, after = self.tokens if fewer else self.nats
        return Proof(what, before, after, "scored tokens" if fewer else "nats", "live engines", seconds)


def tensors(s: Situation) -> None:
    """Send the learner's tensors one after another, then all of them. A tensor that changes the engine was not the
    learner's.

    Where every tensor was read back already, no single one is searched for and all are sent at once.
    """
    if not s.remaining.of("scores"):
        return
    if s.held is not None and not s.held.unreadable:
        _rebuilt(s)
        return
    started = s.clock()
    groups = s.bench.tensors(s.side)
    tensor_count = sum(map(len, groups))
    moved = _one_by_one(s, groups)
    done = undo(s, lambda: None)
    if done.after.of("scores"):
        done = undo(s, lambda: s.bench.sync(s.side))
    helped = improves(s.symptoms, done.after)
    took = s.clock() - started
    tell(s, "send one tensor after another", STALE_WEIGHTS.key(), Undone(s.symptoms, done.after, took), helped)
    if helped:
        _stale(s, [sent_group for sent_group in moved if sent_group.nats[1] < sent_group.nats[0]], tensor_count, done)
    s.symptoms = done.after


def _rebuilt(s: Situation) -> None:
    """Send all tensors although they equal the learner's: what that fixes was derived from earlier weights."""
    what = "send the same weights again"
    done = undo(s, lambda: s.bench.sync(s.side))
    good = improves(s.symptoms, done.after)
    tell(s, what, STALE_DERIVED.key(), done, good)
    if good:
        exclusions = (Seen.HELD_EQUAL, Seen.FRESH_AGREES) if s.held is not None and s.held.all_equal else ()
        summary = f"the {s.side}'s engine kept something made of earlier weights, and makes it anew when it loads"
        add_cause(
            s=s,
            cause=STALE_DERIVED.key(),
            proof=done.proof(what),
            summary=summary,
            details={},
            exclusions=(*exclusions, Seen.PAST_CACHE_DIFFERS),
        )
    s.symptoms = done.after


def _one_by_one(s: Situation, groups: list[list[str]]) -> list[Sent]:
    """Return the groups that changed the engine, sending until nothing differs. Groups are merged when time runs
    short.
    """
    remaining, far, _ = s.bench.rescored(s.side)
    sent_groups = []
    while groups:
        group = groups.pop(0)
        began = s.clock()
        s.bench.sync(s.side, group)
        after, nearer, moved = s.bench.rescored(s.side)
        seconds = s.clock() - began
        if moved > s.evidence.tolerance.value:
            sent_groups.append(Sent(group, (remaining, after), (far, nearer), seconds))
        remaining, far = after, nearer
        if not remaining and not s.bench.read(s.side).of("scores"):  # the few scored tokens may not show every tensor
            break
        if groups and s.clock() + seconds * len(groups) > s.deadline:
            room = max(1, int((s.deadline - s.clock()) / max(seconds, 1e-3)))
            size = -(-len(groups) // room)
            groups = [list(chain(*groups[start : start + size])) for start in range(0, len(groups), size)]
    return sent_groups


def _stale(s: Situation, sent: list[Sent], tensor_count: int, done: Undone) -> None:
    """Name the tensors of each group: those that a recording names, else the whole group."""
    recorded_names = set(recorded(s))
    names = [[name for name in group.names if name in recorded_names] or group.names for group in sent]
    count = sum(map(len, names))
    # Too many tensors to name, or none that helped alone.
    if not names or count > LISTED:
        proof = done.proof("send the weights again")
        # No tensor helped alone: those that a recording names are reported.
        if not names and recorded_names:
            for name in sorted(recorded_names)[:LISTED]:
                exclusions = (Seen.MOVED, *sent_or_not(s, [name]))
                add_cause(s, weights_key(s, [name]), proof, other(s, name), {"tensor": name}, exclusions)
            return
        what, wrong = "no tensor of its own", "held other weights than the learner, in no one tensor"
        if names:
            what = part_of(count, tensor_count, "tensor")
            wrong = f"did not hold the learner's {what}"
        summary = f"the {s.side}'s engine {wrong}: sending all of them again removes the difference"
        flat = list(chain(*names))
        exclusions = (Seen.MOVED, *sent_or_not(s, flat))
        add_cause(s, STALE_WEIGHTS.key(what, many=bool(names)), proof, summary, {"tensors": flat}, exclusions)
        return
    for group, tensors_ in zip(sent, names, strict=True):
        what = ", ".join(tensors_)
        details = {"tensor": what, "left in all": done.after.total, "before": s.symptoms.total}
        exclusions = (Seen.MOVED, *sent_or_not(s, tensors_))
        add_cause(s, weights_key(s, tensors_), group.proof, other(s, what), details, exclusions)


def other(s: Situation, name: str) -> str:
    return f"the {s.side}'s engine held another {name} than the learner"


def recorded(s: Situation) -> list[str]:
    """Return the tensors that the last recorded sync left out or delivered with another digest."""
    records = s.evidence.side(s.side).recording.records
    versioned = [(sync.version, sync) for sync in records.syncs if sync.version is not None]
    if not versioned:
        return []
    _, last = max(versioned, key=lambda version_sync: version_sync[0])
    return sorted({*last.absent, *last.mismatched})


def sent_again(s: Situation) -> bool:
    """Whether sending tensors again found stale ones. All were sent then, so that no parameter causes what is left."""
    named_causes = [named.cause for named in s.named if named.side == s.side]
    return any(STALE_WEIGHTS.has(cause) or WEIGHTS.has(cause) for cause in named_causes)


def sent_or_not(s: Situation, names: list[str]) -> tuple[Seen, ...]:
    """Return NOT_SENT where recorded syncs left all of these tensors out. That they were sent excludes nothing: an
    engine may apply them late.
    """
    record = s.evidence.side(s.side).sync
    if not record.versions:
        return ()
    missed = {*record.absent, *record.stale}
    return (Seen.NOT_SENT,) if names and missed.issuperset(names) else ()


def of_version(s: Situation, names: list[str]) -> tuple[Seen, ...]:
    """Whether the engine holds these tensors as in an earlier weight version, or as in none.

    Returns () where digests are missing, or where the tensors do not agree.
    """
    record = s.evidence.side(s.side).sync
    learner_digests = [record.learner[version] for version in sorted(record.learner)]
    if not learner_digests or not all(by_tensor.keys() >= set(names) for by_tensor in learner_digests):
        return ()
    digests = s.bench.digests(s.side, names)
    older = [digests[name] in {by_tensor[name] for by_tensor in learner_digests[:-1]} for name in names]
    if all(older):
        return (Seen.OLDER_HELD,)
    return () if any(older) else (Seen.NEVER_LEARNERS,)


def weights_key(s: Situation, tensors_: list[str], exclusions: tuple[Seen, ...] = ()) -> CauseKey:
    """Return STALE_WEIGHTS where the engine holds earlier values of the learner, else WEIGHTS.

    Without evidence of either it is STALE_WEIGHTS, unless every recorded sync sent the tensors: the engine then more
    likely holds something else than was sent.
    """
    record = s.evidence.side(s.side).sync
    sent = record.versions and not {*record.absent, *record.stale}.intersection(tensors_)
    if Seen.OLDER_HELD in exclusions or not (sent or Seen.NEVER_LEARNERS in exclusions):
        return STALE_WEIGHTS.key(*tensors_)
    return WEIGHTS.key(*tensors_)
