"""Bisection over the settings of a framework's job: find the words that make one of two commands bad."""

from __future__ import annotations

import os
import shlex
from collections.abc import Container, Sequence
from dataclasses import dataclass
from pathlib import Path

from harness import envs
from harness.bisect import settings
from harness.bisect.job_command import ENDS, Command, Key
from harness.bisect.judging import Judged
from harness.bisect.search import Search
from harness.errors import BadInput
from reports.bisect_model import Bisection


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
