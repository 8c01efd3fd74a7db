"""Files copied through the scrubber. What was recorded by us passed it already; what others recorded did not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO

from harness.triage.collect import redact
from harness.triage.directory import RECORDER
from probes import redaction
from probes.format import (
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
    read_extents,
)
from probes.frames import TRAILER

_DAMAGE = bytes(PREFIX.size)
Events = Callable[[dict[str, Any]], dict[str, Any]]
Frames = Callable[[Frame], Frame]


def copy(name: str, source: Path, target: Path, events: Events, frames: Frames) -> None:
    """Copy one file of a bundle without secrets. `events` and `frames` change those of a recording, or return what
    they are given.

    Raises ValueError for JSON that cannot be read, and so cannot be scrubbed. Damage of a recording stays damage.
    """
    path = PurePosixPath(name)
    target.parent.mkdir(parents=True, exist_ok=True)
    with open(target, "xb") as sink:
        if path.suffix == ".jsonl":
            with open(source, "rb") as stream:
                sink.writelines(_line(line, events) for line in stream)
        elif path.parent.name == TOKENS:
            with open(source, "rb") as stream:
                sink.writelines(_frames(stream, frames))
        elif path.parent.name == RECORDER:
            sink.write(redact.dump(source.read_bytes()))
        else:
            sink.write(f"{encode_json(redaction.scrub(decode_json(source.read_bytes())))}\n".encode("ascii"))


def _line(line: bytes, events: Events) -> bytes:
    """A line as it is where nothing in it had to change. Of one that is torn or broken, which cannot be scrubbed, only
    that it was there."""
    try:
        if not line.endswith(b"\n"):
            raise FormatError("torn")
        event = decode_line(line)
    except FormatError:
        return b"{\n" if line.endswith(b"\n") else b"{"
    head = {key: event.pop(key) for key in ("seq", "t_ns", "kind")}
    changed = events({**head, **redaction.event(head["kind"], event)})
    return line if changed == {**head, **event} else f"{encode_json(changed)}\n".encode("ascii")


def _frames(stream: BinaryIO, frames: Frames) -> Iterator[bytes]:
    """Every frame; of a torn one only its first bytes, and for damage bytes that are no frame."""
    extents, tail = [], b""
    try:
        for extent in read_extents(stream):
            extents.append(extent)
    except Torn:
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
        fields = redaction.scrub(frame.fields)
        changed = frames(frame)
        if fields == frame.fields and changed is frame:
            yield data
        else:
            yield encode_frame(frame.kind, frame.step, frame.role, frame.rank, fields, changed.arrays)
    yield tail


def _length(extent: Extent) -> int:
    return PREFIX.size + extent.header + extent.payload + TRAILER.size
