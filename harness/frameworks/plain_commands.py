"""Compares two commands of no known framework by their words: `python train.py --batch 32` with the same of 64.

What an option means to a program of the user's is not known here, so no difference is called harmless or fatal, and
what the program reads beside its command line is reported as not compared.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from harness.frameworks.argv import taken_apart
from harness.frameworks.wrapping import Wrapped, changed_variables
from probes import redaction

_PROGRAM = r"^(?!-|[A-Za-z_]\w*=|(?:\S*/)?env(?:\s|$))"  # the first word that sets no variable
_OPTION = re.compile(r"(--?[A-Za-z][\w.-]*)(?:=(.*))?", re.DOTALL)
_SETTING = re.compile(r"([+~]{0,2}[A-Za-z_][\w.@/-]*)=(.*)", re.DOTALL)  # `lr=1e-5`, as Hydra has it
SHOWN = 60  # characters of a value that a sentence shows


@dataclass(frozen=True)
class PlainCommand:
    """A command, split into its words. `program`: the words before the first option. `options`: name -> values, in the
    spelling of Python's variables; no value for a switch. `variables`: those that the command sets itself."""

    name: Literal["A", "B"]
    program: tuple[str, ...]
    options: dict[str, tuple[str, ...]]
    variables: dict[str, str]

    def stated(self, name: str) -> str:
        """An option with its values, in words: "A: --batch 32"."""
        if name not in self.options:
            return f"{self.name}: no {name}"
        values = " ".join(self.options[name])
        return f"{self.name}: {name} {_shown(name, values)}".rstrip()


def split(name: Literal["A", "B"], wrapped: Wrapped) -> PlainCommand:
    """Split a command without what is around it. A word after an option is its value unless it is an option itself."""
    start = taken_apart(wrapped.command, _PROGRAM, wrapped.environ)
    words = (start.entry, *start.arguments) if start.entry else wrapped.command  # those of a shell are not split
    program_words: list[str] = []
    options: dict[str, list[str]] = {}
    option_name = ""
    for word in words:
        if option := _OPTION.fullmatch(word) or _SETTING.fullmatch(word):
            option_name = option[1].lstrip("-+~").replace("-", "_")
            options.setdefault(option_name, []).extend([option[2]] if option[2] is not None else [])
        elif option_name:
            options[option_name].append(word)
        else:
            program_words.append(word)
    return PlainCommand(
        name,
        program=tuple(program_words),
        options={key: tuple(values) for key, values in options.items()},
        variables=changed_variables(wrapped, start.variables),
    )


def differences(command_a: PlainCommand, command_b: PlainCommand) -> dict[str, tuple[str, str]]:
    """What differs between the words of two commands: its name, and what each of them says of it."""
    unequal: dict[str, tuple[str, str]] = {}
    if command_a.program != command_b.program:
        unequal["the program"] = (_program(command_a), _program(command_b))
    for name in sorted({*command_a.options, *command_b.options}):
        if not _is_equal(command_a.options.get(name), command_b.options.get(name)):
            unequal[name] = (command_a.stated(name), command_b.stated(name))
    return unequal


def _program(command: PlainCommand) -> str:
    return f"{command.name}: {_shown('', ' '.join(command.program))}"


def _is_equal(values_a: Sequence[str] | None, values_b: Sequence[str] | None) -> bool:
    """Whether an option has the same values in both, numbers however they are written."""
    if values_a is None or values_b is None:
        return False
    return list(map(number, values_a)) == list(map(number, values_b))


def number(value: str) -> str | float:
    """A word as a number, however it is written; as it is if it is none."""
    try:
        return float(value)
    except ValueError:
        return value


def _shown(name: str, value: str) -> str:
    """A value without secrets, as far as a sentence shows it."""
    text = redaction.arguments([f"{name}={value}" if name else value])[0].removeprefix(f"{name}=")
    return text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
