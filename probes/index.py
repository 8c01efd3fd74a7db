"""The index of a recording: the files that its run has written, with their lengths and their seals.

The command that owns a run writes it when the run has ended, and run.json promises it. A reader thus misses files that
were deleted, and notices files that came later or took another's place. The seal is the last checksum of a file. The
checksums before it vouch for the content, so the index is made, and compared, without reading the files again.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Container, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probes import limits, sealed
from probes.errors import FormatError, RecordingError
from probes.frames import MAGIC, PREFIX, TRAILER
from probes.lines import SEAL, SEAL_BYTES, decode_json

INDEX = "index.json"
MANIFEST, EVENTS, TOKENS = "run.json", "events", "tokens"
LIFTED = "lifted"  # of the lifted stage's own recording, in the run's directory


@dataclass(frozen=True)
class Entry:
    """What is known of one file. `seal`: its last checksum; of a tokens file the CRC-32 of those of all its frames;
    empty where the file does not end with one."""

    bytes: int
    seal: str

    def difference(self, written: Entry) -> str:
        """How this file is another than the run wrote; "" where it is not."""
        if self.bytes != written.bytes:
            return f"it has {self.bytes:,} bytes, the run wrote {written.bytes:,}"
        if self.seal != written.seal:
            return f"its last checksum is {self.seal or 'missing'}, the run wrote {written.seal or 'none'}"
        return ""


def present(run: Path) -> list[str]:
    """The names of the files of a recording that an index may list, those of its lifted stage included."""
    stage = run / LIFTED
    names = [INDEX, *_recorded(stage)] if os.path.isfile(stage / INDEX) else _recorded(stage)
    return [*_recorded(run), *(f"{LIFTED}/{name}" for name in names)]


def _recorded(folder: Path) -> list[str]:
    files = [folder / MANIFEST, *(folder / EVENTS).glob("*.jsonl"), *(folder / TOKENS).glob("*.bin")]
    return sorted(file.relative_to(folder).as_posix() for file in files if os.path.isfile(file))


def of_cut_stage(name: str, names: Container[str]) -> bool:
    """Whether a file belongs to a lifted stage without an index: one that was cut short, whose files may still grow.
    `names`: of all files."""
    return name.startswith(f"{LIFTED}/") and name != f"{LIFTED}/{MANIFEST}" and f"{LIFTED}/{INDEX}" not in names


def entry(file: Path) -> Entry:
    """What an index says of a file now. Reads its end; of a tokens file 32 bytes a frame. Raises OSError."""
    seal = {".jsonl": _last_seal, ".bin": _chained_seals, ".json": _checksum}[file.suffix]
    return Entry(file.stat().st_size, seal(file))


def _last_seal(file: Path) -> str:
    with open(file, "rb") as stream:
        stream.seek(max(0, os.fstat(stream.fileno()).st_size - SEAL_BYTES))
        seal = SEAL.search(stream.read(SEAL_BYTES))
    return seal[1].decode() if seal else ""


def _chained_seals(file: Path) -> str:
    chain = at = 0
    with open(file, "rb", buffering=0) as stream:
        size = os.fstat(stream.fileno()).st_size
        while at < size:
            prefix = os.pread(stream.fileno(), PREFIX.size, at)
            if len(prefix) < PREFIX.size or not prefix.startswith(MAGIC):
                return ""
            # A trailer is the checksum of its frame, so a chain of them stands for the content that is skipped here.
            _, header, payload, *_ = PREFIX.unpack(prefix)
            at += PREFIX.size + header + payload + TRAILER.size
            if at > size:
                return ""
            chain = zlib.crc32(os.pread(stream.fileno(), TRAILER.size, at - TRAILER.size), chain)
    return f"{chain:08x}"


def _checksum(file: Path) -> str:
    try:
        return sealed.check(limits.read_file(file))
    except (FormatError, OSError):
        return ""


def write(run: str | os.PathLike[str], identity: str) -> None:
    """Index a recording whose run has ended. `identity`: the id of the run. Raises RecordingError."""
    from probes.files import write_whole  # what only writers need

    folder = Path(run)
    names = present(folder)
    try:
        entries = {name: entry(folder / name) for name in names if not of_cut_stage(name, names)}
        write_whole(folder / INDEX, encode(identity, entries))
    except OSError as error:
        raise RecordingError.of(folder / INDEX, error) from error


def encode(identity: Any, entries: Mapping[str, Entry]) -> bytes:
    """The bytes of an index of these files."""
    files = {name: {"bytes": file.bytes, "seal": file.seal} for name, file in sorted(entries.items())}
    return sealed.encode({"run": identity, "files": files})


def remove(run: str | os.PathLike[str]) -> None:
    """Remove the index of a recording that goes on: until its next end it counts as cut short."""
    (Path(run) / INDEX).unlink(missing_ok=True)


def read(run: Path, identity: Any) -> dict[str, Entry]:
    """The index of a recording: name -> what it says of that file. `identity`: the id of the run.

    Raises FormatError, one sentence without the file's name, where it is damaged or belongs to another run; OSError.
    """
    file = run / INDEX
    data = limits.read_file(file)
    try:
        content = decode_json(data)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"not JSON: {error}") from error
    sealed.check(data)
    if not isinstance(content, dict) or not isinstance(content.get("files"), dict):
        raise FormatError("it lists no files")
    if content.get("run") != identity:
        raise FormatError(f"it belongs to another run, {content.get('run')}")
    limits.bounded(len(content["files"]), limits.FILES, "the number of its files")
    return {name: _entry(name, value) for name, value in content["files"].items()}


def _entry(name: str, value: Any) -> Entry:
    size, seal = (value.get("bytes"), value.get("seal")) if isinstance(value, dict) else (None, None)
    if not isinstance(size, int) or isinstance(size, bool) or not isinstance(seal, str):
        raise FormatError(f"its entry of {name} has no `bytes` and `seal`")
    return Entry(size, seal)
