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
from reports.text import figure

OUTLIERS = 1e-3  # of the tokens: see above
FEWEST_OUTLIERS = 3  # of a step, whose thousandth would be none
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
    was measured, so many of so many tokens were that far; `rungs`: the same further out, by growing distance."""

    most: float = OUTLIERS
    seen: int = 0
    of: int = 0
    rungs: tuple[Rung, ...] = ()

    def allowed(self, tokens: int) -> int:
        """At most the share; and no more than the count that rounding alone exceeds with a probability of
        `FALSE_OUTLIERS`, given what was seen: a negative binomial one (Poisson counts, Jeffreys' prior), of clumps."""
        most = math.ceil(max(self.most, OUTLIERS) * tokens)
        if self.of:
            clumps = stats.nbinom.isf(FALSE_OUTLIERS, self.seen / CLUMPED + 0.5, self.of / (self.of + max(tokens, 1)))
            most = min(most, math.ceil(CLUMPED * clumps))
        return max(FEWEST_OUTLIERS, most)

    def counted(self, size: np.ndarray) -> np.ndarray:
        """How many of these |differences|, in nats, lie beyond each rung."""
        return np.array([np.count_nonzero(~(size <= rung.beyond)) for rung in self.rungs], np.int64)

    def crowded(self, tokens: int, further: np.ndarray) -> bool:
        """Do more of so many tokens lie beyond a rung than round so far? `further`: as `counted` returns it."""
        return any(count > rung.share.allowed(tokens) for rung, count in zip(self.rungs, further, strict=True))


@dataclass(frozen=True)
class Rung:
    """How many tokens may lie `beyond` so many nats."""

    beyond: float
    share: Share


def outliers(tokens: int) -> int:
    """How many of so many tokens may lie beyond the tolerance, where nothing was measured."""
    return THOUSANDTH.allowed(tokens)


THOUSANDTH = Share()


@dataclass(frozen=True)
class Bounds:
    """What differences may be, in nats. `share`: how many may lie beyond `tolerance`; `spared`: how many beyond
    `extreme`, none that is not a number."""

    tolerance: float
    extreme: float
    share: Share = THOUSANDTH
    spared: int = 0


@dataclass
class Tail:
    """Tokens beyond the tolerance of one comparison, over all steps; `quiet`: those of the steps that do not diverge by
    themselves, `kept`: samples and place of what those tolerate."""

    compared: int = 0
    beyond: int = 0
    share: Share = THOUSANDTH
    further: np.ndarray | None = None  # as `Share.counted` returns it, of all steps
    quiet: list[Weighed] = field(default_factory=list)
    kept: list[tuple[Any, Place]] = field(default_factory=list)

    @property
    def too_many(self) -> bool:
        return bool(self.quiet) and Weighed.together(self.quiet).crowded

    def add(self, weighed: Weighed) -> None:
        """One step more."""
        self.share = weighed.share
        self.compared += weighed.compared
        self.beyond += len(weighed.beyond)
        self.further = weighed.further if self.further is None else self.further + weighed.further
        if not weighed.diverges:
            self.quiet.append(weighed)

    def said(self) -> str:
        """What rounding leaves, in words; of the distances at which there is more, the farthest."""
        text = f"at most {self.share.allowed(self.compared):,} are rounding"
        rungs = [] if self.further is None else list(zip(self.share.rungs, self.further.tolist(), strict=True))
        for rung, count in reversed(rungs):
            if count > (most := rung.share.allowed(self.compared)):
                return f"{text}; {count:,} beyond {figure(rung.beyond)} nats, where rounding leaves {most:,} at most"
        return text


@dataclass(frozen=True)
class Weighed:
    """One step's differences. `deciding`: the flat positions that speak for a divergence, were it one."""

    compared: int
    beyond: np.ndarray
    deciding: np.ndarray
    extreme: bool
    share: Share = THOUSANDTH
    further: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))  # how many beyond each rung of `share`

    @property
    def crowded(self) -> bool:
        """Are they more than rounding takes so far?"""
        return len(self.beyond) > self.share.allowed(self.compared) or self.share.crowded(self.compared, self.further)

    @property
    def diverges(self) -> bool:
        return self.extreme or self.crowded

    @staticmethod
    def together(parts: list[Weighed]) -> Weighed:
        """Several that are held against one share, as one; their positions are one after the other."""
        beyond = np.concatenate([part.beyond for part in parts])
        deciding = np.concatenate([part.deciding for part in parts])
        further = np.sum([part.further for part in parts], axis=0)
        extreme = any(part.extreme for part in parts)
        return Weighed(sum(part.compared for part in parts), beyond, deciding, extreme, parts[0].share, further)

    @staticmethod
    def of(grid: Grid, compared: np.ndarray, size: np.ndarray, bounds: Bounds) -> Weighed:
        """`size`: |difference| at each position; those outside of `compared` are not compared."""
        beyond = np.flatnonzero(compared & ~(size <= bounds.tolerance))
        far = ~(size[beyond] <= bounds.extreme)
        row = grid.row_of(beyond)
        # A sample with one tolerated outlier must not be blamed because another sample of its step is at fault.
        heavy = np.bincount(row, minlength=len(grid.length)) > FEWEST_OUTLIERS
        heavy[row[far]] = True
        deciding = beyond[heavy[row]]
        deciding = deciding if len(deciding) else beyond
        too_far = bool(np.count_nonzero(far) > bounds.spared or not np.isfinite(size[beyond]).all())
        return Weighed(
            compared=int(np.count_nonzero(compared)),
            beyond=beyond,
            deciding=deciding,
            extreme=too_far,
            share=bounds.share,
            further=bounds.share.counted(size[beyond]),
        )
