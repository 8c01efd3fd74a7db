"""Errors of a recording, while it is written and when it is read."""

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


FULL_SUFFIX = ".full"  # of the empty file that marks a recording whose disk was full


class AddressedError(Exception):
    """An error whose message is one sentence for the user. `fix`: a command or a short instruction that helps."""

    def __init__(self, message: str = "", fix: str = "") -> None:
        super().__init__(message)
        self.fix = fix


class RecordingError(OSError):
    """A record could not be written. The message is one sentence. Records that were written before stay readable."""

    def __str__(self) -> str:
        return str(self.strerror)

    @staticmethod
    def of(path: str | os.PathLike[str], error: OSError) -> RecordingError:
        """Return the error with the file's name and what it means for the recording."""
        what = FULL.get(error.errno or 0) or error.strerror or str(error)
        text = f"{what}: cannot record to {os.fspath(path)}; everything recorded before is intact"
        return RecordingError(error.errno, text, os.fspath(path))


def of_a_signal(error: BaseException) -> bool:
    """Whether one of the job's own signal handlers raised the error while a probe ran; then it is meant for the job.

    Errors of the kernel and of probes have no handler's frame in their traceback.
    """
    codes = {_code(signal.getsignal(number)) for number in signal.valid_signals()} - {None}
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code in codes:
            return True
        trace = trace.tb_next
    return False


def _code(handler: Any) -> CodeType | None:
    """Return the code object of a function, a method, a partial or a callable object."""
    while hasattr(handler, "func"):
        handler = handler.func
    handler = getattr(handler, "__func__", handler)
    if not isinstance(handler, FunctionType):
        handler = getattr(type(handler), "__call__", None)  # noqa: B004 -- its code is wanted
    return getattr(handler, "__code__", None)


class FormatError(AddressedError, ValueError):
    """A recording is not in the documented format. The message names the file, the byte offset and the cause.

    `fix`: a command that helps, where there is one.
    """


class Torn(FormatError):
    """The file ends within its last line or frame, which is the only damage that a killed process causes."""
