"""Interventions on the engine itself: undo one thing, read again, and see whether the difference went with it.

Cheapest first: empty the cache, send one tensor after another, restart with the same weights. What is undone stays
undone; the reference keeps the alterations that were found before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import chain
from typing import Any

from harness.parity.attribution.put_back import engine_parameters
from harness.parity.attribution.situation import LEAST, RESIDUE, Named, Situation, Tried, improves
from harness.tables import names as listed
from reports.model import Proof
from scenarios.bench.case import Symptoms

REGROUP = "draw the case again in other batches"
LISTED = 8  # stale tensors that are named one by one; more are one cause
PARAMETERS, RESTART = "parameters", "restart"  # they take an engine's start: seconds that a caller may not have


@dataclass(frozen=True)
class Undone:
    """What an intervention on an engine did to the symptoms, and how long it took."""

    before: Symptoms
    after: Symptoms
    seconds: float


def order(s: Situation) -> None:
    """Look for each differing response under the other sample numbers; ORDER when they are all there."""
    if not s.symptoms.of("tokens", "lengths") or s.symptoms.of("scores"):
        return
    started = s.clock()
    wrong, left = s.bench.unmatched(s.side)
    seconds = s.clock() - started
    good = wrong >= LEAST and left <= RESIDUE * wrong
    s.tried.append(Tried("look under other sample numbers", "ORDER", s.side, wrong, left, seconds, good))
    if good:
        proof = Proof("look under other sample numbers", wrong, left, "samples", "live engines", round(seconds, 3))
        summary = "responses are permuted: the same ones, under other sample numbers"
        s.named.append(Named("ORDER", s.side, s.side, summary, proof))
        s.symptoms = Symptoms(compared=s.symptoms.compared)  # the responses themselves are the reference's


def flush(s: Situation) -> None:
    """Empty the prefix cache; STALE_KV when the difference goes with it."""
    if not s.symptoms.cached:
        s.notes.append(f"STALE_KV ({s.side}): no prompt token of the case came from a cache")
        return
    done = _undo(s, lambda: s.bench.flush(s.side))
    cached = s.symptoms.cached
    good = improves(s.symptoms, done.after)
    _tell(s, "flush the prefix cache", "STALE_KV", done, good)
    if good:
        _name(
            s, "STALE_KV", "flush the prefix cache", done,
            f"the {s.side}'s engine reuses keys and values of earlier weights from its prefix cache",
            {"cached prompt tokens before": cached},
        )  # fmt: skip
    s.symptoms = done.after


@dataclass(frozen=True)
class Sent:
    """Tensors that were sent alone and changed the engine: differing tokens, of those scored, and their |Δ| in nats,
    before and after."""

    names: list[str]
    tokens: tuple[int, int]
    nats: tuple[float, float]
    seconds: float

    @property
    def proof(self) -> Proof:
        """In tokens where fewer differ; the first of two stale tensors may only bring them nearer."""
        what, seconds = f"send {', '.join(self.names)} again, alone", round(self.seconds, 3)
        fewer = self.tokens[1] < self.tokens[0]
        before, after = self.tokens if fewer else self.nats
        return Proof(what, before, after, "scored tokens" if fewer else "nats", "live engines", seconds)


def tensors(s: Situation) -> None:
    """Send the learner's tensors one after another, then all: one that changes the engine was not the learner's."""
    if not s.symptoms.of("scores"):
        return
    started = s.clock()
    groups = s.bench.tensors(s.side)
    whole = sum(map(len, groups))
    moved = _one_by_one(s, groups)
    done = _undo(s, lambda: None)
    if done.after.of("scores"):
        done = _undo(s, lambda: s.bench.sync(s.side))
    helped = improves(s.symptoms, done.after)
    took = s.clock() - started
    _tell(s, "send one tensor after another", "STALE_WEIGHTS", Undone(s.symptoms, done.after, took), helped)
    if helped:
        _stale(s, [one for one in moved if one.nats[1] < one.nats[0]], whole, done)
    s.symptoms = done.after


def _one_by_one(s: Situation, groups: list[list[str]]) -> list[Sent]:
    """The groups that changed the engine, until nothing differs. Without time for each they are sent more at once."""
    left, far, _ = s.bench.rescored(s.side)
    found = []
    while groups:
        group = groups.pop(0)
        began = s.clock()
        s.bench.sync(s.side, group)
        after, nearer, moved = s.bench.rescored(s.side)
        seconds = s.clock() - began
        if moved > s.evidence.tolerance.value:
            found.append(Sent(group, (left, after), (far, nearer), seconds))
        left, far = after, nearer
        if not left and not s.bench.read(s.side).of("scores"):  # the few that are scored may not show every tensor
            break
        if groups and s.clock() + seconds * len(groups) > s.deadline:
            room = max(1, int((s.deadline - s.clock()) / max(seconds, 1e-3)))
            size = -(-len(groups) // room)
            groups = [list(chain(*groups[start : start + size])) for start in range(0, len(groups), size)]
    return found


def _stale(s: Situation, sent: list[Sent], whole: int, done: Undone) -> None:
    """Name the tensors: those that a recording names, in a group that holds them, else the whole group."""
    known = set(_recorded(s))
    names = [[name for name in one.names if name in known] or one.names for one in sent]
    count = sum(map(len, names))
    if not names or count > LISTED:
        what = f"{count} of {whole:,} tensors" if names else "no tensor of its own"
        summary = f"the {s.side}'s engine held {what} otherwise than the learner: sending all of them again mends it"
        if not names and known:
            for name in sorted(known)[:LISTED]:
                _name(s, _weights_cause(s, name), "send the weights again", done, _other(s, name), {"tensor": name})
            return
        _name(s, f"STALE_WEIGHTS({what})", "send the weights again", done, summary, {"tensors": list(chain(*names))})
        return
    for one, tensors_ in zip(sent, names, strict=True):
        what = ", ".join(tensors_)
        details = {"tensor": what, "left in all": done.after.total, "before": s.symptoms.total}
        s.named.append(Named(_weights_cause(s, what), s.side, s.side, _other(s, what), one.proof, details))


def _other(s: Situation, name: str) -> str:
    return f"the {s.side}'s engine held another {name} than the learner"


def _recorded(s: Situation) -> list[str]:
    """Tensors that the last recorded sync left out or delivered as something else."""
    events = [one for one in s.evidence.side(s.side).recording.all("sync") if isinstance(one.get("version"), int)]
    last = max(events, key=lambda one: int(one["version"]), default={})
    return sorted({*listed(last.get("absent")), *listed(last.get("mismatched"))})


def _mended(s: Situation) -> bool:
    """Were stale tensors found by sending them again? Then all were sent, and what is left is no parameter's."""
    return any(one.side == s.side and one.name.startswith(("STALE_WEIGHTS(", "WEIGHTS(")) for one in s.named)


def _weights_cause(s: Situation, name: str) -> str:
    """STALE_WEIGHTS, unless every recorded sync sent the tensor: then the engine holds something else than was sent."""
    record = s.evidence.notes.get(f"sync:{s.side}")
    tensors_ = name.split(", ")
    sent = record is not None and record.versions and not {*record.absent, *record.stale}.intersection(tensors_)
    return f"WEIGHTS({name})" if sent else f"STALE_WEIGHTS({name})"


def restart(s: Situation) -> None:
    """A fresh engine that loads the same weights from disk, then the same weights by a sync.

    The fresh engine agrees, and still does after the sync: STALE_DERIVED, the old one kept something made of earlier
    weights. The sync spoils it again: it is the sync that puts tensors where they do not belong, WEIGHTS.
    """
    what = "a fresh engine with the same weights"
    done = _undo(s, lambda: s.bench.restart(s.side))
    good = improves(s.symptoms, done.after)
    _tell(s, what, "STALE_DERIVED", done, good)
    if good:
        synced = _undo(s, lambda: s.bench.sync(s.side))
        spoilt = synced.after.total > max(LEAST, 2 * done.after.total)
        _tell(s, "the same weights sent to the fresh engine", "WEIGHTS", synced, spoilt)
        known = [] if _mended(s) else _recorded(s)
        if known and not spoilt:  # the recordings say what it held; a fresh engine confirms that, and nothing else
            for name in known[:LISTED]:
                _name(s, _weights_cause(s, name), what, done, _other(s, name), {"tensor": name})
            s.symptoms = done.after
            return
        cause = "WEIGHTS(loading)" if spoilt else "STALE_DERIVED"
        summary = (
            f"the {s.side}'s engine loads what a sync sends into other places: from disk it agrees, synced it does not"
            if spoilt
            else f"the {s.side}'s engine keeps something made of earlier weights: sending them again does not help, a "
            "fresh engine agrees"
        )
        _name(s, cause, what, done, summary, {"after a sync of the same weights": synced.after.total})
    s.symptoms = done.after


def regroup(s: Situation) -> None:
    """Draw the case in other batches and another order, once nothing of it differs any more: an engine that is noisy of
    itself does not agree with itself there; one whose noise was another cause's does."""
    started = s.clock()
    apart = s.bench.regrouped(s.side)
    seconds = s.clock() - started
    s.tried.append(
        Tried(REGROUP, f"{s.side}-itself", s.side, s.symptoms.compared.get("tokens", 0), apart, seconds, False)
    )


SEQUENCE: tuple[tuple[str, Callable[[Situation], None]], ...] = (
    ("order", order),
    ("flush", flush),
    (PARAMETERS, engine_parameters),
    ("tensors", tensors),
    (RESTART, restart),
)


def search(s: Situation, *, restarts: bool, then: Callable[[Situation], None] = lambda s: None) -> None:
    """Undo one thing after another until nothing is left, or time is over. `then`: after each that removed something,
    for what it may have hidden."""
    for name, intervention in SEQUENCE:
        if not s.symptoms.total:
            return
        if name in (PARAMETERS, RESTART) and not restarts:
            if name == RESTART or s.changed:
                s.notes.append(f"a fresh engine for the {s.side} ({name}): not tried, restarts are off")
            continue
        if s.over and name != RESTART:
            s.notes.append(f"not tried for lack of time: {name} ({s.side})")
            continue
        known = len(s.named)
        intervention(s)
        if len(s.named) > known and s.symptoms.total:
            then(s)


def narrowest(s: Situation) -> str:
    """In words, the first layer at which the engine leaves the reference, on the sample that differs most."""
    number = max(s.symptoms.by_sample, key=lambda one: s.symptoms.by_sample[one])
    found = s.bench.first_layer(s.side, number)
    if found is None:
        return f"the first divergent layer of the {s.side}: not tested, its engine does not show hidden states"
    layer, apart = found
    if not apart:
        return f"hidden states of sample {number} agree in all {layer} layers: the difference comes after them"
    place = "in the embeddings" if layer < 0 else f"in layer {layer}"
    return f"hidden states of sample {number} differ first {place}, by {apart:.2g} of their size"


def _undo(s: Situation, what: Callable[[], Any]) -> Undone:
    started = s.clock()
    what()
    s.bench.read(s.side)
    after = s.bench.compare(s.side, s.alteration)
    return Undone(s.symptoms, after, s.clock() - started)


def _tell(s: Situation, intervention: str, cause: str, done: Undone, good: bool) -> None:
    s.tried.append(Tried(intervention, cause, s.side, done.before.total, done.after.total, done.seconds, good))


def _name(s: Situation, cause: str, intervention: str, done: Undone, summary: str, details: dict[str, Any]) -> None:
    proof = Proof(
        intervention, done.before.total, done.after.total, "differences", "live engines", round(done.seconds, 3)
    )
    s.named.append(Named(cause, s.side, s.side, summary, proof, details))
