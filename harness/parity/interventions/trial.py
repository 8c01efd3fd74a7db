"""One change to the reference with the cause that it would prove, and what every family of them says alike."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from harness.parity.causes.family import Seen
from reports.model import CauseKey


@dataclass(frozen=True)
class Trial:
    """A change to the reference with the cause that it would prove. `recorded`: a recording says so already."""

    cause: CauseKey
    intervention: str
    summary: str
    change: dict[str, Any]
    party: str = ""  # the side, unless said otherwise
    recorded: bool = False
    details: dict[str, Any] = field(default_factory=dict)
    parts: tuple[Trial, ...] = ()  # of several parameters that only explain it together: each alone
    seen: tuple[Seen, ...] = ()  # what excludes the rivals of the cause


def same(first: Any, second: Any) -> bool:
    return (list(first) if isinstance(first, (list, tuple)) else first) == (
        list(second) if isinstance(second, (list, tuple)) else second
    )


def shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
