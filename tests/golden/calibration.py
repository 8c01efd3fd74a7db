"""Print which share of the causes that were called proven was right, with a confidence interval.

    python -m tests.golden.calibration

Of the golden table: faults whose authors knew the rules. Of `first_looks.json`: faults whose authors had not read them.
"""

from __future__ import annotations

import json
from pathlib import Path

from scipy import stats

from tests.golden import table

FIRST_LOOKS = Path(__file__).with_name("first_looks.json")
CONFIDENCE = 0.95


def in_words(right: int, total: int) -> str:
    """Return a share with its exact interval (Clopper and Pearson)."""
    low, high = stats.binomtest(right, total).proportion_ci(CONFIDENCE, method="exact")
    return f"{right} of {total} right, {right / total:.1%} ({CONFIDENCE:.0%}: {low:.0%} to {high:.0%})"


def of_golden() -> tuple[int, int, int]:
    """Return how many proven causes of the table are right, how many there are, and in how many verdicts on runs."""
    rows = [row for row in table.read().values() if row["command"][0] != "triage"]
    proven = [row for row in rows for cause in row.get("causes", ()) if cause["proofs"] != "none"]
    return sum("known_wrong" not in row for row in proven), len(proven), len(rows)


def of_first_looks() -> dict[str, tuple[int, int]]:
    """Return by time how many proven causes were right, and how many there were."""
    looks = {when: cases for when, cases in json.loads(FIRST_LOOKS.read_text()).items() if when != "_"}
    counts = {when: [sum(column) for column in zip(*cases.values(), strict=True)] for when, cases in looks.items()}
    return {when: (right, right + wrong) for when, (right, wrong) in counts.items()}


def main() -> None:
    right, total, verdicts = of_golden()
    print(f"golden table, {verdicts} verdicts: {in_words(right, total)}")
    for when, (right, total) in of_first_looks().items():
        print(f"first looks, {when}: {in_words(right, total)}")


if __name__ == "__main__":
    main()
