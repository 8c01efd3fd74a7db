"""The lines about a cell and about a night that every format shows, the most helpful first."""

from __future__ import annotations

import math
from collections.abc import Sequence

from reports.nightly_model import CellDifference, CellResult, Night
from reports.text import figure

TONES = {"REGRESSED": "bad", "COULD NOT RUN": "bad", "NEW": "ok", "FLAKY": "warn", "FIXED": "ok",
         "STILL FAILING": "warn", "KNOWN": "known", "OK": "ok"}  # fmt: skip


def tone(status: str, problem: bool) -> str:
    """Return the colour class of a status. `problem`: whether something is new; a new cell fails by it."""
    return "bad" if status == "NEW" and problem else TONES.get(status, "warn")


def headline(result: CellResult) -> str:
    """Return one line: the first new change, else the verdict."""
    changes = result.new or result.gone or result.standing
    return f"{result.status}: {changes[0].text if changes else result.reason}"


def lines(result: CellResult) -> list[str]:
    """Return everything about a cell, one line each."""
    texts = [f"new: {change.text}" for change in result.new]
    if result.explains:
        texts.append(f"others since then: {'; '.join(change.text for change in result.explains)}")
    texts += [f"gone: {change.text}" for change in result.gone]
    texts += [f"as before: {change.text}" for change in result.standing]
    texts += [f"known: {text}" for text in result.known]
    single = {"confirmed": result.confirmation, "report": result.report, "reproduce": result.reproduce}
    return texts + [f"{label}: {text}" for label, text in single.items() if text]


def noteworthy(night: Night) -> list[CellResult]:
    """Return the cells that differ from the night before or fail, alarms first."""
    order = list(TONES)
    results = [result for result in night.results if result.status != "OK" or result.explains]
    return sorted(results, key=lambda result: (result not in night.alarms, order.index(result.status)))


def compared(first: Night, second: Night) -> list[CellDifference]:
    """Return every cell that differs between two nights."""
    first_results, second_results = ({result.cell: result for result in night.results} for night in (first, second))
    rows = []
    for cell in sorted({**first_results, **second_results}):
        old, new = _in_words(first_results.get(cell)), _in_words(second_results.get(cell))
        if old != new:
            rows.append(CellDifference(cell, old, new))
    return rows


def _in_words(result: CellResult | None) -> str:
    """Return the verdict on a cell with its causes and other problems."""
    if result is None:
        return "not run"
    problems = set()
    for change in (*result.new, *result.standing):
        if change.kind in ("fewer", "slower"):
            problems.add(f"{change.kind} {change.subject}")
        elif change.kind != "verdict":
            problems.add(change.subject)
    return f"{result.verdict} ({', '.join(sorted(problems))})" if problems else result.verdict


def duration(seconds: float) -> str:
    """Return a duration in words: 40 s, 3 min, 2 h 5 min."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"


_EIGHTHS = " ▁▂▃▄▅▆▇█"


def plot(values: Sequence[float], labels: Sequence[str]) -> list[str]:
    """Draw a metric over the nights as columns from its smallest to its largest value, one per night; empty for no
    value.
    """
    height = 8  # lines
    finite = [value for value in values if math.isfinite(value)]
    if not finite:
        return ["no value"]
    low, high = min(finite), max(finite)
    span = (high - low) or 1.0
    steps = 8 * height - 1  # a line has eight levels; a value has one at least, a night without a value none
    levels = [1 + round((value - low) / span * steps) if math.isfinite(value) else 0 for value in values]
    axis = {height - 1: figure(high), 0: figure(low)}
    rows = []
    for row in reversed(range(height)):
        columns = (_EIGHTHS[max(0, min(8, level - 8 * row))] for level in levels)
        rows.append(f"{axis.get(row, ''):>10} ┃{''.join(columns)}")
    return [*rows, f"{'':>10}  {labels[0]} to {labels[-1]}"]
