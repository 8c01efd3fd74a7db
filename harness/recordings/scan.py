"""The fast scan of a journal: where the lines of each kind begin, block by block, without decoding them.

`probes.format.Run` parses every line (3.7 s for a million events on two cores); this reads the keys that every line of
a recorder begins with (0.9 s). What is not as the recorders write it is `Irregular`, and is left to the reference.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from probes.format import FormatError, JournalIndex, checked_open, decode_line
from probes.limits import LINE_BYTES
from probes.lines import SEAL_BYTES, check_seal, is_sealed

SCAN_BYTES = 1 << 20  # bytes read at a time: what stays in a processor's cache is gone through several times
FEW = 1000  # lines that are sought one by one
LABELS = {
    "span": "name",
    "shapes": "phase",
}  # kind -> the field that says of what it is, the first that recorders write
MENTIONS = {"span": b'"rss":'}  # kind -> a text that few recordings have in its lines, or none
HASHED = ("boundaries", "shapes")  # kinds whose lines are compared between recordings without parsing them
# How a line begins that the recorders write, and of what kind it is; with its label, where that comes next. One group:
# a tuple for each line would set off the garbage collector. It is sought from the newline before the line on, a literal
# that the engine finds without trying each byte.
_LABELLED = b"".join(b'%b","%b":"[^"\\\n]*|' % (kind.encode(), key.encode()) for kind, key in LABELS.items())
_HEAD = re.compile(rb'\n\{"seq":\d+,"t_ns":-?\d+,"kind":"(' + _LABELLED + rb'[^"\\\n]+)"(?=,"|\})')
_KIND = b'"kind":"%b"'
_SEQ = len('{"seq":')  # where a line's number begins
_ANY_DIGIT = ord(".")  # in the next line
_SEAL = np.frombuffer(b',"crc":"........"}\n', np.uint8)
_DIGITS = _SEAL == _ANY_DIGIT
_IS_HEXADECIMAL = np.isin(np.arange(256), np.frombuffer(b"0123456789abcdef", np.uint8))


class Irregular(Exception):
    """Lines that no recorder of ours writes, or damage."""


@dataclass
class Labels:
    """The label of each line of one kind of a journal, in the order of the file: `labels[code]`."""

    labels: dict[str, int] = field(default_factory=dict)
    codes: array[int] = field(default_factory=lambda: array("i"))
    incomplete: bool = False  # some lines have their label elsewhere: all have to be parsed

    def where(self, wanted: Callable[[str], bool]) -> np.ndarray:
        """Which lines have a label of which this holds: a mask."""
        codes = [code for label, code in self.labels.items() if wanted(label)]
        return np.isin(np.frombuffer(self.codes, np.int32), codes)


@dataclass
class Contents:
    """What the scan of a journal keeps of its lines, by kind."""

    labels: dict[str, Labels] = field(default_factory=dict)
    hashes: dict[str, array[int]] = field(default_factory=dict)
    mentioning: set[str] = field(default_factory=set)  # of `MENTIONS`, the kinds whose text is in the file


def blocks(path: Path) -> Iterator[tuple[int, bytes]]:
    """(where it begins, whole lines) until the file's end; only the last may lack its newline. Raises Irregular for a
    line that is longer than any."""
    begins, unfinished = 0, [b""]
    with open(path, "rb", buffering=0) as stream:
        while part := stream.read(SCAN_BYTES):
            cut = part.rfind(b"\n") + 1
            if cut:
                lines = b"".join([*unfinished, part[:cut]])
                yield begins, lines
                begins += len(lines)
                unfinished.clear()
            unfinished.append(part[cut:])
            if len(unfinished) > LINE_BYTES // SCAN_BYTES:
                raise Irregular
    if last := b"".join(unfinished):
        yield begins, last


def lines_at(path: Path, places: Any) -> Iterator[bytes]:
    """The lines that begin at these bytes, which rise."""
    if len(places) < FEW:
        with open(path, "rb") as stream:
            for at in places:
                stream.seek(at)
                yield stream.readline()
        return
    for _, data, begins in _blocks_with(path, places):
        for at in begins:
            yield data[at : data.index(b"\n", at) + 1]


def places_with(path: Path, places: Any, text: bytes) -> np.ndarray:
    """Those of these lines that contain a text: where they begin."""
    matches: list[int] = []
    for base, data, begins in _blocks_with(path, places):
        line_begins = set(begins)
        at = data.find(text)
        while at >= 0:
            begin = data.rfind(b"\n", 0, at) + 1
            if begin in line_begins:
                matches.append(base + begin)
            at = data.find(text, data.index(b"\n", at))
    return np.array(matches, np.int64)


def _blocks_with(path: Path, places: Any) -> Iterator[tuple[int, bytes, list[int]]]:
    """(where it begins, the block, the places within it) of each block with any of these places."""
    places = np.asarray(places)
    if len(places):
        for base, data in blocks(path):
            low, high = np.searchsorted(places, (base, base + len(data)))
            if low < high:
                yield base, data, (places[low:high] - base).tolist()


def content(line: bytes, kind: str, sealed: bool) -> bytes:
    """What follows the kind in a line, without the closing brace and the checksum."""
    begin = line.index(_KIND % kind.encode())
    return line[begin + len(_KIND % kind.encode()) : -SEAL_BYTES if sealed else -len("}\n")]


def index(journal: JournalIndex, *, sealed: bool) -> Contents:
    """Fill `journal` from its file. `sealed`: every line must have a checksum.

    Raises Irregular, and then leaves `journal` half filled.
    """
    contents, lines, last, checksum = Contents(), 0, b"", 0
    for base, data in blocks(journal.path):
        if not base:
            first = data[: data.find(b"\n") + 1]
            journal.opening = _whole(first)
            journal.sealed = sealed or is_sealed(first)
        if journal.sealed:
            checksum = _check_block(data, checksum)
        lines += _index_block(journal, contents, base, data, lines)
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
    return contents


def _check_block(data: bytes, before: int) -> int:
    """CRC-32 of the file up to the end of this block; the checksum of its last line vouches for all of it."""
    try:
        return check_seal(data, before)
    except FormatError as error:
        raise Irregular from error


def _index_block(journal: JournalIndex, contents: Contents, base: int, data: bytes, before: int) -> int:
    """Add one block, whose first line is number `before`; returns how many lines it has."""
    buffer = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(buffer == ord("\n")) + 1
    heads: list[bytes] = _HEAD.findall(b"\n" + data)
    if not heads or len(heads) != len(ends) or len(data) != ends[-1] or (not before and heads[0] != b"open"):
        raise Irregular
    starts = np.concatenate([[0], ends[:-1]])
    if not counts_up(buffer, starts + _SEQ, before) or not _end_as_written(buffer, ends, journal.sealed):
        raise Irregular
    number = {head: code for code, head in enumerate(dict.fromkeys(heads))}
    codes = np.fromiter(map(number.__getitem__, heads), np.int32, len(heads))
    by_kind: dict[str, dict[int, str | None]] = {}  # kind -> code -> its label; None: it was not read
    for head, code in number.items():
        kind, _, label = _text(head).partition('","')
        by_kind.setdefault(kind, {})[code] = label.partition('":"')[2] if label else None
    for kind, labels in by_kind.items():
        is_of_kind = np.zeros(len(number), bool)
        is_of_kind[list(labels)] = True
        lines = np.flatnonzero(is_of_kind[codes])
        _append(journal.kinds[kind], base + starts[lines])
        if kind in LABELS:
            _add_labels(contents.labels.setdefault(kind, Labels()), labels, codes[lines])
        if kind in HASHED:
            tail = SEAL_BYTES if journal.sealed else len("}\n")
            spans = zip(
                _content_begins(buffer, starts[lines], kind).tolist(), (ends[lines] - tail).tolist(), strict=True
            )
            contents.hashes.setdefault(kind, array("q")).extend([hash(data[begin:end]) for begin, end in spans])
        if kind in MENTIONS and kind not in contents.mentioning and MENTIONS[kind] in data:
            contents.mentioning.add(kind)
    return len(heads)


def _add_labels(into: Labels, labels: dict[int, str | None], codes: np.ndarray) -> None:
    """Add the labels of lines of one kind. `labels`: what the codes of this block stand for; None: it was not read."""
    into.incomplete |= None in labels.values()
    code_in_file = np.zeros(max(labels) + 1, np.int32)
    for code, label in labels.items():
        code_in_file[code] = into.labels.setdefault(label or "", len(into.labels))
    _append(into.codes, code_in_file[codes])


def _content_begins(buffer: np.ndarray, starts: np.ndarray, kind: str) -> np.ndarray:
    """Where the `content` of each of these lines begins: behind `seq` and `t_ns`, which end at commas, and the kind."""
    at = starts + _SEQ
    for following in (b',"t_ns":', b',"kind":"'):
        while (before := buffer[at] != ord(",")).any():
            at += before
        at += len(following)
    return at + len(kind.encode()) + len('"')


def _end_as_written(buffer: np.ndarray, ends: np.ndarray, sealed: bool) -> bool:
    """Does each line end with a brace, or with a checksum?"""
    if not sealed:
        return bool((buffer[ends - len("}\n")] == ord("}")).all())
    tails = np.lib.stride_tricks.sliding_window_view(buffer, SEAL_BYTES)[ends - SEAL_BYTES]
    return bool((tails == _SEAL)[:, ~_DIGITS].all() and _IS_HEXADECIMAL[tails[:, _DIGITS]].all())


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


def _text(head: bytes) -> str:
    try:
        return head.decode()
    except UnicodeDecodeError as error:
        raise Irregular from error


def _whole(line: bytes) -> dict[str, Any]:
    try:
        return decode_line(line)
    except FormatError as error:
        raise Irregular from error
