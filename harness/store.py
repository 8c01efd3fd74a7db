"""A run directory as tables: events by kind, spans as a data frame, token frames as flat NumPy columns.

`Recording` is `probes.format.Run` with a scan that does not decode what nobody asks for: `Run` parses every line (3.7 s
for a million events on two cores), this one reads the keys that every line begins with (0.9 s) and parses a kind when
it is asked for. Both index the same lines and name the same damage; a test holds them together. A line that proves
broken when it is parsed is added to `torn`.
"""

from __future__ import annotations

import os
import re
from array import array
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from harness.tables import FrameArrays, Table, arrays_of, number, table_of
from probes.format import (
    EVENTS,
    PREFIX,
    FormatError,
    JournalIndex,
    Run,
    Torn,
    checked_open,
    decode_header,
    decode_json,
    decode_line,
)

# A whole line as the recorders write it, and of what kind it is; of a span also its name.
_HEAD = rb'^\{"seq":\d+,"t_ns":-?\d+,"kind":"'
_LINE = re.compile(_HEAD + rb'(span","name":"[^"\\\n]*|[^"\\\n]+)"(?:,"[^\n]*)?\}$', re.MULTILINE)
_SEQ = len('{"seq":')


class Recording(Run):
    """One recorded run. Damage never raises here: it is listed in `torn` and `incomplete`, and the judge refuses to
    pass it.

    Raises FormatError for a directory without run.json and for another format version. Memory: 8 bytes an event and
    one journal while it is read; a step's frames while they are asked for.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._decoded: dict[str, list[dict[str, Any]]] = {}
        self._spans: dict[str, dict[str, np.ndarray]] = {}  # file -> name -> where its spans begin
        self._hashes: dict[str, np.ndarray] = {}
        self._tables: dict[tuple[str, ...], pd.DataFrame] = {}
        super().__init__(path, strict=False)

    @property
    def scenario(self) -> dict[str, Any]:
        """The resolved scenario of run.json; {} where another framework recorded none."""
        found = self.manifest.get("scenario")
        return found if isinstance(found, dict) else {}

    def all(self, kind: str) -> list[dict[str, Any]]:
        """Every event of one kind, with role, rank, pid and file of its process; parsed once. Broken lines go to
        `torn`.
        """
        if kind not in self._decoded:
            found: list[dict[str, Any]] = []
            for journal in self._journals:
                anchor = {"file": journal.name, **{key: journal.opening.get(key) for key in ("role", "rank", "pid")}}
                for line in self._lines(journal, kind):
                    event = self.parsed(journal, line)
                    if event is not None:
                        found.append({**anchor, **event})
            self._decoded[kind] = found
        return self._decoded[kind]

    def count(self, kind: str) -> int:
        return sum(len(journal.kinds.get(kind, ())) for journal in self._journals)

    @property
    def event_count(self) -> int:
        return sum(len(at) for journal in self._journals for at in journal.kinds.values())

    def lines(self, kind: str) -> Iterator[tuple[JournalIndex, bytes]]:
        """The lines of one kind as they are in the file, for what can be compared without parsing."""
        for journal in self._journals:
            for line in self._lines(journal, kind):
                yield journal, line

    def every_line(self) -> Iterator[tuple[JournalIndex, bytes]]:
        """All lines, each process's in its own order."""
        for journal in self._journals:
            places = sorted(at for known in journal.kinds.values() for at in known)
            for line in self._at(journal, places):
                yield journal, line

    def content_hashes(self, kind: str) -> np.ndarray:
        """A 64-bit hash of what follows the kind in each line, in the order of `lines`: equal for equal content.

        The hash is Python's, which differs between processes: compare within one.
        """
        if kind not in self._hashes:
            pattern = re.compile(_HEAD + re.escape(kind.encode()) + rb'"(.*)$', re.MULTILINE)
            found: list[np.ndarray] = []
            for journal in self._journals:
                places = journal.kinds.get(kind, ())
                contents = pattern.findall(journal.path.read_bytes()) if len(places) else []
                if len(contents) != len(places):  # not as the recorders write: the whole line stands for its content
                    contents = list(self._lines(journal, kind))
                found.append(np.fromiter(map(hash, contents), np.int64, len(places)))
            self._hashes[kind] = np.concatenate(found) if found else np.zeros(0, np.int64)
        return self._hashes[kind]

    def spans(self, names: tuple[str, ...]) -> pd.DataFrame:
        """Columns role, step (-1 where a span has none), name, seconds, ok: one row for each span of these names."""
        if names not in self._tables:
            parts = [part for journal in self._journals if len(part := self._spans_of(journal, names))]
            columns = ["role", "step", "name", "seconds", "ok"]
            empty = pd.DataFrame(columns=columns)
            self._tables[names] = pd.concat(parts, ignore_index=True)[columns] if parts else empty
        return self._tables[names]

    def steps(self, kind: str) -> list[int]:
        """The steps that have a frame of this kind, in order."""
        return sorted({extent.step for log in self._logs for extent in log.extents if extent.kind == kind})

    def table(self, kind: str, step: int, **fields: Any) -> Table | None:
        """The frames of one kind and step whose fields have these values, as columns; None where there is none.

        Raises FormatError when the arrays of a frame disagree about the number of samples.
        """
        found = [one for one in self._read(kind, step) if all(one.fields.get(k) == v for k, v in fields.items())]
        return table_of(found) if found else None

    def _read(self, kind: str, step: int) -> Iterator[FrameArrays]:
        """`Run.frames`, checked by NumPy: checking offsets in Python took longer than the whole comparison."""
        for log in self._logs:
            wanted = [at for at in log.extents if at.kind == kind and at.step == step]
            if wanted:
                with open(log.path, "rb") as stream:
                    for at in wanted:
                        stream.seek(at.start + PREFIX.size)
                        header = decode_header(stream.read(at.header))
                        yield FrameArrays(
                            kind, step, at.rank, header["fields"], arrays_of(header, stream.read(at.payload))
                        )

    def _lines(self, journal: JournalIndex, kind: str) -> Iterator[bytes]:
        return self._at(journal, journal.kinds.get(kind, ()))

    def _at(self, journal: JournalIndex, places: Any) -> Iterator[bytes]:
        """The lines that begin at these bytes."""
        if not len(places):
            return
        with open(journal.path, "rb") as stream:
            if len(places) < 1000:
                for at in places:
                    stream.seek(at)
                    yield stream.readline()
                return
            data = stream.read()
        for at in places:
            yield data[at : data.index(b"\n", at) + 1]

    def parsed(self, journal: JournalIndex, line: bytes) -> dict[str, Any] | None:
        """The event of one line; None for a broken one, which goes to `torn`."""
        try:
            event: dict[str, Any] = decode_json(line)
        except (ValueError, RecursionError) as error:
            self._broken(journal, error)
            return None
        return event

    def _broken(self, journal: JournalIndex, error: Exception) -> None:
        note = (journal.name, f"a line is not JSON: {error}")
        if note not in self.torn:
            self.torn.append(note)

    def _spans_of(self, journal: JournalIndex, names: tuple[str, ...]) -> pd.DataFrame:
        by_name = self._spans.get(journal.name)
        if by_name is None:  # the names were not read ahead
            lines = list(self._lines(journal, "span"))
        else:
            places = [by_name[name] for name in names if name in by_name]
            lines = list(self._at(journal, np.concatenate(places))) if places else []
        table = self._arrow_spans(lines) if len(lines) > 1000 else None
        if table is None:  # few; or a broken line, or a foreign writer with other types
            events = [self.parsed(journal, line) or {} for line in lines]
            columns: dict[str, Any] = {"name": [str(one.get("name")) for one in events]}
            columns |= {key: [number(one.get(key)) for one in events] for key in ("step", "dur_ns")}
            table = pd.DataFrame({**columns, "ok": [one.get("ok") is True for one in events]})
        table = table[table["name"].isin(names)]
        table = table.assign(role=journal.opening.get("role", ""), seconds=table["dur_ns"] / 1e9)
        return table.assign(step=table["step"].fillna(-1).astype(np.int64))

    def _arrow_spans(self, lines: list[bytes]) -> pd.DataFrame | None:
        """Many spans at once; None where they are not as the recorders write them."""
        import pyarrow as pa
        import pyarrow.json as arrow_json

        schema = pa.schema([("name", pa.string()), ("step", pa.int64()), ("dur_ns", pa.int64()), ("ok", pa.bool_())])
        options = arrow_json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="ignore")
        try:
            found: pd.DataFrame = arrow_json.read_json(
                pa.BufferReader(b"".join(lines)), parse_options=options
            ).to_pandas()
        except pa.ArrowInvalid:
            return None
        return found

    def _scan_events(self, path: Path) -> JournalIndex:
        journal = JournalIndex(path, f"{EVENTS}/{path.name}")
        try:
            data = path.read_bytes()
            if not data:
                raise FormatError("the file is empty")
            self._index(journal, data)
        except Torn as torn:
            if journal.end:
                self.torn.append((journal.name, str(torn)))
            else:
                self._damage(journal.name, f"the file holds only {torn}")
        except FormatError as error:
            self._damage(journal.name, str(error))
        return journal

    def _index(self, journal: JournalIndex, data: bytes) -> None:
        """Where the lines of each kind begin. What is not as the recorders write it goes line by line."""
        buffer = np.frombuffer(data, np.uint8)
        ends = np.flatnonzero(buffer == ord("\n")) + 1
        kinds: list[bytes] = _LINE.findall(data)  # one group: a tuple for each line would set off the garbage collector
        if not kinds or len(kinds) != len(ends) or len(data) != ends[-1] or kinds[0] != b"open":
            return _index_by_line(journal, data)
        starts = np.concatenate([[0], ends[:-1]])
        if not _counts_up(buffer, starts + _SEQ):
            return _index_by_line(journal, data)
        number = {kind: index for index, kind in enumerate(dict.fromkeys(kinds))}
        codes = np.fromiter(map(number.__getitem__, kinds), np.int32, len(kinds))
        spans: list[np.ndarray] = []
        for kind, index in number.items():
            places = starts[codes == index]
            if kind.startswith(b'span"'):
                name = kind.rpartition(b'"')[2].decode()
                self._spans.setdefault(journal.name, {})[name] = places
                spans.append(places)
            else:
                journal.kinds[kind.decode()] = array("q", places.tobytes())
        if spans and "span" not in journal.kinds:
            journal.kinds["span"] = array("q", np.sort(np.concatenate(spans)).tobytes())
        elif spans:  # some without their name in front: all have to be parsed
            self._spans.pop(journal.name)
            every = [*spans, np.array(journal.kinds["span"])]
            journal.kinds["span"] = array("q", np.sort(np.concatenate(every)).tobytes())
        journal.end = len(data)
        journal.opening = checked_open(_whole(data[: ends[0]], 0))
        if kinds[-1] == b"close":
            journal.closing = _whole(data[starts[-1] :], int(starts[-1]))


def _counts_up(buffer: np.ndarray, at: np.ndarray) -> bool:
    """Do the decimal numbers that begin at these bytes read 0, 1, 2, ...?"""
    start, digits = 0, 1
    while start < len(at):
        stop = min(10**digits, len(at))
        value, places = np.arange(start, stop), at[start:stop]
        for digit in range(digits):
            if np.any(buffer[places + digit] != ord("0") + value // 10 ** (digits - 1 - digit) % 10):
                return False
        if np.any(buffer[places + digits] != ord(",")):
            return False
        start, digits = stop, digits + 1
    return True


def _index_by_line(journal: JournalIndex, data: bytes) -> None:
    """The same for any lines, with the order of checks and the messages of `probes.format.read_lines`."""
    at = number = 0
    kind = ""
    while at < len(data):
        end = data.find(b"\n", at) + 1
        if not end:
            raise Torn(f"{len(data) - at} bytes of an unfinished last line at byte {at}")
        event = _whole(data[at:end], at)
        kind = event["kind"]
        if event["seq"] != number:
            raise FormatError(f"byte {at}: event {event['seq']} stands where event {number} belongs")
        if not number:
            if kind != "open":
                raise FormatError(f"byte 0: the first event is {kind!r}, not 'open'")
            journal.opening = checked_open(event)
        journal.closing = event if kind == "close" else None
        journal.kinds.setdefault(kind, array("q")).append(at)
        at, number = end, number + 1
        journal.end = at


def _whole(line: bytes, at: int) -> dict[str, Any]:
    try:
        return decode_line(line)
    except FormatError as error:
        raise FormatError(f"byte {at}: {error}") from error
