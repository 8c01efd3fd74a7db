"""A shell's text as tokens: words without their quotes, operators, arrays and here-documents; redirections and comments
are left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

_ASSIGNS_ARRAY = re.compile(r"(\w+)(\+?)=$")
_OPERATOR = re.compile(r";;&|;;|;&|&&|\|\||\|&|[;|&()\n]")
_REDIRECTION = re.compile(r"\d*(<<-?(?!<)|<<<|&>>?|[<>][&|>]?)-?[ \t]*")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r"}  # of $'…', the others stand for themselves


@dataclass
class Array:
    """`NAME=(…)`, or `NAME+=(…)` where `more`."""

    name: str
    more: bool
    words: list[str]


@dataclass
class Token:
    """`kind`: word, operator, array, here (a here-document, before the end of its line) or broken (a command with what
    does not end, up to the end of a line)."""

    kind: str
    text: str
    quoted: bool = False
    array: Array | None = None


def tokens(text: str) -> Iterator[Token]:
    """The tokens of a text."""
    place = begun = 0
    awaited: list[tuple[str, bool]] = []  # here-documents: what ends them, and whether tabs before it are left out
    while place < len(text):
        try:
            operator = _OPERATOR.match(text, place)
            if text[place] in " \t":
                place += 1
            elif text[place] == "#":
                place = _line(text, place)
            elif text.startswith("\\\n", place):
                place += 2
            elif found := _REDIRECTION.match(text, place):
                word, _, place = _word(text, found.end())
                if found[1] in ("<<", "<<-"):
                    awaited.append((word, found[1] == "<<-"))
            elif operator:
                place = operator.end()
                if operator[0] == "\n":
                    for end, tabs in awaited:
                        body, place = _here(text, place, end, tabs)
                        yield Token("here", body)
                    awaited = []
                begun = place
                yield Token("operator", operator[0])
            else:
                word, quoted, place = _word(text, place)
                named = _ASSIGNS_ARRAY.fullmatch(word) if not quoted and text[place : place + 1] == "(" else None
                if named:
                    words, place = _elements(text, place + 1)
                    yield Token("array", word, array=Array(named[1], bool(named[2]), words))
                else:
                    yield Token("word", word, quoted)
        except ValueError:
            place = _line(text, place)
            yield Token("broken", text[begun:place])


def _line(text: str, place: int) -> int:
    """The end of the line."""
    end = text.find("\n", place)
    return len(text) if end < 0 else end


def _here(text: str, place: int, end: str, tabs: bool) -> tuple[str, int]:
    """(a here-document, the place behind it)."""
    start = place
    while place < len(text):
        stop = _line(text, place)
        line = text[place:stop]
        if (line.lstrip("\t") if tabs else line) == end:
            return text[start:place], stop + 1
        place = stop + 1
    return text[start:], len(text)


def _elements(text: str, place: int) -> tuple[list[str], int]:
    """(the words of an array, the place behind its `)`)."""
    found: list[str] = []
    while place < len(text):
        one = text[place]
        if one in " \t\n":
            place += 1
        elif text.startswith("\\\n", place):
            place += 2
        elif one == "#":
            place = _line(text, place)
        elif one == ")":
            return found, place + 1
        elif one in ";|&<>(":
            raise ValueError("an array holds an operator")
        else:
            word, _, place = _word(text, place)
            found.append(word)
    raise ValueError("an array does not end")


def _word(text: str, place: int) -> tuple[str, bool, int]:
    """(a word without its quotes, was anything of it quoted, the place behind it)."""
    word, quoted = "", False
    while place < len(text) and text[place] not in " \t\n;|&()<>":
        one = text[place]
        if one in "'\"" or text[place : place + 2] in ("$'", '$"'):
            at = place + (one == "$")
            part, place = _quoted(text, at + 1, text[at], escapes=one == "$")
            word, quoted = word + part, True
        elif inner := substitution(text, place):
            word, place = word + inner, place + len(inner)
        elif text.startswith("\\\n", place):
            place += 2
        elif one == "\\" and place + 1 < len(text):
            word, quoted, place = word + text[place + 1], True, place + 2
        else:
            word, place = word + one, place + 1
    return word, quoted, place


def _quoted(text: str, place: int, quote: str, *, escapes: bool = False) -> tuple[str, int]:
    """(text, the place behind it) of what a quote opens; `escapes`: as in $'…'."""
    part = ""
    while place < len(text):
        one = text[place]
        place += 1
        if one == quote:
            return part, place
        if quote == '"' and (inner := substitution(text, place - 1)):
            part, place = part + inner, place - 1 + len(inner)
            continue
        if one == "\\" and quote == '"' and text[place : place + 1] == "\n":
            place += 1
            continue
        if one == "\\" and quote == '"' and text[place : place + 1] in ('"', "\\", "$", "`"):
            one, place = text[place], place + 1
        elif one == "\\" and escapes and quote == "'" and place < len(text):
            one, place = _ESCAPES.get(text[place], text[place]), place + 1
        part += one
    raise ValueError("a quote does not end")


def substitution(text: str, place: int) -> str:
    """`$(…)`, `${…}` or backticks that begin at that place, as they are written; empty where none does."""
    if text[place] == "`":
        end = text.find("`", place + 1)
        return text[place : end + 1] if end > 0 else ""
    pair = {"$(": ")", "${": "}"}.get(text[place : place + 2])
    if pair is None:
        return ""
    depth, at = 0, place + 1
    while at < len(text):
        if text[at] in "'\"" and pair == ")":
            _, at = _quoted(text, at + 1, text[at])
            continue
        depth += (text[at] == text[place + 1]) - (text[at] == pair)
        at += 1
        if not depth:
            return text[place:at]
    raise ValueError("a substitution does not end")
