"""Bisection over the settings of a framework's job: find the words that make one of two commands bad."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Container, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from harness import envs
from harness.bisect import settings
from harness.bisect.judging import Judged
from harness.bisect.search import Search
from harness.errors import BadInput
from reports.bisect_model import Bisection

_VARIABLE = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
_OVERRIDE = re.compile(r"(?P<key>[+~]{0,2}[\w./@-]+)=.*", re.DOTALL)  # an override of Hydra, or --name=value

Key = tuple[str, int]  # the name of an option or override, and the number of earlier ones with that name


@dataclass(frozen=True)
class Command:
    """A parsed command line `NAME=VALUE … PROGRAM WORD …`.

    variables: the environment variables that are set before the program.
    parts: the words from PROGRAM on, in order. An override (`a.b=1`) is a part by itself; an option forms one part
    with the values that follow it, and so do other words.
    """

    variables: dict[str, str]
    parts: dict[Key, tuple[str, ...]]

    @staticmethod
    def read(text: str) -> Command:
        """Parse a command line. Raises BadInput for a text that a shell could not split, and for one without a
        program.
        """
        try:
            words = shlex.split(text)
        except ValueError as error:
            raise BadInput(f"{text!r} is not a command: {error}", fix=ENDS) from error
        variables: dict[str, str] = {}
        while words and _VARIABLE.fullmatch(words[0]):
            name, _, variables[name] = words.pop(0).partition("=")
        if not words:
            raise BadInput(f"{text!r} names no program", fix=ENDS)
        parts: dict[Key, tuple[str, ...]] = {}
        last: Key | None = None
        for word in words:
            override = _OVERRIDE.fullmatch(word)
            if last is not None and not override and not word.startswith("-"):
                parts[last] += (word,)
                continue
            name = override["key"] if override else word
            key = (name, sum(part_name == name for part_name, _ in parts))
            parts[key] = (word,)
            last = None if override else key
        return Command(variables, parts)

    def changed(self, source: Command, keys: Container[Key]) -> list[str]:
        """Return the words of this command with the parts `keys` taken from `source`.

        A part that only `source` has is inserted after the part that precedes it there.
        """
        order = list(self.parts)
        for before, key in pairwise([None, *source.parts]):
            if key is not None and key in keys and key not in self.parts:
                order.insert(order.index(before) + 1 if before in order else 0, key)
        chosen_parts = [(source if key in keys else self).parts.get(key, ()) for key in order]
        return [word for part in chosen_parts for word in part]


ENDS = "--good 'PROGRAM WORD ...' --bad 'PROGRAM WORD ...'   # two commands of one framework"


@dataclass(frozen=True)
class Trials:
    """Two backends under one command: the good command, with some parts and variables of the bad one."""

    search: Search
    good: Command
    bad: Command
    keys: Sequence[Key]  # the parts that differ; they are numbered from 0, and the variables follow them
    names: Sequence[str]  # the variables that differ

    def attempt(self, chosen: Container[int], place: Path) -> Judged:
        request, environ = self.search.judge.request, dict(os.environ) | self.good.variables
        for index, name in enumerate(self.names, len(self.keys)):
            if index in chosen:
                environ.pop(name, None)
                environ.update(item for item in self.bad.variables.items() if item[0] == name)
        job = self.good.changed(self.bad, {key for index, key in enumerate(self.keys) if index in chosen})
        words = ["--framework", request.framework]
        return self.search.judge.pair((request.against, request.what), place, words, environ, job=job)


def bisect(search: Search) -> Bisection:
    """Search the differences between the two commands. Raises BadInput where they cannot be read or do not differ."""
    request = search.journal.request
    for backend in (request.what, request.against):
        envs.parse(backend)
    good, bad = Command.read(request.good), Command.read(request.bad)
    parts = [key for key in dict.fromkeys([*good.parts, *bad.parts]) if good.parts.get(key) != bad.parts.get(key)]
    names = sorted(name for name in {*good.variables, *bad.variables}
                   if good.variables.get(name) != bad.variables.get(name))  # fmt: skip
    different = [settings.Difference("words", key[0], _text(good, key), _text(bad, key)) for key in parts]
    different += [
        settings.Difference("variable", name, good.variables.get(name), bad.variables.get(name)) for name in names
    ]
    if not different:
        raise BadInput("the two commands do not differ", fix=ENDS)
    trials = Trials(search, good, bad, parts, names)
    return settings.search_for(search, different, trials.attempt)


def _text(command: Command, key: Key) -> str | None:
    """Return the value of a part without its name, or the whole text where the part has no value."""
    if key not in command.parts:
        return None
    first, *remaining = command.parts[key]
    value = first.partition("=")[2] if first != key[0] else ""
    return shlex.join(filter(None, [value, *remaining])) or first
