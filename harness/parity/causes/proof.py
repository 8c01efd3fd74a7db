"""What proves a cause, and what only supports it.

A proof is an intervention with a prediction that is made beforehand. It removes what it has to remove, no less than its
best rival, and leaves the rest. A record, a fit or a pattern supports a cause and never proves it. An intervention that
makes the difference larger refutes the cause. A cause that tells a history needs that history in the recording
(docs/explanation/proof.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from reports.model import Cause, Proof

LIVE, RECORDINGS = "live engines", "recordings"  # where an intervention is made: the values of `Proof.on`


@dataclass(frozen=True)
class ProofStandard:
    """What proves a cause of one family.

    `predicts`: what the intervention removes. `on`: where it may be made; nowhere for a family that is only supported.
    `shows`: for such a family, what supports it. `history`: for a family that tells a history, the observations of
    which one must be made.
    """

    predicts: str = ""
    on: tuple[str, ...] = ()
    shows: str = ""
    history: tuple[StrEnum, ...] = ()

    @property
    def stated(self) -> bool:
        """Whether the family says what proves or supports its causes."""
        return bool(self.predicts and self.on) or bool(self.shows and not self.on)

    def accepts(self, proof: Proof) -> bool:
        """Whether it is a proof here: an intervention of an allowed kind that removed a part of the difference."""
        return proof.on in self.on and proof.removed > 0

    def accepted(self, cause: Cause) -> list[Proof]:
        """Return the proofs of a cause that are proofs by this standard."""
        return [proof for proof in cause.proofs if self.accepts(proof)]

    def in_words(self) -> str:
        """Return the standard as one sentence without its end."""
        if not self.on:
            return f"none: {self.shows}"
        return f"{self.predicts}; on {' or '.join(self.on)}"


UNSTATED = ProofStandard()  # of a family that says nothing: its causes are never proven


def live(predicts: str, *, history: tuple[StrEnum, ...] = ()) -> ProofStandard:
    """Return the standard of a family that only live engines prove."""
    return ProofStandard(predicts, (LIVE,), history=history)


def recorded(predicts: str) -> ProofStandard:
    """Return the standard of a family that only recorded numbers prove, read or matched otherwise, or left out."""
    return ProofStandard(predicts, (RECORDINGS,))


def either(predicts: str, *, history: tuple[StrEnum, ...] = ()) -> ProofStandard:
    """Return the standard of a family that live engines or recorded numbers prove."""
    return ProofStandard(predicts, (LIVE, RECORDINGS), history=history)


def supported(shows: str) -> ProofStandard:
    """Return the standard of a family that nothing proves. `shows`: what supports it."""
    return ProofStandard(shows=shows)
