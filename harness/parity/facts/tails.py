"""Tails: how many tokens of a comparison may lie beyond the tolerance before it is more than rounding.

Rounding has a heavy tail: at a few ill-conditioned positions the same weights give log-probabilities that are far
further apart than elsewhere. Real engines on a CPU in float32, 4,724 tokens: median 2e-7, 99 % below 1.3e-6, the
largest 1.8e-5, and one position of 2,300 teacher-forced random ids 8.5e-5. A single largest value therefore decides
nothing by itself, and would decide less the more tokens there are. Of the tokens of a step, and of a run, a
thousandth (at least three) may lie beyond the tolerance; none may lie beyond the cap, in half precision beyond four
times the cap. Where the learner's own rounding in half precision was measured, its tail says how many may (`Share`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy import stats

from harness.parity.facts.align import Grid
from reports.model import Place

OUTLIERS = 1e-3
FEWEST_OUTLIERS = 3
EXTREME = 1.0  # times the cap: in float32 anything above 1e-4 is a defect, not noise
# In half precision the tail goes on: of 600 tokens each, two float32 engines were 0.049 and 0.051 nats at most from
# learners that computed in bfloat16, 0.0068 and 0.0067 on average. The cap is 0.05.
EXTREME_HALF = 4.0


# In half precision: how seldom rounding like the learner's leaves more tokens beyond the tolerance than are allowed.
FALSE_OUTLIERS = 1e-3
# Variance over mean of such tokens of a prompt, which come in clumps: 1.0 to 1.6 in three runs in bfloat16 on a CPU.
CLUMPED = 1.6


@dataclass(frozen=True)
class Share:
    """Of the tokens, how many may lie beyond the tolerance. `most`: what share at most; `seen`, `of`: where rounding
    was measured, so many of so many tokens were that far."""

    most: float = OUTLIERS
    seen: int = 0
    of: int = 0

    def allowed(self, tokens: int) -> int:
        """At most the share; and no more than the count that rounding alone exceeds with a probability of
        `FALSE_OUTLIERS`, given what was seen: a negative binomial one (Poisson counts, Jeffreys' prior), of clumps."""
        most = math.ceil(max(self.most, OUTLIERS) * tokens)
        if self.of:
            clumps = stats.nbinom.isf(FALSE_OUTLIERS, self.seen / CLUMPED + 0.5, self.of / (self.of + max(tokens, 1)))
            most = min(most, math.ceil(CLUMPED * clumps))
        return max(FEWEST_OUTLIERS, most)


def outliers(tokens: int) -> int:
    """How many of so many tokens may lie beyond the tolerance, where nothing was measured."""
    return THOUSANDTH.allowed(tokens)


THOUSANDTH = Share()


@dataclass
class Tail:
    """Tokens beyond the tolerance of one comparison, over all steps; `quiet`: (compared, beyond) of the steps that do
    not diverge by themselves, `kept`: samples and place of what those tolerate."""

    compared: int = 0
    beyond: int = 0
    share: Share = THOUSANDTH
    quiet: tuple[int, int] = (0, 0)
    kept: list[tuple[Any, Place]] = field(default_factory=list)

    @property
    def too_many(self) -> bool:
        compared, beyond = self.quiet
        return beyond > self.share.allowed(compared)


@dataclass(frozen=True)
class Weighed:
    """One step's differences. `deciding`: the flat positions that speak for a divergence, were it one."""

    compared: int
    beyond: np.ndarray
    deciding: np.ndarray
    extreme: bool
    share: Share = THOUSANDTH

    @property
    def diverges(self) -> bool:
        return self.extreme or len(self.beyond) > self.share.allowed(self.compared)

    @staticmethod
    def of(
        grid: Grid, same: np.ndarray, size: np.ndarray, tolerance: float, extreme: float, share: Share = THOUSANDTH,
        spared: int = 0,
    ) -> Weighed:  # fmt: skip
        """`size`: |difference| at each position; those outside of `same` are not compared. `spared`: tokens that
        may lie beyond `extreme`; none that is no number."""
        beyond = np.flatnonzero(same & ~(size <= tolerance))
        far = ~(size[beyond] <= extreme)
        row = grid.row[beyond]
        # A sample with one tolerated outlier must not be blamed because another sample of its step is at fault.
        heavy = np.bincount(row, minlength=len(grid.length)) > FEWEST_OUTLIERS
        heavy[row[far]] = True
        deciding = beyond[heavy[row]]
        deciding = deciding if len(deciding) else beyond
        too_far = bool(np.count_nonzero(far) > spared or not np.isfinite(size[beyond]).all())
        return Weighed(int(np.count_nonzero(same)), beyond, deciding, too_far, share)
