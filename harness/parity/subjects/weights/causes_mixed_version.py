"""The cause MIXED_VERSION: the weights changed while a sample was drawn."""

from __future__ import annotations

from harness.parity.causes.family import CauseFamily, OnBench, Rival, Seen, contradicted
from harness.parity.causes.proof import either
from reports.model import Proof


def _one_version(bench: OnBench) -> tuple[Proof, Seen] | None:
    """Return the proof of drawing again with one weight version. No sync happens on the bench while a sample is
    drawn.
    """
    if not bench.drawn or not bench.settled:
        return None
    proof = Proof("draw again with one version of the weights", bench.drawn, 0, "samples", "live engines")
    return proof, Seen.ONE_VERSION_AGREES


def _still_differs(bench: OnBench) -> str:
    if bench.remaining is not None and not (bench.noise or bench.settled):
        return f"drawn again with one version of the weights, the same samples differ in {bench.remaining} places"
    return contradicted(bench)


MIXED_VERSION = CauseFamily(
    "MIXED_VERSION",
    meaning="the weights changed while a sample was drawn",
    confirmed=_one_version,
    contradicted=_still_differs,
    fix="pause generation during a weight sync, and sync every replica before the next request",
    rivals=(
        Rival("a fault of the position", (Seen.CUTS_VARY, Seen.ONE_VERSION_AGREES)),
        Rival("answers that were altered afterwards", (Seen.MOST_SPLIT,)),
    ),
    proof=either(
        "ahead of a position, or behind it, nothing differs",
        history=(Seen.RIGHT_BEFORE,),
    ),
)

FAMILIES = (MIXED_VERSION,)
