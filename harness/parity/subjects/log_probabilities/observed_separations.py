"""Where differences stand: which property of a token or of its sample separates what differs from what does not.

All of the steps in which an engine differs from its learner are counted by each of `PROPERTIES`. An exact separation
leads: everything with the property differs and nothing else does, only what has it differs, or nothing that has it
does. Where none is exact, the flag with the largest ratio of the two shares is given, with a confidence interval.

The tokens of a sample are not independent. So properties of a sample are counted by samples; the probability that a
property of tokens separates by chance is that of the tokens within each sample, given how many of them differ; and the
interval of a ratio takes samples as its units.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from scipy import special

from harness.parity.facts.probabilities import normal_quantile
from harness.parity.subjects.log_probabilities.observed_properties import PROPERTIES, Property, Reads, StepTokens

FEWEST = 5  # tokens, or samples, on either side of an exact separation; fewer may stand there by chance
CHANCE = 1e-3  # greatest probability of a separation by chance, over all properties and their values
TWICE = 2.0  # ratio of two shares from which it is given; its lower confidence bound must reach it
DENSE = 1 << 20  # values up to this far apart are counted in an array
KEPT = 1 << 18  # tokens of the first steps by which the probability of chance is computed
CONFIDENCE = 0.95  # of an interval, over all flags (Bonferroni)


@dataclass(frozen=True)
class Separation:
    """How many tokens, or samples, have a property, and how many of them differ; `count` and `differing` are of all.

    `p`: probability that it stands there by chance, if nothing separates, for all values of the property together.
    `ratio`: share that differs of those with the property over that of the others, with its confidence bounds; only
    where the separation is not exact.
    """

    name: str
    having: int
    having_differing: int
    count: int
    differing: int
    p: float = 1.0
    ratio: tuple[float, float, float] | None = None

    @property
    def lacking(self) -> int:
        return self.count - self.having

    @property
    def lacking_differing(self) -> int:
        return self.differing - self.having_differing

    @property
    def exact(self) -> bool:
        """Whether all that differs has the property, or nothing that has it differs."""
        enough = min(self.having, self.lacking) >= FEWEST and self.differing >= FEWEST
        return enough and 0 in (self.lacking_differing, self.having_differing) and self.p < CHANCE / len(PROPERTIES)

    @property
    def complete(self) -> bool:
        """Whether the property says of each token whether it differs."""
        all_with_it_differ = self.having == self.having_differing
        all_without_it_differ = not self.having_differing and self.lacking == self.differing
        return self.exact and (all_with_it_differ or all_without_it_differ)

    def in_words(self) -> str:
        """Return the separation as a clause."""
        having, lacking = (
            f"{self.having_differing:,} of {self.having:,}",
            f"{self.lacking_differing:,} of {self.lacking:,}",
        )
        if self.ratio is not None:
            times, low, high = self.ratio
            return (
                f"{self.name} differ {times:.1f} times as often as others ({CONFIDENCE:.0%} confidence: {low:.1f} to "
                f"{high:.1f}): {having}, {lacking} others"
            )
        if self.complete and self.having_differing:
            return f"all that differs are {self.differing:,} {self.name}, and they are all that there are"
        if self.having_differing:
            return f"only {self.name} differ: {having}, {lacking} others"
        return f"none of {self.having:,} {self.name} differs, {lacking} others do"


@dataclass(frozen=True)
class Compared:
    """What one step compared: the value of each token or sample, whether it differs, and the sample that it is of."""

    values: np.ndarray
    differs: np.ndarray
    sample: np.ndarray


@dataclass
class PropertySums:
    """One property over the steps counted so far.

    `parts`: of each step its distinct values, and how many have each and how many of those differ. `moments` [4, 4]:
    sum over samples of the outer product of (with the property, differing of them, without it, differing of those).
    `kept`: the first steps as they are, up to `KEPT` tokens. `unknown`: a step does not say.
    """

    parts: list[tuple[np.ndarray, np.ndarray]] = field(default_factory=list)
    moments: np.ndarray = field(default_factory=lambda: np.zeros((4, 4)))
    kept: list[Compared] = field(default_factory=list)
    unknown: bool = False

    def add(self, trait: Property, step: Compared) -> None:
        differs = step.differs.astype(np.int64)
        self.parts.append(_by_value(step.values, np.stack([np.ones_like(differs), differs], 1)))
        if sum(len(each.values) for each in self.kept) < KEPT:
            self.kept.append(step)
        if trait.reads is Reads.FLAG:
            has = step.values == 1
            masks = (has, has & step.differs, ~has, ~has & step.differs)
            by_sample = np.stack([np.bincount(step.sample, weights=mask) for mask in masks])
            self.moments += by_sample @ by_sample.T

    def by_chance(self, trait: Property, may_differ: Callable[[np.ndarray], np.ndarray]) -> float:
        """Return the probability that all that differs is among the values that may.

        For a property of samples any sample of a step may differ as well as another; for one of tokens any token of
        the same sample. By the hypergeometric distribution, of the kept steps.
        """
        log_p = 0.0
        for step in self.kept:
            stratum = np.zeros_like(step.sample) if trait.of_samples else step.sample
            in_all, room, differing = (
                np.bincount(stratum, weights=mask)
                for mask in (np.ones(len(stratum)), may_differ(step.values), step.differs)
            )
            log_p += float((_log_choices(room, differing) - _log_choices(in_all, differing)).sum())
        return float(np.exp(log_p))

    def table(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the distinct values of all steps, ascending, and [values, 2] how many have each, and differ."""
        values, counts = (np.concatenate(arrays) for arrays in zip(*self.parts, strict=True))
        return _by_value(values, counts)


Sums = dict[str, PropertySums]


def _lacks(has: Callable[[np.ndarray], np.ndarray], values: np.ndarray) -> np.ndarray:
    return ~has(values)


def _log_choices(n: np.ndarray, k: np.ndarray) -> np.ndarray:
    """Return the logarithm of the number of ways to choose k of n; k ≤ n."""
    ways: np.ndarray = special.gammaln(n + 1) - special.gammaln(k + 1) - special.gammaln(n - k + 1)
    return ways


def _by_value(values: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct values, ascending, and the sum of the two columns of `counts` over each."""
    low = int(values.min(initial=0))
    if int(values.max(initial=0)) - low < DENSE:  # without the sort that `unique` needs
        places, distinct = values - low, np.arange(low, int(values.max(initial=0)) + 1)
    else:
        distinct, places = np.unique(values, return_inverse=True)
    sums = np.stack([np.bincount(places, weights=column, minlength=len(distinct)) for column in counts.T], 1)
    present = sums[:, 0] > 0
    return distinct[present], sums[present].astype(np.int64)


def count(sums: Sums, step: StepTokens, differs: np.ndarray, compared: np.ndarray) -> None:
    """Add the tokens of one step. `differs`, `compared`: masks over its tokens."""
    grid, differs = step.tokens.grid, differs & compared
    of_samples = (grid.any(compared), grid.any(differs), np.arange(len(grid.length)))
    of_tokens = (compared, differs, grid.row)
    for trait in PROPERTIES:
        counted, values = sums.setdefault(trait.name, PropertySums()), trait.of(step)
        if values is None:
            counted.unknown = True  # the step does not record it
            continue
        looked_at, wrong, sample = of_samples if trait.of_samples else of_tokens
        counted.add(trait, Compared(values[looked_at].astype(np.int64), wrong[looked_at], sample[looked_at]))


def separations(sums: Sums) -> tuple[Separation, ...]:
    """Return the exact separations, the clearest first: flags and labels that decide on every token, then the least
    probable.

    An amount that decides on every sample may follow from one of its tokens: only long samples reach a position. Where
    there is no exact separation, return the flag that differs most often in relation to what lacks it, if there is one.
    """
    recorded = [trait for trait in PROPERTIES if trait.name in sums and not sums[trait.name].unknown]
    exact: list[tuple[tuple[bool, float], Separation]] = []  # with what they are sorted by
    for trait in recorded:
        for separation in _split(trait, sums[trait.name]):
            if separation.exact:
                is_less_clear = not separation.complete or trait.reads is Reads.AMOUNT
                exact.append(((is_less_clear, separation.p), separation))
    if exact:
        return tuple(separation for _, separation in sorted(exact, key=lambda pair: pair[0]))
    flags = [trait for trait in recorded if trait.reads is Reads.FLAG]
    ratios = [separation for trait in flags for separation in _ratio(trait, sums[trait.name], len(flags))]
    return tuple(sorted(ratios, key=lambda separation: -(separation.ratio or (0.0,))[0])[:1])


def _split(trait: Property, counted: PropertySums) -> Iterator[Separation]:
    """Yield what a property separates: its flag, the one label that stands apart, or the amounts at which differences
    begin and end."""
    # A separation is one condition that all differing tokens meet, or none of them.
    values, counts = counted.table()
    differ, agree = np.flatnonzero(counts[:, 1]), np.flatnonzero(counts[:, 1] == 0)
    if not len(differ):
        return
    candidates: list[tuple[str, Callable[[np.ndarray], np.ndarray]]] = []
    if trait.reads is Reads.FLAG:
        candidates = [(trait.name, lambda each: each == 1)]
    elif trait.reads is Reads.LABEL:
        apart = [values[places[0]] for places in (differ, agree) if len(places) == 1]
        candidates = [(trait.name.format(label), partial(np.equal, label)) for label in apart]
    else:
        first, last = values[differ[0]], values[differ[-1]]
        candidates = [
            (trait.name.format(f"{first} and more"), partial(np.less_equal, first)),
            (trait.name.format(f"at most {last}"), partial(np.greater_equal, last)),
        ]
    # A label or an amount is the best of all its values, so its probability is multiplied by their number (Bonferroni).
    tried = 1 if trait.reads is Reads.FLAG else len(values)
    for name, has in candidates:
        having, having_differing = counts[has(values)].sum(0).tolist()
        is_sparse = trait.reads is Reads.AMOUNT and 2 * having_differing < having  # few differ where they may
        # The property separates if all differences have it, or none of them.
        if having_differing in (0, counts[:, 1].sum()) and not is_sparse:
            # Where none of the differences has it, those without it are the ones that may differ.
            may_differ = has if having_differing else partial(_lacks, has)
            p = min(1.0, tried * counted.by_chance(trait, may_differ))
            of_all, differing = counts.sum(0).tolist()
            yield Separation(name, having, having_differing, of_all, differing, p)


def _ratio(trait: Property, counted: PropertySums, flags: int) -> Iterator[Separation]:
    """Yield the ratio of the shares that differ with and without a flag, if its lower bound reaches `TWICE`.

    The standard error of its logarithm is that of a ratio of means of clusters, here of samples, linearised (Cochran,
    Sampling Techniques, 3rd ed., 6.3 and 9A.3).
    """
    values, counts = counted.table()
    if len(values) != 2 or counts.min() < FEWEST:
        return
    (without, without_differing), (having, having_differing) = counts.tolist()
    slope = np.array([-1 / having, 1 / having_differing, 1 / without, -1 / without_differing])
    variance = float(slope @ counted.moments @ slope)
    if variance <= 0:  # one sample, or samples that are all alike: their spread is unknown
        return
    error = math.sqrt(variance) * -normal_quantile((1 - CONFIDENCE) / 2 / flags)
    times = (having_differing / having) / (without_differing / without)
    low, high = float(times * np.exp(-error)), float(times * np.exp(error))
    if low >= TWICE:
        of_all, differing = counts.sum(0).tolist()
        yield Separation(trait.name, having, having_differing, of_all, differing, ratio=(times, low, high))
