"""The user's command line with a change that mends it, so that a fix is a whole command to type.

An error says only the change, as its `fix`: options to set (`--steps 8`), a job's command (`-- python train.py`), or
with `instead` the words that take the place of a wrong one. `amended` applies it to the words that the user typed. What
has to be done before is in front of the change: `mkdir FOLDER && --out FOLDER/run`.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from probes import redaction

COMMENT = "   # "
FIRST = " && "


@dataclass(frozen=True)
class _Part:
    """An option with its value, or a positional argument, as they were typed."""

    words: tuple[str, ...]
    option: Any = None  # the parser's
    value: str = ""

    @property
    def key(self) -> object:
        """What a later option of the same kind overrides: of an option that repeats, only the same KEY=."""
        return (self.option.name, self.value.partition("=")[0]) if self.option.multiple else self.option.name

    def is_named(self, words: str) -> bool:
        """Whether it is this argument or option, or an option with this value, or with this KEY of a value. --no-lifted
        is the option --lifted.
        """
        if self.option is not None and words in (*self.option.opts, *self.option.secondary_opts):
            return True
        key = self.option is not None and self.value.startswith((f"{words}=", f"{words}."))
        typed = (self.words[0], self.words[0].partition("=")[0], self.value)
        return key or Path(words) in map(Path, typed)  # a folder with and without its last slash

    def with_words(self, new_words: Sequence[str], instead: str) -> _Part:
        """The part with other words. An option's name stays where only its value is replaced, and goes with it."""
        replaces = bool(new_words) and not new_words[0].startswith("-")
        of_value = self.option is not None and instead == self.value and replaces
        return _Part((self.words[0].partition("=")[0], *new_words) if of_value else tuple(new_words))


@dataclass(frozen=True)
class _Line:
    """A command line: the command with its groups, its options and arguments, and the job's command behind them."""

    path: tuple[str, ...]
    parts: tuple[_Part, ...]
    job: tuple[str, ...]

    @property
    def words(self) -> list[str]:
        return [*self.path, *(word for part in self.parts for word in part.words), *self.job]


def amended(words: Sequence[str], fix: str, instead: str = "") -> str:
    """Return `harness WORDS` with the change `fix`; a fix that is no change is returned as it is.

    `instead`: the argument, the option or the option's value in `words` whose place the fix's words take; without
    words it is left out.
    """
    return amended_by_all(words, [(fix, instead)])


def amended_by_all(words: Sequence[str], changes: Sequence[tuple[str, str]]) -> str:
    """Return `harness WORDS` with each (fix, instead); a fix that is no change of these words is returned alone."""
    notes: list[str] = []
    before = ""
    for fix, instead in changes:
        change, comment, note = fix.partition(COMMENT)
        # What has to be done before is put in front of the whole command, not in the middle of its words.
        if FIRST in change and change.rpartition(FIRST)[2].startswith("-"):
            first, joined, change = change.rpartition(FIRST)
            before += first + joined
        if not instead and not change.startswith("-"):
            return fix
        try:
            new_words = shlex.split(change)
        except ValueError:
            return fix
        changed_words = _changed(words, new_words, instead)
        if changed_words is None and change.startswith("-"):
            return f"give {change} to the command of a run{comment}{note}"
        if changed_words is None:
            return f"{change} in place of {instead}{comment}{note}" if change else f"leave {instead} out{comment}{note}"
        words = changed_words
        notes += filter(None, [note])
    notes = list(dict.fromkeys(notes))
    return before + shlex.join(["harness", *redaction.arguments(words)]) + (COMMENT + "; ".join(notes) if notes else "")


def _changed(words: Sequence[str], new_words: list[str], instead: str) -> list[str] | None:
    """The words with the change. None if the command does not have the option, or the words not what is replaced."""
    from harness.cli import commands

    command, path, rest = commands(), [], [*words]
    while rest and rest[0] in getattr(command, "commands", ()):
        path.append(rest.pop(0))
        command = command.commands[path[-1]]
    if not path:
        return None
    line = _parsed(command, path, rest)
    if instead == "--":
        return replace(line, parts=_before_a_job(command, line.parts), job=()).words
    if instead and any(part.is_named(instead) for part in line.parts):
        return replace(line, parts=_with_replaced(line.parts, new_words, instead)).words
    # The words to replace were not typed, as those of a default: options are added then.
    change = _parsed(command, [], new_words)
    if new_words and all(part.option is not None for part in change.parts):
        parts = _before_a_job(command, line.parts) if change.job else line.parts
        return replace(line, parts=_with_options(parts, change.parts), job=change.job or line.job).words
    if path == ["bisect"] and line.job:  # behind -- are options of the comparisons
        inner = _changed(["parity", "A", "B", *line.job[1:]], new_words, instead)
        return [*replace(line, job=("--",)).words, *inner[3:]] if inner is not None else None
    return None


def parsed_parts(command: Any, words: Sequence[str]) -> tuple[list[tuple[str, ...]], tuple[str, ...]]:
    """(each option with its value, and each argument, as they were typed; the job's command behind them)."""
    line = _parsed(command, [], words)
    return [part.words for part in line.parts], line.job


def _with_replaced(parts: Sequence[_Part], new_words: list[str], instead: str) -> tuple[_Part, ...]:
    """The parts with these words in place of the first part of that name. An option that is left out goes as often as
    it was typed."""
    if instead.startswith("-") and not new_words:
        return tuple(part for part in parts if not part.is_named(instead))
    place = next(at for at, part in enumerate(parts) if part.is_named(instead))
    return (*parts[:place], parts[place].with_words(new_words, instead), *parts[place + 1 :])


def _parsed(command: Any, path: Sequence[str], words: Sequence[str]) -> _Line:
    """Part the words as the command's parser does, which keeps no places."""
    options = {name: item for item in command.params for name in (*item.opts, *item.secondary_opts)}
    interspersed = command.context_settings.get("allow_interspersed_args", True)
    parts: list[_Part] = []
    at = 0
    while at < len(words):
        word = words[at]
        begins_job = not interspersed and not word.startswith("-")  # watch python train.py
        if word == "--" or begins_job:
            break
        name, equals, value = word.partition("=")
        option = options.get(name) if word.startswith("-") else None
        apart = option is not None and not equals and not option.is_flag and at + 1 < len(words)
        typed = tuple(words[at : at + 1 + apart])
        parts.append(_Part(typed, option, typed[1] if apart else value))
        at += len(typed)
    return _Line(tuple(path), tuple(parts), tuple(words[at:]))


def _before_a_job(command: Any, parts: Sequence[_Part]) -> tuple[_Part, ...]:
    """The parts without the words of a job that was typed without the -- before it."""
    arguments = [item for item in command.params if item.param_type_name == "argument"]
    if not arguments or arguments[-1].nargs != -1:
        return tuple(parts)
    positional = [part for part in parts if part.option is None]
    of_job = positional[len(arguments) - 1 :]
    return tuple(part for part in parts if not any(part is word for word in of_job))


def _with_options(parts: Sequence[_Part], new_parts: Sequence[_Part]) -> tuple[_Part, ...]:
    """The parts with new options at the place of those that they override, or behind all."""
    keys = [part.key for part in new_parts]
    replaced = [at for at, part in enumerate(parts) if part.option is not None and part.key in keys]
    at = replaced[0] if replaced else len(parts)
    kept = [part for number, part in enumerate(parts) if number not in replaced]
    return (*kept[:at], *new_parts, *kept[at:])
