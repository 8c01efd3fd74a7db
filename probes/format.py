"""The format of a recording: its version, the line and frame codec, and the reader of a run directory.

Standard library only; docs/format.md is the same format in words, for writers in other languages. A recording is read as it
was acknowledged: an unfinished last line or last frame (what a killed process leaves) is dropped and said so in `Run.torn`;
any other damage is a FormatError.
"""

from __future__ import annotations

import json
import os
import tempfile
import zlib
from array import array
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from probes.frames import (
    MAGIC,
    PREFIX,
    TRAILER,
    Extent,
    Flat,
    FormatError,
    Frame,
    Ragged,
    decode_frame,
    decode_header,
    decode_json,
    encode_frame,
    encode_json,
    frame_of,
    read_prefix,
)

__all__ = [
    "FORMAT_VERSION", "Flat", "FormatError", "Frame", "Ragged", "Run", "Torn", "decode_frame", "decode_json", "decode_line",
    "encode_frame", "encode_json", "encode_line", "read_extents", "read_lines", "write_manifest",
]  # fmt: skip

FORMAT_VERSION = 1
MANIFEST, EVENTS, TOKENS = "run.json", "events", "tokens"
RESERVED = frozenset({"seq", "t_ns", "kind"})  # keys of every event, so no field may have their names


class Torn(FormatError):
    """The file ends within its last line or frame: the one kind of damage that a killed process leaves."""


def encode_line(seq: int, t_ns: int, kind: str, fields: Mapping[str, Any]) -> bytes:
    """One event as the line that is written: ASCII JSON and a newline. ValueError when a field has a reserved name."""
    if not RESERVED.isdisjoint(fields):
        raise ValueError(f"an event's field cannot be named {', '.join(sorted(RESERVED & set(fields)))}")
    return (encode_json({"seq": seq, "t_ns": t_ns, "kind": kind, **fields}) + "\n").encode("ascii")


def decode_line(line: bytes) -> dict[str, Any]:
    """The event of one line. Raises FormatError when it is not a JSON object with the keys of every event."""
    try:
        event = decode_json(line)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"not a line of JSON: {error}") from error
    if not isinstance(event, dict):
        raise FormatError("not a JSON object")
    for key, kind in (("seq", int), ("t_ns", int), ("kind", str)):
        if not isinstance(event.get(key), kind):
            raise FormatError(f"the event has no {key!r} of type {kind.__name__}")
    return event


def read_lines(stream: BinaryIO) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """(byte offset, length in bytes, event) of each line of a journal.

    Raises FormatError, with the offset in its message, for a line that is whole and broken or a break in `seq`, and Torn
    after the last whole line when an unfinished one follows.
    """
    at = 0
    for number, line in enumerate(stream):
        if not line.endswith(b"\n"):
            raise Torn(f"{len(line)} bytes of an unfinished last line at byte {at}")
        try:
            event = decode_line(line)
            if event["seq"] != number:
                raise FormatError(f"event {event['seq']} stands where event {number} belongs")
            if not number and event["kind"] != "open":
                raise FormatError(f"the first event is {event['kind']!r}, not 'open'")
        except FormatError as error:
            raise FormatError(f"byte {at}: {error}") from error
        yield at, len(line), event
        at += len(line)


def read_extents(stream: BinaryIO) -> Iterator[Extent]:
    """Where each frame of a token log lies, its checksums verified; memory is one header and a mebibyte.

    Raises FormatError, with the offset in its message, for damage, and Torn after the last whole frame when an unfinished one
    follows.
    """
    at = 0
    while prefix := stream.read(PREFIX.size):
        try:
            if not MAGIC.startswith(prefix[: len(MAGIC)]):
                raise FormatError(f"a frame begins with {MAGIC!r}, not with {prefix[: len(MAGIC)]!r}")
            if len(prefix) < PREFIX.size:
                raise Torn(f"{len(prefix)} bytes of an unfinished last frame at byte {at}")
            header_length, left = lengths = read_prefix(prefix)
            header = stream.read(header_length)
            check, there = zlib.crc32(header), PREFIX.size + len(header)
            while left and (chunk := stream.read(min(left, 1 << 20))):
                check, left, there = zlib.crc32(chunk, check), left - len(chunk), there + len(chunk)
            trailer = stream.read(TRAILER.size)
            if len(trailer) < TRAILER.size:
                raise Torn(f"{there + len(trailer)} bytes of an unfinished last frame at byte {at}")
            if TRAILER.unpack(trailer) != (check, 0):
                raise FormatError("the checksum of the frame does not match its content")
            decoded = decode_header(header)
        except Torn:
            raise
        except FormatError as error:
            raise FormatError(f"byte {at}: {error}") from error
        yield Extent(at, *lengths, decoded["kind"], decoded["role"])
        at += there + TRAILER.size


def write_manifest(path: str | os.PathLike[str], manifest: Mapping[str, Any]) -> None:
    """Write run.json into the run directory `path`, whole or not at all; the format version is added."""
    folder = Path(path)
    folder.mkdir(parents=True, exist_ok=True)
    whole = json.loads(encode_json({"format_version": FORMAT_VERSION, **manifest}))
    handle, temporary = tempfile.mkstemp(prefix=".run-", dir=folder)
    try:
        with os.fdopen(handle, "w") as stream:
            stream.write(json.dumps(whole, indent=2) + "\n")
        os.chmod(temporary, 0o644)
        os.replace(temporary, folder / MANIFEST)
    except BaseException:
        os.unlink(temporary)
        raise


@dataclass
class _Journal:
    """Index of one events file: where the lines of each kind begin."""

    path: Path
    name: str
    end: int = 0  # bytes that are whole lines
    opening: dict[str, Any] = field(default_factory=dict)
    closing: dict[str, Any] | None = None
    kinds: dict[str, array[int]] = field(default_factory=dict)


@dataclass
class _TokenLog:
    path: Path
    name: str
    extents: list[Extent] = field(default_factory=list)


class Run:
    """A run directory, read and checked once; events and frames are then decoded as they are asked for.

    `torn`: (file, what was dropped or is missing). `incomplete`: events files without their `close` event: the process was
    killed or still runs.
    Raises FormatError for damage; with `strict=False` damage is listed in `torn` and the rest of that file is dropped, while a
    missing run.json or another format version is an error all the same. Memory: 8 bytes per event, about 200 per frame.
    """

    def __init__(self, path: str | os.PathLike[str], *, strict: bool = True) -> None:
        self.path = Path(path)
        self.strict = strict
        self.torn: list[tuple[str, str]] = []
        self.incomplete: list[str] = []
        self.manifest: dict[str, Any] = _read_manifest(self.path)
        self._journals = [self._scan_events(file) for file in sorted((self.path / EVENTS).glob("*.jsonl"))]
        self._journals.sort(key=lambda one: (one.opening.get("role", ""), one.opening.get("rank", 0), one.name))
        self._logs = [self._scan_frames(file) for file in sorted((self.path / TOKENS).glob("*.bin"))]
        if not self._journals:
            self._damage(EVENTS, "no process has recorded anything")
        self._compare_with_close()

    @property
    def complete(self) -> bool:
        """Every process closed its recording and nothing was dropped."""
        return not self.incomplete and not self.torn

    def events(self, kind: str | None = None, role: str | None = None) -> Iterator[dict[str, Any]]:
        """Events of every process in turn, each in its own order; `role`, `rank` and `pid` come from the process's `open` event.

        A field of the same name wins (the `rank` of a `group` event is the rank in that group); `role=` selects processes.
        """
        for journal in self._journals:
            anchor = {key: journal.opening.get(key) for key in ("role", "rank", "pid")}
            if role is not None and anchor["role"] != role:
                continue
            with open(journal.path, "rb") as stream:
                if kind is None:
                    while stream.tell() < journal.end:
                        yield {**anchor, **decode_json(stream.readline())}
                else:
                    for at in journal.kinds.get(kind, ()):
                        stream.seek(at)
                        yield {**anchor, **decode_json(stream.readline())}

    def frames(self, kind: str | None = None, role: str | None = None) -> Iterator[Frame]:
        """Frames of every process in turn, each in its own order; one payload is in memory at a time, unless the caller keeps it."""
        for log in self._logs:
            with open(log.path, "rb") as stream:
                for extent in log.extents:
                    if kind in (None, extent.kind) and role in (None, extent.role):
                        stream.seek(extent.start + PREFIX.size)
                        body = memoryview(stream.read(extent.header + extent.payload))
                        header = decode_header(bytes(body[: extent.header]))
                        yield frame_of(header, body[extent.header :])

    def _scan_events(self, path: Path) -> _Journal:
        journal = _Journal(path, f"{EVENTS}/{path.name}")
        with open(path, "rb") as stream, self._reading(journal.name):
            for at, length, event in read_lines(stream):
                journal.opening = journal.opening or event
                journal.closing = event if event["kind"] == "close" else None
                journal.kinds.setdefault(event["kind"], array("q")).append(at)
                journal.end = at + length
        if not journal.end and not path.stat().st_size:
            self._damage(journal.name, "the file is empty")
        return journal

    def _scan_frames(self, path: Path) -> _TokenLog:
        log = _TokenLog(path, f"{TOKENS}/{path.name}")
        with open(path, "rb") as stream, self._reading(log.name):
            log.extents.extend(read_extents(stream))
        if not log.extents and not path.stat().st_size:
            self._damage(log.name, "the file is empty")
        return log

    @contextmanager
    def _reading(self, name: str) -> Iterator[None]:
        """Note what one file lost; a tear in its very beginning leaves nothing and is therefore damage."""
        try:
            yield
        except Torn as torn:
            if str(torn).endswith(" at byte 0"):
                self._damage(name, f"nothing but {torn}")
            else:
                self.torn.append((name, str(torn)))
        except FormatError as error:
            self._damage(name, f"{error}; the rest of the file was dropped" if not self.strict else str(error))

    def _damage(self, name: str, reason: str) -> None:
        if self.strict:
            raise FormatError(f"{self.path / name}: {reason}")
        self.torn.append((name, reason))

    def _compare_with_close(self) -> None:
        """What the `close` events say was written, against what is there."""
        frames = {log.name: len(log.extents) for log in self._logs}
        for journal in self._journals:
            if journal.closing is None:
                self.incomplete.append(journal.name)
                continue
            lost = journal.closing.get("lost", 0)
            if lost:
                self.torn.append((journal.name, f"{lost} records could not be written when they were made"))
            log = f"{TOKENS}/{journal.path.stem}.bin"
            wrote, there = journal.closing.get("frames", 0), frames.get(log, 0)
            if wrote > there:
                self.torn.append((log, f"{wrote - there} of the {wrote} frames that were written are missing"))


def _read_manifest(path: Path) -> dict[str, Any]:
    file = path / MANIFEST
    try:
        manifest = decode_json(file.read_bytes())
    except (FileNotFoundError, NotADirectoryError) as error:
        what = f"{path} is not a run directory: it has no {MANIFEST}" if path.is_dir() else f"no such run directory: {path}"
        raise FormatError(what) from error
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{file}: not JSON: {error}") from error
    version = manifest.get("format_version") if isinstance(manifest, dict) else None
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise FormatError(f"{file}: no format_version, so this is not the {MANIFEST} of a recording")
    if version > FORMAT_VERSION:
        raise FormatError(
            f"{file}: recorded in format {version}, which is newer than {FORMAT_VERSION}, the newest that this version reads:"
            " upgrade rlhf-harness"
        )
    return manifest
