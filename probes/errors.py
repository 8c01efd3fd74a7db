"""What can go wrong with a recording, while it is written and when it is read."""

from __future__ import annotations

import errno
import os
import signal
from types import CodeType, FunctionType
from typing import Any

FULL = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the file has reached the size limit of this process",
}


FULL_SUFFIX = ".full"  # of the empty file beside a recording that a full disk took no more of


class RecordingError(OSError):
    """A record could not be written; the message is one sentence. Everything acknowledged before stays readable."""

    def __str__(self) -> str:
        return str(self.strerror)

    @staticmethod
    def of(path: str | os.PathLike[str], error: OSError) -> RecordingError:
        """The same failure, said with the file and what it means for the recording."""
        what = FULL.get(error.errno or 0) or error.strerror or str(error)
        text = f"{what}: cannot record to {os.fspath(path)}; everything recorded before is intact"
        return RecordingError(error.errno, text, os.fspath(path))


def of_a_signal(error: BaseException) -> bool:
    """Whether one of the job's own signal handlers raised it while a probe ran: then it is meant for the job.

    The kernel's errors and a probe's own have no handler's frame in their traceback.
    """
    codes = {_code(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in codes:
            return True
        trace = trace.tb_next
    return False


def _code(handler: Any) -> CodeType | None:
    """The code of a function, a method, a partial or an object that is called."""
    while hasattr(handler, "func"):
        handler = handler.func
    handler = getattr(handler, "__func__", handler)
    if not isinstance(handler, FunctionType):
        handler = getattr(type(handler), "__call__", None)  # noqa: B004 -- its code is wanted
    return getattr(handler, "__code__", None)


class FormatError(ValueError):
    """A recording is not in the documented format; the message names the file, the byte offset and the cause. `fix`:
    a command that helps, where there is one."""

    def __init__(self, message: str, fix: str = "") -> None:
        super().__init__(message)
        self.fix = fix


class Torn(FormatError):
    """The file ends within its last line or frame: the one kind of damage that a killed process leaves."""
