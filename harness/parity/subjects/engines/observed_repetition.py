"""One side against its own second run; `second_run` reads it from two recordings."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from harness.parity.facts.divergence import DivergenceKey
from harness.parity.subjects.precision.observed_floor import Pair


@dataclass(frozen=True)
class SecondRun:
    """One side against its own second run.

    `useless`: why the second run says nothing; empty where it does. `pairs`: the rollouts that both drew with equal
    weights. `parts`: the step from which on they are two different runs, with `why`; None where they never part.
    `kinds`: what differs, with its first step. `drawn`: did both have to draw the same tokens?
    """

    useless: str = ""
    pairs: list[Pair] = field(default_factory=list)
    parts: int | None = None
    why: str = ""
    kinds: dict[DivergenceKey, int] = field(default_factory=dict)
    drawn: bool = True

    @property
    def steps(self) -> list[int]:
        return [step for step, *_ in self.pairs]

    def facts(self) -> dict[str, Any]:
        """For the verdict's coverage."""
        return {"steps": len(self.pairs), "parts_at_step": self.parts, "why": self.useless or self.why}
