"""Which cells a night runs, in which order, and how long that takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.nightly.history import Seen
from harness.nightly.matrix import Cell
from reports.nightly_model import CHANGED


@dataclass(frozen=True)
class Planned:
    """A cell with what is known of it. `estimate_s`: its last night's time, or its limit where it never ran."""

    cell: Cell
    estimate_s: float
    seen: Seen | None


@dataclass(frozen=True)
class Plan:
    """Cells to run, and those left out with the reason."""

    chosen: tuple[Planned, ...]
    left_out: tuple[tuple[str, str], ...]

    @property
    def estimate_s(self) -> float:
        return sum(one.estimate_s for one in self.chosen)


def plan(
    cells: Sequence[Cell], seen: Mapping[str, Seen], machine: tuple[int, int, int], budget_s: float | None = None
) -> Plan:
    """Without a budget every cell that this machine can run, in the matrix's order. With one, first those that changed
    on their last night, then those that were longest not run, as long as the estimates fit; at least one."""
    left_out, able = [], []
    for cell in cells:
        if lacking := cell.what.needs.missing(*machine):
            left_out.append((cell.name, f"this machine has not the {lacking} that it needs"))
        else:
            last = seen.get(cell.name)
            able.append(Planned(cell, last.seconds if last else cell.limit_s, last))
    if budget_s is None:
        return Plan(tuple(able), tuple(left_out))
    chosen: list[Planned] = []
    total = 0.0
    for one in sorted(able, key=_urgency):
        if chosen and total + one.estimate_s > budget_s:
            left_out.append((one.cell.name, "beyond the budget"))
        else:
            chosen.append(one)
            total += one.estimate_s
    return Plan(tuple(chosen), tuple(left_out))


def _urgency(one: Planned) -> tuple[int, int]:
    if one.seen is None:
        return 1, 0
    changed = one.seen.status in CHANGED and one.seen.status != "NEW"
    return (0 if changed else 1), one.seen.night
