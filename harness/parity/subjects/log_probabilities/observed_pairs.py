"""Two log-probabilities of each token of a step, with their difference, for metrics, means and tolerances.

The difference is taken once. Most results are sums over samples, prompts, ranges of positions or cached samples. So it
is summed once over the tokens of each row in each range of positions (`PositionCells`), and the results add those sums.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from harness.parity.facts.align import Grid

POSITION_EDGES = (1, 4, 16, 64, 256, 1024, 4096)  # first position of each range but the first


@dataclass(frozen=True)
class PositionCells:
    """Cells: the positions of one row that lie in one range of `POSITION_EDGES`. A cell is consecutive in flat
    arrays.
    """

    row: np.ndarray
    bucket: np.ndarray  # number of the range
    start: np.ndarray  # flat

    @staticmethod
    def of(grid: Grid) -> PositionCells:
        begins = np.array([0, *POSITION_EDGES])
        row, bucket = np.nonzero(begins < grid.length[:, np.newaxis])
        return PositionCells(row, bucket, grid.start[row] + begins[bucket])

    def sums(self, values: np.ndarray) -> np.ndarray:
        """Return the sum of a flat array over each cell, in float64."""
        return np.add.reduceat(values, self.start, dtype=np.float64) if len(self.start) else np.zeros(0)

    def largest(self, values: np.ndarray) -> np.ndarray:
        """Return the maximum of a flat array over each cell."""
        return np.maximum.reduceat(values, self.start) if len(self.start) else np.zeros(0)


class LogprobPairs:
    """The two log-probabilities `first` and `second` at each position of `grid`; Δ = second − first, nats.

    `same`: positions at which both are of the same token. `compared`: those of them at which both are finite. `sample`,
    and `cached` where it was recorded: one number for each row. Sums over cells cover the compared positions.
    """

    def __init__(
        self, grid: Grid, same: np.ndarray, first: np.ndarray, second: np.ndarray, sample: np.ndarray,
        cached: np.ndarray | None = None,
    ) -> None:  # fmt: skip
        self.grid, self.same, self.sample, self.cached = grid, same, sample, cached
        self.first, self.second = first.astype(np.float64), second.astype(np.float64)
        with np.errstate(invalid="ignore", over="ignore"):
            self.delta = self.second - self.first
        self.size = np.abs(self.delta)
        self.compared = same & np.isfinite(self.delta)
        self._all_compared = bool(self.compared.all())

    def exchanged(self) -> LogprobPairs:
        """Return the same pairs with `second` first."""
        return LogprobPairs(self.grid, self.same, self.second, self.first, self.sample, self.cached)

    def at_compared(self, values: np.ndarray) -> np.ndarray:
        """Return the values of a flat array at the compared positions."""
        return values if self._all_compared else values[self.compared]

    def place(self, index: int) -> tuple[int, int]:
        """Return (row, position) of the compared position with this index among the compared ones."""
        flat = index if self._all_compared else int(np.flatnonzero(self.compared)[index])
        row = int(self.grid.row_of(np.array([flat]))[0])
        return row, flat - int(self.grid.start[row])

    @cached_property
    def cells(self) -> PositionCells:
        return PositionCells.of(self.grid)

    @cached_property
    def tokens(self) -> np.ndarray:
        """Return the count of compared positions of each cell."""
        return self.cells.sums(self.compared)

    @cached_property
    def delta_sums(self) -> np.ndarray:
        return self.cell_sums(self.delta)

    @cached_property
    def size_sums(self) -> np.ndarray:
        return self.cell_sums(self.size)

    def cell_sums(self, values: np.ndarray) -> np.ndarray:
        """Return the sum of a flat array over the compared positions of each cell."""
        return self.cells.sums(self._or_zero(values))

    @cached_property
    def largest(self) -> np.ndarray:
        """Return the largest |Δ| of each cell; 0 where nothing was compared."""
        return self.cells.largest(self._or_zero(self.size))

    def _or_zero(self, values: np.ndarray) -> np.ndarray:
        return values if self._all_compared else np.where(self.compared, values, 0.0)
