"""Log-probabilities that are not finite."""

from __future__ import annotations

from harness.parity.causes.family import CauseFamily

NUMERIC_FATAL = CauseFamily(
    "NUMERIC_FATAL",
    fix="find the first value that is no number: try float32, or another attention backend",
    alone="the number itself is not finite",
)

FAMILIES = (NUMERIC_FATAL,)
