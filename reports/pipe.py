"""A reader that went away (`harness parity … | head`) silences the output; it does not end the program.

Rich's own answer to a broken pipe is `SystemExit(1)`, which here would read as DIVERGENT, or kill a run of hours.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from rich.console import Console


@contextlib.contextmanager
def outlive_reader(console: Console) -> Iterator[None]:
    """While the block runs, a broken pipe under `console` makes it quiet and its descriptor /dev/null."""

    def silence() -> None:
        console.quiet = True
        with contextlib.suppress(OSError, ValueError, AttributeError):  # a file without a descriptor needs no fixing
            null = os.open(os.devnull, os.O_WRONLY)
            try:
                os.dup2(null, console.file.fileno())  # else Python's last flush fails too, with exit code 120
            finally:
                os.close(null)

    usual, quiet = console.on_broken_pipe, console.quiet
    console.on_broken_pipe = silence  # type: ignore[method-assign]
    try:
        yield
    finally:
        console.on_broken_pipe = usual  # type: ignore[method-assign]
        console.quiet = quiet
