"""Names that a user may have meant by one that does not exist."""

from __future__ import annotations

from collections import Counter
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


def fewest_edits(letters: Counter[str], others: Counter[str]) -> int:
    """Return how many edits names of these letters need at least, whatever the order of the letters.

    A swap changes no count of a letter, and every other edit changes the counts on one side by one at most.
    """
    return max((letters - others).total(), (others - letters).total())


def similar(name: str, others: Iterable[str]) -> list[str]:
    """Return the names of which at most a third of the letters differ, or that begin with this one; the nearest first.

    rum is run, trian is train and mi is mine; nonexist is not none.
    """
    near = {}
    letters = Counter(name)
    for other in others:
        shorter, longer = sorted((len(name), len(other)))
        begins = bool(name) and other.startswith(name)
        # A PATH holds thousands of names. The lengths, then the letters alone, tell most of them apart at little cost.
        if not begins and (shorter * 3 < longer * 2 or fewest_edits(letters, Counter(other)) * 3 > longer):
            continue
        count = edits(name, other)
        if begins or count * 3 <= longer:
            near[other] = count
    return sorted(near, key=near.__getitem__)
