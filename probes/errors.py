"""What can go wrong with a recording, while it is written and when it is read."""

from __future__ import annotations

import errno
import os

FULL = {
    errno.ENOSPC: "the disk is full",
    errno.EDQUOT: "the disk quota is used up",
    errno.EFBIG: "the file has reached the size limit of this process",
}


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


class FormatError(ValueError):
    """A recording is not in the documented format; the message names the file, the byte offset and the cause."""


class Torn(FormatError):
    """The file ends within its last line or frame: the one kind of damage that a killed process leaves."""
