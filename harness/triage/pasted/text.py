"""Reads text from anybody: plain or packed, its bytes, lines and line lengths bounded, without terminal escapes."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

from harness.triage import compressed
from probes.limits import FILE_BYTES
from reports.headline import beginning

MAX_LINES = 2_000_000  # of one file; 10,000 stacks of 20 frames have 250,000
MAX_LINE = 4_096  # characters that are read of one line; a command line may have thousands
CHUNK = 1 << 20  # bytes that are read first: asking for FILE_BYTES at once costs more than most files
MAX_TEXT = 300  # characters of a line that are kept
HEAD = 4_096  # bytes at the beginning of a file that are searched for the zero byte, which no text has
_UTF_16 = codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE
NO_TEXT = "it is no text"  # a note
# Colours whose escape was lost on the way; CSI and OSC sequences; two-character escapes; then every control character
# but the tab and the line feed.
_ESCAPES = re.compile(
    r"\x1b?\[\d{1,3}(?:;\d{1,3}){0,5}m"
    r"|\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b[@-Z\\^_]|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]"
)


def cut(text: str, most: int) -> str:
    """The beginning of a text of more than `most` characters, up to the end of a word, with an ellipsis."""
    if len(text) <= most:
        return text
    parts = text.split(" ")
    whole = len(text[: most + 1].split(" ")) - 1  # the last word may be cut
    words = beginning(parts, whole).rstrip() if whole > 0 else ""
    return f"{words if len(words) > most // 2 else text[:most]} …"


@dataclass(frozen=True)
class Pasted:
    """The text of one file. `note`: what of it was not read, and why; empty if all was."""

    text: str
    note: str = ""

    def lines(self) -> Iterator[str]:
        """Its lines, each without its end and without what exceeds MAX_LINE. A lone carriage return, with which a
        progress bar ends what it wrote, is an end as well."""
        remaining, begin = MAX_LINES, 0
        while begin >= 0 and remaining > 0:
            end = self.text.rfind("\n", begin, begin + CHUNK)
            end = end if end >= 0 else self.text.find("\n", begin + CHUNK)
            part = self.text[begin : end if end >= 0 else None].replace("\r", "\n").split("\n")
            for line in part[:remaining]:
                yield line if len(line) <= MAX_LINE else line[:MAX_LINE]
            remaining -= len(part)
            begin = end + 1 if end >= 0 else -1


def content(stream: BinaryIO) -> tuple[bytes, str]:
    """At most FILE_BYTES of a stream, after unpacking, and what was not read of it. Raises OSError."""
    data, note = stream.read(CHUNK), ""
    if len(data) == CHUNK:
        data += stream.read(FILE_BYTES + 1 - CHUNK)
    if compressed.is_packed(data):
        data, note = compressed.unpacked(data, FILE_BYTES + 1)
    if len(data) > FILE_BYTES:
        data, note = data[:FILE_BYTES], f"only its first {FILE_BYTES >> 20} MiB are read"
    return data, note


def decoded(data: bytes, note: str = "") -> Pasted:
    """The text that bytes are. `note`: what was not read."""
    encoding = "utf-16" if data.startswith(_UTF_16) else "utf-8"  # what a console of Windows saves
    if encoding == "utf-8" and b"\0" in data[:HEAD]:
        return Pasted("", note or NO_TEXT)
    return Pasted(_ESCAPES.sub("", data.decode(encoding, "replace")), note)
