"""An engine that does not agree with itself."""

from __future__ import annotations

from harness.parity.causes.family import CauseFamily
from reports.model import CauseKey

BASELINE_ITSELF = CauseFamily(
    "baseline-itself",
    fix="make the baseline repeat itself first: it differs from itself under equal inputs",
    alone="the engine is held against itself",
    suspicion=4,
)
CANDIDATE_ITSELF = CauseFamily(
    "candidate-itself",
    fix="make the candidate repeat itself first: it differs from itself under equal inputs",
    alone="the engine is held against itself",
)

FAMILIES = (BASELINE_ITSELF, CANDIDATE_ITSELF)


def itself(side: str) -> CauseKey:
    """What noise of this side's engine is."""
    return (BASELINE_ITSELF if side == "baseline" else CANDIDATE_ITSELF).key()


def is_itself(key: CauseKey) -> bool:
    return any(one.has(key) for one in FAMILIES)
