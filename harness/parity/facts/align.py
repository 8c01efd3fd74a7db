"""Alignment of two recordings by step, sample number and token position. Nothing is dropped without being counted.

Rows are never compared in the order in which they were recorded, since engines answer in any order. Everything is
vectorised: a step of a million tokens takes a few passes over flat arrays.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from harness.recordings.tables import Rows, Table

AHEAD, BEHIND = 3, 8  # ids that a report shows before and after a place: together a line of a terminal


@dataclass(frozen=True)
class Match:
    """Rows of `a` and `b` with the same sample number, in the order of the sample numbers."""

    sample: np.ndarray
    a: np.ndarray  # row in `a` of each matched sample
    b: np.ndarray
    only_a: np.ndarray  # sample numbers without a partner: missing evidence
    only_b: np.ndarray
    repeated: np.ndarray  # sample numbers that occur more than once in `a` or in `b`; the first row of each was taken

    @staticmethod
    def of(a: np.ndarray, b: np.ndarray) -> Match:
        values_a, first_a, counts_a = np.unique(a, return_index=True, return_counts=True)
        values_b, first_b, counts_b = np.unique(b, return_index=True, return_counts=True)
        sample, ia, ib = np.intersect1d(values_a, values_b, assume_unique=True, return_indices=True)
        repeated = np.union1d(values_a[counts_a > 1], values_b[counts_b > 1])
        return Match(
            sample,
            first_a[ia],
            first_b[ib],
            np.setdiff1d(values_a, values_b, assume_unique=True),
            np.setdiff1d(values_b, values_a, assume_unique=True),
            repeated,
        )


@dataclass(frozen=True)
class Grid:
    """The token positions that matched rows share: `length[r]` positions of row r, all rows one after the other in flat
    arrays.
    """

    length: np.ndarray

    @cached_property
    def start(self) -> np.ndarray:
        """Return where each row begins in the flat arrays, with one entry more than rows."""
        return np.concatenate([[0], np.cumsum(self.length)])

    @property
    def size(self) -> int:
        return int(self.start[-1])

    @cached_property
    def row(self) -> np.ndarray:
        return np.repeat(np.arange(len(self.length), dtype=np.int32), self.length)

    def row_of(self, flat: np.ndarray) -> np.ndarray:
        """Return the row of each of a few flat positions; `row` has that of all positions."""
        rows: np.ndarray = np.searchsorted(self.start, flat, side="right") - 1
        return rows

    @cached_property
    def position(self) -> np.ndarray:
        begin = np.repeat(self.start[:-1], self.length)
        position: np.ndarray = (np.arange(self.size, dtype=np.int64) - begin).astype(np.int32)
        return position

    def take(self, rows: Rows, index: np.ndarray) -> np.ndarray:
        """Return the first `length[r]` values of `rows.row(index[r])`, flat. Copies only where rows are cut or
        reordered.
        """
        lengths = rows.lengths
        if (
            len(index) == len(rows)
            and np.array_equal(lengths, self.length)
            and np.array_equal(index, np.arange(len(index)))
        ):
            return rows.values
        place = np.repeat(rows.offsets[:-1][index] - self.start[:-1], self.length)
        place += np.arange(self.size)
        values: np.ndarray = rows.values[place]
        return values

    def any(self, flags: np.ndarray) -> np.ndarray:
        """Return for each row whether any of its positions is flagged."""
        flagged = np.zeros(len(self.length), bool)
        flagged[self.row_of(np.flatnonzero(flags))] = True
        return flagged

    def first(self, flags: np.ndarray) -> np.ndarray:
        """Return for each row the first flagged position, or the row's length where there is none."""
        first_flagged = self.length.astype(np.int64).copy()
        where = np.flatnonzero(flags)
        rows, index = np.unique(self.row_of(where), return_index=True)
        first_flagged[rows] = where[index] - self.start[rows]
        return first_flagged


def shared(rows: list[tuple[Rows, np.ndarray]]) -> Grid:
    """Return the grid that several ragged columns share, each given with the rows to take."""
    return Grid(np.minimum.reduce([column.lengths[index] for column, index in rows]))


@dataclass(frozen=True)
class AlignedTokens:
    """The tokens of one step at the positions that the same samples have in two tables.

    The tables are the rollouts of two runs, or a rollout and what was trained on. `column_a`, `column_b`: all tokens of
    each table. `tokens_a`, `tokens_b`: those at shared positions, flat on `grid`.
    """

    a: Table
    b: Table
    match: Match
    column_a: Rows
    column_b: Rows
    grid: Grid
    tokens_a: np.ndarray
    tokens_b: np.ndarray

    @staticmethod
    def of(a: Table, b: Table, match: Match, column_a: Rows, column_b: Rows) -> AlignedTokens:
        grid = shared([(column_a, match.a), (column_b, match.b)])
        return AlignedTokens(
            a=a,
            b=b,
            match=match,
            column_a=column_a,
            column_b=column_b,
            grid=grid,
            tokens_a=grid.take(column_a, match.a),
            tokens_b=grid.take(column_b, match.b),
        )

    @property
    def step(self) -> int:
        return self.a.step

    @property
    def lengths_a(self) -> np.ndarray:
        """Return [rows] the full length of each matched sample in `a`."""
        lengths: np.ndarray = self.column_a.lengths[self.match.a]
        return lengths

    @property
    def lengths_b(self) -> np.ndarray:
        lengths: np.ndarray = self.column_b.lengths[self.match.b]
        return lengths

    def take_a(self, rows: Rows) -> np.ndarray:
        """Return a column of `a` with as many values as tokens in each sample, flat on `grid`."""
        return self.grid.take(rows, self.match.a)

    def take_b(self, rows: Rows) -> np.ndarray:
        return self.grid.take(rows, self.match.b)

    def at(self, row: int) -> dict[str, Any]:
        """Return the fields of a `Place` that say which matched row this is, by its rank in `a`."""
        return self.a.at(int(self.match.a[row]))


def equal_rows(a: Rows, ia: np.ndarray, b: Rows, ib: np.ndarray) -> np.ndarray:
    """Return for each pair of rows whether length and every value are equal."""
    is_equal: np.ndarray = a.lengths[ia] == b.lengths[ib]
    grid = shared([(a, ia), (b, ib)])
    is_equal[grid.any(grid.take(a, ia) != grid.take(b, ib))] = False
    return is_equal


def first_difference(first_row: np.ndarray, second_row: np.ndarray) -> int:
    """Return the first position at which two rows differ; the shorter length where one row begins the other."""
    n = min(len(first_row), len(second_row))
    differs = np.flatnonzero(first_row[:n] != second_row[:n])
    return int(differs[0]) if len(differs) else n


def around(row: np.ndarray, at: int, *, behind: int = BEHIND) -> str:
    """Return `… 17 [42] 9 …`: the ids around a position, with the one at it in brackets, or `[end]` where the row
    ended.
    """
    low, high = max(0, at - AHEAD), at + behind + 1
    ids = [f"[{value}]" if low + index == at else str(value) for index, value in enumerate(row[low:high].tolist())]
    end = ["…"] if high < len(row) else ["[end]"] if at >= len(row) else []
    return " ".join([*(["…"] if low else []), *ids, *end])
