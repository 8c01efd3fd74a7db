"""How many of a learner's margins are what few should be; `margins` says how many are too many."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from harness.parity.subjects.log_probabilities.observed_metrics import SIZEABLE
from harness.parity.subjects.precision.observed_floor import Tolerance
from harness.parity.subjects.precision.observed_rounding import both
from harness.recordings.tables import Rows, Table


@dataclass
class Margins:
    """Of one learner over the run: how many margins there are, and how many of them are what few should be."""

    every: int = 0
    finite: int = 0
    near: int = 0  # ties
    distinct: int = 0  # finite ones, those of equal tokens at equal positions once: greedy samples repeat each other
    repeated: int = 0  # of the distinct ones, beyond the first of each step's commonest value
    edges: int = 0  # without bound, although another token is left
    probable: int = 0  # greedy choices likelier than all other tokens together
    itself: int = 0  # whose other token is the chosen one
    others: int = 0  # that name another token
    other: int = 0  # of those, each step's commonest
    chosen: int = 0  # at those, each step's commonest choice
    narrow: int = 0  # those whose gap is smaller than their probability allows

    def add(self, table: Table, margin: Rows, tolerance: Tolerance, mode: str) -> None:
        """One step more; `mode`: in which its samples were drawn."""
        values = margin.values
        finite = np.isfinite(values)
        columns = both(table, "tokens", "margin", "runner_up")
        self.every += len(values)
        self.finite += int(np.count_nonzero(finite))
        self.near += int(np.count_nonzero(np.abs(values[finite]) <= tolerance.margin))
        if columns is not None:
            self._named(columns[0].values, columns[2].values)
            self.edges += int(np.count_nonzero(np.isposinf(values) & (columns[2].values >= 0)))
            position = np.arange(len(values)) - np.repeat(margin.offsets[:-1], margin.lengths)
            places = np.stack([position, columns[0].values, values], axis=1)[finite]
            values = np.unique(places.astype(np.float64), axis=0)[:, 2]
        else:
            values = values[finite]
        if len(values):
            self.distinct += len(values)
            self.repeated += int(np.unique(values, return_counts=True)[1].max()) - 1
        numbers = both(table, "margin", "actor_logprob") if mode == "greedy" else None
        if numbers is not None:
            self._held_against(numbers[1].values.astype(np.float64), numbers[0].values, tolerance.value)

    def _named(self, chosen: np.ndarray, runner_up: np.ndarray) -> None:
        """The best other token at each place."""
        named = runner_up >= 0
        self.itself += int(np.count_nonzero(named & (runner_up == chosen)))
        if named.any():
            self.others += int(np.count_nonzero(named))
            self.other += int(np.unique(runner_up[named], return_counts=True)[1].max())
            self.chosen += int(np.unique(chosen[named], return_counts=True)[1].max())

    def _held_against(self, logprob: np.ndarray, margin: np.ndarray, tolerance: float) -> None:
        """Greedy gaps against the probability of the choice, as far as `tolerance` nats of it say."""
        at = (logprob > np.log(0.5)) & (logprob < -SIZEABLE)
        remaining_mass = -np.expm1(logprob[at])
        least = logprob[at] - np.log(remaining_mass) - tolerance / remaining_mass
        self.probable += int(np.count_nonzero(at))
        self.narrow += int(np.count_nonzero(margin[at] < least))
