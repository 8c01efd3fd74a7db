"""Waiting for another process, for as long as a busy machine takes."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def until(
    condition: Callable[[], object],
    seconds: float = 600.0,
    what: Callable[[], str] = str,
    process: subprocess.Popen[Any] | None = None,
) -> None:
    """Return once the condition holds; fail with what `what` says then, or as soon as this process has ended."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"not within {seconds:.0f} s: {what()}"
        assert process is None or process.poll() is None, f"the process ended: {what()}"
        time.sleep(0.05)


def left_over(folder: Path, after_s: float = 10.0) -> list[str]:
    """Processes in this folder that are alive so long after now."""
    by = time.monotonic() + after_s
    while True:
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if (process / "cwd").samefile(folder):
                    found.append((process / "cmdline").read_text().replace("\0", " "))
        if not found or time.monotonic() > by:
            return found
        time.sleep(0.5)
