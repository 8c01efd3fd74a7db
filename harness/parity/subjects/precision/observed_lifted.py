"""What the lifted stage of a comparison showed; `harness.parity.lifted` judges it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from harness.parity.facts.divergence import DivergenceKey
from reports.model import Verdict
from reports.text import counted, figure

STAGE = "lifted"  # in the details of a cause: it is one of the lifted stage


@dataclass
class LiftedResult:
    """`verdict`: on the stage's recordings, None where nothing is known; `skipped`: then why. `first`: its first step.
    `held`: the type of the weights. `required`: a side recorded a stage, so that none, or half of one, passes nothing;
    what TF32 may have made is a limit of the device, and no damage."""

    held: str
    first: int = 0
    required: bool = False
    verdict: Verdict | None = None
    skipped: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
    kinds: frozenset[DivergenceKey] = frozenset()  # of divergence, that the stage's own recordings show

    @property
    def equal(self) -> bool:
        return self.verdict is not None and self.verdict.verdict == "EQUIVALENT"

    @property
    def differs(self) -> bool:
        return self.verdict is not None and self.verdict.verdict == "DIVERGENT"

    @property
    def covered(self) -> str | dict[str, Any]:
        """For the verdict's `coverage`."""
        return self.skipped or self.facts

    def said(self) -> str:
        """The largest difference in float32, in one line."""
        facts = self.facts
        return (
            f"in float32 with the same {self.held} weights max |Δ| {figure(facts['largest'])} nats over "
            f"{counted(facts['compared_tokens'], 'token')}, tolerance {figure(facts['tolerance'])}"
        )
