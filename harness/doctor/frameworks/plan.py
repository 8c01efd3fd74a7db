"""What a framework's command asks for: its options by name, from its words and from the scripts that it starts.

Nothing is run and nothing of a framework imported. verl takes Hydra's overrides (`a.b=c`), OpenRLHF and `trl` take
`--a.b c`; a script of TRL's is Python, whose calls of a configuration class are read.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from harness.frameworks.detection import Job, scripts

_OVERRIDE = re.compile(r"([+~]{0,2})([A-Za-z_][\w@/]*(?:\.[\w@]+)*)=(.*)", re.DOTALL)
_VARIABLE = re.compile(r"[A-Za-z_]\w*=")
_ASSIGNMENT = re.compile(r"([A-Z_][A-Za-z0-9_]*)=(.*)")


@dataclass(frozen=True)
class Option:
    """One option as it was written: `sign` is Hydra's `+`, `++` or `~`, or `--`. An unknown shell variable stays."""

    sign: str
    name: str
    value: str


@dataclass(frozen=True)
class Plan:
    """A job's options (the last of a name holds), keyword arguments of TRL's configuration, environment variables."""

    job: Job
    options: tuple[Option, ...] = ()
    keywords: Mapping[str, object] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    words: tuple[str, ...] = ()

    def get(self, name: str, default: str = "") -> str:
        """The value of an option; empty lists and quotes as written, `default` where it is not given."""
        return next((one.value for one in reversed(self.options) if one.name == name), default)

    def has(self, name: str) -> bool:
        return any(one.name == name and one.sign != "~" for one in self.options)

    def number(self, name: str, default: int) -> int | None:
        """An option as a whole number; None where it cannot be told, as from a shell variable."""
        text = self.get(name, str(default))
        return int(text) if re.fullmatch(r"-?\d+", text) else None

    def on(self, name: str) -> bool:
        """Is a switch on? A bare `--switch` counts as on."""
        return self.has(name) and self.get(name).lower() in ("", "true", "1", "yes", "on")


def read(job: Job, command: Sequence[str], environ: Mapping[str, str]) -> Plan:
    """The plan of a command and of the shell and Python files among its words."""
    words = list(command)
    keywords: dict[str, object] = {}
    for path, text in scripts(command):
        if path.endswith(".py"):
            keywords |= _keywords(text)
        else:
            words = [*_shell(text), *words]  # what the command itself says comes later and holds
    variables = dict(environ)
    for word in words:
        if found := _ASSIGNMENT.fullmatch(word):
            variables[found[1]] = found[2]
    options = tuple(_dashed(words) if job.adapter.framework != "verl" else _overrides(words))
    return Plan(job, options, keywords, variables, tuple(words))


def _shell(text: str) -> list[str]:
    """The words of a shell script, its continued lines joined; a line that cannot be split is left out."""
    found = []
    for line in text.replace("\\\n", " ").splitlines():
        try:
            words = shlex.split(line, comments=True)
        except ValueError:  # a quote that spans lines, as in a here document
            continue
        words = words[1:] if words[:1] == ["export"] else words
        while words and _VARIABLE.match(words[0]):  # the script's own, before a command or alone: no override
            found += [words[0]] if _ASSIGNMENT.fullmatch(words[0]) else []
            words = words[1:]
        found += words
    return [word.rstrip(";") for word in found if word not in ("export", "exec", "\\")]


def _overrides(words: Sequence[str]) -> Iterator[Option]:
    for word in words:
        found = _OVERRIDE.fullmatch(word)
        if found and not _ASSIGNMENT.fullmatch(word) and not word.startswith("-"):
            yield Option(found[1], found[2], found[3].strip("'\""))


def _dashed(words: Sequence[str]) -> Iterator[Option]:
    place = 0
    while place < len(words):
        word = words[place]
        place += 1
        if not re.match(r"--[A-Za-z]", word):
            continue
        name, _, value = word[2:].partition("=")
        following = []
        while "=" not in word and place < len(words) and not re.match(r"--?[A-Za-z]", words[place]):
            following.append(words[place])
            place += 1
        yield Option("--", name, value or " ".join(following))


def _keywords(text: str) -> dict[str, object]:
    """Keyword arguments of every call of a class named …Config, where they are literals."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):  # another Python's: the job will say so itself
        return {}
    found: dict[str, object] = {}
    for node in ast.walk(tree):
        called = node.func if isinstance(node, ast.Call) else None
        name = getattr(called, "id", None) or getattr(called, "attr", "")
        if isinstance(node, ast.Call) and str(name).endswith("Config"):
            for keyword in node.keywords:
                try:
                    value = ast.literal_eval(keyword.value)
                except (ValueError, TypeError):  # computed, not written
                    continue
                if keyword.arg:
                    found[keyword.arg] = value
    return found
