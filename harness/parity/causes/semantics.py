"""Log-probabilities of another meaning: tempered, renormalised, scaled."""

from __future__ import annotations

from harness.parity.causes.family import CauseFamily

LOGPROB_SEMANTICS = CauseFamily(
    "LOGPROB_SEMANTICS",
    meaning="the engine reports log-probabilities of another distribution: scaled, tempered or renormalised",
    fix="ask the engine for raw log-probabilities, at temperature 1 and before any filter",
    alone="its proof gives every number again, from the whole distribution of its position",
)

FAMILIES = (LOGPROB_SEMANTICS,)
