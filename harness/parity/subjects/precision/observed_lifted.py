"""The result of a comparison's lifted stage, which `harness.parity.lifted` judges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.parity.facts.divergence import DivergenceKey
from reports.model import Verdict
from reports.text import counted, figure

STAGE = "lifted"  # marks, in the details of a cause, that it is one of the lifted stage


@dataclass(frozen=True)
class LiftedResult:
    """The result of the lifted stage.

    `verdict`: on the stage's recordings; None where nothing is known, and then `skipped` says why. `first`: its first
    step. `dtype`: that of the weights. `required`: a side recorded a stage, so that a missing or partial one passes
    nothing, except where TF32 may have caused the difference, which is a limit of the device and no damage.
    """

    dtype: str
    first: int = 0
    required: bool = False
    verdict: Verdict | None = None
    skipped: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)
    kinds: frozenset[DivergenceKey] = frozenset()  # divergences that the stage's own recordings show

    @property
    def equal(self) -> bool:
        return self.verdict is not None and self.verdict.verdict == "EQUIVALENT"

    @property
    def differs(self) -> bool:
        return self.verdict is not None and self.verdict.verdict == "DIVERGENT"

    @property
    def covered(self) -> str | Mapping[str, Any]:
        """Return what the verdict's `coverage` says about the stage."""
        return self.skipped or self.facts

    def in_words(self) -> str:
        """Return the largest difference in float32, in one line."""
        facts = self.facts
        return (
            f"in float32 with the same {self.dtype} weights max |Δ| {figure(facts['largest'])} nats over "
            f"{counted(facts['compared_tokens'], 'token')}, tolerance {figure(facts['tolerance'])}"
        )
