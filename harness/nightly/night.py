"""Run a night: run every cell, judge it against its earlier nights, repeat it where it changed, and store the
result.
"""

from __future__ import annotations

import datetime
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import reports
from harness.nightly import cells, known
from harness.nightly.cells import Attempt
from harness.nightly.history import History
from harness.nightly.judge import judge, settle
from harness.nightly.known import Known
from harness.nightly.matrix import Cell, Pair, Suite
from harness.nightly.place import Here, Place
from probes.files import make_folder, make_new_folder, write_whole
from reports.nightly_model import CellResult, Night, to_read


@dataclass
class Nightly:
    """The settings of a night.

    history: the history to judge against and write to.
    out: the folder of all nights.
    entries: the known differences.
    say: prints a line of progress.
    place: where cells run.
    today: the date; replaced in tests.
    """

    history: History
    out: Path
    entries: Sequence[Known] = ()
    say: Callable[[str], None] = lambda line: None
    place: Place = field(default_factory=Here)
    today: Callable[[], datetime.date] = field(default=datetime.date.today)

    def cells(self, number: int, chosen: Sequence[Cell], may_start: Callable[[], bool] = lambda: True) -> list[Cell]:
        """Run the cells of a night. Return those that were not started because the time was over."""
        waiting = list(chosen)
        while waiting:
            cell, attempt = self.place.room(waiting)
            if len(waiting) < len(chosen) and not may_start():
                break
            waiting.remove(cell)
            name = f"{chosen.index(cell) + 1}/{len(chosen)} {cell.name}"
            self.place.start(cell, partial(self._tell_cell, name, number, cell, attempt))
        self.place.wait()
        return waiting

    def _tell_cell(self, name: str, number: int, cell: Cell, attempt: Attempt) -> None:
        self.say(name)
        result = self._cell(number, cell, attempt)
        self.say(f"{name}: {result.status} ({result.verdict}, {result.seconds:.0f} s)")

    def finish(self, number: int, left_out: Sequence[tuple[str, str]]) -> Night:
        """End the night, and write its report beside its recordings in every format that a CI system reads."""
        self.history.finish(number, left_out)
        night = self.history.night(number)
        folder = self._folder(number)
        make_folder(folder)
        for name, format in (("night.json", "json"), ("night.md", "md"), ("junit.xml", "junit")):
            write_whole(folder / name, reports.render(night, format).encode())
        return night

    def _folder(self, number: int) -> Path:
        return (self.out / f"night-{number:05d}").resolve()

    def _cell(self, number: int, cell: Cell, attempt: Attempt) -> CellResult:
        """Run, judge and store one cell. A cell that changed runs again, and then its baseline may run against
        itself.
        """
        folder = _new(self._folder(number) / cells.folder_name(cell))
        past = self.history.past(cell.name, of=number)
        tonight = cells.run(cell, folder, attempt)
        first = judge(tonight, past)
        again_judged, itself = None, None
        fresh, _, _ = known.split(cell.name, first.new, self.entries, self.today())
        if not tonight.error and (fresh or first.fixed):
            self.say(f"{cell.name}: changed; once more")
            again_judged = judge(cells.run(cell, folder / "again", attempt), past)
            alone = _itself(cell)
            if alone and any(again_judged.shows(change) for change in fresh):
                self.say(f"{cell.name}: {alone[0]} against itself")
                itself = cells.run(cell, folder / "itself", attempt, pair=alone)
        settled = settle(first, again_judged, itself)
        result = CellResult(
            cell.name, settled.status, tonight.verdict, tonight.reason, tonight.seconds, new=settled.new,
            standing=settled.standing, gone=settled.fixed, explains=first.explains, confirmation=settled.confirmation,
            metrics=dict(tonight.metrics), reproduce=tonight.reproduce,
            report=to_read(tonight.recording, tonight.verdict),
        )  # fmt: skip
        result = accepted(result, self.entries, self.today())
        self.history.add(number, tonight, result, folder)
        return result


def accepted(result: CellResult, entries: Sequence[Known], today: datetime.date) -> CellResult:
    """Return the result with the known differences applied: accepted problems do not count, and expired entries do."""
    problems = (*result.new, *result.standing)
    unknown, valid, expired = known.split(result.cell, problems, entries, today)
    annotated = replace(result, known=tuple(entry.text for entry in valid), new=(*result.new, *expired))
    if expired and result.status != "COULD NOT RUN":  # it is unknown whether its problem persists
        return replace(annotated, status="REGRESSED")
    if not valid or result.status in ("FLAKY", "COULD NOT RUN"):
        return annotated
    if not unknown:
        return replace(annotated, status="KNOWN")
    fresh = tuple(change for change in result.new if change in unknown)
    return annotated if fresh or result.status != "REGRESSED" else replace(annotated, status="STILL FAILING")


def _new(folder: Path) -> Path:
    """Create a new folder of that name, or one with a number where an interrupted run left a folder."""
    for number in itertools.count(1):
        try:
            made = folder if number == 1 else folder.with_name(f"{folder.name}.{number}")
            make_new_folder(made)
            break
        except FileExistsError:
            continue
    return made


def _itself(cell: Cell) -> Pair | None:
    return None if isinstance(cell.what, Suite) or cell.pair is None else (cell.pair[0], cell.pair[0])
