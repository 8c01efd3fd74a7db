"""Writes a pickle of plain data opcode by opcode as torch does, so that reading it costs the same as reading torch's.

torch's pickler (protocol 2) memoises only strings and the dictionaries of frames. Python's own memoises every
container, which makes a dump a third larger. Frames are given as (function, file, line).
"""

from __future__ import annotations

import struct
from typing import Any


def torch_pickle(value: Any) -> bytes:
    """The pickle of dicts, lists, tuples of sizes, str, int, float, bool and None. Frames of an entry are shared."""
    return Pickler().pickled(value)


class Pickler:
    def __init__(self) -> None:
        self._memo: dict[Any, bytes] = {}  # string or frame -> the opcode that fetches it
        self._stacks: dict[Any, bytes] = {}
        self._sizes: dict[Any, bytes] = {}

    def pickled(self, value: Any) -> bytes:
        return b"\x80\x02" + self._any(value) + b"."

    def _any(self, value: Any) -> bytes:
        if isinstance(value, str):
            return self._text(value)
        if value is None:
            return b"N"
        if isinstance(value, bool):
            return b"\x88" if value else b"\x89"
        if isinstance(value, int):
            return _integer(value)
        if isinstance(value, float):
            return b"G" + struct.pack(">d", value)
        if isinstance(value, dict):
            items = [self._text(key) + self._item(key, item) for key, item in value.items()]
            return b"}(" + b"".join(items) + b"u"
        if isinstance(value, list):
            return b"](" + b"".join(map(self._any, value)) + b"e"
        if isinstance(value, tuple) and len(value) == 2:
            return self._any(value[0]) + self._any(value[1]) + b"\x86"
        raise TypeError(f"a dump holds no {type(value).__name__}")

    def _item(self, key: str, value: Any) -> bytes:
        if key == "frames":
            stack = self._stacks.get(value)
            if stack is None:
                stack = b"](" + b"".join(map(self._frame, value)) + b"e"
                self._stacks[value] = b"](" + b"".join(map(self._frame, value)) + b"e"
            return stack
        if key in ("input_sizes", "output_sizes"):
            if value not in self._sizes:
                self._sizes[value] = self._any([list(shape) for shape in value])
            return self._sizes[value]
        return self._any(value)

    def _text(self, value: str) -> bytes:
        memoised = self._memo.get(value)
        if memoised is not None:
            return memoised
        data = value.encode()
        return b"X" + struct.pack("<I", len(data)) + data + self._remember(value)

    def _frame(self, frame: tuple[str, str, int]) -> bytes:
        memoised = self._memo.get(frame)
        if memoised is not None:
            return memoised
        function, file, line = frame
        body = self._any({"name": function, "filename": file, "line": line})
        return body + self._remember(frame)

    def _remember(self, value: Any) -> bytes:
        number = len(self._memo)
        short = number < 256
        self._memo[value] = b"h" + bytes([number]) if short else b"j" + struct.pack("<I", number)
        return b"q" + bytes([number]) if short else b"r" + struct.pack("<I", number)


def _integer(value: int) -> bytes:
    if 0 <= value < 1 << 8:
        return b"K" + bytes([value])
    if 0 <= value < 1 << 16:
        return b"M" + struct.pack("<H", value)
    if -(1 << 31) <= value < 1 << 31:
        return b"J" + struct.pack("<i", value)
    return b"\x8a\x08" + struct.pack("<q", value)
