"""One option of a framework's, as it was written: Hydra's overrides (`a.b=c`), or `--a.b c` of argparse."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.doctor.frameworks.scope import ARRAY, ASSIGNMENT
from harness.doctor.frameworks.words import ARGUMENTS

_NAME = r"[A-Za-z_][\w@/]*(?:\.[\w@]+)*"
_OVERRIDE = re.compile(rf"([+~]{{0,2}})({_NAME})=(.*)", re.DOTALL)
_DELETED = re.compile(rf"~({_NAME})")
_DASHED = re.compile(r"--?[A-Za-z]")  # else a value: a negative number is one


@dataclass(frozen=True)
class Option:
    """`sign` is Hydra's `+`, `++` or `~`, or `--`. An unknown shell variable stays in `value`. `bare`: no value stands
    with it, which an empty one in quotes does."""

    sign: str
    name: str
    value: str
    bare: bool = False


def overrides(words: Sequence[str]) -> Iterator[Option]:
    """Hydra's overrides among the words."""
    for word in words:
        if deleted := _DELETED.fullmatch(word):
            yield Option("~", deleted[1], "", bare=True)
        elif (found := _OVERRIDE.fullmatch(word)) and not ASSIGNMENT.fullmatch(word):
            yield Option(found[1], found[2], unquoted(found[3]))


def dashed(words: Sequence[str], *, hyphens: bool = False) -> Iterator[Option]:
    """Options of argparse's. `hyphens`: they count as underscores, as for the parser of Transformers."""
    place = 0
    while place < len(words):
        word = words[place]
        place += 1
        if not re.match(r"--[A-Za-z]", word):
            continue
        name, joined, value = word[2:].partition("=")
        following: list[str] = []
        while not joined and place < len(words) and not _DASHED.match(words[place]):
            if not (ARGUMENTS.fullmatch(words[place]) or ARRAY.fullmatch(words[place])):  # no value, but more options
                following.append(words[place])
            place += 1
        name = name.replace("-", "_") if hyphens else name
        yield Option("--", name, value or " ".join(following), bare=not joined and not following)


def unquoted(value: str) -> str:
    """A value without the quotes around the whole of it, which Hydra takes off."""
    return value[1:-1] if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"" else value
