"""Where a night's cells run: what there is room for, and who runs them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from harness.nightly import cells, matrix
from harness.nightly.cells import Attempt
from harness.nightly.matrix import Cell, Needs


class Place(Protocol):
    """This machine, or the nodes of a Ray cluster (`harness.nightly.nodes`)."""

    def lacking(self, needs: Needs) -> str:
        """Why no cell with these needs can run there, in a sentence; empty where one can."""

    def at_once(self, needs: Needs) -> int:
        """How many cells with these needs run side by side."""

    def room(self, waiting: Sequence[Cell]) -> tuple[Cell, Attempt]:
        """Wait until there is room for one of these cells, in their order; returns it, and what runs it there."""

    def start(self, cell: Cell, work: Callable[[], None]) -> None:
        """Do the work of a cell that there is room for; the room is free afterwards."""

    def wait(self) -> None:
        """Wait for all that was started. Raises what it raised."""


class Here:
    """This machine, one cell after another."""

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
        """Nothing runs on."""
