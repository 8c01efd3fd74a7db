"""Scrubs secrets from what evidence takes of a process: command line, variables, messages and dumps."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from probes import environment
from probes.redaction import WITHHELD, fields, learn, text
from probes.redaction import line as command

__all__ = ["WITHHELD", "command", "dump", "fields", "log", "text", "variables"]

_JSON_TEXT = re.compile(rb'"(?:[^"\\]|\\.)*+"?', re.DOTALL)
_PICKLE_TEXT = re.compile(rb"[X\x8c]")  # opcodes BINUNICODE and SHORT_BINUNICODE: a length, then UTF-8
MAX_LOG = 16 << 20  # bytes of a log that are kept, from its end


def variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that say what the process is in the job. Values of its secret variables are withheld from now
    on."""
    learn(environ)
    return environment.variables(environ, environment.PLACE, limit=500)


def dump(data: bytes) -> bytes:
    """Return a flight recorder dump, JSON or pickle, with its texts scrubbed; the same bytes if they hold no secret.

    A pickle is not interpreted: texts are found by opcode and length, and keep their length. The time is linear in the
    size, and each distinct text is scrubbed once.
    """
    cache: dict[bytes, bytes] = {}
    if data[:1] != b"\x80":
        return _JSON_TEXT.sub(lambda match: _cached(match[0], cache, _json_text), data)
    changed = bytearray(data)
    for begin, end in _texts(data):
        changed[begin:end] = _cached(data[begin:end], cache, _masked)
    return bytes(changed)


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


def _cached(original: bytes, cache: dict[bytes, bytes], scrubbed: Callable[[bytes], bytes]) -> bytes:
    if original not in cache:
        cache[original] = scrubbed(original)
    return cache[original]


def _json_text(literal: bytes) -> bytes:
    try:
        decoded = json.loads(literal)
    except ValueError:  # cut short, or no JSON
        return text(literal.decode("utf-8", "replace"), 0).encode()
    scrubbed = text(decoded, 0)
    return literal if scrubbed == decoded else json.dumps(scrubbed).encode()


def _masked(original: bytes) -> bytes:
    try:
        decoded = original.decode()
    except UnicodeDecodeError:  # binary numbers that look like a text
        return original
    scrubbed = text(decoded, 0)
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
