"""The format of a recording: its version, the codec of lines and frames, and the reader of a run directory.

Standard library only. docs/reference/format.md describes the format for writers in other languages. A reader gets
every record that was acknowledged: an unfinished last line or frame, which a killed process leaves, is dropped and
listed in `Run.torn`. Any other damage is a FormatError.
"""

from __future__ import annotations

import math
import os
import secrets
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from probes import index, limits, sealed
from probes.errors import FULL_SUFFIX, FormatError, RecordingError, Torn
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
from probes.index import EVENTS, INDEX, LIFTED, MANIFEST, TOKENS
from probes.lines import decode_json, decode_line, encode_json, encode_line, encode_lines, is_sealed, read_lines

__all__ = [
    "EVENTS",
    "FORMAT_VERSION",
    "INDEX",
    "LIFTED",
    "MANIFEST",
    "PREFIX",
    "TOKENS",
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
    "encode_lines",
    "encode_manifest",
    "frame_of",
    "mapping",
    "names",
    "number",
    "read_extents",
    "read_lines",
    "read_manifest",
    "read_sealed_manifest",
    "run_id",
    "successor",
    "whole",
    "write_manifest",
]  # fmt: skip

AGAIN = "harness record -- COMMAND   # record the run again: its run.json cannot be made from the rest"
EARLIER = "earlier"  # key of run.json: checksums of those that it replaced
NOTHING_RECORDED = "no process has recorded anything"
UNWRITTEN = "the run did not write it, by its index: it was not read"
# 1: digests by BLAKE2b; 1 and 2: no checksums in lines and in run.json; 1 to 3: no index of the files
FORMAT_VERSION = 4
CHECKED_FROM = 3  # the first version whose lines and run.json have checksums
MOST_NAMED = 100  # missing files of a run, each with a line of its own
INDEXED_FROM = 4  # the first version whose run.json says whether the files are indexed
SIDES = ("baseline", "candidate")  # of a pair of runs: its folders, and who a difference is of


def write_manifest(path: str | os.PathLike[str], manifest: Mapping[str, Any]) -> None:
    """Write run.json into the run directory `path`, without secrets, completely or not at all.

    The format version, the id of the run and the file's own checksum are added; a run.json that is there already keeps
    its id, and its checksum joins the `earlier` ones, by which journals know it. `index` of the manifest promises an
    index of the files (`seal`), which is renewed where there is one. Raises RecordingError when it cannot be written.
    """
    from probes import redaction  # only writers need these: readers do not import them
    from probes.files import make_folder, write_whole

    folder = Path(path)
    scrubbed = redaction.scrub(dict(manifest))
    before, checksum = _replaced(folder)
    identity = scrubbed.pop("id", None) or before.get("id") or secrets.token_hex(8)
    required: dict[str, Any] = {"format_version": FORMAT_VERSION, "id": identity, "index": False, "records": []}
    if before.get("id") == identity:
        scrubbed = successor(scrubbed, before, checksum)
    try:
        make_folder(folder)
        write_whole(folder / MANIFEST, encode_manifest(required | scrubbed))
    except OSError as error:
        raise RecordingError.of(folder / MANIFEST, error) from error
    if os.path.isfile(folder / INDEX):
        seal(folder)


def successor(manifest: Mapping[str, Any], before: Mapping[str, Any], checksum: str) -> dict[str, Any]:
    """The manifest that replaces the one `before`, which has this checksum."""
    return {**manifest, EARLIER: [*names(before.get(EARLIER)), checksum][-limits.EARLIER :]}


def _replaced(folder: Path) -> tuple[dict[str, Any], str]:
    """The run.json that is in a folder, and its checksum; ({}, "") where none can be read."""
    try:
        return read_sealed_manifest(folder)
    except FormatError:
        return {}, ""


def encode_manifest(manifest: Mapping[str, Any]) -> bytes:
    """The bytes of run.json: indented JSON whose last key, `checksum`, is the SHA-256 of all bytes before it."""
    return sealed.encode(manifest)


def seal(path: str | os.PathLike[str]) -> None:
    """Index the files of a run that has ended: a reader then misses those that are deleted, and notices others.

    For the command that owns the run, whose run.json promises it by `index`. Raises RecordingError.
    """
    index.write(path, run_id(path))


def unseal(path: str | os.PathLike[str]) -> None:
    """Take the index back, because the run goes on: until the next `seal` it counts as cut short. Raises OSError."""
    index.remove(path)


def run_id(path: str | os.PathLike[str]) -> str:
    """Return the id of the run that a directory records; empty where its run.json is missing or has no id."""
    return identity_of(path)[0]


def identity_of(path: str | os.PathLike[str]) -> tuple[str, str]:
    """The id of the run that a directory records, and the checksum of its run.json; empty where there is none."""
    manifest, checksum = _replaced(Path(path))
    identity = manifest.get("id")
    return identity if isinstance(identity, str) else "", checksum


@dataclass
class JournalIndex:
    """Index of one events file: the byte offsets of the lines of each kind."""

    path: Path
    name: str
    end: int = 0  # bytes of whole lines
    sealed: bool = False  # whether every line has a checksum
    opening: dict[str, Any] = field(default_factory=dict)
    closing: dict[str, Any] | None = None
    kinds: dict[str, array[int]] = field(default_factory=lambda: defaultdict(lambda: array("q")))

    @property
    def order(self) -> tuple[str, int, str]:
        return self.opening.get("role", ""), self.opening.get("rank", 0), self.name

    @property
    def process(self) -> str:
        """Return the name of the process that wrote it, as recorders name its file."""
        return "-".join(str(self.opening.get(key)) for key in ("role", "rank", "pid"))


@dataclass
class TokenLogIndex:
    """Index of one tokens file, which `probes.tokens.TokenLog` has written."""

    path: Path
    name: str
    extents: list[Extent] = field(default_factory=list)

    @property
    def order(self) -> tuple[str, int, str]:
        return (self.extents[0].role, self.extents[0].rank, self.name) if self.extents else ("", 0, self.name)


class Run:
    """A run directory. It is read and checked once; events and frames are decoded as they are asked for.

    `manifest`: run.json, without its checksum. `torn`: (file, what was dropped or is missing). `incomplete`: events
    files without their `close` event, whose process was killed or still runs. `unchecked`: files without checksums, as
    formats 1 and 2 have them, in which damage may go unseen. `indexed`: whether run.json promises an index of the
    files; without one, that files were deleted may go unseen. `unsealed`: the index is promised and absent, because the
    run was cut short or the index was deleted.

    Raises FormatError for damage. With `strict=False`, damage is listed in `torn` and the rest of that file is
    dropped; a missing or damaged run.json and a newer format version are still errors. Memory: 8 bytes for an event,
    some hundreds for a frame, and one payload while `frames` is iterated.
    """

    def __init__(self, path: str | os.PathLike[str], *, strict: bool = True) -> None:
        self.path = Path(path)
        self.strict = strict
        self.torn: list[tuple[str, str]] = []
        self.incomplete: list[str] = []
        self.unchecked: list[str] = []
        self.manifest, self._checksum = read_sealed_manifest(self.path)
        if not self.sealed:
            self.unchecked.append(MANIFEST)
        self.indexed = self.manifest.get("index") is True
        self._index = self._read_index()
        self.unsealed = self.indexed and not os.path.lexists(self.path / INDEX)
        events, tokens = self._files(EVENTS, "*.jsonl"), self._files(TOKENS, "*.bin")
        self._journals = sorted((self._scan_events(file) for file in events), key=lambda index: index.order)
        self._logs = sorted((self._scan_frames(file) for file in tokens), key=lambda index: index.order)
        if not self._journals:
            self._damage(EVENTS, NOTHING_RECORDED, dropped=False)
        self._drop_copies()
        self._compare_with_close()
        self._compare_with_version()
        self._compare_with_manifest()
        self._compare_with_index()

    @property
    def is_empty(self) -> bool:
        """Whether no process of the run has recorded anything."""
        return (EVENTS, NOTHING_RECORDED) in self.torn

    @property
    def hashed_by(self) -> str:
        """Return the hash of its digests. Digests of two runs can be compared only where this is equal."""
        return "BLAKE2b" if self.manifest["format_version"] == 1 else "SHA-256"

    @property
    def sealed(self) -> bool:
        """Whether the format of this recording has a checksum in every line and in run.json."""
        version: int = self.manifest["format_version"]
        return version >= CHECKED_FROM

    @property
    def older_than_indexes(self) -> bool:
        """Whether the format of this recording has no index of its files yet."""
        version: int = self.manifest["format_version"]
        return version < INDEXED_FROM

    @property
    def complete(self) -> bool:
        """Every process closed its recording, nothing is torn, and the index that was promised is there."""
        return not self.incomplete and not self.torn and not self.unsealed

    def events(self, kind: str | None = None, role: str | None = None) -> Iterator[dict[str, Any]]:
        """Iterate the events of one process after another (by role, then rank), each process in its own order.

        `role`, `rank` and `pid` are added from the process's `open` event, unless the event has a field of that name
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
        """Iterate the frames of one process after another (by role, then rank), each process in its own order.

        The arguments select a kind, a role and a step.
        """
        for log in self._logs:
            with open(log.path, "rb") as stream:
                for at in log.extents:
                    if kind in (None, at.kind) and role in (None, at.role) and step in (None, at.step):
                        stream.seek(at.start + PREFIX.size)
                        body = memoryview(stream.read(at.header + at.payload))
                        yield frame_of(decode_header(bytes(body[: at.header])), body[at.header :])

    def _read_index(self) -> dict[str, index.Entry] | None:
        """What the index says of each file; None where no index can be believed."""
        if not os.path.lexists(self.path / INDEX):
            return None
        if not self.indexed:
            self.torn.append((INDEX, f"{MANIFEST} does not promise it: one of them was edited, or is of another run"))
            return None
        try:
            return index.read(self.path, self.manifest.get("id"))
        except FormatError as error:
            self.torn.append((INDEX, str(error)))
            return None
        except OSError as error:
            self.torn.append((INDEX, f"it cannot be read: {error.strerror}"))
            return None

    def _files(self, folder: str, pattern: str) -> list[Path]:
        """The files of one kind that the run wrote. What is no regular file is damage: a pipe never ends."""
        paths = []
        for path in sorted((self.path / folder).glob(pattern)):
            name = f"{folder}/{path.name}"
            if not os.path.isfile(path):
                self._damage(name, limits.NOT_REGULAR)
            elif self._index is not None and name not in self._index:
                self.torn.append((name, UNWRITTEN))
            else:
                paths.append(path)
        return paths

    def _scan_events(self, path: Path) -> JournalIndex:
        journal = JournalIndex(path, f"{EVENTS}/{path.name}")
        try:
            with open(path, "rb") as stream:
                journal.sealed = self.sealed or is_sealed(stream.readline(limits.LINE_BYTES))
                stream.seek(0)
                for at, length, event in read_lines(stream, sealed=journal.sealed):
                    # Only a close event that is last closes the journal: a process that recorded on was not done.
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

    def _scan_frames(self, path: Path) -> TokenLogIndex:
        log = TokenLogIndex(path, f"{TOKENS}/{path.name}")
        # Frames before the first damage stay readable: each was checked when it was taken into the list.
        try:
            with open(path, "rb") as stream:
                for number, extent in enumerate(read_extents(stream)):
                    self._check_place(number, extent)
                    log.extents.append(extent)
            if not log.extents:  # killed before its first frame: no acknowledged record is missing
                raise Torn("the file is empty")
        except Torn as torn:
            self.torn.append((log.name, str(torn)))
        except FormatError as error:
            self._damage(log.name, str(error))
        return log

    def _check_place(self, number: int, extent: Extent) -> None:
        """Raise FormatError for a frame of another run, or one that was moved from the place where it was written."""
        if extent.seq not in (None, number):
            raise FormatError(f"byte {extent.start}: frame {extent.seq} stands where frame {number} belongs")
        if extent.run and extent.run != self.manifest.get("id", extent.run):
            raise FormatError(f"byte {extent.start}: the frame belongs to another run, {extent.run}")

    def _check_run(self, journal: JournalIndex) -> None:
        """Check that the journal belongs to this run, and note it where its lines have no checksums."""
        run = journal.opening.get("run")
        if run is not None and run != self.manifest.get("id", run):
            self._damage(journal.name, f"it belongs to another run, {run}")
        if not journal.sealed:
            self.unchecked.append(journal.name)

    def _compare_with_version(self) -> None:
        """Name a run.json of an older format than its processes wrote: it would be held to less than was promised."""
        version = self.manifest["format_version"]
        for journal in self._journals:
            wrote = journal.opening.get("format")
            if isinstance(wrote, int) and wrote > version:
                self.torn.append((MANIFEST, f"it says format {version}, and {journal.name} says format {wrote}"))
                return
        checked = [journal.name for journal in self._journals if journal.sealed]
        checked += [log.name for log in self._logs if any(extent.seq is not None for extent in log.extents)]
        if checked and not self.sealed:
            self.torn.append((MANIFEST, f"it says format {version}, and {checked[0]} has what only format 3 has"))

    @property
    def manifest_is_named(self) -> bool:
        """Whether a journal names the run.json that its process began with, so that an edited one is noticed."""
        return any("manifest" in journal.opening for journal in self._journals)

    def _compare_with_manifest(self) -> None:
        """Name a run.json that is another than its processes began with: it was exchanged or edited since."""
        # A run rewrites run.json while it goes on, and lists the checksums that it had before.
        versions = {*names(self.manifest.get(EARLIER))}
        for journal in self._journals:
            began = journal.opening.get("manifest", self._checksum)
            if began != self._checksum and (not isinstance(began, str) or began not in versions):
                self.torn.append((MANIFEST, f"it is not the one that {journal.name} began with, nor its successor"))
                return

    def _compare_with_index(self) -> None:
        """Compare the files with the index: which are gone, are others than the run wrote, or came later."""
        if self._index is None:
            return
        # What is damaged was named before. A file that is torn cannot equal its entry either.
        present, damaged = set(index.present(self.path)), {name for name, _ in self.torn}
        missing = [name for name in self._index if name not in present and name not in damaged]
        for name in missing[:MOST_NAMED]:  # a folder that was deleted would fill the verdict with names
            self.torn.append((name, "the file is missing; the index of the run lists it"))
        if len(missing) > MOST_NAMED:
            self.torn.append((INDEX, f"{len(missing) - MOST_NAMED} more files that it lists are missing"))
        for name, written in self._index.items():
            if name in damaged or name not in present:
                continue
            if difference := index.entry(self.path / name).difference(written):
                self.torn.append((name, f"it is not the file that the run wrote: {difference}"))
        for name in sorted(present - self._index.keys() - damaged):
            if not index.of_cut_stage(name, self._index):
                self.torn.append((name, UNWRITTEN))

    def _damage(self, name: str, reason: str, *, dropped: bool = True) -> None:
        if self.strict:
            raise FormatError(f"{self.path / name}: {reason}", fix=AGAIN)
        self.torn.append((name, f"{reason}; what follows in this file was dropped" if dropped else reason))

    def _drop_copies(self) -> None:
        """Leave out the files of a process that are there under a second name."""
        begun: dict[tuple[str, ...], str] = {}  # where and when each process began -> its journal
        copies = set()
        for journal in self._journals:
            start = tuple(str(journal.opening.get(key)) for key in ("role", "rank", "host", "pid", "t_ns", "wall_ns"))
            if "wall_ns" in journal.opening and begun.setdefault(start, journal.name) != journal.name:
                self.torn.append((journal.name, f"it is a copy of {begun[start]}: it was not read"))
                copies.add(journal.path.stem)
        self._journals = [journal for journal in self._journals if journal.path.stem not in copies]
        self._logs = [log for log in self._logs if log.path.stem not in copies]

    def _compare_with_close(self) -> None:
        """Compare what the `close` events say was written with what is in the files."""
        journals = {journal.path.name for journal in self._journals}
        frames = {log.name: Counter(extent.kind for extent in log.extents) for log in self._logs}
        # An index names every file. Without one, files that lay beside each other tell that one is missing.
        unnamed_logs = self._logs if self._index is None else []
        for log in unnamed_logs:
            if f"{log.path.stem}.jsonl" not in journals:
                self.torn.append((f"{EVENTS}/{log.path.stem}.jsonl", "the file is missing; its tokens file is there"))
        processes = {journal.process for journal in self._journals}
        for journal in self._journals:
            self._check_run(journal)
            # A name that no process has is a user's own choice. That of another process means that two were exchanged.
            if journal.path.stem != journal.process and journal.path.stem in processes:
                self._damage(journal.name, f"{journal.process} wrote it: files have changed names")
            if journal.closing is None:
                self._note_unclosed(journal)
                continue
            tokens = f"{TOKENS}/{journal.path.stem}.bin"
            self._compare_records(journal, journal.closing, tokens, frames.get(tokens, Counter()))
            if self._index is None:
                self._miss_files(journal, journal.closing, journals)

    def _note_unclosed(self, journal: JournalIndex) -> None:
        """Note a journal whose process did not close it, and why, where the process could still say so."""
        self.incomplete.append(journal.name)
        if os.path.exists(f"{journal.path}{FULL_SUFFIX}"):
            self.torn.append((journal.name, "the disk was full: records of this process are missing"))

    def _compare_records(
        self, journal: JournalIndex, closing: Mapping[str, Any], tokens: str, frames: Counter[str]
    ) -> None:
        """Compare the counts of a `close` event with the events and frames in the files."""
        lost, wrote, present = closing.get("lost", 0), closing.get("frames", 0), frames.total()
        if lost:
            self.torn.append((journal.name, f"{lost} records could not be written when they were made"))
        if not isinstance(wrote, int):
            self.torn.append((journal.name, f"`frames` of its close event is not a number: {wrote!r}"))
        elif wrote > present:
            self.torn.append((tokens, f"{wrote - present} of the {wrote} frames that were written are missing"))
        events = {kind: len(places) for kind, places in journal.kinds.items() if kind != "close"}
        self._compare_kinds(journal.name, "events", closing.get("events"), events)
        self._compare_kinds(tokens, "frames", closing.get("frame_kinds"), frames)

    def _miss_files(self, journal: JournalIndex, closing: Mapping[str, Any], journals: set[str]) -> None:
        """List the events files that existed beside this one when it was closed and are gone."""
        for name in names(closing.get("beside")):
            if name not in journals:
                self.torn.append((f"{EVENTS}/{name}", f"the file is missing; {journal.path.name} lay beside it"))

    def _compare_kinds(self, name: str, what: str, wrote: Any, counts: Mapping[str, int]) -> None:
        """Compare how many records of each kind the process counted with how many are in its file."""
        for kind, count in mapping(wrote).items():
            if count != counts.get(kind, 0):
                self.torn.append((name, f"{counts.get(kind, 0)} {what} of kind {kind!r}, its process wrote {count}"))
        if wrote is not None:
            added = sorted(counts.keys() - mapping(wrote).keys())
            self.torn += [(name, f"{what} of kind {kind!r}, its process wrote none") for kind in added]


def checked_open(event: dict[str, Any]) -> dict[str, Any]:
    for key, kind in (("role", str), ("rank", int), ("pid", int)):
        if not isinstance(event.get(key), kind):
            raise FormatError(f"byte 0: the open event has no {key!r} of type {kind.__name__}", fix=AGAIN)
    for key in ("rank", "world_size"):
        if isinstance(value := event.get(key), int):
            limits.bounded(value, limits.RANKS, f"{key} of the open event")
    return event


def read_manifest(path: Path) -> dict[str, Any]:
    """Return run.json of the recording in a directory, without its checksum.

    Raises FormatError where it is missing, where its content does not match its checksum, and for a format that this
    installation does not read.
    """
    return read_sealed_manifest(path)[0]


def read_sealed_manifest(path: Path) -> tuple[dict[str, Any], str]:
    """Return what `read_manifest` does, and the checksum; "" for a format without one. Raises FormatError."""
    file = path / MANIFEST
    try:
        data = limits.read_file(file)
        manifest = decode_json(data)
    except (FileNotFoundError, NotADirectoryError) as error:
        what = f"no {MANIFEST} in it" if path.is_dir() else "no such directory"
        raise FormatError(f"{path}: {what}: not a run", "harness record -- COMMAND   # records a run") from error
    except OSError as error:
        raise FormatError(f"{file} cannot be read: {error.strerror}", f"ls -l {file}") from error
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
    try:
        checksum = sealed.check(data, required=version >= CHECKED_FROM)
        limits.check_manifest(manifest, typed=version >= INDEXED_FROM)
    except FormatError as error:
        raise FormatError(f"{file}: {error}", AGAIN) from error
    return {key: value for key, value in manifest.items() if key != "checksum"}, checksum


def number(value: Any, default: float = math.nan) -> float:
    """Return a recorded number, where NaN and infinity are the strings nan, inf and -inf; `default` for anything
    else.
    """
    if isinstance(value, bool) or value is None:
        return default
    try:
        return float(value)
    except (TypeError, ValueError):
        return default
    except OverflowError:  # an integer larger than any float
        return math.inf if value > 0 else -math.inf


def whole(value: Any, default: int = 0) -> int:
    """Return a recorded whole number; `default` for anything else, NaN and infinity included."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    read = number(value)
    return int(read) if math.isfinite(read) else default


def mapping(value: Any) -> dict[str, Any]:
    """Return a recorded JSON object; {} for anything else. A mistake of another writer is missing evidence, not a
    crash.
    """
    return value if isinstance(value, dict) else {}


def names(value: Any) -> list[str]:
    """Return a recorded list of names; [] for anything else."""
    return [str(name) for name in value] if isinstance(value, list) else []
