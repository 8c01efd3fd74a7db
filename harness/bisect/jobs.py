"""Over the settings of a framework's job: which words of two commands turn a good comparison into a bad one."""

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
_OVERRIDE = re.compile(r"(?P<key>[+~]{0,2}[\w./@-]+)=.*", re.DOTALL)  # Hydra's, and --name=value

Key = tuple[str, int]  # the name of an option or an override, and how many of that name came before


@dataclass(frozen=True)
class Command:
    """`NAME=VALUE … PROGRAM WORD …`. `parts`: the words from PROGRAM on, in order: an override (`a.b=1`) by itself, an
    option with the values that follow it, and other words."""

    variables: dict[str, str]
    parts: dict[Key, tuple[str, ...]]

    @staticmethod
    def read(text: str) -> Command:
        """Raises BadInput for what a shell could not read, and for no program."""
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
        """The words of this command, with these parts as the other has them. A part that only the other has follows the
        same part that it follows there."""
        order = list(self.parts)
        for before, key in pairwise([None, *source.parts]):
            if key is not None and key in keys and key not in self.parts:
                order.insert(order.index(before) + 1 if before in order else 0, key)
        chosen_parts = [(source if key in keys else self).parts.get(key, ()) for key in order]
        return [word for part in chosen_parts for word in part]


ENDS = "--good 'PROGRAM WORD ...' --bad 'PROGRAM WORD ...'   # two commands of one framework"


@dataclass(frozen=True)
class Trials:
    """Two backends under one command: the good one, with some parts and variables of the bad one."""

    search: Search
    good: Command
    bad: Command
    keys: Sequence[Key]  # the parts that differ; they are numbered from 0, and the variables after them
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
    """Raises BadInput where the commands cannot be read or do not differ."""
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
    """What a part says beside its name; its whole text where there is nothing else."""
    if key not in command.parts:
        return None
    first, *remaining = command.parts[key]
    value = first.partition("=")[2] if first != key[0] else ""
    return shlex.join(filter(None, [value, *remaining])) or first
