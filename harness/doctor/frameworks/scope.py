"""What a shell script has assigned where one of its commands stands: arrays and exported variables, and which of them
are another branch's."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from harness.doctor.frameworks.shell import Place, Simple, relation

ASSIGNMENT = re.compile(r"([A-Z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
VARIABLE = re.compile(r"([A-Za-z_]\w*)(\[.+?\])?\+?=")  # of an element of an array, too
ARRAY = re.compile(r"\$\{(\w+)\[[@*]\]\}")
_DECLARES = frozenset({"export", "declare", "typeset", "readonly", "local"})
_READS = frozenset({"mapfile", "readarray", "read"})
_OPENS = frozenset({"source", ".", "eval"})  # what is assigned there is not read
Path = tuple[Place, ...]


@dataclass
class Scope:
    """`exported`: names that the environment has already, an assignment to which reaches every program."""

    exported: Collection[str] = ()
    outer: Mapping[str, str | None] = field(default_factory=dict)
    arrays: dict[str, list[tuple[Path, bool, list[str]]]] = field(default_factory=dict)
    changes: list[tuple[Path, str, str | None]] = field(default_factory=list)  # of variables; None: unset
    plain: dict[str, tuple[Path, str]] = field(default_factory=dict)  # not exported
    elsewhere: list[Path] = field(default_factory=list)  # where another file or text is read

    def take(self, simple: Simple) -> None:
        """Note what a command assigns for those that come after it."""
        for array in simple.arrays:
            own = ARRAY.fullmatch(array.words[0]) if array.words else None
            more = array.more or (own is not None and own[1] == array.name)
            words = array.words[1:] if more and not array.more else array.words
            for place in self.elsewhere if more and array.name not in self.arrays else ():
                self._hide(array.name, place)
            self.arrays.setdefault(array.name, []).append((simple.path, more, words))
        for name in re.findall(r"(\w+)\+?=\(", simple.broken):
            self._hide(name, simple.path)
        head = simple.words[0] if simple.words else ""
        if head in _OPENS:
            self.elsewhere.append(simple.path)
        elif head == "unset" and "-f" not in simple.words:
            for name, element in re.findall(r"^(\w+)(\[)?", "\n".join(simple.words[1:]), re.MULTILINE):
                if element:
                    self._hide(name, simple.path)
                elif name in self.arrays:
                    self.arrays[name].append((simple.path, False, []))
            self.changes += [(simple.path, name, None) for name in simple.words[1:] if name.isidentifier()]
        elif head in _READS:
            for name in simple.words[1:]:
                self._hide(name, simple.path)
        elif head in _DECLARES:
            shown = head == "export" or any(re.match(r"-\w*x", word) for word in simple.words)
            for word in simple.words[1:]:
                self._assign(word, simple.path, exported=shown)
        elif simple.words and all(map(VARIABLE.match, simple.words)):
            for word in simple.words:
                self._assign(word, simple.path, exported=False)

    def _hide(self, name: str, path: Path) -> None:
        """What an array holds is not known from there on: it holds itself, which is left as it is written."""
        self.arrays.setdefault(name, []).append((path, False, [f"${{{name}[@]}}"]))

    def _assign(self, word: str, path: Path, *, exported: bool) -> None:
        given = VARIABLE.match(word)
        if given and (given[2] or given[1] in self.arrays):  # one element; without an index the first
            self._hide(given[1], path)
        made = ASSIGNMENT.fullmatch(word)
        if made is None:
            if exported and word in self.plain:
                there, value = self.plain[word]
                self.changes.append((path, word, value if relation(there, path) == "sure" else f"${word}"))
            return
        name, value = made[1], made[2]
        if exported or name in self.exported or any(one == name for _, one, _ in self.changes):
            self.changes.append((path, name, value))
        else:
            self.plain[name] = (path, value)

    def variables(self, path: Path) -> dict[str, str | None]:
        """Exported variables there, None for one that was unset; `$NAME` for one that depends on a branch."""
        found = dict(self.outer)
        for made, name, value in self.changes:
            holds = relation(made, path)
            if holds == "sure":
                found[name] = value
            elif holds == "maybe" and found.get(name, ...) != value:
                found[name] = f"${name}"
        return found

    def opened(self, words: Sequence[str], path: Path, within: tuple[str, ...] = ()) -> tuple[list[str], list[str]]:
        """(words with the arrays among them put in, those that may be there, as a branch may not be taken). An array
        that is not known stays as it is written."""
        sure: list[str] = []
        maybe: list[str] = []
        for word in words:
            array = ARRAY.fullmatch(word)
            made = [(more, held, relation(there, path)) for there, more, held in self.arrays.get(array[1], ())
                    ] if array and array[1] not in within else []  # fmt: skip
            made = [one for one in made if one[2] != "never"]
            if array is None or not made:
                sure.append(word)
                continue
            own: list[str] = []
            perhaps: list[str] = []
            for more, held, holds in made:
                if holds == "sure":
                    own, perhaps = (own + held, perhaps) if more else (list(held), [])
                else:
                    own, perhaps = (own, perhaps + held) if more else ([], [*own, *perhaps, *held])
            first, second = self.opened(own, path, (*within, array[1]))
            third, fourth = self.opened(perhaps, path, (*within, array[1]))
            sure += first
            maybe += [*second, *third, *fourth]
        return sure, maybe
