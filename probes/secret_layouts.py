"""Secrets that are told by their place: below a column's name, in a Secret of Kubernetes, beside a field's name."""

from __future__ import annotations

import re
from collections.abc import Iterator

from probes.secret_names import WITHHELD, is_harmless, is_secret, is_strong, looks_random

_SEPARATORS = ",;\t|"
_CELL = r"[ ]?\"?[\w.\-]{1,100}+\"?[ ]?"
# A line of names: user,password
_HEADER = re.compile(rf"^{_CELL}(?:[{_SEPARATORS}]{_CELL}){{1,200}}+\r?$", re.MULTILINE)
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
    """A table of separated values without those of the columns that are named like secrets."""
    parts, done = [], 0
    for header in _HEADER.finditer(text):
        if header.start() < done:
            continue
        separator = next(mark for mark in header[0] if mark in _SEPARATORS)
        names = [name.strip(' "\r') for name in header[0].split(separator)]
        if not any(map(is_secret, names)):
            continue
        for begin, end in _rows(text, header.end(), separator, len(names)):
            parts += [text[done:begin], _without_cells(text[begin:end], separator, names)]
            done = end
    return "".join([*parts, text[done:]]) if parts else text


def _rows(text: str, at: int, separator: str, count: int) -> Iterator[tuple[int, int]]:
    """Where the lines below a header begin and end, as long as they have as many cells."""
    while at < len(text):
        begin = at + 1
        end = text.find("\n", begin)
        at = end if end >= 0 else len(text)
        if text.count(separator, begin, at) != count - 1:
            return
        yield begin, at


def _without_cells(row: str, separator: str, names: list[str]) -> str:
    cells = row.split(separator)
    return separator.join(
        _without_cell(name, cell) if is_secret(name) else cell for name, cell in zip(names, cells, strict=True)
    )


def _without_cell(name: str, cell: str) -> str:
    value = cell.strip(' "\r')
    hidden = not is_harmless(name, value) and (is_strong(name) or looks_random(value))
    return cell.replace(value, WITHHELD) if hidden else cell


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
    hidden = is_secret(name) and not is_harmless(name, value.strip("'\""))
    return f"{name}{between}{WITHHELD}" if hidden else refusal[0]
