"""The words that a framework is given: through shells, launchers and submitters, of which nothing is run.

`bash -c "…"` and shell scripts are opened; what stands before the framework's own start belongs to a launcher
(torchrun, accelerate, deepspeed, ray job submit) and is no option of the framework's, and neither are the words of a
script's other commands. Several starts stay apart. What only a shell could say is told, a sentence each.
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from harness.doctor.frameworks.scope import ARRAY, ASSIGNMENT, VARIABLE, Scope
from harness.doctor.frameworks.shell import Simple, parsed
from harness.doctor.frameworks.tokens import substitution

SHELL = re.compile(r"[$`]")  # in a value: it is not a literal
# The words of the command, which are read; an array of the script, which is put in where it stands.
ARGUMENTS = re.compile(r"\$[@*]|\$\{[@*](:[^}]*)?\}")
_SHELLS = re.compile(r"(?:^|/)(?:bash|sh|zsh|dash|ksh)$")
_COMMAND = re.compile(r"-[a-z]*c")  # of a shell: the next word is a script
_SCRIPT = re.compile(r"\.(sh|bash|slurm|sbatch)$")
# The word that starts a framework with the defaults that are known here.
ENTRIES = {
    "verl": re.compile(r"(?:^|[./])verl[./]trainer[./]main_ppo(?:_v0)?(?:\.py)?$"),
    "openrlhf": re.compile(r"(?:^|[./])openrlhf[./]cli[./]\w+(?:\.py)?$|(?:^|/)train_ppo_ray(?:\.py)?$"),
    "trl": re.compile(r"\.py$|(?:^|/)trl$|^trl\.(?:cli|scripts)\b"),
}
_OF_TRL = frozenset({"distillation", "dpo", "env", "grpo", "kto", "reward", "rloo", "sft", "skills", "vllm-serve"})
# Words before a command that change nothing of what it starts.
_PREFIXES = frozenset({"env", "exec", "nohup", "time", "nice", "ionice", "stdbuf", "setsid", "timeout", "sudo",
                       "command", "builtin", "\\"})  # fmt: skip
# Programs that start nothing, whatever their words name.
_QUIET = frozenset({
    ".", "[", "[[", "alias", "apt", "apt-get", "awk", "basename", "black", "case", "cat", "cd", "chmod", "chown", "cp",
    "curl", "declare", "diff", "dirname", "du", "echo", "egrep", "export", "false", "find", "for", "git", "grep",
    "head", "kill", "killall", "less", "ln", "local", "logger", "ls", "make", "mkdir", "mv", "notify-send", "pgrep",
    "pip", "pip3", "pkill", "printf", "pushd", "pytest", "read", "readlink", "readonly", "realpath", "rg", "rm",
    "rsync", "ruff", "scp", "sed", "select", "set", "source", "stat", "tail", "tar", "tee", "test", "touch", "trap",
    "true", "type", "typeset", "unset", "wc", "wget", "which",
})  # fmt: skip
_PACKAGES = {"conda": {"run"}, "mamba": {"run"}, "micromamba": {"run"}, "uv": {"run"}, "poetry": {"run"}}
_REMOVES = frozenset({"rm", "find", "unlink"})


@dataclass
class Start:
    """One start of the framework: the word that does it, the words before it and those after it.

    `maybe`: words of a branch that may not be taken. `variables`: what is assigned before it or exported, None where it
    was unset; `bare`: all others are taken away. `unread`: what may hold settings, a sentence each.
    """

    entry: str
    before: list[str] = field(default_factory=list)
    after: list[str] = field(default_factory=list)
    maybe: list[str] = field(default_factory=list)
    variables: dict[str, str | None] = field(default_factory=dict)
    bare: bool = False
    unread: list[str] = field(default_factory=list)

    @property
    def all(self) -> list[str]:
        return [word for word in (*self.before, self.entry, *self.after) if word]


@dataclass
class Words:
    """`starts` in the order in which they stand: one at least, without an entry where none is seen. `removed`: words of
    commands that remove files. `unread`: what may hold settings of any of them."""

    starts: list[Start] = field(default_factory=list)
    removed: list[str] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)


@dataclass
class _Context:
    name: str
    found: Words
    exported: Collection[str]

    def entry(self, word: str) -> bool:
        return bool(ENTRIES[self.name].search(word))

    def mentions(self, text: str) -> bool:
        """Does a text that is not read start the framework, perhaps?"""
        return any(self.entry(word.strip("()\"'`;{}")) for word in text.split())


def read(name: str, command: Sequence[str], texts: Mapping[str, str], exported: Collection[str] = ()) -> Words:
    """The words of a command. `texts`: the shell scripts and Python files among them that could be read, by their word;
    `exported`: the names of the environment's variables."""
    context = _Context(name, Words(), exported)
    found = context.found
    own = Simple(list(command))
    if _open(context, own, Scope(exported), own=True):
        return found
    variables, bare = _assigned(own.words[: _after_script(own.words, texts)[0]])
    for path, text in texts.items():
        if not path.endswith(".py"):
            _text(context, path, text, variables)
    rest = own.words[_after_script(own.words, texts)[1] :]
    if len(found.starts) > 1:
        kept = [one for one in found.starts if not _is_another(one, texts)]
        found.starts = kept or found.starts
    if not found.starts:
        found.starts.append(Start("", [], [], variables=variables))
    several = len(found.starts) > 1
    for start in found.starts:
        start.bare |= bare
        if not several or any(map(ARGUMENTS.fullmatch, (*start.after, *start.maybe))):
            start.unread += _brought(name, rest)
            start.after += rest
    return found


def _is_another(start: Start, texts: Mapping[str, str]) -> bool:
    """Does it start a Python file that says nothing of TRL?"""
    return start.entry in texts and not re.search(r"\btrl\b", texts[start.entry])


def _after_script(command: list[str], texts: Mapping[str, str]) -> tuple[int, int]:
    """(where the shell's text stands, where what it is called with begins): of all words, where none is known."""
    for place, word in enumerate(command):
        if word in texts and _SCRIPT.search(word):
            return place, place + 1
        if place and _COMMAND.fullmatch(word) and _SHELLS.search(command[place - 1]):
            return place, place + 3  # after the script's text comes its name
    return len(command), 0


def _text(context: _Context, path: str, text: str, outer: Mapping[str, str | None]) -> None:
    """Add what a shell script starts and removes."""
    scope = Scope(context.exported, outer)
    simples = parsed(text)
    for simple in simples:
        scope.take(simple)
        if simple.broken:
            if context.mentions(simple.broken):
                context.found.unread.append(f"the line of {path} that starts {context.name} has a quote that does not "
                                            "end, which is not read")  # fmt: skip
            continue
        if any(map(context.mentions, simple.here)) and _head(simple.words)[0] not in _QUIET:
            context.found.unread.append(f"a here-document of {path} may start {context.name}, which is not read")
        if _head(simple.words)[0] in _REMOVES:
            context.found.removed += simple.words
        if context.name != "trl":  # whose starts are all scripts
            for inner in _substituted(simple):
                if context.mentions(inner):
                    _text(context, path, inner, scope.variables(simple.path))
        starts = len(context.found.starts)
        _open(context, simple, scope)
        function = next((str(branch) for kind, _, branch in reversed(simple.path) if kind == "function"), "")
        for start in context.found.starts[starts:] if function and not _passes_on(function, simples) else ():
            used = next(filter(ARGUMENTS.fullmatch, (*start.after, *start.maybe)), "")
            if used:
                start.unread.append(f"{used} is what the function {function} is called with, which is not read")


def _passes_on(function: str, simples: Sequence[Simple]) -> bool:
    """Is the function only called with the script's own words, or with none?"""
    calls = [one.words for one in simples if one.words[:1] == [function]]
    return all(len(words) == 1 or (len(words) == 2 and ARGUMENTS.fullmatch(words[1])) for words in calls)


def _substituted(simple: Simple) -> Iterator[str]:
    """The texts of `$(…)` and backticks in the words."""
    for word in (*simple.words, *(one for array in simple.arrays for one in array.words)):
        place = 0
        while place < len(word):
            try:
                inner = substitution(word, place) if word[place] in "$`" else ""
            except ValueError:  # it was quoted, and is none
                break
            if inner and not inner.startswith("${"):
                yield inner[2:-1] if inner[0] == "$" else inner[1:-1]
            place += len(inner) or 1


def _open(context: _Context, simple: Simple, scope: Scope, *, own: bool = False) -> bool:
    """Add the start of the framework that a simple command is, or those of a shell's text in it; is it one itself?"""
    words, maybe = (simple.words, []) if own else scope.opened(simple.words, simple.path)
    place = _place(context, words)
    variables = scope.variables(simple.path)
    for at, word in enumerate(words[:-1]):
        inner = at and _COMMAND.fullmatch(word) and _SHELLS.search(words[at - 1])
        if inner and (place is None or at < place or place == at + 1):
            outer = {**variables, **_assigned(words[:at])[0]}
            _text(context, f"{os.path.basename(words[at - 1])} {word}", words[at + 1], outer)
            return False
    if place is None:
        return False
    given, bare = _assigned(words[:place])
    after = words[place + 1 :]
    unread = [*_brought(context.name, after), *_brought(context.name, maybe)]
    start = Start(words[place], words[:place], after, maybe, {**variables, **given}, bare, unread)
    context.found.starts.append(start)
    return True


def _head(words: Sequence[str]) -> tuple[str, int]:
    """(the name of the program that a command starts, where it stands), behind assignments and prefixes."""
    at, env = 0, False
    while at < len(words):
        word = words[at]
        if VARIABLE.match(word) or os.path.basename(word) in _PREFIXES:
            env = env or os.path.basename(word) == "env"
            at += 1
        elif at and (word.startswith("-") or re.fullmatch(r"\d+\S*", word)):  # nice -n 5, timeout 60, env -u NAME
            at += 2 if env and word in ("-u", "--unset") else 1
        else:
            return os.path.basename(word), at
    return "", len(words)


def _assigned(before: Sequence[str]) -> tuple[dict[str, str | None], bool]:
    """(variables that are given before a program, or taken away (None); are all others taken away?)."""
    found: dict[str, str | None] = {}
    bare = env = False
    at = 0
    while at < len(before):
        word = before[at]
        at += 1
        if made := ASSIGNMENT.fullmatch(word):
            found[made[1]] = made[2]
        elif env and word in ("-u", "--unset") and at < len(before):
            found[before[at]] = None
            at += 1
        elif env and (taken := re.fullmatch(r"-u(\w+)|--unset=(\w+)", word)):
            found[taken[1] or taken[2]] = None
        elif env and word in ("-", "-i", "--ignore-environment"):
            bare = True
        else:
            env = os.path.basename(word) == "env" or (env and word.startswith("-"))
    return found, bare


def _place(context: _Context, words: Sequence[str]) -> int | None:
    """Where the word that starts the framework stands."""
    head, first = _head(words)
    packages = _PACKAGES.get(head)
    if head in _QUIET or "pip" in words[first : first + 4] or (packages and not packages & set(words[first:])):
        return None
    for place in range(first, len(words)):
        if not context.entry(words[place]):
            continue
        bare = context.name == "trl" and os.path.basename(words[place]) == "trl"
        if not bare or place == first or (words[place + 1 : place + 2] and words[place + 1] in _OF_TRL):
            return place
    return None


def _brought(name: str, words: Sequence[str]) -> Iterator[str]:
    """Words of the framework's that only the shell turns into settings."""
    for before, word in zip(["", *words], words, strict=False):
        array = ARRAY.fullmatch(word)
        if ARGUMENTS.fullmatch(word):
            continue
        if name == "verl":
            brings = bool(SHELL.search(word.partition("=")[0]))
        else:  # a word after `--option` is its value
            brings = bool(array) or (bool(SHELL.match(word)) and not (before.startswith("--") and "=" not in before))
        if brings:
            yield f"{word} may hold settings, which only the shell knows"
