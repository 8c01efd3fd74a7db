"""The format of a recording: its version, the codec of lines and frames, and the reader of a run directory.

Standard library only; docs/reference/format.md describes the format for writers in other languages. A recording is read
as it was acknowledged: an unfinished last line or last frame (what a killed process leaves) is dropped and said so in
`Run.torn`; any other damage is a FormatError.
"""

from __future__ import annotations

import json
import math
import os
from array import array
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from probes.errors import FormatError, RecordingError, Torn
from probes.frames import (
    PREFIX,
    Extent,
    Flat,
    Frame,
    Ragged,
    decode_frame,
    decode_header,
    encode_frame,
    frame_of,
    read_extents,
)
from probes.lines import decode_json, decode_line, encode_json, encode_line, read_lines

__all__ = [
    "FORMAT_VERSION",
    "PREFIX",
    "Extent", "Flat",
    "FormatError",
    "Frame",
    "JournalIndex",
    "Ragged",
    "RecordingError",
    "Run",
    "Torn",
    "checked_open",
    "decode_frame",
    "decode_header",
    "decode_json",
    "decode_line",
    "encode_frame",
    "encode_json",
    "encode_line",
    "frame_of",
    "mapping",
    "names",
    "number",
    "read_extents",
    "read_lines",
    "write_manifest",
]  # fmt: skip

AGAIN = "harness record -- COMMAND   # record the run again: its run.json cannot be made from the rest"
FORMAT_VERSION = 2  # 1: digests by BLAKE2b
MANIFEST, EVENTS, TOKENS = "run.json", "events", "tokens"
SIDES = ("baseline", "candidate")  # of a pair of runs: its folders, and who a difference is of


def write_manifest(path: str | os.PathLike[str], manifest: Mapping[str, Any]) -> None:
    """Write run.json into the run directory `path`, scrubbed of secrets, whole or not at all; the format version is
    added.

    Raises RecordingError when it cannot be written.
    """
    from probes import redaction  # what only writers need: a reader brings none of it along
    from probes.files import make_folder, write_whole

    folder = Path(path)
    shown = redaction.scrub(dict(manifest))
    text = json.dumps(decode_json(encode_json({"format_version": FORMAT_VERSION, **shown}).encode()), indent=2)
    try:
        make_folder(folder)
        write_whole(folder / MANIFEST, f"{text}\n".encode())
    except OSError as error:
        raise RecordingError.of(folder / MANIFEST, error) from error


@dataclass
class JournalIndex:
    """Index of one events file: where the lines of each kind begin."""

    path: Path
    name: str
    end: int = 0  # bytes of whole lines
    opening: dict[str, Any] = field(default_factory=dict)
    closing: dict[str, Any] | None = None
    kinds: dict[str, array[int]] = field(default_factory=lambda: defaultdict(lambda: array("q")))

    @property
    def order(self) -> tuple[str, int, str]:
        return self.opening.get("role", ""), self.opening.get("rank", 0), self.name


@dataclass
class _TokenLog:
    """Index of one tokens file."""

    path: Path
    name: str
    extents: list[Extent] = field(default_factory=list)

    @property
    def order(self) -> tuple[str, int, str]:
        return (self.extents[0].role, self.extents[0].rank, self.name) if self.extents else ("", 0, self.name)


class Run:
    """A run directory, read and checked once; events and frames are then decoded as they are asked for.

    `manifest`: run.json. `torn`: (file, what was dropped or is missing). `incomplete`: events files without their
    `close` event, whose process was killed or still runs. Raises FormatError for damage; with `strict=False` damage is
    listed in `torn` and the rest of that file is dropped, but a missing run.json or a newer format version is an error
    all the same. Memory: 8 bytes for an event, some hundreds for a frame, and one payload while `frames` is iterated.
    """

    def __init__(self, path: str | os.PathLike[str], *, strict: bool = True) -> None:
        self.path = Path(path)
        self.strict = strict
        self.torn: list[tuple[str, str]] = []
        self.incomplete: list[str] = []
        self.manifest = read_manifest(self.path)
        events, tokens = (self.path / EVENTS).glob("*.jsonl"), (self.path / TOKENS).glob("*.bin")
        self._journals = sorted((self._scan_events(file) for file in sorted(events)), key=lambda one: one.order)
        self._logs = sorted((self._scan_frames(file) for file in sorted(tokens)), key=lambda one: one.order)
        if not self._journals:
            self._damage(EVENTS, "no process has recorded anything")
        self._compare_with_close()

    @property
    def hashed_by(self) -> str:
        """What made the digests in it: those of two runs can be compared where this is equal."""
        return "BLAKE2b" if self.manifest["format_version"] == 1 else "SHA-256"

    @property
    def complete(self) -> bool:
        """Every process closed its recording and nothing is torn."""
        return not self.incomplete and not self.torn

    def events(self, kind: str | None = None, role: str | None = None) -> Iterator[dict[str, Any]]:
        """Events of every process in turn (by role, then rank), each in its own order.

        `role`, `rank` and `pid` are added from the process's `open` event unless the event has a field of that name
        (the `rank` of a `group` event is the rank in that group). The arguments select one kind, and the processes of
        one role.
        """
        for journal in self._journals:
            anchor = {key: journal.opening.get(key) for key in ("role", "rank", "pid")}
            if role not in (None, anchor["role"]):
                continue
            with open(journal.path, "rb") as stream:
                if kind is None:
                    while stream.tell() < journal.end:
                        yield {**anchor, **decode_line(stream.readline())}
                else:
                    for at in journal.kinds.get(kind, ()):
                        stream.seek(at)
                        yield {**anchor, **decode_line(stream.readline())}

    def frames(self, kind: str | None = None, role: str | None = None, step: int | None = None) -> Iterator[Frame]:
        """Frames of every process in turn (by role, then rank), each in its own order, of one kind, role or step."""
        for log in self._logs:
            with open(log.path, "rb") as stream:
                for at in log.extents:
                    if kind in (None, at.kind) and role in (None, at.role) and step in (None, at.step):
                        stream.seek(at.start + PREFIX.size)
                        body = memoryview(stream.read(at.header + at.payload))
                        yield frame_of(decode_header(bytes(body[: at.header])), body[at.header :])

    def _scan_events(self, path: Path) -> JournalIndex:
        journal = JournalIndex(path, f"{EVENTS}/{path.name}")
        try:
            with open(path, "rb") as stream:
                for at, length, event in read_lines(stream):
                    journal.opening = journal.opening or checked_open(event)
                    journal.closing = event if event["kind"] == "close" else None
                    journal.kinds[event["kind"]].append(at)
                    journal.end = at + length
            if not journal.end:
                raise FormatError("the file is empty")
        except Torn as torn:
            if journal.end:
                self.torn.append((journal.name, str(torn)))
            else:
                self._damage(journal.name, f"the file holds only {torn}")
        except FormatError as error:
            self._damage(journal.name, str(error))
        return journal

    def _scan_frames(self, path: Path) -> _TokenLog:
        log = _TokenLog(path, f"{TOKENS}/{path.name}")
        try:
            with open(path, "rb") as stream:
                for extent in read_extents(stream):
                    log.extents.append(extent)
            if not log.extents:  # killed between making the file and its first frame: nothing acknowledged is missing
                raise Torn("the file is empty")
        except Torn as torn:
            self.torn.append((log.name, str(torn)))
        except FormatError as error:
            self._damage(log.name, str(error))
        return log

    def _damage(self, name: str, reason: str) -> None:
        if self.strict:
            raise FormatError(f"{self.path / name}: {reason}", fix=AGAIN)
        self.torn.append((name, f"{reason}; what follows in this file was dropped"))

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
            if not isinstance(wrote, int):
                self.torn.append((journal.name, f"`frames` of its close event is not a number: {wrote!r}"))
            elif wrote > there:
                self.torn.append((log, f"{wrote - there} of the {wrote} frames that were written are missing"))


def checked_open(event: dict[str, Any]) -> dict[str, Any]:
    for key, kind in (("role", str), ("rank", int), ("pid", int)):
        if not isinstance(event.get(key), kind):
            raise FormatError(f"byte 0: the open event has no {key!r} of type {kind.__name__}", fix=AGAIN)
    return event


def read_manifest(path: Path) -> dict[str, Any]:
    """That of the recording in a directory; FormatError where it is not one that this installation reads."""
    file = path / MANIFEST
    try:
        manifest = decode_json(file.read_bytes())
    except (FileNotFoundError, NotADirectoryError) as error:
        known = path.is_dir()
        raise FormatError(
            f"{path}: {f'no {MANIFEST} in it' if known else 'no such directory'}: not a run",
            "harness record -- COMMAND   # records a run",
        ) from error
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{file}: not JSON: {error}", AGAIN) from error
    version = manifest.get("format_version") if isinstance(manifest, dict) else None
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise FormatError(f"{file}: no format_version in it: not the {MANIFEST} of a recording", AGAIN)
    if version > FORMAT_VERSION:
        newest = f"the newest that this installation reads is {FORMAT_VERSION}"
        raise FormatError(
            f"{file}: format_version is {version}, {newest}",
            "read it with the rlhf-harness that wrote it, or a newer one",
        )
    checked: dict[str, Any] = manifest
    return checked


def number(value: Any, default: float = math.nan) -> float:
    """A recorded number, where NaN and infinity are the strings nan, inf and -inf; `default` for anything else."""
    if isinstance(value, bool) or value is None:
        return default
    try:
        return float(value)
    except (TypeError, ValueError):
        return default
    except OverflowError:  # an integer beyond the floats
        return math.inf if value > 0 else -math.inf


def mapping(value: Any) -> dict[str, Any]:
    """A recorded JSON object; {} for anything else: a foreign writer's slip is missing evidence, and no crash."""
    return value if isinstance(value, dict) else {}


def names(value: Any) -> list[str]:
    """A recorded list of names; [] for anything else."""
    return [str(one) for one in value] if isinstance(value, list) else []
