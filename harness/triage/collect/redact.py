"""What evidence takes from a process's command line, variables, messages and dumps: the scrubber's, by the names used
here."""

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
_PICKLE_TEXT = re.compile(rb"[X\x8c]")  # BINUNICODE and SHORT_BINUNICODE: a length, then UTF-8
MAX_LOG = 16 << 20  # of a log the end


def variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that say who the process is in the job. Values of its secret ones are withheld from now on."""
    learn(environ)
    return environment.variables(environ, environment.PLACE, limit=500)


def dump(data: bytes) -> bytes:
    """A flight recorder dump, JSON or pickle, with its texts scrubbed: the same bytes where they hold no secret.

    Nothing of a pickle is interpreted: texts are found by their opcode and length, and keep their length. The time is
    linear in the size; a text is looked at once, however often it occurs.
    """
    cache: dict[bytes, bytes] = {}
    if data[:1] != b"\x80":
        return _JSON_TEXT.sub(lambda match: _cached(match[0], cache, _json_text), data)
    changed = bytearray(data)
    for begin, end in _texts(data):
        changed[begin:end] = _cached(data[begin:end], cache, _masked)
    return bytes(changed)


def log(file: Path) -> None:
    """Scrub what a program wrote, in place; of a very long log the end stays."""
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
    except UnicodeDecodeError:  # numbers that look like a text
        return original
    scrubbed = text(decoded, 0)
    return original if scrubbed == decoded else scrubbed.encode()[: len(original)].ljust(len(original), b"*")


def _texts(data: bytes) -> Iterator[tuple[int, int]]:
    """Where the texts of a pickle may begin and end. One of a byte's length may also be numbers, and is not skipped."""
    at = 0
    while opcode := _PICKLE_TEXT.search(data, at):
        at = opcode.end()
        width = 4 if opcode[0] == b"X" else 1
        begin = at + width
        end = begin + int.from_bytes(data[at:begin], "little")
        if begin < end <= len(data) and data.find(b"\0", begin, end) < 0:
            yield begin, end
            at = end if width == 4 else begin
