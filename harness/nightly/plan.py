"""Which cells a night runs, in which order, and how long that takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.nightly.history import Seen
from harness.nightly.matrix import Cell
from harness.nightly.place import Place
from reports.nightly_model import CHANGED


@dataclass(frozen=True)
class Planned:
    """A cell with what is known of it. `estimate_s`: its last night's time, or its limit where it never ran.
    `at_once`: how many like it run side by side."""

    cell: Cell
    estimate_s: float
    seen: Seen | None
    at_once: int = 1

    @property
    def share_s(self) -> float:
        """What it adds to the night."""
        return self.estimate_s / self.at_once


@dataclass(frozen=True)
class Plan:
    """Cells to run, and those left out with the reason."""

    chosen: tuple[Planned, ...]
    left_out: tuple[tuple[str, str], ...]

    @property
    def estimate_s(self) -> float:
        """Of the night, where the cells that run side by side leave no gap; at least as long as its longest cell."""
        return max([sum(one.share_s for one in self.chosen), *(one.estimate_s for one in self.chosen)], default=0.0)


def plan(cells: Sequence[Cell], seen: Mapping[str, Seen], place: Place, budget_s: float | None = None) -> Plan:
    """Without a budget every cell that can run there, in the matrix's order. With one, first those that changed on
    their last night, then those that were longest not run, as long as the estimates fit; at least one."""
    left_out, able = [], []
    for cell in cells:
        needs = cell.what.needs
        if lacking := place.lacking(needs):
            left_out.append((cell.name, lacking))
        else:
            last = seen.get(cell.name)
            able.append(Planned(cell, last.seconds if last else cell.limit_s, last, place.at_once(needs)))
    if budget_s is None:
        return Plan(tuple(able), tuple(left_out))
    chosen: list[Planned] = []
    total = 0.0
    for one in sorted(able, key=_urgency):
        if chosen and (total + one.share_s > budget_s or one.estimate_s > budget_s):
            left_out.append((one.cell.name, "beyond the budget"))
        else:
            chosen.append(one)
            total += one.share_s
    return Plan(tuple(chosen), tuple(left_out))


def _urgency(one: Planned) -> tuple[int, int]:
    if one.seen is None:
        return 1, 0
    changed = one.seen.status in CHANGED and one.seen.status != "NEW"
    return (0 if changed else 1), one.seen.night
