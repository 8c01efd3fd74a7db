"""Options of a command, and whether the parser of the installed version accepts them."""

from __future__ import annotations

import difflib
import re
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from harness.doctor.outcome import Outcome, Problem, Unseen
from harness.frameworks.installed import Installation
from harness.frameworks.settings import SHELL, parsed
from reports.text import first_of

_DASHED = re.compile(r"--?[A-Za-z]")  # other words are values, such as negative numbers
_SHOWN = 4  # names that one sentence shows
_ENDS = "its parser ends the job before it starts"
_FIX = "take it out, or write it as this version does"
# Program text that describes a parser: option -> (how many words follow, its default).
DESCRIBE = """
def described(parser):
    import json
    found = {}
    for action in parser._actions:
        values = "1" if action.nargs is None else str(action.nargs) if action.nargs in (0, "?", "+", "*") else ""
        try:
            default = json.loads(json.dumps(action.default)) if action.default != "==SUPPRESS==" else None
        except (TypeError, ValueError):
            default = None
        found |= {one[2:]: [values, default] for one in action.option_strings if one[:2] == "--"}
    return found
"""


@dataclass(frozen=True)
class Option:
    """One option in argparse's form. `bare`: it has no value; an empty one in quotes is a value."""

    name: str
    value: str
    bare: bool = False

    @property
    def spelled(self) -> object:
        """The value that it spells; True for a switch without a value."""
        return True if self.bare else parsed(self.value)


@dataclass(frozen=True)
class Parser:
    """What a parser accepts.

    `names`: option -> how many words follow (argparse's nargs: 0, 1, ?, + or *; empty if not known). `defaults`: option
    -> its default. `unknown`: why it may accept more options; empty if it accepts no others.
    """

    where: str = ""
    names: Mapping[str, str] = field(default_factory=dict)
    defaults: Mapping[str, object] = field(default_factory=dict)
    unknown: str = ""

    @classmethod
    def of(cls, where: str, described: Mapping[str, tuple[str, object]], *, hyphens: bool = False) -> Parser:
        """Make it from the answer of `DESCRIBE`. `hyphens`: treat hyphens as underscores."""
        plain = {name.replace("-", "_") if hyphens else name: description for name, description in described.items()}
        return cls(
            where,
            {name: description[0] for name, description in plain.items()},
            {name: description[1] for name, description in plain.items()},
        )


def dashed(words: Sequence[str], *, hyphens: bool = False) -> Iterator[Option]:
    """Yield the options `--name value` among words. `hyphens`: treat them as underscores, as Transformers' parser
    does."""
    rest = deque(words)
    while rest:
        word = rest.popleft()
        if not re.match(r"--[A-Za-z]", word):
            continue
        name, joined, value = word[2:].partition("=")
        following: list[str] = []
        while rest and not joined and not _DASHED.match(rest[0]):
            following.append(rest.popleft())
        name = name.replace("-", "_") if hyphens else name
        yield Option(name, value or " ".join(following), bare=not joined and not following)


def from_shell(words: Sequence[str]) -> str:
    """A sentence about the first word that may contain options known only to the shell; empty without one."""
    for before, word in zip(["", *words], words, strict=False):
        if SHELL.match(word) and not (before.startswith("--") and "=" not in before):
            return f"{word} may hold settings, which only the shell knows"
    return ""


def values(options: Iterable[Option]) -> tuple[dict[str, object], dict[str, str]]:
    """(name -> value, name -> why its value is known only to the shell). The last option of a name counts."""
    known_values: dict[str, object] = {}
    unknown: dict[str, str] = {}
    for option in options:
        known_values.pop(option.name, None)
        unknown.pop(option.name, None)
        if SHELL.search(option.value):
            unknown[option.name] = f"{option.name} is {option.value}, which only the shell knows"
        else:
            known_values[option.name] = option.spelled
    return known_values, unknown


def against(options: Iterable[Option], parser: Parser, version: str) -> Iterator[Outcome]:
    """Report the options that the parser refuses, and those whose form cannot be judged."""
    for option in options:
        if option.name == "help":
            continue
        meant = [name for name in parser.names if name.startswith(option.name)]  # argparse accepts prefixes
        if option.name in parser.names:
            outcome = _form(option, parser.names[option.name], version)
        elif len(meant) == 1:
            outcome = _form(option, parser.names[meant[0]], version)
        elif parser.unknown:
            outcome = Unseen(f"whether {parser.where} takes --{option.name} is not known: {parser.unknown}")
        else:
            near = f": it may be {first_of(meant, _SHOWN)}" if meant else nearest(option.name, parser.names)
            outcome = refused(version, f"--{option.name}", f"{parser.where} has no such option{near}", _ENDS)
        if outcome is not None:
            yield outcome


@dataclass(frozen=True)
class UnknownOption:
    """An option that a parser does not have. `mended`: the arguments without it, or with the name that is near."""

    what: str
    mended: tuple[str, ...]


def first_unknown(arguments: Sequence[str], parser: Parser, version: str) -> UnknownOption | None:
    """The first option that the parser cannot mean; None where it has all of them."""
    for place, word in enumerate(arguments):
        for option in dashed([word], hyphens=True):
            if option.name == "help" or any(name.startswith(option.name) for name in parser.names):
                continue
            near = near_name(option.name, parser.names)
            what = f"{version} has no option --{option.name}{f'; perhaps --{near}' if near else ''}"
            end = place + 1
            while "=" not in word and end < len(arguments) and not _DASHED.match(arguments[end]):
                end += 1
            renamed = (re.sub(r"^--[^=]+", f"--{near}", word), *arguments[place + 1 : end]) if near else ()
            return UnknownOption(what, (*arguments[:place], *renamed, *arguments[end:]))
    return None


def _form(option: Option, words: str, version: str) -> Outcome | None:
    """What is wrong with an option's value; None if nothing is. `words`: how many follow it, as in `Parser.names`."""
    if SHELL.search(option.value):
        unclear = words == "0" and not option.bare
        what = f"--{option.name} takes no value, and {option.value} may be one or more options"
        return Unseen(what) if unclear else None
    if words == "0" and not option.bare:
        what = f"it takes no value: --{option.name} alone switches, and {option.value!r} is refused"
    elif words in ("1", "+") and option.bare:
        what = "a value has to stand behind it"
    else:
        return None
    return Problem("error", f"{version} does not take --{option.name}", what, _ENDS, _FIX)


def refused(version: str, option_text: str, what: str, why: str) -> Problem:
    """The Problem for an option, argument or key that the installed version does not know."""
    return Problem("error", f"{version} does not know {option_text}", what, why, _FIX)


def called(name: str, installed: Installation | None) -> str:
    """The name and version of a framework, for the beginning of a sentence."""
    return f"{name} {installed.version if installed else ''}".strip()


def nearest(name: str, names: Iterable[str]) -> str:
    """ "; perhaps X" with the most similar name; empty if none is similar."""
    near = near_name(name, names)
    return f"; perhaps {near}" if near else ""


def near_name(name: str, names: Iterable[str]) -> str:
    """The most similar name; empty if none is similar."""
    plain = {re.sub(r"[._-]", "", option_name): option_name for option_name in sorted(names)}
    matches = difflib.get_close_matches(re.sub(r"[._-]", "", name), plain, n=1, cutoff=0.6)
    return plain[matches[0]] if matches else ""
