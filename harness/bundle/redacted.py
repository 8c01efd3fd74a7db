"""Copy files without secrets. Our own recordings were redacted when they were written; other files were not."""

from __future__ import annotations

import dataclasses
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from harness.triage.collect import redact
from harness.triage.directory import RECORDER
from probes import index, redaction
from probes.format import (
    INDEX,
    MANIFEST,
    PREFIX,
    TOKENS,
    Extent,
    FormatError,
    Frame,
    Torn,
    decode_frame,
    decode_json,
    decode_line,
    encode_frame,
    encode_json,
    encode_line,
    encode_manifest,
    read_extents,
    read_manifest,
    read_sealed_manifest,
    successor,
)
from probes.frames import TRAILER
from probes.lines import check_seal, is_sealed

_DAMAGE = bytes(PREFIX.size)
Events = Callable[[dict[str, Any]], dict[str, Any]]
Frames = Callable[[Frame], Frame]


def copy(name: str, source: Path, target: Path, events: Events, frames: Frames) -> None:
    """Copy one file of a bundle without secrets. `events` and `frames` transform a recording's events and frames.

    Raises ValueError for JSON that cannot be read and therefore not redacted. Damage in a recording is preserved as
    damage.
    """
    path = PurePosixPath(name)
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(target, "xb") as sink:
        if path.suffix == ".jsonl":
            with open(source, "rb") as stream:
                sink.writelines(_lines(stream, events))
        elif path.parent.name == TOKENS:
            with open(source, "rb") as stream:
                sink.writelines(_frames(stream, frames))
        elif path.parent.name == RECORDER:
            sink.write(redact.dump(source.read_bytes()))
        elif path.name == MANIFEST:
            sink.write(_manifest(source.parent))
        elif path.name == INDEX:
            sink.write(_index(source.parent, target.parent))
        else:
            sink.write(f"{encode_json(redaction.scrub(decode_json(source.read_bytes())))}\n".encode("ascii"))


def _manifest(run: Path) -> bytes:
    """run.json without secrets. Where that changes it, it names the one that it replaces, which the journals know."""
    manifest, checksum = read_sealed_manifest(run)
    scrubbed = redaction.scrub(manifest)
    copied = encode_manifest(scrubbed)
    is_same = not checksum or copied == (run / MANIFEST).read_bytes()
    return copied if is_same else encode_manifest(successor(scrubbed, manifest, checksum))


def _index(run: Path, copied: Path) -> bytes:
    """The index of a recording whose files were copied, those of its lifted stage first.

    Files that are as the index says are listed as they were copied; the entry of any other stays, so that a file that
    was deleted or exchanged before is missed in the copy too.
    """
    try:
        identity = read_manifest(run).get("id")
        entries = index.read(run, identity)
    except (FormatError, OSError):
        return b'{"files": {}}\n'  # damage stays damage: it has no checksum
    present = set(index.present(run))
    copies = {}
    for name, written in entries.items():
        copy_name = redaction.file_name(name)
        is_whole = name in present and (copied / copy_name).is_file() and index.entry(run / name) == written
        copies[copy_name] = index.entry(copied / copy_name) if is_whole else written
    return index.encode(identity, copies)


def _lines(stream: BinaryIO, events: Events) -> Iterator[bytes]:
    """Yield every line of a journal without secrets. A line with a correct checksum gets a new one.

    A line that is torn, broken or has a wrong checksum can be neither redacted nor verified. It is replaced by a
    broken line.
    """
    read = written = 0
    sealed: bool | None = None
    for line in stream:
        sealed = is_sealed(line) if sealed is None else sealed
        try:
            if not line.endswith(b"\n"):
                raise FormatError("torn")
            read = check_seal(line, read) if sealed else 0
            copied = _scrubbed(line, events, before=written if sealed else None)
        except FormatError:
            copied = b"{\n" if line.endswith(b"\n") else b"{"
        written = zlib.crc32(copied, written)
        yield copied


def _scrubbed(line: bytes, events: Events, *, before: int | None) -> bytes:
    """Return a line without secrets. `before`: CRC-32 of the copied lines; None for a line without a checksum."""
    event = decode_line(line)
    head = {key: event.pop(key) for key in ("seq", "t_ns", "kind")}
    copied_head = head | {"kind": redaction.text(head["kind"], 0)}
    changed = events({**copied_head, **redaction.scrub(event)})  # what a run's own hot path writes as it is too
    if before is None and changed == {**head, **event}:
        return line
    fields = {key: value for key, value in changed.items() if key not in head}
    return encode_line(head["seq"], head["t_ns"], copied_head["kind"], fields, before=before)


def _frames(stream: BinaryIO, frames: Frames) -> Iterator[bytes]:
    """Yield every frame. A torn frame is replaced by its first bytes, and a damaged one by bytes that are not a
    frame.
    """
    extents, tail = [], b""
    try:
        for extent in read_extents(stream):
            extents.append(extent)
    except Torn:  # as in the original, a reader is to find that the last frame is not whole
        end = extents[-1].start + _length(extents[-1]) if extents else 0
        stream.seek(end)
        tail = stream.read(PREFIX.size)
    except FormatError:
        tail = _DAMAGE
    for extent in extents:
        stream.seek(extent.start)
        data = stream.read(_length(extent))
        try:
            frame = decode_frame(data)
        except FormatError:
            yield _DAMAGE
            return
        changed = frames(frame)
        copied = dataclasses.replace(
            changed,
            kind=redaction.text(frame.kind, 0),
            role=redaction.text(frame.role, 0),
            run=redaction.text(frame.run, 0),
            fields=redaction.scrub(frame.fields),
            arrays={redaction.text(name, 0): array for name, array in changed.arrays.items()},
        )
        yield data if copied == frame else _encoded(copied)
    yield tail


def _encoded(frame: Frame) -> bytes:
    place = frame.kind, frame.step, frame.role, frame.rank
    return encode_frame(*place, frame.fields, frame.arrays, seq=frame.seq, run=frame.run)


def _length(extent: Extent) -> int:
    return PREFIX.size + extent.header + extent.payload + TRAILER.size
