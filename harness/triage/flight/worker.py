"""A process that reads dumps for another one: one path per line in, one frame of columns out.

Pickles are only ever read here. No global can be called, memory is capped, and the caller can kill the process if a
file keeps it busy too long: nested tuples as keys make Python hash for ever, and C code cannot be interrupted. The
answer is msgpack, not pickle.
"""

from __future__ import annotations

import dataclasses
import os
import struct
import sys
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from harness.triage.evidence import Frame, Group
from harness.triage.flight.decode import decode, too_large
from harness.triage.flight.flight import INTEGERS, MAX_DUMP_BYTES, Flight, FlightError, NotADump, Status, integers
from harness.triage.flight.operations import Kind

MEMORY_BYTES = 6 << 30  # address space of a worker; a pickle of 223 MiB and 1.4 million operations took 2.9 GiB
# Fields that are equal in the dumps of one job are kept once, however many ranks it has (there are as many members as
# ranks).
_ALIKE: dict[str, Any] = {
    "groups": tuple[Group, ...], "config": tuple[Group, ...], "kinds": tuple[Kind, ...],
    "stacks": tuple[tuple[Frame, ...], ...], "mentioned": tuple[int, ...],
}  # fmt: skip


def read(path: Path) -> Flight:
    """Read a file as a Flight without rank. Raises FlightError with one sentence."""
    try:
        if not path.is_file():
            raise FlightError(f"{file_name(path)} is {'no regular file' if path.exists() else 'not there'}")
        size = path.stat().st_size
        if size > MAX_DUMP_BYTES:
            raise too_large(file_name(path), size)
        data = path.read_bytes()
    except OSError as error:
        raise FlightError(f"{file_name(path)} cannot be read: {error.strerror or error}") from error
    return decode(data, file_name(path))


def file_name(path: Path) -> str:
    """The name of a file, with escapes for bytes that are not UTF-8."""
    return os.fsencode(path.name).decode(errors="backslashreplace")


def packed(flight: Flight) -> bytes:
    fields: dict[str, Any] = {}
    for field in dataclasses.fields(flight):
        value = getattr(flight, field.name)
        if field.name in _ALIKE:
            value = msgspec.msgpack.encode(value)
        fields[field.name] = value.tobytes() if field.name in INTEGERS else value
    return msgspec.msgpack.encode(fields)


def unpacked(data: bytes) -> Flight:
    fields = msgspec.msgpack.decode(data)
    for name in INTEGERS:
        column = integers()
        column.frombytes(fields[name])
        fields[name] = column
    for name in _ALIKE:
        fields[name] = _decoded(name, fields[name])
    fields |= {name: tuple(fields[name]) for name in ("notes", "unread")}
    fields["status"] = {number: Status(*counts) for number, counts in fields["status"].items()}
    return Flight(**fields)


@lru_cache(maxsize=64)
def _decoded(name: str, data: bytes) -> Any:
    return msgspec.msgpack.decode(data, type=_ALIKE[name])


def answer(path: Path) -> bytes:
    """One byte for the outcome, then the Flight, or the error sentence and its fix."""
    try:
        return b"F" + packed(read(path))
    except FlightError as error:
        kind = b"N" if isinstance(error, NotADump) else b"E"
        return kind + msgspec.msgpack.encode([error.message, error.fix])
    except OverflowError:
        return b"E" + msgspec.msgpack.encode([f"{file_name(path)} has a number of more than 64 bits: refused", None])
    except MemoryError:
        return b"E" + msgspec.msgpack.encode(
            [f"{file_name(path)} needs more memory than a dump may take: refused", None]
        )


def outcome(data: bytes) -> Flight | FlightError:
    if data[:1] == b"F":
        return unpacked(data[1:])
    message, fix = msgspec.msgpack.decode(data[1:])
    return (NotADump if data[:1] == b"N" else FlightError)(message, fix=fix)


def serve(requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer requests until the other end closes."""
    for line in requests:
        body = answer(Path(os.fsdecode(bytes.fromhex(line.decode()))))
        answers.write(struct.pack("<Q", len(body)) + body)
        answers.flush()


def cap_memory() -> None:
    try:
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        soft = MEMORY_BYTES if hard == resource.RLIM_INFINITY else min(MEMORY_BYTES, hard)
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
    except (ImportError, ValueError, OSError):
        pass  # a system without such limits; the size of the file is limited all the same


if __name__ == "__main__":
    cap_memory()
    serve(sys.stdin.buffer, sys.stdout.buffer)
