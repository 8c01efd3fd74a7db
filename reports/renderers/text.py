"""Text for a terminal or a pipe: the answer first and last, in the terminal's width and colours."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, TextIO

from reports.bisect_model import Bisection
from reports.nightly_model import Night
from reports.renderers import Renderer
from reports.run_model import RecordedRun

if TYPE_CHECKING:
    from rich.console import Console

    from reports.renderers import Subject


class TextRenderer(Renderer):
    name = "text"
    suffix = ".txt"
    takes = frozenset({"parity", "audit", "triage", "doctor", "run", "nightly", "bisect"})

    def render(self, subject: Subject) -> str:
        """Return the text with every table, without colour, 100 columns wide."""
        from rich.console import Console

        file = io.StringIO()
        console = Console(file=file, width=100, color_system=None, force_terminal=False, legacy_windows=False)
        self.show(subject, console, verbose=True)
        return file.getvalue()

    def write(self, subject: Subject, stream: TextIO, *, verbose: bool = False) -> None:
        from reports.console import terminal_console

        self.show(subject, terminal_console(file=stream), verbose=verbose)

    def show(self, subject: Subject, console: Console, *, verbose: bool = False) -> None:
        """Print on a console; `verbose` adds the tables. A reader that closed the pipe is no error."""
        from reports.sections import terminal
        from reports.sections.terminal import bisect, nightly, recorded

        if isinstance(subject, RecordedRun):
            recorded.show(subject, console, verbose=verbose)
            return
        if isinstance(subject, Bisection):
            bisect.show(subject, console)
            return
        if isinstance(subject, Night):
            nightly.show(subject, console, verbose=verbose)
            return
        terminal.show(subject, console, verbose=verbose)
