"""Undoes what hides a secret's name from a pattern: colours, escapes, continued lines, invisible and wide letters."""

from __future__ import annotations

import re
import unicodedata

# \u0070, \x70 and &#112;, whatever number of backslashes is before them: JSON in JSON.
_ESCAPED = re.compile(r"(?<!\\)\\++(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2}))|&#(?:[xX]([0-9a-fA-F]{1,6})|([0-9]{1,7}));")
_DECODED = frozenset("_-.=: \x1b")  # and letters and digits; no quote, bracket or backslash, which have a meaning
_COLOUR = re.compile(r"(?:\x1b\[|\x9b)[0-?]*+[ -/]*+[@-~]|\x1b\][^\x07\x1b]*+(?:\x07|\x1b\\)|\x1b[ -/]*+[0-~]")
_INVISIBLE = re.compile("[\u00ad\u180e\u200b-\u200f\u202a-\u202e\u2060-\u2064\u2066-\u2069\ufeff]++")
_WIDE = re.compile(
    "[\u00a0\u1680\u2000-\u200a\u2100-\u214f\u3000\ufb00-\ufb06\ufe10-\ufe6f\uff00-\uffef\U0001d400-\U0001d7ff]++"
)
_CONTINUED = ("\\\n", "\\\r\n")
_BLANKS, MOST_BLANKS = re.compile("(?: \t)++"), 32


def undisguised(text: str) -> str:
    """The text as a person reads it; the same object where nothing is disguised."""
    if "\\" in text or "&#" in text:
        text = _ESCAPED.sub(_decoded, text)
    if "\x1b" in text or "\x9b" in text:
        text = _COLOUR.sub("", text)
    if not text.isascii():
        text = _WIDE.sub(lambda wide: unicodedata.normalize("NFKC", wide[0]), _INVISIBLE.sub("", text))
    return text


def _decoded(escape: re.Match[str]) -> str:
    number = int(escape[4]) if escape[4] else int(escape[1] or escape[2] or escape[3], 16)
    character = chr(number) if number <= 0x10FFFF else ""
    is_plain = character.isalnum() or character in _DECODED
    return character if is_plain or _INVISIBLE.match(character) or _WIDE.match(character) else escape[0]


def continuation(text: str) -> tuple[str, str]:
    """(how a line of this text is continued, blanks that may stand for it); ("", "") where none is.

    The blanks are not in the text, so that what stands for a continuation can be told from what stood there before.
    """
    ending = next((ending for ending in _CONTINUED if ending in text), "")
    longest = max((len(run) for run in _BLANKS.findall(text)), default=0) if ending else 0
    return (ending, " \t" * (longest // 2 + 1)) if ending and longest <= MOST_BLANKS else ("", "")
