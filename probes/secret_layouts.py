"""Secrets that are told by their place: below a column's name, in a Secret of Kubernetes, beside a field's name."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache

from probes.secret_names import WITHHELD, hides, hides_word, is_secret, words

_SEPARATORS, _BARS = ",;\t", "|┃│"
_QUOTES = "\"'`*~"  # of a text, and of Markdown
_NAME = rf"[{_QUOTES}]{{0,3}}+[\w.\-]{{1,100}}+[{_QUOTES}]{{0,3}}+"
_CELL = rf"[ ]?{_NAME}[ ]?"
_BARRED_CELL = rf"[ ]*+{_NAME}(?:[ ]{_NAME}){{0,3}}+[ ]*+"
# A line of names: user,password and | user | password | and, in columns of one width, USER  PASSWORD.
_HEADER = re.compile(rf"^{_CELL}(?:[{_SEPARATORS}]{_CELL}){{1,200}}+\r?$", re.MULTILINE)
_BARRED_HEADER = re.compile(
    rf"^[ >]*+(?:[{_BARS}]?{_BARRED_CELL}(?:[{_BARS}]{_BARRED_CELL}){{1,200}}+[{_BARS}]?"
    rf"|[{_BARS}]{_BARRED_CELL}[{_BARS}])[ ]*+\r?$",
    re.MULTILINE,
)
_WIDE_HEADER = re.compile(rf"^[ ]*+{_NAME}(?:[ ]{{2,100}}+{_NAME}){{1,200}}+[ ]*+\r?$", re.MULTILINE)
_BAR = re.compile(rf"(?<!\\)[{_BARS}]")
_RULER = re.compile("[ \\-=+:|>━─┃│┏┓┗┛┡┩╇┳┻╞╪╡├┼┤└┘┌┐┴┬]++\r?")  # between the names and the values, and around them
_WORD = re.compile(r"\S++")
_SIGNS = re.compile(rf"[{_SEPARATORS}{_BARS}{_QUOTES}]")
MAX_WIDTH = 2_000  # characters of a row that are read, in columns of one width
# Columns beside which `token` is a part of a text, not a secret.
_OF_VOCABULARY = words("""
    count freq frequency id ids index logit logits logprob logprobs position prob rank score text
""")
_SECRET_KIND = re.compile(r"\bkind\\*+[\"']?\s*+:\s*+\\*+[\"']?Secret\b")
_DOCUMENT = re.compile(r"^---[^\r\n]*+$", re.MULTILINE)
# data: and stringData: of a Secret, in YAML and in JSON.
_DATA = re.compile(r"^([ ]*+)(?:data|stringData):[ \t]*+\r?\n((?:\1[ ]++[^\r\n]++(?:\r?\n|\Z))++)", re.MULTILINE)
_YAML_VALUE = re.compile(r"^([ ]*+[\"']?[\w.\-]++[\"']?:[ \t]++)(?![|>])[^\r\n]++", re.MULTILINE)
_YAML_BLOCK = re.compile(
    r"^([ ]*+)([\"']?[\w.\-]++[\"']?:[ \t]++)[|>][^\r\n]*+(?:\r?\n(?:\1[ ]++[^\r\n]*+)?)++", re.MULTILINE
)
_JSON_DATA = re.compile(r"(\\*+\"(?:data|stringData)\\*+\"\s*+:\s*+\{)([^{}]*+)")
_JSON_VALUE = re.compile(r"(:\s*+\\*+\")([^\"\\]++)")
# pydantic: a field's name, and in the lines below what was its value.
_REFUSED = re.compile(
    r"(?<![\w.\-])([\w.\-]{1,100}+)((?:\r?\n|\\+n)[ \t]++[^\r\n]{0,400}?\binput_value=)"
    r"([^\r\n]{1,400}?)(?=, input_type=)"
)


def without_columns(text: str) -> str:
    """A table without the values of the columns that are named like secrets."""
    text = _without_tables(text, _HEADER, _without_cells)
    if any(bar in text for bar in _BARS):
        text = _without_tables(text, _BARRED_HEADER, _without_cells)
    return _without_tables(text, _WIDE_HEADER, _without_words) if "  " in text else text


def _without_tables(text: str, headers: re.Pattern[str], scrub_row: Callable[[str, str], str | None]) -> str:
    """`scrub_row` takes a row and its header, and returns None where the row is not the header's."""
    parts, done = [], 0
    for header in headers.finditer(text):
        if header.start() < done or not any(map(is_secret, _words(header[0]))):
            continue
        for begin, end in _lines(text, header.end()):
            row = text[begin:end]
            if _RULER.fullmatch(row):
                continue
            if (scrubbed := scrub_row(row, header[0])) is None:
                break
            parts += [text[done:begin], scrubbed]
            done = end
    return "".join([*parts, text[done:]]) if parts else text


def _words(header: str) -> Iterator[str]:
    """The words of a header, and its names of several words: `API key`."""
    yield from _WORD.findall(_SIGNS.sub(" ", header))
    yield from _BAR.split(header)


def _lines(text: str, at: int) -> Iterator[tuple[int, int]]:
    """Where the lines after this place begin and end."""
    while at < len(text):
        begin = at + 1
        end = text.find("\n", begin)
        at = end if end >= 0 else len(text)
        yield begin, at


@lru_cache(maxsize=16)
def _cells(header: str) -> tuple[re.Pattern[str], tuple[str, ...], frozenset[int]]:
    """(the separator, names, which of them are secret)."""
    mark = next((mark for mark in header if mark in _SEPARATORS), "")
    separator = re.compile(re.escape(mark)) if mark else _BAR
    names = tuple(name.strip(f" >\r{_QUOTES}") for name in separator.split(header))
    return separator, names, _secret_columns(names)


def _secret_columns(names: Iterable[str]) -> frozenset[int]:
    names = tuple(names)
    lowered = [name.lower() for name in names]
    is_vocabulary = not _OF_VOCABULARY.isdisjoint(lowered)
    return frozenset(
        at
        for at, name in enumerate(names)
        if is_secret(name) and not (is_vocabulary and lowered[at] in ("token", "tokens"))
    )


def _without_cells(row: str, header: str) -> str | None:
    separator, names, secret = _cells(header)
    marks, cells = separator.findall(row), separator.split(row)
    if len(cells) != len(names):
        return None
    cleaned = [_without_cell(names[at], cell) if at in secret else cell for at, cell in enumerate(cells)]
    return "".join(part for pair in zip(cleaned, [*marks, ""], strict=True) for part in pair)


def _without_cell(name: str, cell: str) -> str:
    value = cell.strip(f" \r{_QUOTES}")
    return cell.replace(value, WITHHELD) if hides_word(name, value) else cell


@lru_cache(maxsize=16)
def _spans(header: str) -> tuple[int, tuple[tuple[str, int, int], ...]]:
    """(how many columns of one width there are; name, begin and end of those that are secret)."""
    columns = list(_WORD.finditer(header))
    secret = _secret_columns(column[0] for column in columns)
    return len(columns), tuple((column[0], *column.span()) for at, column in enumerate(columns) if at in secret)


def _without_words(row: str, header: str) -> str | None:
    """What stands below a secret's name, aligned at either end. Its width stays, for the columns behind it."""
    count, columns = _spans(header)
    words = list(_WORD.finditer(row, 0, MAX_WIDTH))
    if not 2 <= len(words) <= count + 1:  # and a number of the row
        return None
    for name, begin, end in columns:
        for word in words:
            value, width = word[0], len(word[0])
            below = word.start() < end and word.end() > begin
            if below and width >= len(WITHHELD) and hides_word(name, value):
                row = row[: word.start()] + WITHHELD.ljust(width) + row[word.end() :]
    return row


def without_manifests(text: str) -> str:
    """A text without the data of the Secrets of Kubernetes in it."""
    parts, at = [], 0
    for border in _DOCUMENT.finditer(text):
        parts += [_without_data(text[at : border.start()]), border[0]]
        at = border.end()
    return "".join([*parts, _without_data(text[at:])])


def _without_data(document: str) -> str:
    if not _SECRET_KIND.search(document):
        return document
    document = _DATA.sub(_without_yaml_values, document)
    return _JSON_DATA.sub(lambda data: data[1] + _JSON_VALUE.sub(rf"\1{WITHHELD}", data[2]), document)


def _without_yaml_values(data: re.Match[str]) -> str:
    head = data[0].removesuffix(data[2])
    return head + _YAML_VALUE.sub(rf"\1{WITHHELD}", _YAML_BLOCK.sub(rf"\1\2{WITHHELD}\n", data[2]))


def without_refused(text: str) -> str:
    """Messages of pydantic without the values of fields that are named like secrets."""
    return _REFUSED.sub(_without_input, text)


def _without_input(refusal: re.Match[str]) -> str:
    name, between, value = refusal.groups()
    return f"{name}{between}{WITHHELD}" if hides(name, value.strip("'\"")) else refusal[0]
