"""Where errors were raised, and the error that the main thread handles, in an `except` or a `finally`.

Only the error's type is told of the latter: the heartbeat calls no `__str__` of the program, which may block.
"""

from __future__ import annotations

import re
import sys
import threading
import traceback
from types import FrameType, TracebackType
from typing import Any

from probes import redaction

_INSTALLED = re.compile(r"(site|dist)-packages/|/lib/python3|^<")
Place = tuple[str, int, str]  # file, line, function


def raised_at(error: BaseException | None) -> Place | None:
    """File, line and function of the innermost frame of an error that is not of an installed package; None without
    one."""
    return _innermost(error.__traceback__ if error is not None else None)


def handled() -> dict[str, Any] | None:
    """The error that the main thread handles: its type, where it was raised, and the place of the `try` that has caught
    it; None without one."""
    current: Any = sys._current_exceptions().get(threading.main_thread().ident or 0)
    error = current[1] if isinstance(current, tuple) else current  # a tuple before Python 3.12
    trace = error.__traceback__ if isinstance(error, BaseException) else None
    raised = _innermost(trace)
    if trace is None or raised is None:
        return None
    code = trace.tb_frame.f_code
    caught = redaction.text(code.co_filename), trace.tb_lineno, code.co_name
    return {"error": type(error).__name__, "raised": raised, "caught": caught}


def called_at(frame: FrameType | None) -> Place | None:
    """Where a frame stands, or the nearest frame around it that is not of an installed package; None without one."""
    while frame is not None and _INSTALLED.search(frame.f_code.co_filename):
        frame = frame.f_back
    return _place(frame, frame.f_lineno) if frame is not None else None


def _innermost(trace: TracebackType | None) -> Place | None:
    place = None
    for frame, line in traceback.walk_tb(trace):
        if not _INSTALLED.search(frame.f_code.co_filename):
            place = _place(frame, line)
    return place


def _place(frame: FrameType, line: int) -> Place:
    return redaction.text(frame.f_code.co_filename), line, frame.f_code.co_name
