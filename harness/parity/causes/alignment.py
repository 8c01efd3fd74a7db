"""Log-probabilities that stand beside other tokens than their own."""

from __future__ import annotations

from harness.parity.causes.family import CauseFamily

ALIGNMENT = CauseFamily(
    "ALIGNMENT",
    meaning="each log-probability is that of a neighbouring token",
    fix="align log-probabilities with tokens: entry t belongs to token t",
    alone="its proof finds every number at a neighbouring position",
)

FAMILIES = (ALIGNMENT,)
