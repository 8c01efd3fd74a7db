"""Scrubs secrets from what evidence takes of a process: command line, variables, messages and dumps."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path

from probes import environment
from probes.redaction import WITHHELD, fields, learn, text
from probes.redaction import line as command
from probes.secret_names import is_harmless, is_secret

__all__ = ["WITHHELD", "command", "dump", "fields", "log", "text", "variables"]

_JSON_TEXT = re.compile(rb'"(?:[^"\\]|\\.)*+"?', re.DOTALL)
_PICKLE_TEXT = re.compile(rb"[X\x8c]")  # opcodes BINUNICODE and SHORT_BINUNICODE: a length, then UTF-8
_NAME = re.compile(r"[\w.\-]{1,100}+")
MOST_BETWEEN = 64  # bytes between a key and its value
# BINPUT, LONG_BINPUT or MEMOIZE, then a text's opcode and length.
_BETWEEN = re.compile(rb"(?:q.|r.{4}|\x94)?(?:X.{4}|\x8c.)", re.DOTALL)
MAX_LOG = 16 << 20  # bytes of a log that are kept, from its end


def variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that say what the process is in the job. Values of its secret variables are withheld from now
    on."""
    learn(environ)
    return environment.variables(environ, environment.PLACE, limit=500)


def dump(data: bytes) -> bytes:
    """Return a flight recorder dump, JSON or pickle, with its texts scrubbed; the same bytes if they hold no secret.

    A text behind the name of a secret is withheld, as a key and its value stand. A pickle is not interpreted: texts are
    found by opcode and length, and keep their length. The time is linear in the size, and each distinct text is
    scrubbed once.
    """
    if data[:1] == b"\x80":
        masked, changed = cache(_masked), bytearray(data)
        for name, begin, end in _named(data, _texts(data), _is_memo):
            changed[begin:end] = masked(data[begin:end], name)
        return bytes(changed)
    scrubbed, parts, done = cache(_json_text), [], 0
    for name, begin, end in _named(data, map(re.Match.span, _JSON_TEXT.finditer(data)), _is_colon):
        parts += [data[done:begin], scrubbed(data[begin:end], name)]
        done = end
    return b"".join([*parts, data[done:]])


def _named(
    data: bytes, spans: Iterable[tuple[int, int]], joins: Callable[[bytes], bool]
) -> Iterator[tuple[str, int, int]]:
    """Yield (name of the secret that it may be, begin, end) of each text; the name is "" of any other text.

    `joins`: whether these bytes between two texts make the second the value of the first.
    """
    name, name_end = "", 0
    secret_name = cache(_secret_name)
    for begin, end in spans:
        gap = data[name_end:begin] if name and 0 <= begin - name_end <= MOST_BETWEEN else b""
        yield name if gap and joins(gap) else "", begin, end
        if new_name := secret_name(data[begin:end]):
            name, name_end = new_name, end


def _secret_name(original: bytes) -> str:
    """The name of a secret that a text is; "" for any other text."""
    name = original.strip(b'"').decode("utf-8", "replace")
    return name if _NAME.fullmatch(name) and is_secret(name) else ""


def _is_colon(gap: bytes) -> bool:
    return gap.strip() == b":"


def _is_memo(gap: bytes) -> bool:
    """Whether these are the opcodes between a key and its value: it is kept for later, and a text begins."""
    return _BETWEEN.fullmatch(gap) is not None


def log(file: Path) -> None:
    """Scrub a log in place. Of a very long log only the end stays."""
    learn(os.environ)
    with file.open("r+b") as stream:
        size = stream.seek(0, 2)
        stream.seek(max(0, size - MAX_LOG))
        log_text = stream.read().decode("utf-8", "replace")
        stream.seek(0)
        stream.write(text(log_text, 0).encode())
        stream.truncate()


def _scrubbed(decoded: str, name: str) -> str:
    return WITHHELD if name and not is_harmless(name, decoded) else text(decoded, 0)


def _json_text(literal: bytes, name: str) -> bytes:
    try:
        decoded = json.loads(literal)
    except ValueError:  # cut short, or no JSON
        return text(literal.decode("utf-8", "replace"), 0).encode()
    scrubbed = _scrubbed(decoded, name)
    return literal if scrubbed == decoded else json.dumps(scrubbed).encode()


def _masked(original: bytes, name: str) -> bytes:
    try:
        decoded = original.decode()
    except UnicodeDecodeError:  # binary numbers that look like a text
        return original
    scrubbed = _scrubbed(decoded, name)
    return original if scrubbed == decoded else scrubbed.encode()[: len(original)].ljust(len(original), b"*")


def _texts(data: bytes) -> Iterator[tuple[int, int]]:
    """Yield where texts of a pickle may begin and end. A short text may also be part of a number, so it is not
    skipped over."""
    at = 0
    while opcode := _PICKLE_TEXT.search(data, at):
        at = opcode.end()
        width = 4 if opcode[0] == b"X" else 1
        begin = at + width
        end = begin + int.from_bytes(data[at:begin], "little")
        if begin < end <= len(data) and data.find(b"\0", begin, end) < 0:
            yield begin, end
            at = end if width == 4 else begin
