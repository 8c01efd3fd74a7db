"""The words that a framework is given: through shells, launchers and submitters, of which nothing is run.

`bash -c "…"` and shell scripts are opened; what stands before the framework's own start belongs to a launcher
(torchrun, accelerate, deepspeed, ray job submit) and is no option of the framework's, and neither are the words of a
script's other commands. What only a shell could say is told, a sentence each.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

ASSIGNMENT = re.compile(r"([A-Z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
SHELL = re.compile(r"[$`]")  # in a value: it is not a literal
_VARIABLE = re.compile(r"[A-Za-z_]\w*=")
# The words of the command, which are read; an array of the script, which is put in where it stands.
ARGUMENTS = re.compile(r"\$[@*]|\$\{[@*](:[^}]*)?\}")
_ARRAY = re.compile(r"\$\{(\w+)\[[@*]\]\}")
_MADE = re.compile(
    r"""^[ \t]*(?:(?:local|declare|readonly)(?:[ ]-\w+)*[ ])?(\w+)\+?=\(((?:[^()'"]|'[^']*'|"[^"]*")*)\)""", re.M
)
_SHELLS = re.compile(r"(?:^|/)(?:bash|sh|zsh|dash|ksh)$")
_COMMAND = re.compile(r"-[a-z]*c")  # of a shell: the next word is a script
_SCRIPT = re.compile(r"\.(sh|bash|slurm|sbatch)$")
# The word that starts a framework with the defaults that are known here.
ENTRIES = {
    "verl": re.compile(r"(?:^|[./])verl[./]trainer[./]main_ppo(?:_v0)?(?:\.py)?$"),
    "openrlhf": re.compile(r"(?:^|[./])openrlhf[./]cli[./]\w+(?:\.py)?$|(?:^|/)train_ppo_ray(?:\.py)?$"),
    "trl": re.compile(r"\.py$|(?:^|/)trl$|^trl\.(?:cli|scripts)\b"),
}


@dataclass
class Start:
    """One start of the framework: the word that does it, the words before it and those after it."""

    entry: str
    before: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)


@dataclass
class Words:
    """`starts` in the order in which they stand, the command's own words at the end of the last one's.

    `variables`: what is assigned before a command or exported. `unread`: what may hold settings, a sentence each.
    """

    starts: list[Start] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)
    unread: list[str] = field(default_factory=list)

    @property
    def given(self) -> list[str]:
        return [word for start in self.starts for word in start.after]

    @property
    def before(self) -> list[str]:
        return [word for start in self.starts for word in start.before]

    @property
    def all(self) -> list[str]:
        return [word for start in self.starts for word in (*start.before, start.entry, *start.after) if word]


def read(name: str, command: Sequence[str], texts: Mapping[str, str]) -> Words:
    """The words of a command. `texts`: the shell scripts among them that could be read, by their word."""
    found = Words()
    own = _simple(name, list(command), found, own=True)
    if own is not None:
        found.starts.append(own)
        return found
    for path, text in texts.items():
        if not path.endswith(".py"):
            _text(name, path, text, found)
    rest = _after_script(list(command), texts)
    found.unread += _brought(name, rest)
    if found.starts:
        found.starts[-1].after += rest
    else:
        found.starts.append(Start("", [], rest))
    return found


def _after_script(command: list[str], texts: Mapping[str, str]) -> list[str]:
    """What a script is called with: all words, where none is known to be one."""
    for place, word in enumerate(command):
        if word in texts and _SCRIPT.search(word):
            return command[place + 1 :]
        if place and _COMMAND.fullmatch(word) and _SHELLS.search(command[place - 1]):
            return command[place + 3 :]  # after the script's text comes its name
    return command


def _text(name: str, path: str, text: str, found: Words) -> None:
    """Add what a shell script starts and assigns."""
    arrays: dict[str, list[str]] = {}

    def keep(made: re.Match[str]) -> str:
        try:
            words = shlex.split(made[2], comments=True)
        except ValueError:  # it stays unknown, and is told where it is used
            return ""
        arrays.setdefault(made[1], []).extend(words)
        return ""

    text = _MADE.sub(keep, text)
    for line in text.replace("\\\n", " ").split("\n"):
        try:
            simples = commands(line)
        except ValueError:
            if any(ENTRIES[name].search(word) for word in line.split()):
                found.unread.append(f"the line of {path} that starts {name} has a quote over several lines, "
                                    "which is not read")  # fmt: skip
            continue
        for simple in simples:
            opened: list[str] = []
            for word in simple:
                array = _ARRAY.fullmatch(word)
                opened += arrays[array[1]] if array and array[1] in arrays else [word]
            start = _simple(name, opened, found)
            if start is not None:
                found.starts.append(start)


def commands(line: str) -> list[list[str]]:
    """The simple commands of one line of a shell's, as words without quotes, redirections and comments. Unlike shlex it
    tells an operator from a quoted word of the same letters. Raises ValueError for a quote that does not end."""
    found: list[list[str]] = [[]]
    word: str | None = None
    target = False  # the word to come is a redirection's
    place = 0

    def end() -> None:
        nonlocal word, target
        if word is not None:
            if not target:
                found[-1].append(word)
            word, target = None, False

    while place < len(line):
        one = line[place]
        place += 1
        if one in " \t":
            end()
        elif one == "#" and word is None:
            break
        elif one == "'" or one == '"':
            part, place = _quoted(line, place, one)
            word = (word or "") + part
        elif inner := _substitution(line, place - 1):
            word, place = (word or "") + inner, place - 1 + len(inner)
        elif one == "\\" and place < len(line):
            word, place = (word or "") + line[place], place + 1
        elif one in "<>" or (one == "&" and line[place : place + 1] == ">"):
            if word is not None and not word.isdigit():  # digits are the file's number
                end()
            word, target = None, True
            rest = re.match(r"[<>&|-]*", line[place:])
            place += len(rest[0]) if rest else 0
        elif one in ";|&":
            end()
            target = False
            found.append([])
        else:
            word = (word or "") + one
    end()
    return [one for one in found if one]


def _quoted(line: str, place: int, quote: str) -> tuple[str, int]:
    """(text, the place behind it) of what a quote opens."""
    part = ""
    while place < len(line):
        one = line[place]
        place += 1
        if one == quote:
            return part, place
        if quote == '"' and (inner := _substitution(line, place - 1)):
            part, place = part + inner, place - 1 + len(inner)
            continue
        if one == "\\" and quote == '"' and line[place : place + 1] in ('"', "\\", "$", "`"):
            one, place = line[place], place + 1
        part += one
    raise ValueError("a quote does not end")


def _substitution(line: str, place: int) -> str:
    """`$(…)`, `${…}` or backticks that begin at that place, as they are written; empty where none does."""
    if line[place] == "`":
        end = line.find("`", place + 1)
        return line[place : end + 1] if end > 0 else ""
    pair = {"$(": ")", "${": "}"}.get(line[place : place + 2])
    if pair is None:
        return ""
    depth, at = 0, place + 1
    while at < len(line):
        if line[at] in "'\"" and pair == ")":
            _, at = _quoted(line, at + 1, line[at])
            continue
        depth += (line[at] == line[place + 1]) - (line[at] == pair)
        at += 1
        if not depth:
            return line[place:at]
    raise ValueError("a substitution does not end")


def _simple(name: str, words: list[str], found: Words, *, own: bool = False) -> Start | None:
    """One simple command: its variables are noted, a shell's text is opened, a start of the framework returned."""
    words = [word for word in words if word not in ("export", "exec", "\\")] if not own else words
    while words and _VARIABLE.match(words[0]) and (not own or ASSIGNMENT.fullmatch(words[0])):
        if assigned := ASSIGNMENT.fullmatch(words[0]):
            found.variables[assigned[1]] = assigned[2]
        words = words[1:]
    place = next((place for place, word in enumerate(words) if ENTRIES[name].search(word)), None)
    for word in words if place is None or own else words[:place]:
        if assigned := ASSIGNMENT.fullmatch(word):  # of env, or of export's further names
            found.variables[assigned[1]] = assigned[2]
    for at, word in enumerate(words[:-1]):
        inner = at and _COMMAND.fullmatch(word) and _SHELLS.search(words[at - 1])
        if inner and (place is None or at < place or place == at + 1):
            _text(name, f"{os.path.basename(words[at - 1])} {word}", words[at + 1], found)
            return None
    if place is None:
        return None
    after = words[place + 1 :]
    found.unread += _brought(name, after)
    return Start(words[place], words[:place], after)


def _brought(name: str, words: Sequence[str]) -> Iterator[str]:
    """Words of the framework's that only the shell turns into settings."""
    for before, word in zip(["", *words], words, strict=False):
        array = _ARRAY.fullmatch(word)
        if ARGUMENTS.fullmatch(word):
            continue
        if name == "verl":
            brings = bool(SHELL.search(word.partition("=")[0]))
        else:  # a word after `--option` is its value
            brings = bool(array) or (bool(SHELL.match(word)) and not (before.startswith("--") and "=" not in before))
        if brings:
            yield f"{word} may hold settings, which only the shell knows"
