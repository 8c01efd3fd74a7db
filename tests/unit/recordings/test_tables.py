"""Rows of unequal length, and tables that may lack a column."""

from __future__ import annotations

import numpy as np

from harness.recordings.tables import Rows, Table


def rows(*lists: list[int]) -> Rows:
    values = np.array([value for values in lists for value in values], np.int64)
    return Rows(values, np.cumsum([0, *map(len, lists)]).astype(np.int64))


def test_the_row_of_a_value_skips_empty_rows() -> None:
    assert rows([7, 8], [], [9]).row_of(np.array([0, 1, 2])).tolist() == [0, 0, 2]


def test_the_last_value_of_an_empty_row_is_absent() -> None:
    assert rows([7, 8], [], [9]).last(absent=-1).tolist() == [8, -1, 9]
    assert rows([], []).last(absent=-1).tolist() == [-1, -1]


def test_columns_are_there_together_or_not_at_all() -> None:
    tokens, flat = rows([1], [2, 3]), np.array([0.5, 1.5])
    nothing = np.zeros(2, np.int64)
    table = Table("rollout", 0, np.arange(2), nothing, {}, {"output": tokens, "prompt": tokens, "reward": flat})
    assert table.together("output", "prompt") == (tokens, tokens)
    assert table.together("output", "logprob") is None
    assert table.together("output", "reward") is None  # one number a sample is no column of rows
