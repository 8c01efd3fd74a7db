"""The streams that the installed command writes to."""

from __future__ import annotations

import errno
import io

import pytest

from harness.entry import _buffered


class NearlyFull(io.RawIOBase):
    """A file on a disk that has room for three more bytes. Like the kernel it takes what fits, and then says so."""

    def __init__(self) -> None:
        self.kept = b""

    def writable(self) -> bool:
        return True

    def write(self, data: object) -> int:
        part = bytes(memoryview(data))[: 3 - len(self.kept)]  # type: ignore[arg-type]
        if not part:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.kept += part
        return len(part)


def test_what_a_full_disk_does_not_take_is_an_error_without_pythons_buffers_too() -> None:
    file = NearlyFull()
    unbuffered = io.TextIOWrapper(file, encoding="utf-8", write_through=True)  # type: ignore[type-var]
    stream = _buffered(unbuffered)
    with pytest.raises(OSError, match="No space"):
        stream.write("a verdict\n" * 2000)
        stream.flush()
    assert file.kept == b"a v"
    file.kept = b""  # room again, or the stream raises once more when it is closed
