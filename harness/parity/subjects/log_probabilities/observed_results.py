"""The results of comparing log-probabilities of the same tokens."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from harness.parity.facts.divergence import DivergenceKey
from harness.parity.subjects.log_probabilities.observed_outliers import Tail
from harness.parity.subjects.log_probabilities.observed_readings import Readings
from harness.parity.subjects.log_probabilities.observed_separations import Separation
from harness.parity.subjects.log_probabilities.observed_systematic import Means, Tested


@dataclass(frozen=True)
class LogProbabilities:
    """How far log-probabilities of the same tokens are apart, and what removes the difference."""

    incomplete: tuple[int, ...]  # steps in which a token of either engine has no log-probability
    tails: Mapping[DivergenceKey, Tail]
    readings: Mapping[DivergenceKey, Readings]  # what re-readings leave of a difference
    separations: Mapping[DivergenceKey, tuple[Separation, ...]]  # the exact ones, the clearest first; else one ratio
    drift_tests: Mapping[Means, tuple[Tested, ...]]  # mean differences
