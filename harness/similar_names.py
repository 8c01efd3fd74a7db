"""Names that a user may have meant by one that does not exist."""

from __future__ import annotations

from collections.abc import Iterable


def edits(name: str, other: str) -> int:
    """Return how many letters are to be typed, deleted, replaced or swapped with the next one to make the other name of
    this one (optimal string alignment)."""
    rows = [list(range(len(other) + 1))]
    for i, letter in enumerate(name, 1):
        row = [i]
        for j, there in enumerate(other, 1):
            row.append(min(rows[-1][j] + 1, row[-1] + 1, rows[-1][j - 1] + (letter != there)))
            if i > 1 and j > 1 and (letter, name[i - 2]) == (other[j - 2], there):
                row[j] = min(row[j], rows[-2][j - 2] + 1)
        rows.append(row)
    return rows[-1][-1]


def similar(name: str, others: Iterable[str]) -> list[str]:
    """Return the names of which at most a third of the letters differ, or that begin with this one; the nearest first.

    rum is run, trian is train and mi is mine; nonexist is not none.
    """
    near = {}
    for other in others:
        shorter, longer = sorted((len(name), len(other)))
        begins = bool(name) and other.startswith(name)
        # The lengths alone may be too far apart: a PATH holds thousands of names.
        if begins or (shorter * 3 >= longer * 2 and edits(name, other) * 3 <= longer):
            near[other] = edits(name, other)
    return sorted(near, key=near.__getitem__)
