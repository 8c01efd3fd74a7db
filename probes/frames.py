"""Frames: named arrays of numbers with a JSON header and checksums, laid out so that reading them copies nothing.

docs/reference/format.md describes the layout byte by byte. `probes.format` re-exports every public name of this
module.
"""

from __future__ import annotations

import struct
import sys
import zlib
from array import array
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from typing import Any, BinaryIO, ClassVar

from probes.errors import FormatError, Torn
from probes.lines import bound_numbers, decode_json, encode_json

MAGIC = b"RLF1"
PREFIX = struct.Struct("<4sIQII")  # magic, header length, payload length, crc32 of the 16 bytes before it, zero
TRAILER = struct.Struct("<II")  # crc32 of header and payload, zero
CHECKSUM = "the checksum of the frame does not match its content"
CODES: dict[str, Any] = {"i4": "i", "i8": "q", "f4": "f", "f8": "d"}  # dtype -> typecode of array and memoryview
_SIZES = {dtype: array(code).itemsize for dtype, code in CODES.items()}
_SAME = {"i4": "il", "i8": "lq", "f4": "f", "f8": "d"}  # native buffer formats of the same bytes, if the size agrees

if sys.byteorder != "little":
    raise ImportError("recordings are little-endian and read without copying: big-endian hosts are not supported")


@dataclass(frozen=True)
class Flat:
    """One number per sample. Built with `Flat.of`; NumPy reads it with `numpy.frombuffer(flat.values, flat.dtype)`."""

    dtype: str
    values: memoryview
    offsets: ClassVar[None] = None

    @staticmethod
    def of(values: Any, dtype: str) -> Flat:
        """Pack a list, array.array, 1-D NumPy array or 1-D CPU tensor as i4, i8, f4 or f8.

        A contiguous buffer of that type is not copied. Raises OverflowError for an integer that does not fit,
        TypeError for a fraction in an integer array, for more than one dimension and for a tensor on a device.
        """
        return Flat(dtype, pack(values, dtype))

    def __len__(self) -> int:
        return len(self.values)

    def rows(self) -> list[list[Any]]:
        """Return one row of one value per sample, so that Flat and Ragged can be read alike."""
        return [[value] for value in self.values.tolist()]

    def tolist(self) -> list[Any]:
        return self.values.tolist()


@dataclass(frozen=True)
class Ragged:
    """Rows of unequal length: row r is `values[offsets[r]:offsets[r + 1]]`. Built with `Ragged.of`."""

    dtype: str
    values: memoryview
    offsets: memoryview  # i8, one more than there are rows; the first is 0, the last len(values)

    @staticmethod
    def of(rows: Iterable[Any], dtype: str) -> Ragged:
        """Pack rows; each may be what `Flat.of` accepts."""
        rows = list(rows)
        if all(isinstance(row, (list, tuple)) for row in rows):
            joined, lengths = array(_code(dtype), list(chain.from_iterable(rows))), map(len, rows)
        else:
            packed = [pack(row, dtype) for row in rows]
            joined, lengths = array(_code(dtype), b"".join(packed)), map(len, packed)
        return Ragged(dtype, memoryview(joined), memoryview(array("q", accumulate(lengths, initial=0))))

    @staticmethod
    def joined(values: Any, offsets: Any, dtype: str) -> Ragged:
        """Pack rows that are already concatenated. Raises ValueError where the offsets do not fit the values."""
        ragged = Ragged(dtype, pack(values, dtype), pack(offsets, "i8"))
        _check_offsets(ragged)
        return ragged

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def row(self, index: int) -> memoryview:
        if not 0 <= index < len(self):
            raise IndexError(f"row {index} of {len(self)}")
        return self.values[self.offsets[index] : self.offsets[index + 1]]

    def rows(self) -> list[list[Any]]:
        values, bounds = self.values.tolist(), self.offsets.tolist()
        return [values[start:end] for start, end in pairwise(bounds)]

    tolist = rows


@dataclass(frozen=True)
class Frame:
    """One frame of a token log."""

    kind: str
    step: int
    role: str
    rank: int
    fields: dict[str, Any]
    arrays: dict[str, Flat | Ragged]
    seq: int | None = None  # `seq`: its number in its file; `run`: the id of its run; both absent before format 3
    run: str = ""


@dataclass(frozen=True)
class Extent:
    """Where one frame is in its file, in bytes, and what its header says."""

    start: int
    header: int  # length of the header
    payload: int  # length of the payload
    kind: str
    step: int
    role: str
    rank: int
    seq: int | None = None
    run: str = ""


def pack(values: Any, dtype: str) -> memoryview:
    """Return `values` as a contiguous typed memoryview, as `Flat.of` describes it."""
    code = _code(dtype)
    if hasattr(values, "detach"):  # a torch tensor, recognised without importing torch
        values = _on_cpu(values)
    if isinstance(values, (list, tuple, range)):
        return memoryview(array(code, values))
    view = memoryview(values)
    if view.ndim != 1:
        raise TypeError(f"a recorded array has one dimension, not {view.ndim}: flatten it, or use Ragged")
    if not view.nbytes:  # `cast` refuses a view without a byte
        return memoryview(array(code))
    # A buffer of the same bytes is taken as it is. Any other is converted number by number, which checks each of them.
    if view.c_contiguous and view.itemsize == _SIZES[dtype] and view.format in _SAME[dtype]:
        return view if view.format == code else view.cast("B").cast(code)
    try:
        return memoryview(array(code, view.tolist()))
    except NotImplementedError:  # a buffer format that Python cannot read by itself, such as half precision
        return memoryview(array(code, values.tolist()))


def _on_cpu(tensor: Any) -> Any:
    """Return the numbers of a tensor as an array of NumPy, or as a list where NumPy cannot hold them."""
    if tensor.device.type != "cpu":
        raise TypeError(f"an array on {tensor.device} cannot be recorded: copy it to the CPU first")
    tensor = tensor.detach()
    try:
        return tensor.numpy()
    except (TypeError, RuntimeError):  # bfloat16 has no NumPy image, or NumPy is not installed
        return tensor.tolist()


def encode_frame(
    kind: str,
    step: int,
    role: str,
    rank: int,
    fields: Mapping[str, Any],
    arrays: Mapping[str, Flat | Ragged],
    *,
    seq: int | None = None,
    run: str = "",
) -> bytes:
    """Return the bytes of one frame, ready for a single write. `seq`: its number in its file. `run`: the id of the
    run.
    """
    spec: dict[str, dict[str, Any]] = {}
    parts: list[bytes | memoryview] = []
    at = 0

    def place(view: memoryview) -> tuple[int, int]:
        nonlocal at
        start, gap = at, -view.nbytes % 8
        parts.extend((view, bytes(gap)))
        at += view.nbytes + gap
        return start, len(view)

    # The payload: the numbers of each array, then its offsets, each padded to eight bytes so that readers may take them
    # as views.
    for name, item in arrays.items():
        if not isinstance(item, (Flat, Ragged)):
            raise TypeError(f"array {name!r} is {type(item).__name__}: wrap it in Flat.of or Ragged.of")
        start, count = place(item.values)
        spec[name] = {"dtype": item.dtype, "at": start, "count": count}
        if item.offsets is not None:
            spec[name]["offsets_at"], spec[name]["offsets_count"] = place(item.offsets)
    top: dict[str, Any] = {"kind": kind, "step": step, "role": role, "rank": rank, "fields": fields, "arrays": spec}
    if seq is not None:
        top["seq"] = seq
    if run:
        top["run"] = run
    header = encode_json(top).encode("ascii")
    header += b" " * (-len(header) % 8)
    # The lengths have a checksum of their own: a reader that seeks by them must not follow a damaged one.
    lengths = struct.pack("<4sIQ", MAGIC, len(header), at)
    check = zlib.crc32(header)
    for part in parts:
        check = zlib.crc32(part, check)
    return b"".join([lengths, struct.pack("<II", zlib.crc32(lengths), 0), header, *parts, TRAILER.pack(check, 0)])


def decode_frame(data: bytes | memoryview) -> Frame:
    """Return the frame in `data`, which must be whole. Its arrays are views into `data`. Raises FormatError."""
    view = memoryview(data)
    if len(view) < PREFIX.size:
        raise FormatError(f"{len(view)} bytes are less than the {PREFIX.size} with which a frame begins")
    header_length, payload_length = read_prefix(bytes(view[: PREFIX.size]))
    end = PREFIX.size + header_length + payload_length
    if len(view) != end + TRAILER.size:
        raise FormatError(f"the frame says {end + TRAILER.size} bytes, there are {len(view)}")
    if TRAILER.unpack(view[end:]) != (zlib.crc32(view[PREFIX.size : end]), 0):
        raise FormatError(CHECKSUM)
    header = decode_header(bytes(view[PREFIX.size : PREFIX.size + header_length]))
    return frame_of(header, view[PREFIX.size + header_length : end])


def read_extents(stream: BinaryIO) -> Iterator[Extent]:
    """Iterate over the places of the frames of a token log and verify their checksums. Memory: one header and 1 MiB.

    Raises FormatError for damage, with the offset in its message. Raises Torn, after the last whole frame, where an
    unfinished frame follows.
    """
    at = 0
    while prefix := stream.read(PREFIX.size):
        try:
            # A killed process may have left a part of a prefix. It is unfinished only if it begins as a frame does.
            if not MAGIC.startswith(prefix[: len(MAGIC)]):
                raise FormatError(f"a frame begins with {MAGIC!r}, not with {prefix[: len(MAGIC)]!r}")
            if len(prefix) < PREFIX.size:
                raise Torn(f"{len(prefix)} bytes of an unfinished last frame at byte {at}")
            # The checksum is of header and payload. The payload is read in parts and not kept.
            header_length, remaining = lengths = read_prefix(prefix)
            data = stream.read(header_length)
            check, consumed = zlib.crc32(data), PREFIX.size + len(data)
            while remaining and (chunk := stream.read(min(remaining, 1 << 20))):
                check, remaining, consumed = zlib.crc32(chunk, check), remaining - len(chunk), consumed + len(chunk)
            trailer = stream.read(TRAILER.size)
            if len(trailer) < TRAILER.size:
                raise Torn(f"{consumed + len(trailer)} bytes of an unfinished last frame at byte {at}")
            if TRAILER.unpack(trailer) != (check, 0):
                raise FormatError(CHECKSUM)
            header = decode_header(data)
        except Torn:
            raise
        except FormatError as error:
            raise FormatError(f"byte {at}: {error}") from error
        place = header["kind"], header["step"], header["role"], header["rank"]
        yield Extent(at, *lengths, *place, seq=header.get("seq"), run=header.get("run", ""))
        at += consumed + TRAILER.size


def read_prefix(prefix: bytes) -> tuple[int, int]:
    """Return (header length, payload length) of the frame that begins with these 24 bytes. Raises FormatError."""
    magic, header_length, payload_length, check, zero = PREFIX.unpack(prefix)
    if magic != MAGIC:
        raise FormatError(f"a frame begins with {MAGIC!r}, not with {magic!r}")
    if check != zlib.crc32(prefix[:16]) or zero:
        raise FormatError("the checksum of the frame's lengths does not match")
    return header_length, payload_length


def decode_header(data: bytes) -> dict[str, Any]:
    """Return the JSON header of a frame, its required keys checked. Raises FormatError."""
    try:
        header: dict[str, Any] = decode_json(data)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"the header of the frame is not JSON: {error}") from error
    required = {"kind": str, "step": int, "role": str, "rank": int, "fields": dict, "arrays": dict}
    for key, kind in required.items():
        if not isinstance(header, dict) or not isinstance(header.get(key), kind):
            raise FormatError(f"the header of the frame has no {key!r} of type {kind.__name__}")
    bound_numbers(data, header)
    if not isinstance(header.get("seq", 0), int) or not isinstance(header.get("run", ""), str):
        raise FormatError("`seq` of the frame's header is not an integer, or its `run` is not a string")
    return header


def frame_of(header: Mapping[str, Any], payload: memoryview) -> Frame:
    """Return a frame from its decoded header and its payload, checked. The arrays are views into the payload."""
    arrays: dict[str, Flat | Ragged] = {}
    for name, spec in header["arrays"].items():
        try:
            dtype = spec["dtype"]
            values = _view(payload, dtype, spec["at"], spec["count"])
            if "offsets_at" in spec:
                arrays[name] = Ragged(dtype, values, _view(payload, "i8", spec["offsets_at"], spec["offsets_count"]))
                _check_offsets(arrays[name])
            else:
                arrays[name] = Flat(dtype, values)
        except (KeyError, TypeError, ValueError) as error:
            raise FormatError(f"array {name!r} of the frame is malformed: {error}") from error
    place = header["kind"], header["step"], header["role"], header["rank"]
    return Frame(*place, header["fields"], arrays, seq=header.get("seq"), run=header.get("run", ""))


def _view(payload: memoryview, dtype: str, at: int, count: int) -> memoryview:
    code = _code(dtype)
    end = at + count * array(code).itemsize
    if at < 0 or count < 0 or at % 8 or end > len(payload):
        raise ValueError(f"{count} {dtype} at byte {at} do not fit in {len(payload)} bytes, or are not aligned to 8")
    return payload[at:end].cast(code)


def _check_offsets(ragged: Flat | Ragged) -> None:
    bounds = ragged.offsets.tolist() if ragged.offsets is not None else []
    ordered = all(low <= high for low, high in pairwise(bounds))
    if not bounds or bounds[0] != 0 or bounds[-1] != len(ragged.values) or not ordered:
        raise ValueError(f"offsets must rise from 0 to {len(ragged.values)}")


def _code(dtype: str) -> Any:
    if dtype not in CODES:
        raise ValueError(f"dtype {dtype!r} is not one of {', '.join(CODES)}")
    return CODES[dtype]
