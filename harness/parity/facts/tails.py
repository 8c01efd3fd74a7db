"""Tails: how many tokens of a comparison may lie beyond the tolerance before it is more than rounding.

Rounding has a heavy tail: at a few ill-conditioned positions the same weights give log-probabilities that are far
further apart than elsewhere. Real engines on a CPU in float32, 4,724 tokens: median 2e-7, 99 % below 1.3e-6, the
largest 1.8e-5, and one position of 2,300 teacher-forced random ids 8.5e-5. A single largest value therefore decides
nothing by itself, and would decide less the more tokens there are. Of the tokens of a step, and of a run, a
thousandth (at least three) may lie beyond the tolerance; none may lie beyond the cap, in half precision beyond four
times the cap.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from harness.parity.facts.align import Grid
from reports.model import Place

OUTLIERS = 1e-3
FEWEST_OUTLIERS = 3
EXTREME = 1.0  # times the cap: in float32 anything above 1e-4 is a defect, not noise
# In half precision the tail goes on: of 600 tokens each, two float32 engines were 0.049 and 0.051 nats at most from
# learners that computed in bfloat16, 0.0068 and 0.0067 on average. The cap is 0.05.
EXTREME_HALF = 4.0


def outliers(tokens: int) -> int:
    """How many of so many tokens may lie beyond the tolerance."""
    return max(FEWEST_OUTLIERS, math.ceil(OUTLIERS * tokens))


@dataclass
class Tail:
    """Tokens beyond the tolerance of one comparison, over all steps; `kept`: samples and place of tolerated ones."""

    compared: int = 0
    beyond: int = 0
    kept: list[tuple[Any, Place]] = field(default_factory=list)

    @property
    def too_many(self) -> bool:
        return self.beyond > outliers(self.compared)


@dataclass(frozen=True)
class Weighed:
    """One step's differences. `deciding`: the flat positions that speak for a divergence, were it one."""

    compared: int
    beyond: np.ndarray
    deciding: np.ndarray
    extreme: bool

    @property
    def diverges(self) -> bool:
        return self.extreme or len(self.beyond) > outliers(self.compared)

    @staticmethod
    def of(grid: Grid, same: np.ndarray, size: np.ndarray, tolerance: float, extreme: float) -> Weighed:
        """`size`: |difference| at each position; those outside of `same` are not compared. NaN is extreme."""
        beyond = np.flatnonzero(same & ~(size <= tolerance))
        far = ~(size[beyond] <= extreme)
        row = grid.row[beyond]
        # A sample with one tolerated outlier must not be blamed because another sample of its step is at fault.
        heavy = np.bincount(row, minlength=len(grid.length)) > FEWEST_OUTLIERS
        heavy[row[far]] = True
        deciding = beyond[heavy[row]]
        return Weighed(int(np.count_nonzero(same)), beyond, deciding if len(deciding) else beyond, bool(far.any()))
