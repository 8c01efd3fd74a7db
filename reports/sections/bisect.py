"""The lines about a bisection that every format shows, the most helpful first."""

from __future__ import annotations

from collections.abc import Iterator

from reports.bisect_model import Bisection
from reports.sections.nightly import duration

FIRST_BAD, ONE_IS_FIRST_BAD, LAST_GOOD = "the first bad one", "the first bad one is one of", "the last good one"


def rows(bisection: Bisection) -> Iterator[tuple[int, str, str, str, str]]:
    """Yield (number, call, subject, why, time) of each comparison, in the order in which they were made."""
    for number, step in enumerate(bisection.steps, 1):
        yield number, step.call, step.subject + " (again)" * step.again, step.why, duration(float(step.seconds))


def results(bisection: Bisection) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield (title, lines) of what was found."""
    for number, result in enumerate(bisection.results, 1):
        if bisection.over == "settings":
            yield f"cause {number}" + (", only together" if len(result) > 1 else ""), result
        else:
            yield (FIRST_BAD if len(result) == 1 else ONE_IS_FIRST_BAD), result
    if bisection.last_good:
        yield LAST_GOOD, (bisection.last_good,)
