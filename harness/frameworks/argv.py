"""Splits a plain command into the variables before it, its launcher, the word that starts the framework, and the
arguments.

A shell script is not opened: its settings are examined when the job has started.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

_SHELL = re.compile(r"(?:^|/)(?:bash|sh|zsh|dash|ksh)$|\.(?:sh|bash|slurm|sbatch)$")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)


@dataclass(frozen=True)
class Start:
    """A command, split.

    `entry`: the word that starts the framework; empty if there is none. `before`: variables, prefixes and launchers.
    `arguments`: the words that the framework gets. `script`: the shell or shell script that runs instead.
    """

    entry: str = ""
    before: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    script: str = ""


def taken_apart(command: Sequence[str], starts: str, environ: Mapping[str, str]) -> Start:
    """Split the command of a framework whose entry matches `starts`, as run in that environment."""
    words = tuple(command)
    for place, word in enumerate(words):
        if _SHELL.search(word):
            script = next(
                (argument for argument in words[place:] if re.search(r"\.\w+$", argument) and _SHELL.search(argument)),
                word,
            )
            return Start("", words, (), _variables(words[:place], environ), script)
        if re.search(starts, " ".join(words[place : place + 2])):
            before, given_words = words[:place], words[place + 1 :]
            return Start(word, before, given_words, _variables(before, environ))
    return Start("", words, (), _variables(words, environ))


def _variables(before: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """The environment that the program gets: `FOO=1 …`, `env FOO=1 …`, `env -u FOO …`, `env -i …`."""
    variables, env, at = dict(environ), False, 0
    while at < len(before):
        word = before[at]
        at += 1
        if made := _ASSIGNMENT.fullmatch(word):
            variables[made[1]] = made[2]
        elif env and word in ("-u", "--unset") and at < len(before):
            variables.pop(before[at], None)
            at += 1
        elif env and (unset_match := re.fullmatch(r"-u(\w+)|--unset=(\w+)", word)):
            variables.pop(unset_match[1] or unset_match[2], None)
        elif env and word in ("-", "-i", "--ignore-environment"):
            variables.clear()
        else:
            env = os.path.basename(word) == "env" or (env and word.startswith("-"))
    return variables


def option(words: Sequence[str], *names: str) -> str:
    """The value of the last of these options, given as `--name value` or `--name=value`; empty if there is none."""
    last_value = ""
    for place, word in enumerate(words):
        name, joined, value = word.partition("=")
        if name in names:
            last_value = value if joined else " ".join(words[place + 1 : place + 2])
    return last_value
