"""The places where a night's cells run: their free room, and the process that runs a cell there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from harness.nightly import cells, matrix
from harness.nightly.cells import Attempt
from harness.nightly.matrix import Cell, Needs


class Place(Protocol):
    """Where cells run: this machine, or the nodes of a Ray cluster (`harness.nightly.nodes`)."""

    def lacking(self, needs: Needs) -> str:
        """Return why no cell with these needs can run there, in a sentence; empty where one can."""

    def at_once(self, needs: Needs) -> int:
        """Return how many cells with these needs run in parallel."""

    def room(self, waiting: Sequence[Cell]) -> tuple[Cell, Attempt]:
        """Wait until there is room for one of these cells, tried in order. Return the cell and the function that runs
        it.
        """

    def start(self, cell: Cell, work: Callable[[], None]) -> None:
        """Run `work` for a cell that has room. The room is free afterwards."""

    def wait(self) -> None:
        """Wait for everything that was started, and raise its errors."""


class Here:
    """This machine, which runs one cell after another."""

    def lacking(self, needs: Needs) -> str:
        missing = needs.missing(*matrix.machine())
        return f"it needs {missing}, which this machine does not have" if missing else ""

    def at_once(self, needs: Needs) -> int:
        return 1

    def room(self, waiting: Sequence[Cell]) -> tuple[Cell, Attempt]:
        return waiting[0], cells.attempt

    def start(self, cell: Cell, work: Callable[[], None]) -> None:
        work()

    def wait(self) -> None:
        """Return at once: `start` has finished its work."""
