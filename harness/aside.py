"""Lines beside a command's answer, on standard error. A reader that goes away ends no command: what is printed then
goes nowhere."""

from __future__ import annotations

import contextlib
import os
import sys
from typing import TextIO


def print_aside(text: str, stream: TextIO | None = None, end: str = "\n") -> None:
    """Print to a stream (default: stderr) at once."""
    stream = sys.stderr if stream is None else stream
    try:
        print(text, file=stream, end=end, flush=True)
    except (OSError, ValueError):
        with contextlib.suppress(OSError, ValueError):
            null = os.open(os.devnull, os.O_WRONLY)
            os.dup2(null, stream.fileno())
            os.close(null)
