"""Events as lines: one JSON object per line, with NaN and infinity as strings. Public through `probes.format`.

From format 3 on, every line ends with a checksum of the file so far: `,"crc":"0123abcd"}`. It is the CRC-32 of all
bytes of the file before the `,"crc"` of that line, earlier checksums included. So the last checksum of a block covers
every line in it.
"""

from __future__ import annotations

import json
import json.encoder
import math
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import pairwise
from typing import Any, BinaryIO

from probes.errors import FormatError, Torn
from probes.limits import LINE_BYTES, WHOLE, check_whole

RESERVED = frozenset({"seq", "t_ns", "kind", "crc"})  # keys of every event, so no field may have their names
SEAL = re.compile(rb',"crc":"([0-9a-f]{8})"\}\n\Z')  # how a line with a checksum ends
SEAL_BYTES = len(',"crc":"01234567"}\n')  # of fixed length, so that a reader finds it without parsing the line


def without_none(**fields: Any) -> dict[str, Any]:
    """Return the fields without those that are None. A field that says nothing is left out of events and run.json."""
    return {name: value for name, value in fields.items() if value is not None}


def encode_line(seq: int, t_ns: int, kind: str, fields: Mapping[str, Any], *, before: int | None = None) -> bytes:
    """Return one event as the line that is written: ASCII JSON and a newline. ValueError when a field has a reserved
    name.

    `before`: CRC-32 of the file's bytes before this line, 0 for the first line. Without it the line has no checksum,
    as in formats 1 and 2.
    """
    if before is None:
        return f"{_content(seq, t_ns, kind, fields)}}}\n".encode("ascii")
    return encode_sealed(seq, t_ns, kind, fields, before)[0]


def encode_sealed(seq: int, t_ns: int, kind: str, fields: Mapping[str, Any], before: int) -> tuple[bytes, int]:
    """Return one event as a line with its checksum, and the CRC-32 of the file after that line."""
    content = _content(seq, t_ns, kind, fields).encode("ascii")
    checksum = zlib.crc32(content, before)
    seal = b',"crc":"%08x"}\n' % checksum
    return content + seal, zlib.crc32(seal, checksum)


def _content(seq: int, t_ns: int, kind: str, fields: Mapping[str, Any]) -> str:
    """Return the event's JSON without its closing brace. The first keys are written by hand: the encoder takes twice
    as long.
    """
    if not RESERVED.isdisjoint(fields):
        raise ValueError(f"an event's field cannot be named {', '.join(sorted(RESERVED & set(fields)))}")
    name = _kinds.get(kind) or _kinds.setdefault(kind, encode_json(kind))
    if not fields:
        return f'{{"seq":{seq},"t_ns":{t_ns},"kind":{name}'
    return f'{{"seq":{seq},"t_ns":{t_ns},"kind":{name},{encode_json(fields)[1:-1]}'


_kinds: dict[str, str] = {}  # each kind of event as JSON


def encode_lines(events: Iterable[tuple[int, str, Mapping[str, Any]]]) -> bytes:
    """Return a journal with checksums of these events (time in nanoseconds, kind, fields), numbered from 0."""
    journal = bytearray()
    checksum = 0
    for seq, (t_ns, kind, fields) in enumerate(events):
        line, checksum = encode_sealed(seq, t_ns, kind, fields, checksum)
        journal += line
    return bytes(journal)


def encode_events(events: Iterable[Mapping[str, Any]]) -> bytes:
    """Return a journal with checksums of decoded events, numbered from 0."""
    return encode_lines((event["t_ns"], event["kind"], _fields(event)) for event in events)


def _fields(event: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in event.items() if key not in RESERVED}


def is_sealed(line: bytes) -> bool:
    """Whether a line ends with a checksum."""
    return SEAL.search(line, max(0, len(line) - SEAL_BYTES)) is not None


def check_seal(lines: bytes, before: int) -> int:
    """Return the CRC-32 of the file up to the end of these whole lines, the last of which ends with its checksum.

    `before`: CRC-32 of the file before these lines. Raises FormatError where the last checksum is missing or wrong.
    """
    view = memoryview(lines)
    seal = SEAL.search(lines, max(0, len(lines) - SEAL_BYTES))
    if seal is None:
        raise FormatError("the line has no checksum")
    checksum = zlib.crc32(view[:-SEAL_BYTES], before)
    if int(seal[1], 16) != checksum:
        raise FormatError("the checksum of the line does not match its content")
    return zlib.crc32(view[-SEAL_BYTES:], checksum)


def check_tail(lines: list[bytes]) -> list[bytes]:
    """Return those of consecutive whole lines of a journal whose content matches their checksum.

    A line is checked from the checksum of the line before it, so the first line is kept unchecked. Lines of formats 1
    and 2 have no checksums and are all kept.
    """
    return lines[:1] + [line for before, line in pairwise(lines) if _follows(before, line)]


def _follows(before: bytes, line: bytes) -> bool:
    start = SEAL.search(before, max(0, len(before) - SEAL_BYTES))
    if start is None:
        return not is_sealed(line)
    try:
        check_seal(line, zlib.crc32(before[-SEAL_BYTES:], int(start[1], 16)))
    except FormatError:
        return False
    return True


def decode_line(line: bytes) -> dict[str, Any]:
    """Return the event of one line. Raises FormatError when it is not a JSON object with the keys of every event, and
    for a whole number of more than 64 bits in it.
    """
    try:
        event = _parse(line.decode())
    except (ValueError, RecursionError) as error:
        raise FormatError(f"not a line of JSON: {error}") from error
    if not isinstance(event, dict):
        raise FormatError("not a JSON object")
    event.pop("crc", None)
    bound_numbers(line, event)
    if isinstance(event.get("seq"), int) and isinstance(event.get("t_ns"), int) and isinstance(event.get("kind"), str):
        return event
    raise FormatError("the event lacks one of its keys: seq and t_ns (integers), kind (a string)")


def bound_numbers(data: bytes, value: Any) -> None:
    """Raise FormatError where `value`, decoded from these bytes of JSON, contains a whole number of more than 64 bits.

    It is looked at only where the bytes have that many digits in a row, which takes 0.3 µs to see of 500 bytes.
    """
    if _MANY_DIGITS in data.translate(_AS_ZEROS):
        check_whole(value)


_AS_ZEROS = bytes.maketrans(b"123456789", b"000000000")
_MANY_DIGITS = b"0" * len(str(WHOLE))


def _parse(text: str) -> Any:
    """Return what `decode_json` does, 0.8 µs faster for a line in the form of `encode_line`; a run may have a million
    lines.
    """
    if text.startswith("{"):
        value, end = _decoder.raw_decode(text)
        if end == len(text) - 1:
            return value
    return _decoder.decode(text)


def read_lines(stream: BinaryIO, *, sealed: bool = False) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """Iterate over (byte offset, length in bytes, event) of each line of a journal.

    `sealed`: every line must have a checksum, as in format 3. Otherwise all lines must have one if the first line
    does. Raises FormatError, with the offset in its message, for a whole line that is broken, for a wrong checksum,
    for a gap in `seq` and for a journal that does not begin with `open`. Raises Torn, after the last whole line, when
    an unfinished line follows.
    """
    at = checksum = 0
    for number, line in enumerate(iter(partial(stream.readline, LINE_BYTES + 1), b"")):
        if len(line) > LINE_BYTES:
            raise FormatError(f"byte {at}: a line has more than {LINE_BYTES >> 20} MiB")
        if not line.endswith(b"\n"):
            raise Torn(f"{len(line)} bytes of an unfinished last line at byte {at}")
        # The content is judged before the checksum, so that an error names what is wrong rather than that something is.
        try:
            sealed = sealed or (not number and is_sealed(line))
            event = decode_line(line)
            if event["seq"] != number:
                raise FormatError(f"event {event['seq']} stands where event {number} belongs")
            if not number and event["kind"] != "open":
                raise FormatError(f"the first event is {event['kind']!r}, not 'open'")
            if sealed:
                checksum = check_seal(line, checksum)
        except FormatError as error:
            raise FormatError(f"byte {at}: {error}") from error
        yield at, len(line), event
        at += len(line)


def encode_json(value: Any) -> str:
    """Return ASCII JSON without spaces or newlines; NaN and infinity become the strings nan, inf and -inf."""
    try:
        return "".join(_chunks(value, 0))
    except (ValueError, TypeError):  # a NaN, or a key that JSON lacks; rare, so only then is the whole value walked
        return "".join(_chunks(_named(value), 0))


def decode_json(data: bytes) -> Any:
    """Return the value of these bytes of UTF-8 JSON. Raises ValueError for anything else, a bare NaN included."""
    return _decoder.decode(data.decode())


def _plain(value: Any) -> Any:
    """Return JSON values for types that JSON lacks: sets as sorted lists, arrays and CPU tensors as numbers, others
    as text.
    """
    if isinstance(value, (set, frozenset)):
        return sorted(value, key=lambda item: (str(type(item)), item))
    if hasattr(value, "tolist"):
        if str(getattr(value, "device", "cpu")) != "cpu":
            raise TypeError(f"a value on {value.device} cannot be recorded: reading it would synchronise the device")
        return value.tolist()
    return str(value)


def _named(value: Any) -> Any:
    """Return the same value with NaN and infinity as the strings nan, inf and -inf, and with keys that JSON accepts."""
    if isinstance(value, float):
        return value if math.isfinite(value) else str(float(value))
    if isinstance(value, Mapping):
        keys = (key if isinstance(key, (str, bool, int)) or key is None else str(_named(key)) for key in value)
        return dict(zip(keys, map(_named, value.values()), strict=True))
    if isinstance(value, (list, tuple)):
        return [_named(item) for item in value]
    if value is None or isinstance(value, (str, int)):
        return value
    return _named(_plain(value))


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON: write it as a string")


def _encoder() -> Callable[[Any, int], Iterable[str]]:
    """Return a function that encodes a value as JSONEncoder.encode does, in pieces.

    The encoder is made once: JSONEncoder.encode makes a new one for each value, which is a fifth of the cost of an
    event. The second argument of the function is the indentation, always 0.
    """
    slow = json.JSONEncoder(separators=(",", ":"), allow_nan=False, default=_plain).encode
    make: Any = getattr(json.encoder, "c_make_encoder", None)
    example = {"text": ["é", None, 1.5, True]}
    try:
        fast = make(
            markers=None, default=_plain, encoder=json.encoder.encode_basestring_ascii, indent=None,
            key_separator=":", item_separator=",", sort_keys=False, skipkeys=False, allow_nan=False,
        )  # fmt: skip
        works = "".join(fast(example, 0)) == slow(example)
    except TypeError:  # undocumented: absent in PyPy, and it may change
        works = False
    return fast if works else lambda value, _: (slow(value),)


_chunks = _encoder()
_decoder = json.JSONDecoder(parse_constant=_refuse)
