"""The result of comparing one side with its own second run, which `observed_second_run` makes from two recordings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.parity.facts.divergence import DivergenceKey
from harness.parity.subjects.precision.observed_floor import Pair


@dataclass(frozen=True)
class SecondRun:
    """One side against its own second run.

    `useless`: why the second run says nothing; "" where it does. `pairs`: the rollouts that both drew with equal
    weights. `parts`: the step from which the two runs differ, with `why`; None where they never do. `kinds`: the
    divergences with their first steps. `drawn`: whether both had to draw the same tokens.
    """

    useless: str = ""
    pairs: tuple[Pair, ...] = ()
    parts: int | None = None
    why: str = ""
    kinds: Mapping[DivergenceKey, int] = field(default_factory=dict)
    drawn: bool = True

    @property
    def steps(self) -> list[int]:
        return [step for step, *_ in self.pairs]

    def facts(self) -> dict[str, Any]:
        """Return what the verdict's coverage says about the second run."""
        return {"steps": len(self.pairs), "parts_at_step": self.parts, "why": self.useless or self.why}
