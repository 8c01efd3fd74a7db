"""Sends Ray's own output to standard error: standard output is for what the harness was asked for."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

PRINTER = "print_to_stdstream"  # what `listen_error_messages` of Ray's driver calls, by this name, for each warning
_LOG_LINE = re.compile(rb"\[\d{4}-\d\d-\d\d [^]]*\] (?:\([^)]*\) )?\w+\.(?:cc|h):\d+: ")  # of Ray's C++ code


def warnings_aside() -> None:
    """Send warnings of the raylet to standard error. Call it after ray.init.

    Ray's driver prints them to standard output whatever `log_to_driver` is, even into the middle of a verdict in JSON.
    """
    _replace(lambda original, data, *args, **kwargs: original({**data, "is_err": True}, *args, **kwargs))


def warnings_dropped() -> None:
    """Drop warnings of the raylet from now on. Call it before the actors of this process are killed.

    A killed worker sometimes closes its socket before it says why, and Ray then warns of a worker that "died or was
    killed ... by an unexpected system error".
    """
    _replace(lambda original, *args, **kwargs: None)


def _replace(by: Callable[..., None]) -> None:
    """Call `by` in place of Ray's printer, with that printer as its first argument."""
    from ray._private import worker

    now = getattr(worker, PRINTER, None)  # private: a version of Ray may not have it
    if now is None:
        return
    original = getattr(now, "replaces", now)

    def printer(*args: Any, **kwargs: Any) -> None:
        by(original, *args, **kwargs)

    printer.replaces = original  # type: ignore[attr-defined]
    setattr(worker, PRINTER, printer)


@contextlib.contextmanager
def quiet_in_vain() -> Iterator[None]:
    """What is written to stderr within this context appears at its end; after an exception, without Ray's log lines.

    Ray writes one a second where no cluster answers, before any of its settings of logs apply.
    """
    sys.stderr.flush()
    stderr = os.dup(2)
    failed = True
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), 2)
        try:
            yield
            failed = False
        finally:
            sys.stderr.flush()
            os.dup2(stderr, 2)
            os.close(stderr)
            file.seek(0)
            for line in file:
                if not (failed and _LOG_LINE.match(line)):
                    os.write(2, line)
