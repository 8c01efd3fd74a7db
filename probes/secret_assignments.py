"""Secrets that are told by their name: finds `name=value` in every notation, and where the value ends.

Notations: options, assignments, JSON (within JSON too), YAML with its blocks and lists, TOML, Python, columns.
"""

from __future__ import annotations

import re
import sys
from typing import NamedTuple

from probes.secret_names import PROSE, WITHHELD, is_harmless, is_secret, is_strong, looks_random

# An option, or a name with what separates it from its value: `--name value`, `name=value`, "name": "value",
# ['--name', 'value'], ('name', 'value'). Backslashes: JSON within JSON.
NAMED = re.compile(
    r"(?<![\w.\-])(?:"
    r"(?P<option>-{1,2}[A-Za-z][\w.\-]*+)"
    r"(?:\\*+[\"']?\s*+[=:]\s*+|,\s*+|\\*+[\"']\s*+,\s*+(?=[rbfu]?\\*+[\"'])|\s++)(?!-)"
    r"|(?P<pair>[A-Za-z][\w\-]{2,60}+)\\*+[\"'],\s*+(?=[rbfu]?\\*+[\"'])"
    r"|(?P<name>[\w.\-]++)\\*+[\"']?\]?(?:\s*+(?:={1,3}+>?|:=|:|-{1,2}+>)|(?<=-)>)\s*+"
    r"|(?P<listed>[A-Z][A-Z0-9]{0,30}+(?:_[A-Z0-9]++)++)(?:[ \t]++|\|))"
)
QUERY_OF_LOGIN = re.compile(r"[?&](?:code|ticket)=", re.IGNORECASE)
# Names that say little by themselves: withheld where the value looks like nothing else (`looks_random`).
VAGUE_OPTIONS = frozenset({"--key", "-key"})
VAGUE_PARAMETERS = frozenset({"code", "session", "sid", "ticket"})
_VAGUE_NAMES = frozenset({"pin", "sid"})  # of three letters; also the last part of a longer one: connect.sid

# What may stand before a value: a here-string, what YAML has there, a type, a call around
# it, the letters of Python's texts.
_BEFORE_VALUE = re.compile(
    r"(?:<<<[ \t]*+|[|>][+\-\d]{0,2}[ \t]++)?+(?:(?:!!?\w*+|&\w++)[ \t]++){0,2}+"
    r"(?:&?[A-Za-z_][\w.]{0,60}+(?:\[[\w., |\[]{0,60}+\]++)?+(?:[ ]?\|[ ]?\w{1,40}+){0,5}+[ \t]*+=[ \t]*+"
    r"(?=[rbfu]?\\*+[\"']))?+"
    r"(?:[A-Za-z_][\w.:]{0,60}+\([ \t]*+(?=[rbfu]?\\*+[\"']))?+"
    r"(?:[rbfuRBFU]{1,2}+(?=\\*+[\"']))?+"
)
_REFERENCE = re.compile(r"(?:os\.|process\.)?(?:environ|getenv|env)\b[.\[(]|[\w.]{0,60}\bget\w{0,10}\(")  # no value
_BLOCK = re.compile(r"(?:!!?\w*+[ \t]++)?+[|>][+\-\d]{0,2}[ \t]*+(?:#[^\r\n]*+)?(?=\r?\n|\\+n)")  # YAML: key: |
_ITEMS = re.compile(r"-[ \t]++[^\s:]++(?:\r?\n[ \t]*+-[ \t]++[^\s:]++)*+")  # YAML: key: and - value below it
_NEXT_LINE = re.compile(r"(?:\r?\n|\\+n)(?:[^\r\n\\]|\\(?!n))*+")
_PIECES = re.compile(r"[\"'](?:[ ]*+(?:\r?\n|\t)[ \t]*+[rbfu]?[\"'][^\"'\r\n]*+(?=[\"'](?!\s*+:)))++")  # 'one' 'text'
_WORDS_OF_LIST = re.compile(r"[^\s\"',:\[\](){}]++")
MOST_INDENT, MOST_LISTED = 200, 4_096  # characters that are looked at, before a block and of a list
_OPENING = re.compile(r"(\\*)([\"'])")
_QUOTED = {'"': re.compile(r'(?:[^"\\]|\\.)*+', re.DOTALL), "'": re.compile(r"(?:[^'\\]|\\.)*+", re.DOTALL)}
_BARE = re.compile(r"(?:(?:bearer|basic|digest|token)\s++)?[^\s\"',;&}]++", re.IGNORECASE)
_UNTIL_SPACE = re.compile(r"[^\s\"']++")
_BRACKET = re.compile(r"[\[\](){}]")
_LINE = re.compile(r"[^\r\n\"']*+")


class _Label(NamedTuple):
    """A name in a text, and how it is written there."""

    name: str
    written: str  # the name with its quotes and the separator before its value
    is_option: bool
    is_column: bool  # NAME VALUE
    is_key: bool  # ?key=VALUE
    is_vague: bool  # a name that is not clearly secret


def without_named(message: str, pattern: re.Pattern[str]) -> str:
    """Withhold the values behind secret names. `pattern` matches a name and the separator before its value."""
    parts, done, at = [], 0, 0
    lists: _Lists | None = None
    while match := pattern.search(message, at):
        # Behind a name that hides nothing the search goes on at once: its value may begin the next assignment.
        at = match.end()
        label = _secret_label(match)
        if label is None or not _announces_secret(label, match):
            continue
        lists = lists or _Lists(message)
        begin, end = _value(message, at, label.name, lists)
        if label.is_option and label.written.endswith("=") and (long_value := _UNTIL_SPACE.match(message, begin)):
            end = max(end, long_value.end())  # a list with commas
        at = max(at, end)
        if _shows_secret(label, message[begin:end]):
            parts += [message[done:begin], WITHHELD]
            done = end
    return "".join([*parts, message[done:]]) if parts else message


def _secret_label(match: re.Match[str]) -> _Label | None:
    """Return the name that was matched, where a secret may follow it; None for any other name."""
    groups = match.groupdict()
    is_option, pair = groups.get("option") is not None, groups.get("pair")
    name = groups["name"] or next(filter(None, (groups.get(group) for group in ("option", "pair", "listed"))))
    before = match.string[match.start() - 1 : match.start()]
    in_query = before in ("?", "&")
    is_key = in_query and name.lower() == "key"
    is_vague = (
        (in_query and name.lower() in VAGUE_PARAMETERS)
        or (is_option and name in VAGUE_OPTIONS)
        or (name[-3:].lower() in _VAGUE_NAMES and name[-4:-3] in ("", "."))
        or (before == "/" and match[0].endswith(": "))  # a file: /etc/passwd: unknown user
    )
    in_connection = before == ";" and name == "PWD"  # of ODBC, not the shell's folder
    if not is_key and not is_vague and not in_connection and not is_secret(name):
        return None
    # A pair of texts may be two words of a sentence or a list: 'token', 'text'. A variable's name in it is none.
    is_vague = is_vague or (pair is not None and not pair.isupper())
    is_column = groups.get("listed") is not None
    return _Label(name, match[0], is_option=is_option, is_column=is_column, is_key=is_key, is_vague=is_vague)


def _announces_secret(label: _Label, match: re.Match[str]) -> bool:
    """Whether the text around a secret's name confirms that a secret follows, and it is not withheld yet."""
    if match.string.startswith(WITHHELD, match.end()):
        return False
    if label.name.endswith(("Error", "Exception", "Warning")) and label.written.endswith(": "):
        return False  # the error's message follows, which a verdict needs
    return not (label.name == "token" and _of_text(match.string[max(0, match.start() - 20) : match.start()]))


def _shows_secret(label: _Label, value: str) -> bool:
    """Whether the value behind a secret's name is a secret, not the next word of a sentence."""
    if not value or (is_harmless(label.name, value) and not label.is_key):
        return False
    if (label.is_vague or _may_be_prose(label)) and not looks_random(value):
        return False
    # "--token is missing": behind an option without a sign the sentence may just go on.
    apart = label.written.rstrip()[-1:] not in ("=", ":", ",", '"', "'")
    if label.is_option and apart and value.lower().rstrip(".,:;") in PROSE:
        return False
    if label.written[-1] == ":" and "." in label.name:
        return not (value.isdigit() or _is_place_in_source(label.name, value))  # a port, a line number
    return True


# A file of a program, and what a traceback, a compiler or pytest has behind its name: 123, 123), 123:4:, :test_name.
_SOURCE = re.compile(r"[\w.\-/]{0,200}\.(?:py|pyx|pyi|cc|cpp|cxx|c|h|hpp|cu|cuh|rs|go|js|ts|sh)")
_PLACE = re.compile(r"\d{1,7}(?::\d{1,5})?[:).\],;>]{0,3}|:[A-Za-z_][\w:.\[\]\-]{0,200}")


def _is_place_in_source(name: str, value: str) -> bool:
    """Whether a name is that of a program's file, and the value a line of it, or a name in it."""
    return bool(_SOURCE.fullmatch(name) and _PLACE.fullmatch(value))


def _may_be_prose(label: _Label) -> bool:
    """Whether this name and its value may be a sentence, or a text about tokens that an engine drew."""
    name = label.name.lower()
    return (
        (label.written.rstrip().endswith("->") and name.lstrip("-") in ("token", "tokens"))
        or (label.is_column and "\t" not in label.written)
        or (name == "tokens" and label.written.endswith(": "))  # "other tokens: the candidate's"
    )


def _of_text(before: str) -> bool:
    """Whether the word before `token` makes it a token of a text: "first token: 'Hello'"."""
    word = before.split()[-1:]
    return bool(word) and not is_secret(f"{word[0]}_token")


def _value(message: str, at: int, name: str, lists: _Lists) -> tuple[int, int]:
    """Where the value at `at` begins and ends, without its quotes; the same place twice without a value."""
    if _REFERENCE.match(message, at):
        return at, at
    # A block of YAML comes before the type and the call that may stand before other values: `|` is part of a type, too.
    if message[max(0, at - 3) : at].rstrip(" \t").endswith(":") and (block := _BLOCK.match(message, at)):
        return at, _block_end(message, at, block.end())
    at = _BEFORE_VALUE.match(message, at).end()  # type: ignore[union-attr]
    if opening := _OPENING.match(message, at):
        return _quoted(message, opening)
    first = message[at : at + 1]
    if first and first in "[{(":
        # A list behind a strong name is withheld whole. Behind any other it may be token ids or names, which a verdict
        # needs, so that one of its words has to look like a secret.
        end = lists.end(at, sys.maxsize if is_strong(name) else MOST_LISTED)
        return (at, end) if is_strong(name) or lists.holds_random(at, end) else (at, at)
    if first == "-" and (items := _ITEMS.match(message, at)):
        return at, items.end()
    # Cookies and logins have blanks and signs in them, so they end with their line.
    if name.lower().endswith(("cookie", "authorization")) or _is_whole_line(message, at, name):
        return at, _LINE.match(message, at).end()  # type: ignore[union-attr]
    bare = _BARE.match(message, at)
    return (at, bare.end()) if bare else (at, at)


def _quoted(message: str, opening: re.Match[str]) -> tuple[int, int]:
    """Where a text begins and ends whose quotes open here."""
    begin, mark = opening.end(), opening[0]
    if not opening[1] and message.startswith(mark * 2, begin):  # three quotes
        end = message.find(mark * 3, begin + 2)
        return begin + 2, end if end >= 0 else len(message)
    if opening[1]:  # an escaped quote: the value ends at the next one like it
        end = message.find(mark, begin)
    else:
        end = _QUOTED[mark].match(message, begin).end()  # type: ignore[union-attr]
        end = end if end < len(message) else -1
    if end < 0:
        return begin, _LINE.match(message, begin).end()  # type: ignore[union-attr]
    pieces = _PIECES.match(message, end)
    return begin, pieces.end() if pieces else end


def _block_end(message: str, at: int, end: int) -> int:
    """Where a block of YAML ends whose `|` is at `at`: all lines below it that are indented deeper than its key, at
    least one."""
    # The text may be JSON that holds YAML: then a line ends with a backslash and an n.
    near = max(0, at - MOST_INDENT)
    line = max(message.rfind("\n", near, at) + 1, message.rfind("\\n", near, at) + 2, near)
    indent = len(message[line:at]) - len(message[line:at].lstrip(" \t-"))
    while following := _NEXT_LINE.match(message, end):
        content = following[0].lstrip("\\\r\n").removeprefix("n" * following[0].startswith("\\"))
        if end != at and content.strip() and len(content) - len(content.lstrip(" \t")) <= indent:
            break
        end = following.end()
    return end


def _is_whole_line(message: str, at: int, name: str) -> bool:
    """Whether the value is all that follows on a line of YAML: a password of several words."""
    if not name.lower().endswith(("password", "passphrase", "passwd", "mnemonic")) or message[at - 2 : at] != ": ":
        return False
    begin = at - 2 - len(name)
    return begin > 0 and message[max(0, begin - MOST_INDENT) : begin].rstrip(" \t").endswith("\n")


class _Lists:
    """The lists and objects in a text. Where each ends, and which words look random, is found once for all of them:
    lists that are not closed lie within each other."""

    def __init__(self, message: str) -> None:
        self._message = message
        self._ends: dict[int, int] | None = None  # by the place of its opening bracket; those that are closed
        self._plain = range(0)  # where no word looks random

    def end(self, at: int, most: int) -> int:
        """Where the list that begins at `at` ends; the end of the text, or of its first `most` characters, where it is
        not closed."""
        if self._ends is None:
            self._ends = self._matched()
        length = len(self._message)
        return min(self._ends.get(at, length), at + most, length)

    def _matched(self) -> dict[int, int]:
        ends, opened = {}, []
        for bracket in _BRACKET.finditer(self._message):
            if bracket[0] in "[{(":
                opened.append(bracket.start())
            elif opened:
                ends[opened.pop()] = bracket.end()
        return ends

    def holds_random(self, at: int, end: int) -> bool:
        """Whether a word between these places looks random."""
        begin = self._plain.stop if at in self._plain else at
        for word in _WORDS_OF_LIST.finditer(self._message, begin, end):
            if looks_random(word[0]):
                return True
            begin = word.start()  # the last one may go on behind the end
        self._plain = range(self._plain.start if at in self._plain else at, begin)
        return False
