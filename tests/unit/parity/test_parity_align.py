"""Alignment against the same thing written as loops."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from harness.parity.facts.align import Grid, Match, equal_rows, shared
from harness.recordings.tables import Rows

ROWS = st.lists(st.lists(st.integers(0, 3), max_size=6), max_size=8)


def flat(rows: list[list[int]]) -> Rows:
    return Rows(np.array([x for row in rows for x in row], np.int32), np.cumsum([0, *map(len, rows)]).astype(np.int64))


@given(st.lists(st.integers(0, 9), max_size=12), st.lists(st.integers(0, 9), max_size=12))
def test_match_pairs_equal_samples_and_names_the_rest(a: list[int], b: list[int]) -> None:
    match = Match.of(np.array(a, np.int64), np.array(b, np.int64))
    assert match.sample.tolist() == sorted(set(a) & set(b))
    assert [a[i] for i in match.a] == match.sample.tolist() == [b[i] for i in match.b]
    assert [a.index(x) for x in match.sample] == match.a.tolist()
    assert match.only_a.tolist() == sorted(set(a) - set(b)) and match.only_b.tolist() == sorted(set(b) - set(a))
    assert match.repeated.tolist() == sorted({x for x in a if a.count(x) > 1} | {x for x in b if b.count(x) > 1})


@given(ROWS, st.data())
def test_a_grid_takes_the_first_values_of_the_rows_it_is_given(rows: list[list[int]], data: st.DataObject) -> None:
    index = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=8)) if rows else []
    length = [data.draw(st.integers(0, len(rows[i]))) for i in index]
    grid = Grid(np.array(length, np.int64))
    taken = grid.take(flat(rows), np.array(index, np.int64))
    assert taken.tolist() == [x for i, n in zip(index, length, strict=True) for x in rows[i][:n]]
    assert grid.row.tolist() == [r for r, n in enumerate(length) for _ in range(n)]
    assert grid.position.tolist() == [t for n in length for t in range(n)]
    flags = np.array([data.draw(st.booleans()) for _ in range(grid.size)], bool)
    parts = np.split(flags, grid.start[1:-1]) if len(length) else []
    assert grid.any(flags).tolist() == [bool(part.any()) for part in parts]
    assert grid.first(flags).tolist() == [int(part.argmax()) if part.any() else len(part) for part in parts]


@given(ROWS, ROWS)
def test_equal_rows_and_what_rows_share(a: list[list[int]], b: list[list[int]]) -> None:
    n = min(len(a), len(b))
    index = np.arange(n)
    assert equal_rows(flat(a), index, flat(b), index).tolist() == [a[i] == b[i] for i in range(n)]
    if n:
        grid = shared([(flat(a), index), (flat(b), index)])
        assert grid.length.tolist() == [min(len(a[i]), len(b[i])) for i in range(n)]
