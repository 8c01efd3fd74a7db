"""Keeps the program alive when the reader of its output goes away (`harness parity … | head`); output is then
silenced.

Rich's own reaction to a broken pipe is `SystemExit(1)`, which here would read as DIVERGENT, or end a run of hours.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

from rich.console import Console


@contextlib.contextmanager
def outlive_reader(console: Console) -> Iterator[None]:
    """Within this context, a broken pipe under `console` makes the console quiet and redirects its descriptor to
    /dev/null.
    """

    def silence() -> None:
        console.quiet = True
        with contextlib.suppress(OSError, ValueError, AttributeError):  # a file without a descriptor needs no fixing
            null = os.open(os.devnull, os.O_WRONLY)
            try:
                os.dup2(null, console.file.fileno())  # otherwise Python's last flush fails too, with exit code 120
            finally:
                os.close(null)

    usual, quiet = console.on_broken_pipe, console.quiet
    console.on_broken_pipe = silence  # type: ignore[method-assign]
    try:
        yield
    finally:
        console.on_broken_pipe = usual  # type: ignore[method-assign]
        console.quiet = quiet
