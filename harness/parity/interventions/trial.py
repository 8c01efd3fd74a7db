"""A change to the reference, with the cause that it would prove."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from harness.parity.causes.family import Seen
from reports.model import CauseKey


@dataclass(frozen=True)
class Trial:
    """A change to the reference with the cause that it would prove. `recorded`: a recording already says so."""

    cause: CauseKey
    intervention: str
    summary: str
    change: dict[str, Any]
    party: str = ""  # the party at fault; "" for the side itself
    recorded: bool = False
    details: dict[str, Any] = field(default_factory=dict)
    parts: tuple[Trial, ...] = ()  # where several parameters explain it only together: each one's trial
    seen: tuple[Seen, ...] = ()  # what excludes the rivals of the cause


def value_text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
