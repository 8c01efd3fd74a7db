"""Plan a night: which cells run, in which order, and how long that takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.nightly.history import Seen
from harness.nightly.matrix import Cell
from harness.nightly.place import Place
from reports.nightly_model import CHANGED


@dataclass(frozen=True)
class Planned:
    """A cell with its estimate.

    cell: the cell.
    estimate_s: the duration of its last run, or its limit where it never came to a verdict.
    last_run: its last run; None where it never ran.
    at_once: how many such cells run in parallel.
    """

    cell: Cell
    estimate_s: float
    last_run: Seen | None
    at_once: int = 1

    @property
    def share_s(self) -> float:
        """The seconds that the cell adds to the night."""
        return self.estimate_s / self.at_once


@dataclass(frozen=True)
class Plan:
    """The cells to run, and those left out with the reason."""

    chosen: tuple[Planned, ...]
    left_out: tuple[tuple[str, str], ...]

    @property
    def estimate_s(self) -> float:
        """The duration of the night if parallel cells leave no gap; at least the duration of the longest cell."""
        return max(
            [sum(planned.share_s for planned in self.chosen), *(planned.estimate_s for planned in self.chosen)],
            default=0.0,
        )


def plan(cells: Sequence[Cell], last_runs: Mapping[str, Seen], place: Place, budget_s: float | None = None) -> Plan:
    """Choose the cells of a night.

    Without a budget, choose every cell that can run there, in the matrix's order. With a budget, first choose the
    cells that changed on their last night, then those that have not run for longest, as long as the estimates fit. At
    least one cell is chosen.
    """
    left_out, able = [], []
    for cell in cells:
        needs = cell.what.needs
        if lacking := place.lacking(needs):
            left_out.append((cell.name, lacking))
        else:
            last = last_runs.get(cell.name)
            estimate_s = last.estimate_s(cell.limit_s) if last else cell.limit_s
            able.append(Planned(cell, estimate_s, last, place.at_once(needs)))
    if budget_s is None:
        return Plan(tuple(able), tuple(left_out))
    chosen: list[Planned] = []
    total = 0.0
    for planned in sorted(able, key=_urgency):
        if chosen and (total + planned.share_s > budget_s or planned.estimate_s > budget_s):
            left_out.append((planned.cell.name, "beyond the budget"))
        else:
            chosen.append(planned)
            total += planned.share_s
    return Plan(tuple(chosen), tuple(left_out))


def _urgency(planned: Planned) -> tuple[int, int]:
    if planned.last_run is None:
        return 1, 0
    changed = planned.last_run.status in CHANGED and planned.last_run.status != "NEW"
    return (0 if changed else 1), planned.last_run.night
