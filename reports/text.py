"""How one value becomes text: numbers with the digits they need, no invisible characters, no terminal control codes.

Token texts, paths and error messages in a verdict come from models, data and other people's programs. Control
characters, bidirectional overrides and lone surrogates are written as escapes here, so that no renderer has to care.
"""

from __future__ import annotations

import json
import math
import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

from probes import redaction

NONE = "–"
_INVISIBLE = {"Cc", "Cf", "Cs", "Zl", "Zp"}  # control, format (bidi, zero width), surrogates, line separators
_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def clean(text: object) -> str:
    """Return the text on one line without secrets, with every invisible character and non-character as an escape.

    The result is valid UTF-8 and XML.
    """
    cleaned = str(text)
    if not cleaned.isascii():  # before the scrubber, which would turn a lone surrogate into a question mark
        cleaned = "".join(char if char.isascii() else _escape(char) for char in cleaned)
    cleaned = redaction.text(cleaned, 0)
    if cleaned.isprintable():
        return cleaned
    return "".join(char if char.isprintable() else _escape(char) for char in cleaned)


def clean_lines(text: object) -> str:
    """Return the text as `clean` shows it, but with its line breaks, for a terminal."""
    return "\n".join(map(clean, redaction.text(str(text), 0).split("\n")))


def _escape(char: str) -> str:
    code = ord(char)
    if char in _ESCAPES:
        return _ESCAPES[char]
    # The last two code points of each plane, and a block of 32, are no characters (Unicode, section 23.7).
    is_character = code & 0xFFFE != 0xFFFE and not 0xFDD0 <= code <= 0xFDEF
    if is_character and unicodedata.category(char) not in _INVISIBLE:
        return char
    if code < 256:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 65536 else f"\\U{code:08x}"


def show(value: Any, digits: int = 4, group: bool = False) -> str:
    """Return one value as text for a person.

    `digits`: significant digits of a float. `group`: thousands separators in integers too. Floats always have them;
    an integer may be a seed, a token id or a port.
    """
    if hasattr(value, "item") and getattr(value, "shape", None) == ():  # a number of NumPy or torch
        value = value.item()
    match value:
        case None:
            return NONE
        case bool():
            return "true" if value else "false"
        case int():
            return f"{value:,}" if group else str(value)
        case float():
            return _float(value, digits)
        case str():
            return clean(value) if value else '""'
        case dict():
            return ", ".join(f"{clean(key)}={show(item, digits, group)}" for key, item in value.items()) or "none"
        case set() | frozenset():
            return _joined([show(item, digits, group) for item in sorted(value, key=str)])
        case list() | tuple():
            return _joined([show(item, digits, group) for item in value])
    return clean(value)


def _joined(texts: list[str]) -> str:
    """Return items on one line, apart by semicolons where an item has a comma itself."""
    return ("; " if any(", " in text for text in texts) else ", ").join(texts) or "none"


def _float(value: float, digits: int) -> str:
    if not math.isfinite(value):
        return str(value)
    if 10.0 ** min(digits, 6) <= abs(value) < 1e15 and digits <= 6:
        return f"{value:,.0f}"
    if digits >= 17:
        text = repr(value)
    elif value != round(value) == float(f"{value:.{digits}g}"):
        text = f"{value:#,.{digits}g}"  # rounded to an integer, it keeps its zeros (1.000): 0.9999999 is not 1
    else:
        text = f"{value:,.{digits}g}"
    return re.sub(r"e([+-])0(\d)$", r"e\1\2", text.removesuffix(".")).replace("e+", "e")


def figure(value: float) -> str:
    """Return a measured number for a sentence: 4 significant digits, thousands separated, as in every table."""
    return show(value, group=True)


def counted(number: int, noun: str) -> str:
    """Return `1 sample`, `1,234 samples`. `noun`: in the singular."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def agreeing(number: int, singular: str, plural: str) -> str:
    """Return the form of a verb or noun that agrees with a number: `waits` for 1, `wait` for 0 and 2."""
    return singular if number == 1 else plural


def part_of(part: int, whole: int, noun: str) -> str:
    """Return `7,971 of 8,801 samples`. `noun`: in the singular."""
    return f"{part:,} of {counted(whole, noun)}"


def first_of(names: Sequence[object], most: int) -> str:
    """Return the first names of a list, and how many more there are: `a, b and 3 more`."""
    return ", ".join(map(str, names[:most])) + and_more(len(names) - most)


def and_more(count: int) -> str:
    """Return ` and 3 more`; empty where there are no more."""
    return f" and {count} more" if count > 0 else ""


def listed(ranks: Sequence[int]) -> str:
    """Return the first eight, and how many there are."""
    text = ", ".join(map(str, ranks[:8]))
    return f"{text}, ... ({len(ranks)} in all)" if len(ranks) > 8 else text


def reads_same(first: Any, second: Any) -> bool:
    """Whether two values look the same to a reader: NaN equals NaN, a tuple equals its list, 1 equals 1.0 but not
    true.
    """
    if isinstance(first, dict) and isinstance(second, dict):
        return first.keys() == second.keys() and all(reads_same(item, second[key]) for key, item in first.items())
    if isinstance(first, (list, tuple)) and isinstance(second, (list, tuple)):
        return len(first) == len(second) and all(reads_same(a, b) for a, b in zip(first, second, strict=True))
    if isinstance(first, bool) is not isinstance(second, bool):
        return False
    return first == second or str(first) == str(second) == "nan"


def show_apart(values: Sequence[Any], digits: int = 4, group: bool = False) -> list[str]:
    """Return values as texts with as many digits (at least `digits`) as unequal ones need to look unequal."""
    unequal = [(i, j) for i in range(len(values)) for j in range(i) if not reads_same(values[i], values[j])]
    for tried in (digits, 6, 9, 17):
        texts = [show(value, max(digits, tried), group) for value in values]
        if all(_written(texts[i]) != _written(texts[j]) for i, j in unequal):
            return texts
    return [clean(json.dumps(value, default=repr, ensure_ascii=False)) for value in values]  # tells "1" from 1


def _written(text: str) -> float | str:
    """Return the number that a reader takes a text for: 1.000 is 1."""
    try:
        return float(text.replace(",", ""))
    except ValueError:
        return text


def flatten(data: dict[str, Any], _group: str = "") -> Iterable[tuple[str, str, Any]]:
    """Yield (group, name, value) of every leaf of nested dictionaries, plain ones first. An empty dict is a leaf."""
    groups = {key: value for key, value in data.items() if isinstance(value, dict) and value}
    for key, value in data.items():
        if key not in groups:
            yield _group, clean(key), value
    for key, group in groups.items():
        yield from flatten(group, f"{_group} / {clean(key)}" if _group else clean(key))
