"""Reads the text that a shell is given as far as it is a plain list of commands: words, pipes, `&&`, `;`, redirections.

Nothing is expanded, and nothing is run. A loop, a condition, a function or a subshell is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

_QUOTED = r"""\\.|'[^']*'|"(?:\\.|[^"\\])*\""""
_WORD = rf"""(?:{_QUOTED}|\$\{{[^}}]*\}}|\$\((?:[^()]|\([^()]*\))*\)|`[^`]*`|[^\s'"`\\;|&()<>])+"""
_TOKEN = re.compile(
    rf"[ \t]*(?:(?P<comment>\#[^\n]*)"
    rf"|(?P<redirection>(?:\d+|&)?(?:<<<|>>|>\||>&|<&|>|<)[ \t]*(?:&?\d(?=[\s;|&]|$)|&-|{_WORD}))"
    rf"|(?P<separator>\r?\n|&&|\|\||\|&|[;|&])|(?P<word>{_WORD})|(?P<other>[^ \t]))",
    re.DOTALL,
)
_KEYWORDS = {"if", "for", "while", "until", "case", "select", "function", "{", "[[", "!", "coproc"}


class NotPlain(ValueError):
    """The text is no plain list of commands. The message says what it holds."""


def commands(text: str) -> list[list[str]]:
    """The commands in their order: the first one of a pipe, and of `a || b`. Raises NotPlain."""
    read: list[list[str]] = [[]]
    is_first = True
    for match in _TOKEN.finditer(text.replace("\\\n", " ")):
        kind, token = match.lastgroup, match[match.lastgroup or 0]
        if kind == "separator":
            is_first = token not in ("|", "|&", "||")
            read.append([])
        elif kind == "word" and is_first:
            if not read[-1] and token in _KEYWORDS:
                raise NotPlain(f"it holds `{token}`")
            read[-1].append(_unquoted(token))
        elif kind == "other":
            raise NotPlain("a quotation is not closed" if token in "'\"`" else f"it holds `{token}`")
    return [command for command in read if command]


def _unquoted(word: str) -> str:
    return "".join(_pieces(word))


def _pieces(word: str) -> Iterator[str]:
    """Yield the parts of a word without their quotes."""
    for piece in re.findall(rf"{_QUOTED}|.", word, re.DOTALL):
        if len(piece) == 1:
            yield piece
        elif piece[0] == "'":
            yield piece[1:-1]
        elif piece[0] == '"':
            yield re.sub(r'\\([\\"$`])', r"\1", piece[1:-1])
        else:
            yield piece[1:]
