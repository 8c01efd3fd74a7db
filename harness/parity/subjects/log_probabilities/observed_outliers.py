"""Outliers: how many tokens may lie beyond the tolerance before the difference is more than rounding.

Rounding has a heavy tail. At a few ill-conditioned positions the same weights give log-probabilities that are much
further apart than elsewhere. Real engines on a CPU in float32, 4,724 tokens: median 2e-7, 99 % below 1.3e-6, the
largest 1.8e-5. One position of 2,300 teacher-forced random ids reached 8.5e-5. So a single largest value decides
nothing, and less the more tokens there are.

The rule: of the tokens of a step, and of a run, one in a thousand (at least three) may lie beyond the tolerance. None
may lie beyond the cap, or beyond four times the cap in half precision, but for one in some thousands of tokens
(`Tolerance.spared`). Where the learner's own rounding in half
precision was measured, its tail says how many may (`Share`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from harness.parity.facts.align import Grid
from harness.parity.facts.probabilities import negative_binomial_limit, poisson_limit
from reports.model import Place
from reports.text import figure

OUTLIERS = 1e-3  # share of the tokens, see above
FEWEST_OUTLIERS = 3  # allowed in a step whose thousandth is less
EXTREME = 1.0  # times the cap: in float32 more than 1e-4 is rarely noise, see `Tolerance.spared`
# In half precision the tail is longer. Of 600 tokens each, two float32 engines were at most 0.049 and 0.051 nats from
# learners that computed in bfloat16, and 0.0068 and 0.0067 on average. The cap is 0.05.
EXTREME_HALF = 4.0


# In half precision: the probability that rounding like the learner's leaves more tokens beyond the tolerance than
# allowed.
FALSE_OUTLIERS = 1e-3
# Variance over mean of the count of such tokens for a prompt, which come in clumps: 1.0 to 1.6 in three runs in
# bfloat16 on a CPU.
CLUMPED = 1.6


@dataclass(frozen=True)
class Share:
    """How many of the tokens may lie beyond the tolerance.

    `most`: the largest share allowed. `seen`, `of`: where rounding was measured, `seen` of `of` tokens were that far
    apart. `rungs`: the same at larger distances, in rising order.
    """

    most: float = OUTLIERS
    seen: int = 0
    of: int = 0
    rungs: tuple[Rung, ...] = ()

    def allowed(self, tokens: int) -> int:
        """Return how many of `tokens` tokens may lie beyond the tolerance.

        That is the share `most`; in a step of few tokens what rounding at the measured rate exceeds with probability
        `FALSE_OUTLIERS`, as Poisson counts of clumps; and never more than that limit for the rates that what was seen
        leaves possible: a negative binomial distribution (Jeffreys' prior).
        """
        most = math.ceil(max(self.most, OUTLIERS) * tokens)
        if self.of:
            clumps_seen = self.seen / CLUMPED + 0.5
            by_chance = poisson_limit(FALSE_OUTLIERS, self.seen / CLUMPED * tokens / self.of)
            clumps = negative_binomial_limit(FALSE_OUTLIERS, clumps_seen, self.of / (self.of + max(tokens, 1)))
            most = min(max(most, math.ceil(CLUMPED * by_chance)), math.ceil(CLUMPED * clumps))
        return max(FEWEST_OUTLIERS, most)

    def counted(self, size: np.ndarray) -> np.ndarray:
        """Return how many of these |differences|, in nats, lie beyond each rung."""
        return np.array([np.count_nonzero(~(size <= rung.beyond)) for rung in self.rungs], np.int64)

    def crowded(self, tokens: int, further: np.ndarray) -> bool:
        """Whether more of the tokens lie beyond some rung than rounding explains. `further`: the result of
        `counted`.
        """
        return any(count > rung.share.allowed(tokens) for rung, count in zip(self.rungs, further, strict=True))


@dataclass(frozen=True)
class Rung:
    """How many tokens may lie more than `beyond` nats apart."""

    beyond: float
    share: Share


def outliers(tokens: int) -> int:
    """Return how many tokens may lie beyond the tolerance where no rounding was measured."""
    return THOUSANDTH.allowed(tokens)


THOUSANDTH = Share()


@dataclass(frozen=True)
class Bounds:
    """The bounds of a comparison, in nats.

    `share`: how many tokens may lie beyond `tolerance`. `spared`: how many may lie beyond `extreme`, up to `most`. NaN
    and infinity are never allowed.
    """

    tolerance: float
    extreme: float
    share: Share = THOUSANDTH
    spared: int = 0
    most: float = math.inf


@dataclass(frozen=True)
class Tail:
    """The tokens beyond the tolerance of one comparison, over all steps.

    `samples`: (step, sample) of every sample with such tokens. `largest`: its largest |difference|, in nats.
    """

    compared: int = 0
    beyond: int = 0
    share: Share = THOUSANDTH
    further: np.ndarray | None = None  # sums of `Share.counted` over all steps
    samples: np.ndarray = field(default_factory=lambda: np.empty((0, 2), np.int64))
    largest: np.ndarray = field(default_factory=lambda: np.zeros(0))

    def in_words(self) -> str:
        """Return in words what rounding explains, with the farthest distance at which there are more tokens than
        that.
        """
        text = f"at most {self.share.allowed(self.compared):,} are rounding"
        rungs = [] if self.further is None else list(zip(self.share.rungs, self.further.tolist(), strict=True))
        for rung, count in reversed(rungs):
            if count > (most := rung.share.allowed(self.compared)):
                return f"{text}; {count:,} beyond {figure(rung.beyond)} nats, where rounding leaves {most:,} at most"
        return text


@dataclass
class TailSteps:
    """The tail of one comparison while its steps are compared.

    `quiet`: the steps that do not diverge by themselves. `kept`: samples and place of the differences tolerated there.
    """

    so_far: Tail = field(default_factory=Tail)  # without samples
    quiet: list[Weighed] = field(default_factory=list)
    kept: list[tuple[Any, Place]] = field(default_factory=list)
    samples: list[np.ndarray] = field(default_factory=list)
    largest: list[np.ndarray] = field(default_factory=list)

    @property
    def too_many(self) -> bool:
        return bool(self.quiet) and Weighed.together(self.quiet).crowded

    def add(self, weighed: Weighed, items: np.ndarray) -> None:
        """Add one step. `items`: (step, sample) of each row."""
        self.samples.append(items[weighed.rows])
        self.largest.append(weighed.largest)
        self.so_far = Tail(
            compared=self.so_far.compared + weighed.compared,
            beyond=self.so_far.beyond + len(weighed.beyond),
            share=weighed.share,
            further=weighed.further if self.so_far.further is None else self.so_far.further + weighed.further,
        )
        if not weighed.diverges:
            self.quiet.append(weighed)

    def tail(self) -> Tail:
        """Return the tail of all steps."""
        if not self.samples:
            return self.so_far
        return replace(self.so_far, samples=np.concatenate(self.samples), largest=np.concatenate(self.largest))


@dataclass(frozen=True)
class Weighed:
    """One step's differences held against its bounds. `deciding`: flat positions that would be reported for a
    divergence. `rows`: the rows with a token beyond the tolerance. `largest`: the largest |difference| of each.
    """

    compared: int
    beyond: np.ndarray
    deciding: np.ndarray
    extreme: bool
    share: Share = THOUSANDTH
    further: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))  # how many beyond each rung of `share`
    rows: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))
    largest: np.ndarray = field(default_factory=lambda: np.zeros(0))

    @property
    def crowded(self) -> bool:
        """Whether more tokens lie beyond the tolerance, or beyond a rung, than rounding explains."""
        return len(self.beyond) > self.share.allowed(self.compared) or self.share.crowded(self.compared, self.further)

    @property
    def diverges(self) -> bool:
        return self.extreme or self.crowded

    @staticmethod
    def together(parts: list[Weighed]) -> Weighed:
        """Join steps that are held against the same share; their positions are concatenated."""
        beyond = np.concatenate([part.beyond for part in parts])
        deciding = np.concatenate([part.deciding for part in parts])
        further = np.sum([part.further for part in parts], axis=0)
        extreme = any(part.extreme for part in parts)
        return Weighed(sum(part.compared for part in parts), beyond, deciding, extreme, parts[0].share, further)

    @staticmethod
    def of(grid: Grid, compared: np.ndarray, size: np.ndarray, bounds: Bounds) -> Weighed:
        """Hold one step's differences against `bounds`. `size`: |difference| at each position. `compared`: which
        positions count.
        """
        # NaN is beyond every bound, hence the negated comparisons.
        beyond = np.flatnonzero(compared & ~(size <= bounds.tolerance))
        far = ~(size[beyond] <= bounds.extreme)
        row = grid.row_of(beyond)
        # A sample with few tolerated outliers must not be blamed because another sample of its step is at fault.
        heavy = np.bincount(row, minlength=len(grid.length)) > FEWEST_OUTLIERS
        heavy[row[far]] = True
        deciding = beyond[heavy[row]]
        deciding = deciding if len(deciding) else beyond
        rows, begins = np.unique(row, return_index=True)
        farther = bool((~(size[beyond] <= bounds.most)).any()) or not np.isfinite(size[beyond]).all()
        too_far = bool(np.count_nonzero(far) > bounds.spared or farther)
        return Weighed(
            compared=int(np.count_nonzero(compared)),
            beyond=beyond,
            deciding=deciding,
            extreme=too_far,
            share=bounds.share,
            further=bounds.share.counted(size[beyond]),
            rows=rows,
            largest=np.maximum.reduceat(size[beyond], begins) if len(begins) else np.zeros(0),
        )
