"""A job's command line in parts, so that some of them can be exchanged for those of another command."""

from __future__ import annotations

import re
import shlex
from collections.abc import Container
from dataclasses import dataclass
from itertools import pairwise

from harness.errors import BadInput

ENDS = "--good 'PROGRAM WORD ...' --bad 'PROGRAM WORD ...'   # two commands of one framework"
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
