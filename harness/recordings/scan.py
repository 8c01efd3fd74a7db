"""The fast scan of a journal: finds where the lines of each kind begin, block by block, without decoding them.

`probes.format.Run` parses every line (3.7 s for a million events on two cores). This module reads only the keys with
which every line of a recorder begins (0.9 s). A journal that is not as the recorders write it raises `Irregular` and is
left to the reference reader.
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

SCAN_BYTES = 1 << 20  # bytes read at a time: they stay in the processor's cache for several passes
FEW = 1000  # up to this many lines are sought one by one
LABELS = {
    "span": "name",
    "shapes": "phase",
}  # kind -> the field that names its subject, the first one that recorders write
MENTIONS = {"span": b'"rss":'}  # kind -> a text that its lines contain in few recordings
HASHED = ("boundaries", "shapes")  # kinds whose lines are compared between recordings without being parsed
# The beginning of a line as the recorders write it: its kind, and its label if that comes next. It is one group,
# because a tuple for each line would trigger the garbage collector. The match starts at the newline before the line, a
# literal that the regex engine finds without trying each byte.
_LABELLED = b"".join(b'%b","%b":"[^"\\\n]*|' % (kind.encode(), key.encode()) for kind, key in LABELS.items())
_HEAD = re.compile(rb'\n\{"seq":\d+,"t_ns":-?\d+,"kind":"(' + _LABELLED + rb'[^"\\\n]+)"(?=,"|\})')
_KIND = b'"kind":"%b"'
_SEQ = len('{"seq":')  # offset of a line's number
_ANY_DIGIT = ord(".")  # stands for a checksum's digits in _SEAL
_SEAL = np.frombuffer(b',"crc":"........"}\n', np.uint8)
_DIGITS = _SEAL == _ANY_DIGIT
_IS_HEXADECIMAL = np.isin(np.arange(256), np.frombuffer(b"0123456789abcdef", np.uint8))


class Irregular(Exception):
    """Lines that none of our recorders writes, or damage."""


@dataclass
class Labels:
    """The label of each line of one kind in a journal, in the order of the file: `labels[code]`."""

    labels: dict[str, int] = field(default_factory=dict)
    codes: array[int] = field(default_factory=lambda: array("i"))
    incomplete: bool = False  # some lines have their label in another place, so all have to be parsed

    def where(self, wanted: Callable[[str], bool]) -> np.ndarray:
        """A mask of the lines whose label satisfies `wanted`."""
        codes = [code for label, code in self.labels.items() if wanted(label)]
        return np.isin(np.frombuffer(self.codes, np.int32), codes)


@dataclass
class Contents:
    """What the scan of a journal keeps of its lines, by kind."""

    labels: dict[str, Labels] = field(default_factory=dict)
    hashes: dict[str, array[int]] = field(default_factory=dict)
    mentioning: set[str] = field(default_factory=set)  # the kinds of `MENTIONS` whose text is in the file


def blocks(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield (position, whole lines) up to the end of the file. Only the last block may lack its newline.

    Raises Irregular for a line longer than any line that is written.
    """
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
    """Yield the lines that begin at these bytes, which must be ascending."""
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
    """The positions of those of these lines that contain a text."""
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
    """Yield (position, block, positions within it) of each block that contains any of these positions."""
    places = np.asarray(places)
    if len(places):
        for base, data in blocks(path):
            low, high = np.searchsorted(places, (base, base + len(data)))
            if low < high:
                yield base, data, (places[low:high] - base).tolist()


def content(line: bytes, kind: str, sealed: bool) -> bytes:
    """The part of a line after its kind, without the closing brace and the checksum."""
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
            journal.opening = _whole_record(first)
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
    closing = _whole_record(last)
    journal.closing = closing if closing["kind"] == "close" else None
    return contents


def _check_block(data: bytes, before: int) -> int:
    """CRC-32 of the file up to the end of this block. The checksum of the block's last line covers all of it."""
    try:
        return check_seal(data, before)
    except FormatError as error:
        raise Irregular from error


def _index_block(journal: JournalIndex, contents: Contents, base: int, data: bytes, before: int) -> int:
    """Add one block, whose first line has number `before`. Returns its number of lines."""
    buffer = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(buffer == ord("\n")) + 1
    heads: list[bytes] = _HEAD.findall(b"\n" + data)
    if not heads or len(heads) != len(ends) or len(data) != ends[-1] or (not before and heads[0] != b"open"):
        raise Irregular
    starts = np.concatenate([[0], ends[:-1]])
    if not counts_up(buffer, starts + _SEQ, before) or not _end_as_written(buffer, ends, journal.sealed):
        raise Irregular
    # Few distinct beginnings occur, so each is decoded once and lines are handled by its code.
    number = {head: code for code, head in enumerate(dict.fromkeys(heads))}
    codes = np.fromiter(map(number.__getitem__, heads), np.int32, len(heads))
    tail = SEAL_BYTES if journal.sealed else len("}\n")
    for kind, labels in _labels_by_kind(number).items():
        is_of_kind = np.zeros(len(number), bool)
        is_of_kind[list(labels)] = True
        lines = np.flatnonzero(is_of_kind[codes])
        _append(journal.kinds[kind], base + starts[lines])
        if kind in LABELS:
            _add_labels(contents.labels.setdefault(kind, Labels()), labels, codes[lines])
        if kind in HASHED:
            begins = _content_begins(buffer, starts[lines], kind).tolist()
            spans = zip(begins, (ends[lines] - tail).tolist(), strict=True)
            contents.hashes.setdefault(kind, array("q")).extend([hash(data[begin:end]) for begin, end in spans])
        if kind in MENTIONS and kind not in contents.mentioning and MENTIONS[kind] in data:
            contents.mentioning.add(kind)
    return len(heads)


def _labels_by_kind(number: dict[bytes, int]) -> dict[str, dict[int, str | None]]:
    """Return kind -> code -> label; None where the label was not read. `number`: beginning of a line -> its code."""
    by_kind: dict[str, dict[int, str | None]] = {}
    for head, code in number.items():
        kind, _, label = _text(head).partition('","')
        by_kind.setdefault(kind, {})[code] = label.partition('":"')[2] if label else None
    return by_kind


def _add_labels(into: Labels, labels: dict[int, str | None], codes: np.ndarray) -> None:
    """Add the labels of lines of one kind. `labels`: code in this block -> label; None: the label was not read."""
    into.incomplete |= None in labels.values()
    code_in_file = np.zeros(max(labels) + 1, np.int32)
    for code, label in labels.items():
        code_in_file[code] = into.labels.setdefault(label or "", len(into.labels))
    _append(into.codes, code_in_file[codes])


def _content_begins(buffer: np.ndarray, starts: np.ndarray, kind: str) -> np.ndarray:
    """The position at which the `content` of each line begins: after `seq` and `t_ns`, which end at commas, and the
    kind."""
    at = starts + _SEQ
    for following in (b',"t_ns":', b',"kind":"'):
        while (before := buffer[at] != ord(",")).any():
            at += before
        at += len(following)
    return at + len(kind.encode()) + len('"')


def _end_as_written(buffer: np.ndarray, ends: np.ndarray, sealed: bool) -> bool:
    """Whether each line ends with a brace, or with a checksum if the journal is sealed."""
    if not sealed:
        return bool((buffer[ends - len("}\n")] == ord("}")).all())
    tails = np.lib.stride_tricks.sliding_window_view(buffer, SEAL_BYTES)[ends - SEAL_BYTES]
    return bool((tails == _SEAL)[:, ~_DIGITS].all() and _IS_HEXADECIMAL[tails[:, _DIGITS]].all())


def _append(into: array[int], values: np.ndarray) -> None:
    into.frombytes(values.tobytes())


def counts_up(buffer: np.ndarray, at: np.ndarray, first: int) -> bool:
    """Whether the decimal numbers at these positions are first, first + 1, first + 2, ..."""
    done, digits = 0, len(str(first))
    while done < len(at):
        # Numbers with equally many digits are compared digit by digit, all lines at once.
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


def _whole_record(line: bytes) -> dict[str, Any]:
    try:
        return decode_line(line)
    except FormatError as error:
        raise Irregular from error
