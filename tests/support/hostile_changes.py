"""Changes to files that somebody else may have written: the fuzzer's mutations, which know what is in a file.

A change names a file, a place in what that file holds, and an operation. A place is a path of keys, with list indexes
left out, and which of the values at that path: so the one number of a manifest is as likely to be changed as the
thousand tokens beside it. The text of a change, "3.17.0.quadrillion", makes the same change again.
"""

from __future__ import annotations

import copy
import datetime
import json
import math
import os
import pickle
import re
import struct
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from probes.format import INDEX, MANIFEST, encode_manifest
from probes.frames import MAGIC, PREFIX, TRAILER, read_prefix
from probes.lines import SEAL

Document = Any  # what a file holds: JSON values
Container = dict[str, Any] | list[Any]


@dataclass(frozen=True)
class Change:
    """`path` and `nth` select the place, and count on from the start where they are too large."""

    file: int
    path: int
    nth: int
    operation: str

    def __str__(self) -> str:
        return f"{self.file}.{self.path}.{self.nth}.{self.operation}"

    @classmethod
    def parse(cls, text: str) -> Change:
        file, path, nth, operation = text.split(".", 3)
        return cls(int(file), int(path), int(nth), operation)


class Raw(str):
    """JSON text that Python's encoder would not write."""


# What is put in the place of a value. The names are those of the operations.
VALUES: dict[str, Any] = {
    "zero": 0, "one": 1, "minus-one": -1, "million": 10**6, "million-and-one": 10**6 + 1, "billion": 10**9,
    "quadrillion": 10**15, "minus-quadrillion": -(10**15), "int32": 2**31, "int53": 2**53 + 1, "int63": 2**63 - 1,
    "uint63": 2**63, "minus-int63": -(2**63), "int80": 2**80, "minus-int80": -(2**80), "digits-400": 10**400,
    "digits-5000": Raw("1" + "0" * 5000), "float-huge": 1e308, "float-tiny": 5e-324, "float-minus": -1e308,
    "float-overflow": Raw("1e999"), "nan": Raw("NaN"), "infinity": Raw("-Infinity"), "nan-text": "nan",
    "inf-text": "inf", "half": 0.5, "true": True, "false": False, "null": None,
    "text-empty": "", "text-number": "12", "text-long": "x" * 1_000_000, "text-nul": "a\0b", "text-surrogate": "\ud800",
    "text-bidi": "\u202e\u2028\u0085", "text-path": "../../../../../../etc/passwd", "text-absolute": "/etc/passwd",
    "text-escape": "\x1b[31m\r\n\tred\x07", "text-markup": "</script><img src=x onerror=alert(1)>[b](javascript:x)",
    "text-format": "{0} %s %d {x!r} $(id) `id`", "text-date": "999999-99-99T99:99:99+99:99", "text-digits": "9" * 5000,
    "text-literal": "[" * 3000 + "]" * 3000, "text-ranks": str(list(range(200_000))),
    "text-rank-huge": "[0, 1, 1208925819614629174706176]", "text-wide": "\U0001f600" * 3000, "text-lines": "a\n" * 5000,
    "list-empty": [], "list-long": [0] * 150_000, "list-huge-numbers": [10**15, -(2**63), 2**63 - 1],
    "list-mixed": [1, "a", None, {}, [], True, 0.5], "list-texts": ["é\0"] * 2_000, "list-nested": [[[]]],
    "list-deep": Raw("[" * 20_000 + "]" * 20_000), "list-deeper-than-json": Raw("[" * 500 + "]" * 500),
    "object-empty": {}, "object-nested": {"a": {"b": {}}}, "object-wide": {f"k{n}": n for n in range(50_000)},
    "object-odd-keys": {"": 0, "\0": 1, "\ud800": 2, "-1": 3, str(2**80): 4, "x" * 30_000: 5},
    "object-deep": Raw('{"a":' * 3000 + "1" + "}" * 3000),
}  # fmt: skip


def _deleted(parent: Any, key: Any, document: Document) -> None:
    del parent[key]


def _misspelt(parent: Any, key: Any, document: Document) -> None:
    if isinstance(parent, dict):
        parent[f"{key[:-1]}x"] = parent.pop(key)


def _joined(parent: Any, key: Any, document: Document) -> None:
    """A key, or an item, that the format does not have."""
    if isinstance(parent, dict):
        parent["unheard_of"] = {"count": 2**80}
    else:
        parent.insert(key, {"unheard_of": 2**80})


def _repeated(parent: Any, key: Any, document: Document) -> None:
    """A thousand times the same: of a list its items, of a text its characters."""
    value = parent[key]
    if isinstance(value, list | str) and len(value) < 2_000:
        parent[key] = value * 1_000
    elif isinstance(parent, list) and len(parent) < 2_000:
        parent[key:key] = [copy.deepcopy(value) for _ in range(1_000)]


def _doubled(parent: Any, key: Any, document: Document) -> None:
    if isinstance(parent, list):
        parent.insert(key, copy.deepcopy(parent[key]))


def _reversed(parent: Any, key: Any, document: Document) -> None:
    value = parent[key]
    parent[key] = dict(reversed(value.items())) if isinstance(value, dict) else value[::-1] if _sized(value) else value


def _sized(value: Any) -> bool:
    return isinstance(value, list | str)


def _wrapped(parent: Any, key: Any, document: Document) -> None:
    parent[key] = [parent[key]]


def _unwrapped(parent: Any, key: Any, document: Document) -> None:
    value = parent[key]
    if isinstance(value, list | dict) and value:
        parent[key] = value[0] if isinstance(value, list) else next(iter(value.values()))


def _negated(parent: Any, key: Any, document: Document) -> None:
    _number(parent, key, lambda number: -number - 1)


def _multiplied(parent: Any, key: Any, document: Document) -> None:
    _number(parent, key, lambda number: number * 10**12)


def _next(parent: Any, key: Any, document: Document) -> None:
    _number(parent, key, lambda number: number + 1)


def _number(parent: Any, key: Any, operation: Callable[[Any], Any]) -> None:
    if isinstance(parent[key], int | float):
        parent[key] = operation(parent[key])


def _as_text(parent: Any, key: Any, document: Document) -> None:
    parent[key] = parent[key] if isinstance(parent[key], str) else json.dumps(parent[key], default=str)


def _borrowed(parent: Any, key: Any, document: Document) -> None:
    """The value of another place in the same document."""
    places = [place for group in places_of(document).values() for place in group]
    source, name = places[(7 * len(places) // 11) % len(places)]
    parent[key] = copy.deepcopy(source[name])


def _exchanged(parent: Any, key: Any, document: Document) -> None:
    """The values of two keys of one object, or of two items of one list."""
    keys = list(parent) if isinstance(parent, dict) else list(range(len(parent)))
    partner = keys[(keys.index(key) + 1) % len(keys)]
    parent[key], parent[partner] = parent[partner], parent[key]


STRUCTURAL: dict[str, Callable[[Any, Any, Document], None]] = {
    "delete": _deleted, "misspell": _misspelt, "add": _joined, "repeat": _repeated, "double": _doubled,
    "reverse": _reversed, "wrap": _wrapped, "unwrap": _unwrapped, "negate": _negated, "multiply": _multiplied,
    "increment": _next, "as-text": _as_text, "borrow": _borrowed, "exchange": _exchanged,
}  # fmt: skip


def _flip(file: Path, nth: int) -> None:
    content = bytearray(file.read_bytes())
    if content:
        content[nth * 7919 % len(content)] ^= 1 << nth % 8
    _replace(file, bytes(content))


def _truncate(file: Path, nth: int) -> None:
    content = file.read_bytes()
    _replace(file, content[: nth * 7919 % max(1, len(content))])


def _rename(file: Path, nth: int) -> None:
    os.rename(file, os.fsencode(file.parent) + b"/\xff\xfe" + os.fsencode(file.name))


def _copy(file: Path, nth: int) -> None:
    """Beside it, under a name with another number."""
    name = re.sub(r"\d+(?=\D*$)", lambda number: str(int(number[0]) + 1 + nth), file.name)
    (file.parent / (name if name != file.name else f"copy-{file.name}")).write_bytes(file.read_bytes())


def _folder(file: Path, nth: int) -> None:
    file.unlink()
    file.mkdir()


def _link(file: Path, nth: int) -> None:
    file.unlink()
    file.symlink_to("/etc/passwd" if nth % 2 else file.name)


def _pipe(file: Path, nth: int) -> None:
    file.unlink()
    os.mkfifo(file)


def _with_bytes(more: bytes, *, first: bool) -> Callable[[Path, int], None]:
    def change(file: Path, nth: int) -> None:
        content = file.read_bytes()
        _replace(file, more + content if first else content + more)

    return change


def _replace(file: Path, content: bytes) -> None:
    file.unlink()
    file.write_bytes(content)


FILES: dict[str, Callable[[Path, int], None]] = {
    "file-delete": lambda file, nth: file.unlink(),
    "file-empty": lambda file, nth: _replace(file, b""),
    "file-flip": _flip,
    "file-truncate": _truncate,
    "file-rename": _rename,
    "file-copy": _copy,
    "file-folder": _folder,
    "file-link": _link,
    "file-pipe": _pipe,
    "file-garbage-first": _with_bytes(b"\xff\xfe\0", first=True),
    "file-garbage-last": _with_bytes(b"\xc3(\n\0", first=False),
    "file-null": lambda file, nth: _replace(file, b"null"),
    "file-list": lambda file, nth: _replace(file, b"[]"),
    "file-object": lambda file, nth: _replace(file, b"{}"),
    "file-deep": lambda file, nth: _replace(file, b'{"a":' * 100_000),
}
OPERATIONS = (*VALUES, *STRUCTURAL, *FILES)


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def apply(folder: Path, change: Change, *, sealed: bool) -> None:
    """Make the change in a file below `folder`. `sealed`: with checksums that are right again, as a forger does it."""
    files = files_of(folder)
    if not files:
        return
    file = files[change.file % len(files)]
    if change.operation in FILES:
        FILES[change.operation](file, change.nth)
        return
    form = form_of(file)
    try:
        document = form.read(file.read_bytes())
    except (ValueError, KeyError, IndexError, struct.error, pickle.UnpicklingError, EOFError, RecursionError):
        return  # an earlier change of the same case has made it unreadable
    root = [document]
    places = list(places_of(root).values())
    group = places[change.path % len(places)]
    parent, key = group[change.nth % len(group)]
    try:
        if change.operation in VALUES:
            parent[key] = copy.deepcopy(VALUES[change.operation])
        else:
            STRUCTURAL[change.operation](parent, key, root)
        content = form.write(root[0] if root else None, sealed)
    except RecursionError:
        return  # an earlier change has nested it too deeply to be copied or written again
    _replace(file, content)


def places_of(document: Document) -> dict[tuple[str, ...], list[tuple[Any, Any]]]:
    """The path of every value in a list or object, without indexes -> (its container, its key or index)."""
    places: dict[tuple[str, ...], list[tuple[Any, Any]]] = {}
    waiting: list[tuple[tuple[str, ...], Any]] = [((), document)]
    while waiting:
        path, container = waiting.pop()
        for key, value in container.items() if isinstance(container, dict) else enumerate(container):
            deeper = (*path, key if isinstance(key, str) else "[]")
            places.setdefault(deeper, []).append((container, key))
            if isinstance(value, list | dict):
                waiting.append((deeper, value))
    return dict(sorted(places.items()))


# --- forms of files


@dataclass(frozen=True)
class Form:
    """How a file is taken apart and put together again."""

    read: Callable[[bytes], Document]
    write: Callable[[Document, bool], bytes]


def form_of(file: Path) -> Form:
    if file.name in (MANIFEST, INDEX):
        return Form(json.loads, _manifest)
    if file.suffix == ".bin":
        return Form(_frames, _encoded_frames)
    if file.suffix in (".json", ".jsonl"):
        return Form(json.loads, _json) if file.suffix == ".json" else Form(_lines, _encoded_lines)
    if file.suffix == ".toml":
        import tomllib

        return Form(lambda data: tomllib.loads(data.decode()), _toml)
    return Form(lambda data: _plain(pickle.loads(data)), _pickle)


def encoded(value: Any) -> str:
    """JSON text, in which Raw stands as it is."""
    raw: list[str] = []

    def marked(part: Any) -> Any:
        if isinstance(part, Raw):
            raw.append(part)
            return f"\x01{len(raw) - 1}\x01"
        if isinstance(part, dict):
            return {key: marked(item) for key, item in part.items()}
        return [marked(item) for item in part] if isinstance(part, list) else part

    text = json.dumps(marked(value), separators=(",", ":"), default=str)
    return re.sub(r'"\\u0001(\d+)\\u0001"', lambda mark: raw[int(mark[1])], text)


def _json(value: Document, sealed: bool) -> bytes:
    return encoded(value).encode()


def _manifest(value: Document, sealed: bool) -> bytes:
    if not sealed or not isinstance(value, dict):
        return _json(value, sealed)
    value.pop("checksum", None)
    try:
        return encode_manifest(value)
    except (ValueError, TypeError):
        return _json(value, sealed)


def _lines(data: bytes) -> Document:
    return [json.loads(line) for line in data.splitlines()]


def _encoded_lines(events: Document, sealed: bool) -> bytes:
    journal, checksum = b"", 0
    for event in events if isinstance(events, list) else [events]:
        fields = {key: value for key, value in event.items() if key != "crc"} if isinstance(event, dict) else event
        line = encoded(fields if sealed else event).encode() + b"\n"
        if sealed and SEAL.search(line) is None and line.endswith(b"}\n"):
            content = line.removesuffix(b"}\n")
            line = b'%b,"crc":"%08x"}\n' % (content, zlib.crc32(content, checksum))
            checksum = zlib.crc32(line, checksum)
        journal += line
    return journal


def _frames(data: bytes) -> Document:
    """Headers of frames, each with its payload, which a change may cut or stretch."""
    frames, at = [], 0
    while at < len(data):
        header, payload = read_prefix(data[at : at + PREFIX.size])
        start = at + PREFIX.size
        body = data[start + header : start + header + payload]
        frames.append({"header": json.loads(data[start : start + header]), "payload": body.hex()})
        at = start + header + payload + TRAILER.size
    return frames


def _encoded_frames(frames: Document, sealed: bool) -> bytes:
    log = b""
    for frame in frames if isinstance(frames, list) else [frames]:
        header = encoded(frame.get("header") if isinstance(frame, dict) else frame).encode()
        header += b" " * (-len(header) % 8)
        payload = _hexadecimal(frame.get("payload") if isinstance(frame, dict) else "")
        lengths = struct.pack("<4sIQ", MAGIC, len(header), len(payload))
        check = zlib.crc32(payload, zlib.crc32(header)) if sealed else 0
        log += lengths + struct.pack("<II", zlib.crc32(lengths), 0) + header + payload + TRAILER.pack(check, 0)
    return log


def _hexadecimal(text: Any) -> bytes:
    try:
        return bytes.fromhex(text)
    except (TypeError, ValueError):
        return b""


def _pickle(value: Document, sealed: bool) -> bytes:
    return pickle.dumps(_unmarked(value), protocol=2)


def _unmarked(value: Any) -> Any:
    """Python's values for Raw."""
    if isinstance(value, Raw):
        return {"1e999": math.inf, "NaN": math.nan, "-Infinity": -math.inf}.get(value, 10**5000)
    if isinstance(value, dict):
        return {key: _unmarked(item) for key, item in value.items()}
    return [_unmarked(item) for item in value] if isinstance(value, list) else value


def _plain(value: Any) -> Any:
    """Lists for tuples, so that they can be changed."""
    if isinstance(value, dict):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value


def _toml(value: Document, sealed: bool) -> bytes:
    """One line for each key of the top level, its value an inline table."""
    table: Mapping[str, Any] = value if isinstance(value, dict) else {"value": value}
    return "".join(f"{json.dumps(key)} = {_inline(item)}\n" for key, item in table.items()).encode(errors="replace")


def _inline(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {_inline(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_inline, value)) + "]"
    return value.isoformat() if isinstance(value, datetime.date) else encoded(value)
