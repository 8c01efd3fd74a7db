"""One intervention: what was done, what it did to the symptoms, and the cause that it names."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from harness.parity.causes.family import Seen
from harness.parity.interventions.situation import Named, Situation, Tried
from reports.model import CauseKey, Proof
from scenarios.bench.case import Symptoms


@dataclass(frozen=True)
class Undone:
    """The effect of an intervention on the symptoms, and its duration."""

    before: Symptoms
    after: Symptoms
    seconds: float

    def proof(self, intervention: str) -> Proof:
        """Return the proof of this intervention, in differences before and after it."""
        return Proof(
            intervention, self.before.total, self.after.total, "differences", "live engines", round(self.seconds, 3)
        )


def undo(s: Situation, what: Callable[[], Any]) -> Undone:
    started = s.clock()
    what()
    s.bench.read(s.side)
    after = s.bench.compare(s.side, s.alteration)
    return Undone(s.symptoms, after, s.clock() - started)


def tell(s: Situation, intervention: str, cause: CauseKey, done: Undone, good: bool) -> None:
    s.tried.append(
        Tried(
            intervention=intervention,
            cause=cause,
            side=s.side,
            before=done.before.total,
            after=done.after.total,
            seconds=done.seconds,
            removed=good,
        )
    )


def add_cause(
    s: Situation,
    cause: CauseKey,
    proof: Proof,
    summary: str,
    details: dict[str, Any],
    exclusions: tuple[Seen, ...] = (),
) -> None:
    s.named.append(
        Named(cause=cause, party=s.side, side=s.side, summary=summary, proof=proof, details=details, seen=exclusions)
    )
