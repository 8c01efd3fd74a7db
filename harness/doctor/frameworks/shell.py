"""A shell's text as its simple commands, in their order: read, never run.

Kept are words without quotes, arrays that are assigned, here-documents, and the branches, loops, functions and
subshells that a command stands in. Redirections and comments are left out. What does not end is one `broken` command.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from harness.doctor.frameworks.tokens import Array, Token, tokens

_BEFORE_A_COMMAND = frozenset({"then", "do", "else", "elif", "if", "while", "until", "!", "time", "coproc"})
_LOOPS = frozenset({"for", "while", "until", "select"})
_ENDS = {"fi": "if", "done": "loop", "esac": "case", "}": "{"}

# (kind, number, branch): `if`, `case`, `list` (of && and ||), `loop`, `function` (whose branch is its name) or `(`.
Place = tuple[str, int, int | str]


@dataclass
class Simple:
    """One simple command. `path`: the branches around it, the outermost first; `here`: its here-documents; `broken`:
    the text of one that could not be read, empty for all others."""

    words: list[str] = field(default_factory=list)
    arrays: list[Array] = field(default_factory=list)
    here: list[str] = field(default_factory=list)
    path: tuple[Place, ...] = ()
    broken: str = ""


def relation(made: tuple[Place, ...], used: tuple[Place, ...]) -> str:
    """Whether what is assigned at one place holds at a later one: `sure`, `maybe`, or `never` (it is another branch's,
    or stays in its subshell)."""
    common = next((at for at, (one, other) in enumerate(zip(made, used, strict=False)) if one != other),
                  min(len(made), len(used)))  # fmt: skip
    rest = made[common:]
    if not rest:
        return "sure"
    other_branch = len(used) > common and rest[0][:2] == used[common][:2] and rest[0][0] != "list"
    return "never" if other_branch or any(kind == "(" for kind, _, _ in rest) else "maybe"


@dataclass
class _Level:
    """What the commands between a compound command's beginning and its end stand in."""

    kind: str = ""
    place: Place | None = None
    listed: Place | None = None  # within a list of && and ||
    patterns: bool = False  # of case: words up to `)` are none of a command
    dead: bool = False  # behind `if false`


def parsed(text: str) -> list[Simple]:
    """The simple commands of a text."""
    reader = _Reader()
    for token in tokens(text):
        reader.take(token)
    reader.end()
    return reader.found


def commands(text: str) -> list[list[str]]:
    """The words of each command of a text, in which nothing is taken for a reserved word. Raises ValueError for a quote
    or a substitution that does not end."""
    found: list[list[str]] = [[]]
    for token in tokens(text):
        if token.kind == "broken":
            raise ValueError("a quote or a substitution does not end")
        if token.kind == "word":
            found[-1].append(token.text)
        elif token.kind == "operator":
            found.append([])
    return [one for one in found if one]


class _Reader:
    def __init__(self) -> None:
        self.found: list[Simple] = []
        self.now = Simple()
        self.levels = [_Level()]
        self.made = 0  # places
        self.negated = False  # the command is behind `!`
        self.function = ""  # the name of one whose body comes
        self.false: Simple | None = None  # the last command, where it is `false` alone
        self.last = "\n"  # operator

    def take(self, token: Token) -> None:
        if token.kind == "broken":
            self.now = Simple()
            self.found.append(Simple(path=self._path(), broken=token.text))
        elif token.kind == "here":
            self.now.here.append(token.text)
        elif token.kind == "array":
            assert token.array is not None
            self.now.arrays.append(token.array)
        elif token.kind == "operator":
            self._operator(token.text)
        elif self.levels[-1].patterns:
            if token.text == "esac" and not token.quoted:
                self._leave("case")
        elif self.now.words or self.now.arrays or token.quoted or not self._reserved(token.text):
            if self.now.words[:1] == ["function"] and len(self.now.words) == 2 and token.text == "{":
                self.function, self.now = self.now.words[1], Simple()
                self._enter("{", "function")
                return
            self.now.words.append(token.text)
            if self.now.words[0] == "case" and token.text == "in" and self.levels[-1].kind == "case":
                self.end()
                self.levels[-1].patterns = True

    def end(self) -> None:
        """The command that is read is whole."""
        if self.now.words or self.now.arrays or self.now.here:
            self.function = ""  # a command stands where the body was awaited
            self.now.path = self._path()
            if not any(level.dead for level in self.levels):
                self.found.append(self.now)
            self.false = self.now if self.now.words == ["false"] and not self.negated else None
            self.negated = False
        self.now = Simple()

    def _operator(self, operator: str) -> None:
        level = self.levels[-1]
        if level.patterns:
            if operator == ")":
                level.patterns = False
                assert level.place is not None
                level.place = (*level.place[:2], int(level.place[2]) + 1)
            return
        if self.now.words[:1] == ["[["] and "]]" not in self.now.words:
            return
        begun = bool(self.now.words or self.now.arrays)
        if operator == "(" and len(self.now.words) == 1 + (self.now.words[:1] == ["function"]):
            self.function, self.now = self.now.words[-1], Simple()
        elif operator == ")" and self.function and self.last == "(" and not begun:
            pass
        elif operator == "(":
            self.end()
            self._enter("(", "(")
        elif operator == ")":
            self.end()
            self._leave("(")
        elif operator.startswith(";") and len(operator) > 1:
            self.end()
            while self.levels[-1].kind != "case" and len(self.levels) > 1:
                self.levels.pop()
            self.levels[-1].patterns, self.levels[-1].listed = self.levels[-1].kind == "case", None
        else:
            self.end()
            if operator in ("&&", "||"):
                self._listed(operator)
            elif operator in (";", "&") or (operator == "\n" and (begun or self.last not in ("&&", "||", "|"))):
                self.levels[-1].listed = None
        if operator != "\n" or begun or self.last not in ("&&", "||", "|"):
            self.last = operator

    def _listed(self, operator: str) -> None:
        level = self.levels[-1]
        if level.listed is None:
            self.made += 1
            level.listed = ("list", self.made, 0)
        level.listed = (*level.listed[:2], int(level.listed[2]) + (operator == "||"))

    def _reserved(self, word: str) -> bool:
        """Take a reserved word where a command may begin; whether it was one that is none of the command."""
        if word in ("if", "case") or word in _LOOPS:
            self._enter("loop" if word in _LOOPS else word, "" if word == "if" else "loop" if word in _LOOPS else word)
            return word in _BEFORE_A_COMMAND
        if word == "{":
            self._enter("{", "function" if self.function else "")
            return True
        if word in _ENDS:
            self._leave(_ENDS[word])
            return True
        self.negated = self.negated or word == "!"
        if word in ("then", "else", "elif") and self.levels[-1].kind == "if":
            self._branch(word)
        return word in _BEFORE_A_COMMAND

    def _branch(self, word: str) -> None:
        level = self.levels[-1]
        level.listed = None
        level.dead = word == "then" and self.false is not None and self.false.path == self._path()
        if level.place is None:  # the condition's commands always run
            self.made += 1
            level.place = ("if", self.made, 0)
        elif word != "then":
            level.place = (*level.place[:2], int(level.place[2]) + 1)

    def _enter(self, kind: str, place: str) -> None:
        self.made += 1
        branch: int | str = self.function if place == "function" else 0
        self.levels.append(_Level(kind, (place, self.made, branch) if place else None))
        self.function = "" if kind == "{" else self.function
        self.last = ";"

    def _leave(self, kind: str) -> None:
        if len(self.levels) > 1 and self.levels[-1].kind == kind:
            self.levels.pop()

    def _path(self) -> tuple[Place, ...]:
        return tuple(one for level in self.levels for one in (level.place, level.listed) if one is not None)
