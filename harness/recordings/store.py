"""A run directory as tables: events by kind, and spans and token frames as flat NumPy columns.

`Recording` is `probes.format.Run` with a scan that decodes nothing in advance (`harness.recordings.scan`); a kind is
parsed when it is needed. Both index the same lines and report the same damage, which a test ensures. A line that proves
broken when it is parsed is added to `torn`.
"""

from __future__ import annotations

import io
import os
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from harness.recordings import scan
from harness.recordings.records.catalogue import Records
from harness.recordings.seen import SeenPrompts
from harness.recordings.tables import FrameArrays, Rows, Spans, Table, arrays_of, table_of
from harness.recordings.work import WORK
from probes.format import (
    EVENTS,
    PREFIX,
    TOKENS,
    Extent,
    JournalIndex,
    Run,
    TokenLogIndex,
    decode_header,
    decode_json,
    number,
)
from probes.kinds import unread_of_frame
from probes.lines import RESERVED, bound_numbers

# A verdict goes through a run step by step, and reads all that it needs of a step together. So the last tables up to
# this size are kept, and always the last two: the rollout and the experience of a step.
TABLES_BYTES = 8 << 20
KEPT = 2  # tables that are always kept
_Index = TypeVar("_Index", JournalIndex, TokenLogIndex)


@dataclass(frozen=True)
class ProcessCounts:
    """How many events and frames of each kind one process has in its files, whatever the window of steps."""

    role: str
    rank: int
    journal: str
    events: Counter[str]
    frames: Counter[str]


class Recording(Run):
    """One recorded run. Damage never raises here: it is listed in `torn` and `incomplete`, and the judge refuses to
    pass it.

    Raises FormatError for a directory without run.json, and for another format version. Memory: 8 bytes per event, 12
    per span; one block of a journal while it is read; the last tables, up to TABLES_BYTES or two of them.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        tell: Callable[[str], None] = lambda doing: None,
        earlier: Recording | None = None,
    ) -> None:
        """Open the directory. `earlier`: the same directory as opened before; its scans of unchanged files are
        reused."""
        self._earlier = earlier
        self._stamps: dict[Path, tuple[int, int]] = {}  # size and modification time of each file when it was scanned
        self._tell = tell  # called for each journal, whose scan may take seconds
        self._decoded: dict[tuple[str, str], list[dict[str, Any]]] = {}  # parsed events by kind and mention
        self._contents: dict[str, scan.Contents] = {}  # journal -> its contents, if the fast scan has read it
        self._hashes: dict[str, np.ndarray] = {}
        self._unread: dict[tuple[str, str], set[str]] = {}  # by file and kind of frame: names without a reader
        self._mentions: dict[tuple[str, str, str], np.ndarray] = {}  # by file, kind and text: where the lines begin
        self._tables: OrderedDict[tuple[Any, ...], Table | None] = OrderedDict()  # the last used last
        self._tables_bytes = 0
        self.window: range | None = None
        super().__init__(path, strict=False)
        self._earlier = None

    @property
    def scenario(self) -> dict[str, Any]:
        """The resolved scenario of run.json; {} if another framework recorded none."""
        scenario = self.manifest.get("scenario")
        return scenario if isinstance(scenario, dict) else {}

    @cached_property
    def records(self) -> Records:
        """What run.json and the events say, as frozen types."""
        return Records(self.manifest, self.all)

    @cached_property
    def processes(self) -> tuple[ProcessCounts, ...]:
        """The counts of each journal, with those of the tokens file that its process wrote."""
        frames = {log.path.stem: Counter(extent.kind for extent in log.extents) for log in self._logs}
        return tuple(
            ProcessCounts(
                role=str(journal.opening.get("role")),
                rank=journal.opening.get("rank", 0),
                journal=journal.name,
                events=Counter({kind: len(places) for kind, places in journal.kinds.items()}),
                frames=frames.get(journal.path.stem, Counter()),
            )
            for journal in self._journals
        )

    @property
    def kinds(self) -> set[str]:
        """The kinds of all events of the recording."""
        return {kind for journal in self._journals for kind in journal.kinds}

    @property
    def promised_steps(self) -> int:
        """The number of steps of the scenario; 0 if run.json does not name it."""
        steps = self.scenario.get("steps")
        return steps if isinstance(steps, int) and not isinstance(steps, bool) else 0

    def restrict(self, steps: range) -> None:
        """From now on use only these steps: their events and frames, and the weights with which they began and ended.

        Events without a step stay, and so does the floor, which describes the engine. Call this before reading
        anything.
        """
        self.window = steps

    def _within(self, event: dict[str, Any]) -> bool:
        if self.window is None:
            return True
        version, step = event.get("version"), event.get("step")
        if event.get("kind") in ("weights", "sync") and isinstance(version, int):
            return self.window.start <= version <= self.window.stop
        return not isinstance(step, int) or step < 0 or step in self.window

    def all(self, kind: str, mention: str = "") -> list[dict[str, Any]]:
        """Every event of one kind, with role, rank, pid and file of its process. Parsed once; broken lines go to
        `torn`.

        `mention`: parse only lines in which a JSON string ends with this text. A kind with one event for each
        micro-batch would otherwise take too long to parse and not fit into memory.
        """
        if (kind, mention) not in self._decoded:
            places = (self._places_with(journal, kind, f'{mention}"') if mention else journal.kinds.get(kind, ())
                      for journal in self._journals)  # fmt: skip
            self._decoded[kind, mention] = self._decode(places)
        return self._decoded[kind, mention]

    def labelled(self, kind: str, ending: str) -> list[dict[str, Any]]:
        """For a kind in `scan.LABELS`: the events whose label ends with this text, in the form of `all`."""
        if (kind, ending) not in self._decoded:
            key = scan.LABELS[kind]
            places = (self._labelled_places(journal, kind, lambda label: label.endswith(ending))
                      for journal in self._journals)  # fmt: skip
            events = self._decode(places)
            self._decoded[kind, ending] = [event for event in events if str(event.get(key)).endswith(ending)]
        return self._decoded[kind, ending]

    def shapes_of(self, phase: str) -> list[dict[str, Any]]:
        """The `shapes` events of one phase."""
        return [event for event in self.labelled("shapes", phase) if event.get("phase") == phase]

    def _decode(self, places: Iterable[Any]) -> list[dict[str, Any]]:
        """The events that begin at these positions of each journal."""
        events: list[dict[str, Any]] = []
        for journal, at in zip(self._journals, places, strict=True):
            anchor = {"file": journal.name, **{key: journal.opening.get(key) for key in ("role", "rank", "pid")}}
            for line in scan.lines_at(journal.path, at):
                event = self.parsed(journal, line)
                if event is not None and self._within(event):
                    events.append({**anchor, **event})
        return events

    def _labelled_places(self, journal: JournalIndex, kind: str, wanted: Callable[[str], bool]) -> Any:
        """The positions of lines with such labels; of all lines of the kind if some labels were not read by the
        scan."""
        places: Any = journal.kinds.get(kind, ())
        contents = self._contents.get(journal.name)
        labels = contents.labels.get(kind) if contents is not None else None
        if labels is None or labels.incomplete:
            return places
        return np.frombuffer(places, np.int64)[labels.where(wanted)]

    def _places_with(self, journal: JournalIndex, kind: str, text: str) -> np.ndarray:
        """The positions of the lines of one kind that contain this text."""
        key = journal.name, kind, text
        if key not in self._mentions:
            contents, places = self._contents.get(journal.name), journal.kinds.get(kind, ())
            if contents is not None and scan.MENTIONS.get(kind) == text.encode() and kind not in contents.mentioning:
                places = ()
            self._mentions[key] = scan.places_with(journal.path, places, text.encode())
        return self._mentions[key]

    def keys(self, kind: str) -> set[str]:
        """The keys of the events of one kind, without those that every event has.

        They are those of all events if the kind was parsed, else those of the first event of each journal.
        """
        parsed = self._decoded.get((kind, ""))
        if parsed is None:
            journals = [journal for journal in self._journals if journal.kinds.get(kind)]
            firsts = ((journal, next(scan.lines_at(journal.path, journal.kinds[kind][:1]))) for journal in journals)
            parsed = [self.parsed(journal, line) or {} for journal, line in firsts]
        return set[str]().union(*parsed) - _OF_EVERY_EVENT

    @property
    def frame_kinds(self) -> set[str]:
        """The kinds of all frames of the recording."""
        return {extent.kind for log in self._logs for extent in log.extents}

    def unread_of_frames(self) -> set[str]:
        """Names in frames' headers that no reader knows, as `kind.name`: of all frames that were read, else of each
        kind's first in each file."""
        for log in self._logs:
            for kind, extent in {extent.kind: extent for extent in reversed(log.extents)}.items():
                if (log.name, kind) not in self._unread:
                    self._header(log.path, extent)
        return set[str]().union(*self._unread.values())

    def count(self, kind: str) -> int:
        if self.window is not None:
            return sum(1 for _ in self.lines(kind))
        return sum(len(journal.kinds.get(kind, ())) for journal in self._journals)

    def lines(self, kind: str) -> Iterator[tuple[JournalIndex, bytes]]:
        """The lines of one kind as they are in the file, for comparisons that need no parsing."""
        for journal in self._journals:
            for line in self._kept(journal, kind):
                yield journal, line

    def every_line(self) -> Iterator[tuple[JournalIndex, bytes]]:
        """All lines; the lines of each process are in their own order."""
        for journal in self._journals:
            for base, data in scan.blocks(journal.path):
                for line in data[: max(0, journal.end - base)].splitlines(keepends=True):
                    yield journal, line

    def content_hashes(self, kind: str) -> np.ndarray:
        """A 64-bit hash of what follows the kind in each line, in the order of `lines`. Equal content has equal hashes.

        The hash is Python's, which differs between processes: compare only within one process.
        """
        if kind not in self._hashes:
            hashes = [self._content_hashes(journal, kind) for journal in self._journals]
            self._hashes[kind] = np.concatenate(hashes) if hashes else np.zeros(0, np.int64)
        return self._hashes[kind]

    def _content_hashes(self, journal: JournalIndex, kind: str) -> np.ndarray:
        contents = self._contents.get(journal.name)
        if contents is None:  # not written by our recorders: hash the whole line
            return np.fromiter(map(hash, self._kept(journal, kind)), np.int64)
        if self.window is not None:
            lines = self._kept(journal, kind)
            return np.array([hash(scan.content(line, kind, journal.sealed)) for line in lines], np.int64)
        return np.array(contents.hashes.get(kind, ()), np.int64)

    def spans(self, names: tuple[str, ...]) -> Spans:
        """The spans of these names, journal by journal."""
        spans = Spans.joined([self._spans_of(journal, names) for journal in self._journals])
        if self.window is None:
            return spans
        return spans.where((spans.step < 0) | np.isin(spans.step, self.window))

    def steps(self, kind: str) -> list[int]:
        """The steps that have a frame of this kind, in ascending order."""
        steps = {step for frame_kind, step in self._extents if frame_kind == kind}
        if self.window is not None and kind != "floor":
            steps = {step for step in steps if step < 0 or step in self.window}
        return sorted(steps)

    def ranks(self, kind: str) -> set[int]:
        """The ranks of the processes that have a frame of this kind."""
        return {
            at.rank for (frame_kind, _), extents in self._extents.items() if frame_kind == kind for _, at in extents
        }

    def table(self, kind: str, step: int, **fields: Any) -> Table | None:
        """The frames of one kind and step whose fields have these values, as columns; None if there are none.

        Raises FormatError if the arrays of a frame disagree about the number of samples.
        """
        key = (kind, step, *sorted(fields.items()))
        if key in self._tables:
            self._tables.move_to_end(key)
            return self._tables[key]
        frames = list(self.frames_of(kind, step, **fields))
        table = table_of(frames) if frames else None
        if table is not None and kind == "rollout":
            table = self._seen_prompts.with_prompts(table)
        self._tables[key] = table
        self._tables_bytes += table.nbytes if table else 0
        while self._tables_bytes > TABLES_BYTES and len(self._tables) > KEPT:
            _, oldest = self._tables.popitem(last=False)
            self._tables_bytes -= oldest.nbytes if oldest else 0
        return table

    def rows(self, kind: str, step: int, name: str, **fields: Any) -> Rows | None:
        """A ragged column of such a table; None if there is no table, or it lacks the column."""
        table = self.table(kind, step, **fields)
        return None if table is None else table.rows(name)

    def field_texts(self, kind: str, field: str) -> set[str]:
        """Every value (as text) of one field in the frames of one kind, without None. Reads only headers."""
        values = [value for step in self.steps(kind) for value in self.values_of(kind, step, field)]
        return {str(value) for value in values if value is not None}

    def values_of(self, kind: str, step: int, field: str) -> list[Any]:
        """The value of one field in the header of each frame of one kind and step; None if it is missing."""
        values = []
        for path, at in self._extents.get((kind, step), ()):
            values.append(self._header(path, at)["fields"].get(field))
        return values

    def _header(self, path: Path, at: Extent) -> dict[str, Any]:
        with open(path, "rb", buffering=0) as stream:
            return self._read_header(stream, path, at)

    def _read_header(self, stream: io.FileIO, path: Path, at: Extent) -> dict[str, Any]:
        """The header of a frame; the stream then stands behind it. Names in it that no reader knows are noted."""
        stream.seek(at.start + PREFIX.size)
        header = decode_header(stream.read(at.header))
        self._unread.setdefault((f"{TOKENS}/{path.name}", at.kind), set()).update(unread_of_frame(header))
        return header

    @cached_property
    def _seen_prompts(self) -> SeenPrompts:
        """What the engines' own processes received; these know neither steps nor samples."""
        places = [place for (kind, _), extents in self._extents.items() if kind == "seen" for place in extents]
        return SeenPrompts(places, self._whole_frame)

    def frames_of(self, kind: str, step: int, **fields: Any) -> Iterator[FrameArrays]:
        """Yield the frames of one kind and step whose fields have these values.

        NumPy checks their offsets: checking them in Python took longer than the whole comparison.
        """
        for path, at in self._extents.get((kind, step), ()):
            frame = self._frame(path, at, fields)
            if frame is not None:
                yield frame

    def _whole_frame(self, path: Path, at: Extent) -> FrameArrays:
        frame = self._frame(path, at, {})
        assert frame is not None
        return frame

    def _frame(self, path: Path, at: Extent, fields: dict[str, Any]) -> FrameArrays | None:
        """The frame, or None if a field has another value; its arrays are then not read."""
        with open(path, "rb", buffering=0) as stream:
            header = self._read_header(stream, path, at)
            if any(header["fields"].get(name) != value for name, value in fields.items()):
                return None
            payload = np.empty(at.payload, np.uint8)  # in huge pages, if there are any: half the time of bytes
            arrays = arrays_of(header, payload.data[: stream.readinto(payload.data)])
        return FrameArrays(at.kind, at.step, at.rank, header["fields"], arrays)

    @cached_property
    def _extents(self) -> dict[tuple[str, int], list[tuple[Path, Extent]]]:
        extents: dict[tuple[str, int], list[tuple[Path, Extent]]] = {}
        for log in self._logs:
            for at in log.extents:
                extents.setdefault((at.kind, at.step), []).append((log.path, at))
        return extents

    def _kept(self, journal: JournalIndex, kind: str) -> Iterator[bytes]:
        """Yield the lines of one kind within the window."""
        for line in self._lines(journal, kind):
            if self.window is None or self._within(self.parsed(journal, line) or {}):
                yield line

    def _lines(self, journal: JournalIndex, kind: str) -> Iterator[bytes]:
        return scan.lines_at(journal.path, journal.kinds.get(kind, ()))

    def parsed(self, journal: JournalIndex, line: bytes) -> dict[str, Any] | None:
        """The event of one line; None for a broken line, which is added to `torn`."""
        try:
            event: dict[str, Any] = decode_json(line)
            bound_numbers(line, event)
        except (ValueError, RecursionError) as error:
            self._broken(journal, error)
            return None
        event.pop("crc", None)  # the scan has already checked it
        return event

    def _broken(self, journal: JournalIndex, error: Exception) -> None:
        note = (journal.name, f"a line cannot be read: {error}")
        if note not in self.torn:
            self.torn.append(note)

    def _spans_of(self, journal: JournalIndex, names: tuple[str, ...]) -> Spans:
        places = self._labelled_places(journal, "span", names.__contains__)
        lines = list(scan.lines_at(journal.path, places))
        columns = self._columns(journal, lines, _NUMBERS)
        step = np.where(np.isfinite(columns["step"]), columns["step"], -1).astype(np.int64)
        process = np.full(len(lines), journal.name, object)
        spans = Spans(process, columns["name"], step, columns["start_ns"] / 1e9, columns["dur_ns"] / 1e9)
        return spans.where(np.array([name in names for name in spans.name.tolist()], bool))

    def numbers(
        self, kind: str, mention: str, keys: tuple[str, ...]
    ) -> Iterator[tuple[JournalIndex, dict[str, np.ndarray]]]:
        """For each journal: `name` and these numbers of each line of one kind that contains the text `mention`; NaN if
        missing.

        `step` must be among the keys.
        """
        for journal in self._journals:
            lines = list(scan.lines_at(journal.path, self._places_with(journal, kind, mention)))
            if lines:
                columns = self._columns(journal, lines, keys)
                within = self.window is None or (columns["step"] < 0) | np.isin(columns["step"], self.window)
                yield journal, {key: column if within is True else column[within] for key, column in columns.items()}

    def _columns(self, journal: JournalIndex, lines: list[bytes], keys: tuple[str, ...]) -> dict[str, np.ndarray]:
        """`name` and these numbers of many lines."""
        columns = _arrow_columns(lines, keys) if len(lines) > 1000 else None
        if columns is None:  # few lines, a broken line, or another writer's types
            events = [self.parsed(journal, line) or {} for line in lines]
            columns = {"name": np.array([str(event.get("name")) for event in events], object)}
            columns |= {key: np.array([number(event.get(key)) for event in events]) for key in keys}
        return columns

    def _scan_events(self, path: Path) -> JournalIndex:
        if (unchanged := self._as_it_was(path, lambda run: run._journals)) is not None:
            assert self._earlier is not None
            self._contents[unchanged.name] = self._earlier._contents[unchanged.name]
            return unchanged
        self._tell(f"reading {path}")
        WORK["scan", str(path)] += 1
        journal = JournalIndex(path, f"{EVENTS}/{path.name}")
        try:
            self._contents[journal.name] = scan.index(journal, sealed=self.sealed)
        except scan.Irregular:
            return super()._scan_events(path)
        return journal

    def _scan_frames(self, path: Path) -> TokenLogIndex:
        unchanged = self._as_it_was(path, lambda run: run._logs)
        if unchanged is not None:
            return unchanged
        WORK["scan", str(path)] += 1
        return super()._scan_frames(path)

    def _as_it_was(self, path: Path, indexes: Callable[[Recording], list[_Index]]) -> _Index | None:
        """The index of an undamaged file that has not changed since its last scan; None for any other file."""
        status = path.stat()
        self._stamps[path] = status.st_size, status.st_mtime_ns
        earlier = self._earlier
        if earlier is None or earlier._stamps.get(path) != self._stamps[path]:
            return None
        index = next((index for index in indexes(earlier) if index.path == path), None)
        if index is None or any(name == index.name for name, _ in earlier.torn):
            return None
        return index if isinstance(index, TokenLogIndex) or index.name in earlier._contents else None


_NUMBERS = ("step", "start_ns", "dur_ns")
_OF_EVERY_EVENT = RESERVED | {"file", "role", "rank", "pid"}  # keys that `all` gives every event


def _arrow_columns(lines: list[bytes], keys: tuple[str, ...]) -> dict[str, np.ndarray] | None:
    """The columns of many events, parsed at once; None if they are not as the recorders write them."""
    import pyarrow as pa
    import pyarrow.json as arrow_json

    schema = pa.schema([("name", pa.string()), *((key, pa.int64()) for key in keys)])
    options = arrow_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
    try:
        table = arrow_json.read_json(pa.BufferReader(b"".join(lines)), parse_options=options)
    except pa.ArrowInvalid:
        return None
    return {key: table[key].to_numpy() for key in ("name", *keys)}
