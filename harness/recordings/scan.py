"""The fast scan of a journal: where the lines of each kind begin, block by block, without decoding them.

`probes.format.Run` parses every line (3.7 s for a million events on two cores); this reads the keys that every line of
a recorder begins with (0.9 s). What is not as the recorders write it is `Irregular`, and is left to the reference.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from probes.format import FormatError, JournalIndex, checked_open, decode_line
from probes.lines import check_seal, is_sealed

BLOCK = 1 << 25  # bytes in memory at a time
FEW = 1000  # lines that are sought one by one
HEAD = rb'^\{"seq":\d+,"t_ns":-?\d+,"kind":"'
# A whole line as the recorders write it, and of what kind it is; of a span also its name. One group: a tuple for each
# line would set off the garbage collector.
_KIND = HEAD + rb'(span","name":"[^"\\\n]*|[^"\\\n]+)"'
_LINE = re.compile(_KIND + rb'(?:,"[^\n]*)?\}$', re.MULTILINE)
_SEALED = re.compile(_KIND + rb'(?:,"[^\n]*)?,"crc":"[0-9a-f]{8}"\}$', re.MULTILINE)
_SPAN = b'span","name":"'
_SEQ = len('{"seq":')  # where a line's number begins


def content_of(kind: str, sealed: bool) -> re.Pattern[bytes]:
    """Finds lines of a kind; the group is what follows the kind, without the closing brace and the checksum."""
    end = rb',"crc":"[0-9a-f]{8}"\}$' if sealed else rb"\}$"
    return re.compile(HEAD + re.escape(kind.encode()) + rb'"(.*)' + end, re.MULTILINE)


class Irregular(Exception):
    """Lines that no recorder of ours writes, or damage."""


@dataclass
class SpanNames:
    """The name of each span of a journal, in the order of the file: `names[code]`."""

    names: dict[str, int] = field(default_factory=dict)
    codes: array[int] = field(default_factory=lambda: array("i"))
    unnamed: bool = False  # some have their name elsewhere: all have to be parsed

    def of(self, wanted: tuple[str, ...]) -> np.ndarray:
        """Which spans have one of these names: a mask."""
        codes = [self.names[name] for name in wanted if name in self.names]
        return np.isin(np.frombuffer(self.codes, np.int32), codes)


def blocks(path: Path) -> Iterator[tuple[int, bytes]]:
    """(where it begins, whole lines) until the file's end; only the last may lack its newline."""
    with open(path, "rb") as stream:
        at, pending = 0, b""
        while part := stream.read(BLOCK):
            data = pending + part
            cut = data.rfind(b"\n") + 1
            if cut:
                yield at, data[:cut]
            at, pending = at + cut, data[cut:]
    if pending:
        yield at, pending


def lines_at(path: Path, places: Any) -> Iterator[bytes]:
    """The lines that begin at these bytes, which rise."""
    if len(places) < FEW:
        with open(path, "rb") as stream:
            for at in places:
                stream.seek(at)
                yield stream.readline()
        return
    places = np.asarray(places)
    for base, data in blocks(path):
        low, high = np.searchsorted(places, (base, base + len(data)))
        for at in (places[low:high] - base).tolist():
            yield data[at : data.index(b"\n", at) + 1]


def index(journal: JournalIndex, *, sealed: bool) -> SpanNames:
    """Fill `journal` from its file. `sealed`: every line must have a checksum.

    Raises Irregular, and then leaves `journal` half filled.
    """
    spans, lines, last, checksum = SpanNames(), 0, b"", 0
    for base, data in blocks(journal.path):
        if not base:
            first = data[: data.find(b"\n") + 1]
            journal.opening = _whole(first)
            journal.sealed = sealed or is_sealed(first)
        if journal.sealed:
            checksum = _check_block(data, checksum)
        lines += _index_block(journal, spans, base, data, lines)
        last = data[data.rfind(b"\n", 0, -1) + 1 :]
        journal.end = base + len(data)
    if not lines:
        raise Irregular
    try:
        checked_open(journal.opening)
    except FormatError as error:
        raise Irregular from error
    closing = _whole(last)
    journal.closing = closing if closing["kind"] == "close" else None
    return spans


def _check_block(data: bytes, before: int) -> int:
    """CRC-32 of the file up to the end of this block; the checksum of its last line vouches for all of it."""
    try:
        return check_seal(data, before)
    except FormatError as error:
        raise Irregular from error


def _index_block(journal: JournalIndex, spans: SpanNames, base: int, data: bytes, before: int) -> int:
    """Add one block, whose first line is number `before`; returns how many lines it has."""
    buffer = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(buffer == ord("\n")) + 1
    kinds: list[bytes] = (_SEALED if journal.sealed else _LINE).findall(data)
    if not kinds or len(kinds) != len(ends) or len(data) != ends[-1] or (not before and kinds[0] != b"open"):
        raise Irregular
    starts = np.concatenate([[0], ends[:-1]])
    if not counts_up(buffer, starts + _SEQ, before):
        raise Irregular
    number = {kind: code for code, kind in enumerate(dict.fromkeys(kinds))}
    codes = np.fromiter(map(number.__getitem__, kinds), np.int32, len(kinds))
    starts += base
    names = np.full(len(number), -1, np.int32)  # of a kind here: the code of its span's name
    for kind, code in number.items():
        if kind.startswith(_SPAN):
            names[code] = spans.names.setdefault(kind[len(_SPAN) :].decode(), len(spans.names))
        elif kind == b"span":
            spans.unnamed = True
            names[code] = spans.names.setdefault("", len(spans.names))
        else:
            _append(journal.kinds[kind.decode()], starts[codes == code])
    of_span = names[codes]
    named = of_span >= 0
    if named.any():
        _append(journal.kinds["span"], starts[named])
        _append(spans.codes, of_span[named])
    return len(kinds)


def _append(into: array[int], values: np.ndarray) -> None:
    into.frombytes(values.tobytes())


def counts_up(buffer: np.ndarray, at: np.ndarray, first: int) -> bool:
    """Do the decimal numbers that begin at these bytes read first, first + 1, first + 2, ...?"""
    done, digits = 0, len(str(first))
    while done < len(at):
        stop = min(10**digits - first, len(at))
        value, places = np.arange(first + done, first + stop), at[done:stop]
        for digit in range(digits - 1, -1, -1):
            value, last_digit = np.divmod(value, 10)
            if np.any(buffer[places + digit] != ord("0") + last_digit):
                return False
        if np.any(buffer[places + digits] != ord(",")):
            return False
        done, digits = stop, digits + 1
    return True


def _whole(line: bytes) -> dict[str, Any]:
    try:
        return decode_line(line)
    except FormatError as error:
        raise Irregular from error
