"""The installed command: `harness.cli` with guarded imports, and with an end that native threads cannot spoil."""

from __future__ import annotations

import io
import os
import sys
from typing import Any, TextIO

from harness import exit_cleanup


def main() -> None:
    """Run the command line and exit with its code."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller: `harness ... >&-`
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        elif isinstance(getattr(sys, name).buffer, io.RawIOBase):
            setattr(sys, name, _buffered(getattr(sys, name)))
    try:
        from harness import lost_interrupts
        from harness.cli import main as run

        lost_interrupts.send_again()
        code = run()
        sys.stdout.flush()
        sys.stderr.flush()
    except KeyboardInterrupt:  # raised before the command line could catch it
        print("harness: interrupted", file=sys.stderr, flush=True)
        code = 130
    # Threads of Ray's core may still run here, and one was seen to crash while the interpreter shut down. So exit
    # without that: the command is over, its processes are ended, and its output is written.
    exit_cleanup.now()
    os._exit(code)


def _buffered(stream: Any) -> TextIO:
    """Return the stream with a buffer, which is written after each line.

    With PYTHONUNBUFFERED Python has none, and then it loses without an error what a full disk did not take.
    """
    writer = io.BufferedWriter(stream.buffer)
    return io.TextIOWrapper(writer, encoding=stream.encoding, errors=stream.errors, line_buffering=True)


if __name__ == "__main__":
    main()
