"""Files that gzip, bzip2, xz or zstd packed: how they begin, and what comes out of them within a bound."""

from __future__ import annotations

import bz2
import io
import lzma
import zlib
from collections.abc import Callable
from typing import BinaryIO, Protocol

MAX_PARTS = 100  # of a packed file; a log that is appended to has some
MEMORY_BYTES = 128 << 20  # of a dictionary; xz -9 and zstd --ultra -22 need 64 and 128 MiB
ZSTD = b"\x28\xb5\x2f\xfd"
NO_ZSTD = "it is packed by zstd, and the package zstandard is not installed"


class _Part(Protocol):
    """What unpacks one of the parts that a packed file is joined of."""

    @property
    def eof(self) -> bool: ...
    @property
    def unused_data(self) -> bytes: ...
    def decompress(self, data: bytes, max_length: int, /) -> bytes: ...


class _Zstd:
    """All parts of what zstd packed. Its package has no bound for one part, but for a stream."""

    eof, unused_data = True, b""

    def decompress(self, data: bytes, max_length: int, /) -> bytes:
        return zstd_stream(io.BytesIO(data)).read(max_length)


def zstd_stream(packed: BinaryIO) -> BinaryIO:
    """What comes out of a stream that zstd packed. Raises ValueError without its package, and for damaged data."""
    try:
        import zstandard
    except ImportError:
        raise ValueError(NO_ZSTD) from None
    reader: BinaryIO = zstandard.ZstdDecompressor(max_window_size=MEMORY_BYTES).stream_reader(
        packed, read_across_frames=True
    )
    return _Stream(reader, zstandard.ZstdError)  # type: ignore[return-value]


class _Stream:
    """A stream whose own errors are ValueErrors."""

    def __init__(self, stream: BinaryIO, error: type[Exception]) -> None:
        self._stream, self._error = stream, error

    def read(self, size: int) -> bytes:
        try:
            return self._stream.read(size)
        except self._error as error:
            raise ValueError(str(error)) from error


_FORMATS: dict[bytes, Callable[[], _Part]] = {
    b"\x1f\x8b": lambda: zlib.decompressobj(wbits=zlib.MAX_WBITS + 16),
    b"BZh": bz2.BZ2Decompressor,
    b"\xfd7zXZ\0": lambda: lzma.LZMADecompressor(memlimit=MEMORY_BYTES),
    ZSTD: _Zstd,
}
_DAMAGE = zlib.error, lzma.LZMAError, OSError, ValueError, EOFError, MemoryError


def is_packed(head: bytes) -> bool:
    """Whether data that begins so is packed."""
    return head.startswith((*_FORMATS,))


def unpacked(packed: bytes, most: int) -> tuple[bytes, str]:
    """The first `most` bytes that come out, and why they end early; empty if they do not."""
    data = b""
    start = next(make for magic, make in _FORMATS.items() if packed.startswith(magic))
    for _ in range(MAX_PARTS):
        part = start()
        try:
            data += part.decompress(packed, most - len(data))
        except _DAMAGE as error:
            return data, str(error) if str(error) == NO_ZSTD else f"it is damaged: {error}"
        packed = part.unused_data
        if len(data) >= most or (part.eof and not packed):
            return data, ""
        if not part.eof:
            return data, "it is damaged: its end is missing"
    return data, f"only its first {MAX_PARTS} packed parts are read"
