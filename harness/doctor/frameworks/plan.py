"""What a framework's command asks for: its options by name, from its words and from the scripts that it starts.

Nothing is run and nothing of a framework imported. verl takes Hydra's overrides (`a.b=c`), OpenRLHF and `trl` take
`--a.b c`; a script of TRL's is Python, whose calls of a configuration class are read. What only a shell knows, and what
may come from a file that is not read, is told apart from a default: nobody can say what it is.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from harness.doctor.frameworks.script import settings
from harness.frameworks.detection import Job, scripts

_OVERRIDE = re.compile(r"([+~]{0,2})([A-Za-z_][\w@/]*(?:\.[\w@]+)*)=(.*)", re.DOTALL)
_VARIABLE = re.compile(r"[A-Za-z_]\w*=")
_ASSIGNMENT = re.compile(r"([A-Z_][A-Za-z0-9_]*)=(.*)")
_SHELL = re.compile(r"[$`]")  # in a value: it is not a literal
# The words of the command, which are read; an array of the script, whose words are read where it is made.
_ARGUMENTS = re.compile(r"\$[@*]|\$\{[@*](:[^}]*)?\}")
_ARRAY = re.compile(r"\$\{(\w+)\[[@*]\]\}")
_END = re.compile(r"[|&;<]|\d?>|&>")  # of a command's words in a shell script
# The word that starts a framework with the defaults that are known here.
_ENTRIES = {
    "verl": re.compile(r"(?:^|[./])verl[./]trainer[./]main_ppo(?:_v0)?(?:\.py)?$"),
    "openrlhf": re.compile(r"(?:^|[./])openrlhf[./]cli[./]\w+(?:\.py)?$|(?:^|/)train_ppo_ray(?:\.py)?$"),
    "trl": re.compile(r"\.py$|(?:^|/)trl$|^trl\.(?:cli|scripts)\b"),
}
_HYDRA_FILES = re.compile(r"--config-(?:path|dir|name)|-c[pdn]|--experimental-rerun")


@dataclass(frozen=True)
class Option:
    """One option as it was written: `sign` is Hydra's `+`, `++` or `~`, or `--`. An unknown shell variable stays."""

    sign: str
    name: str
    value: str


@dataclass(frozen=True)
class Plan:
    """A job's options (the last of a name holds), keyword arguments of TRL's configuration, environment variables.

    `computed`: keyword arguments that are not literals, as they are written. `unread`: why a setting that is given
    nowhere may still not be its default, a sentence each."""

    job: Job
    options: tuple[Option, ...] = ()
    keywords: Mapping[str, object] = field(default_factory=dict)
    variables: Mapping[str, str] = field(default_factory=dict)
    words: tuple[str, ...] = ()
    computed: Mapping[str, str] = field(default_factory=dict)
    unread: tuple[str, ...] = ()

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

    def untold(self, *names: str) -> str:
        """Why one of these settings cannot be told; empty where each is a literal, or its default."""
        for name in names:
            short = name.removeprefix("actor_rollout_ref.")
            whole = next((one.name for one in self.options if name.startswith(f"{one.name}.")), "")
            if whole:
                return f"{whole} is given as a whole, which is not taken apart"
            if name in self.computed:
                return f"{short} is {self.computed[name]}, which only the script knows"
            if self.has(name):
                if _SHELL.search(self.get(name)):
                    return f"{short} is {self.get(name)}, which only the shell knows"
            elif name not in self.keywords and self.unread:
                return self.unread[0]
        return ""


def read(job: Job, command: Sequence[str], environ: Mapping[str, str]) -> Plan:
    """The plan of a command and of the shell and Python files among its words."""
    name = job.adapter.framework
    words, unread = list(command), [*_brought(name, list(command), "")]
    keywords: dict[str, object] = {}
    computed: dict[str, str] = {}
    known: set[str] = set()
    for path, text in scripts(command):
        known.add(path)
        if path.endswith(".py"):
            if name == "trl":
                made = settings(path, text)
                keywords |= made.keywords
                computed |= made.computed
                unread += [made.unread] if made.unread else []
        else:
            words = [*_shell(text), *words]  # what the command itself says comes later and holds
            unread += _unread_lines(name, path, text)
    variables = dict(environ)
    for word in words:
        if found := _ASSIGNMENT.fullmatch(word):
            variables[found[1]] = found[2]
    options = tuple(_dashed(words, name) if name != "verl" else _overrides(words))
    unread += _elsewhere(name, words, options, known)
    return Plan(job, options, keywords, variables, tuple(words), computed, tuple(unread))


def _elsewhere(name: str, words: Sequence[str], options: Sequence[Option], known: set[str]) -> Iterator[str]:
    """Files that settings may come from and that are not read, a sentence each."""
    entries = [word for word in words if _ENTRIES[name].search(word)]
    if not entries:
        yield f"neither the command nor its shell scripts start {name}: what does, and its settings, are not read"
    if name == "verl":
        for place, word in enumerate(words):
            if _HYDRA_FILES.match(word):
                file = word.partition("=")[2] or " ".join(words[place + 1 : place + 2])
                if file.removesuffix(".yaml") == "ppo_trainer":  # verl's own, whose defaults are known
                    continue
                yield f"settings come from {file or word}, which is not read"
        for one in options:
            if "/" in one.name or "@" in one.name or (one.sign == "+" and "." not in one.name and "{" not in one.value):
                yield f"settings come from {one.name}={one.value}, which is not read"
    else:
        yield from (f"settings come from {one.value}, which is not read" for one in options if one.name == "config")
    if name == "trl":
        missing = [word for word in entries if word.endswith(".py") and word not in known]
        yield from (f"settings come from {word}, which is not read" for word in missing)


def _unread_lines(name: str, path: str, text: str) -> Iterator[str]:
    for line in text.replace("\\\n", " ").splitlines():
        try:
            words = shlex.split(line, comments=True)
        except ValueError:
            if any(_ENTRIES[name].search(word) for word in line.split()):
                yield f"the line of {path} that starts {name} has a quote over several lines, which is not read"
            continue
        yield from _brought(name, words, text)


def _brought(name: str, words: Sequence[str], text: str) -> Iterator[str]:
    """Words after a framework's start that only the shell turns into settings; `text`: the script with its arrays."""
    start = next((place for place, word in enumerate(words) if _ENTRIES[name].search(word)), len(words))
    for before, word in zip(words[start:], words[start + 1 :], strict=False):
        if _END.match(word):
            return
        array = _ARRAY.fullmatch(word)
        if _ARGUMENTS.fullmatch(word) or (array and re.search(rf"\b{array[1]}\+?=\(", text)):
            continue
        if name == "verl":
            brings = bool(_SHELL.search(word.partition("=")[0]))
        else:  # a word after `--option` is its value
            brings = bool(array) or (bool(_SHELL.match(word)) and not (before.startswith("--") and "=" not in before))
        if brings:
            yield f"{word} may hold settings, which only the shell knows"


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


def _dashed(words: Sequence[str], framework: str) -> Iterator[Option]:
    place = 0
    while place < len(words):
        word = words[place]
        place += 1
        if not re.match(r"--[A-Za-z]", word):
            continue
        name, _, value = word[2:].partition("=")
        name = name.replace("-", "_") if framework == "trl" else name  # its parser takes both
        following = []
        while "=" not in word and place < len(words) and not re.match(r"--?[A-Za-z]", words[place]):
            if _END.match(words[place]):
                break
            if not (_ARGUMENTS.fullmatch(words[place]) or _ARRAY.fullmatch(words[place])):  # no value, but more options
                following.append(words[place])
            place += 1
        yield Option("--", name, value or " ".join(following))
