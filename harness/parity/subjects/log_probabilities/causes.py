"""The cause ALIGNMENT: each log-probability belongs to a neighbouring token."""

from __future__ import annotations

from collections.abc import Iterator

from harness.parity.causes.family import CauseFamily
from harness.parity.causes.proof import either
from harness.parity.interventions.situation import Situation
from harness.parity.interventions.trial import Trial
from harness.parity.subjects.log_probabilities.observed_rereading import SHIFTS


def shifted(s: Situation) -> Iterator[Trial]:
    """Try log-probabilities that belong to the tokens before or after."""
    if not s.remaining.of("logprobs") or s.remaining.of("scores"):
        return
    for shift in SHIFTS:
        yield Trial(
            ALIGNMENT.key(),
            f"read {shift:+d} position",
            f"log-probabilities are shifted by {abs(shift)}, to {'after' if shift > 0 else 'before'} their tokens",
            {"report": f"shift:{shift:+d}"},
            details={"shift": shift},
        )


ALIGNMENT = CauseFamily(
    "ALIGNMENT",
    meaning="each log-probability is that of a neighbouring token",
    fix="align log-probabilities with tokens: entry t belongs to token t",
    alone="its proof finds every number at a neighbouring position",
    proof=either("each number equals that of the neighbouring token"),
)

FAMILIES = (ALIGNMENT,)
