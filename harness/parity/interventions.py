"""Interventions that cost nothing, because they only read the recorded numbers in another way.

Shift the log-probabilities by one position, scale them, leave out cached samples, look for the same responses under
other sample numbers: a cause is named when its re-reading removes the difference. What needs an engine (flush,
restart, swap a parameter back) is not here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from harness.parity.align import Grid, Match

if TYPE_CHECKING:
    from harness.parity.evidence import Evidence


def first_difference(one: np.ndarray, two: np.ndarray) -> int:
    """The first position at which two rows differ; the length of the shorter one when it is the beginning of the
    other.
    """
    n = min(len(one), len(two))
    differs = np.flatnonzero(one[:n] != two[:n])
    return int(differs[0]) if len(differs) else n


def how_prompt_differs(sent: np.ndarray, seen: np.ndarray) -> str:
    """What a prompt that the engine saw has become, in the words of PARITY's causes."""
    extra = len(seen) - len(sent)
    if extra > 0 and np.array_equal(seen[extra:], sent):
        return "double BOS" if extra == 1 and len(sent) and seen[0] == sent[0] else "ids added in front"
    if extra > 0 and np.array_equal(seen[: len(sent)], sent):
        return "ids added at the end"
    if extra < 0 and np.array_equal(sent[-extra:], seen):
        return "truncated left"
    if extra < 0 and np.array_equal(sent[: len(seen)], seen):
        return "truncated right"
    return "other ids"


def reread(
    e: Evidence, kind: str, grid: Grid, p: np.ndarray, q: np.ndarray, same: np.ndarray, cached: np.ndarray | None
) -> None:
    """Count what is left beyond the tolerance when `q` is read shifted by one either way, scaled, or on uncached
    samples only.
    """
    totals = e.interventions.setdefault(kind, {})
    tolerance = e.tolerance.value
    beyond = same & ~(np.abs(q - p) <= tolerance)

    def add(name: str, value: Any) -> None:
        totals[name] = totals.get(name, 0) + int(value)

    add("tokens", np.count_nonzero(same))
    add("beyond", np.count_nonzero(beyond))
    for shift in (1, -1):
        moved, inside = shifted(grid, q, shift)
        valid = same & inside
        add(f"shift {shift:+d} compared", np.count_nonzero(valid & beyond))
        add(f"shift {shift:+d} left", np.count_nonzero(valid & ~(np.abs(moved - p) <= tolerance)))
    used = same & np.isfinite(p) & np.isfinite(q)
    scale = (
        float((p[used] @ q[used].astype(np.float64)) / max(float(q[used] @ q[used].astype(np.float64)), 1e-30))
        if used.any()
        else 1.0
    )
    e.notes.setdefault(f"scale:{kind}", []).append(scale)
    add("scale left", np.count_nonzero(same & ~(np.abs(scale * q - p) <= tolerance * max(1.0, scale))))
    if cached is not None:
        warm = cached > 0
        wrong = grid.any(beyond)
        there = grid.length > 0
        for name, rows in (("cached", warm), ("uncached", ~warm)):
            add(f"{name} samples", np.count_nonzero(rows & there))
            add(f"{name} samples beyond", np.count_nonzero(rows & wrong))


def shifted(grid: Grid, values: np.ndarray, shift: int) -> tuple[np.ndarray, np.ndarray]:
    """(value that stands `shift` places later in the same row, where there is one)."""
    inside = (grid.position + shift >= 0) & (grid.position + shift < grid.length[grid.row])
    return np.roll(values, -shift), inside


def reread_tokens(e: Evidence, kind: str, grid: Grid, one: np.ndarray, two: np.ndarray) -> None:
    """The same for tokens: is what was trained on what was rolled out, moved by one?"""
    totals = e.interventions.setdefault(kind, {})
    differs = one != two
    totals["beyond"] = totals.get("beyond", 0) + int(np.count_nonzero(differs))
    for shift in (1, -1):
        moved, inside = shifted(grid, two, shift)
        for name, value in (("compared", inside & differs), ("left", inside & (moved != one))):
            key = f"shift {shift:+d} {name}"
            totals[key] = totals.get(key, 0) + int(np.count_nonzero(value))


def permuted(
    e: Evidence, step: int, match: Match, grid: Grid, one: np.ndarray, two: np.ndarray, wrong: np.ndarray
) -> None:
    """Are the differing responses of a step the baseline's, under other sample numbers?"""
    if len(wrong) < 2:
        return
    totals = e.interventions.setdefault("order", {"samples": 0, "left": 0})
    ours = {one[grid.start[row] : grid.start[row + 1]].tobytes() for row in wrong[:10_000]}
    theirs = [two[grid.start[row] : grid.start[row + 1]].tobytes() for row in wrong[:10_000]]
    totals["samples"] += len(theirs)
    totals["left"] += sum(response not in ours for response in theirs)


def note_lengths(
    e: Evidence,
    lengths: np.ndarray,
    lengths2: np.ndarray,
    finish: np.ndarray | None,
    finish2: np.ndarray | None,
    rows: np.ndarray,
) -> None:
    """By how much lengths differ, and whether the shorter one says that it hit a limit."""
    totals = e.notes.setdefault("lengths", {})
    reasons = [
        f"{finish[row]}/{finish2[row]}" if finish is not None and finish2 is not None else "?" for row in rows[:10_000]
    ]
    for delta, reason in zip((lengths2 - lengths)[:10_000].tolist(), reasons, strict=True):
        totals[(delta, reason)] = totals.get((delta, reason), 0) + 1
