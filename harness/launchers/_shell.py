"""Commands of the harness in lines of shell that a user gives to a launcher: checked before a runner meets them."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from typing import Any

from harness.errors import BadInput

_ENDS = frozenset(";&|()")  # characters of the words that end a simple command
_HELP = ("--help", "--version", "--install-completion", "--show-completion")  # the parser prints these and leaves
_BACKENDS = ("baseline", "candidate", "backend")  # parameters that name an engine, with or without @VERSION


def check(line: str, option: str) -> None:
    """Raise BadInput for a command of the harness in lines of shell that the real command line refuses, or that names
    an engine that does not exist. Its fix is `option` with the mended lines.

    A command with what a shell expands is not judged, nor are lines that only a shell can read.
    """
    for words in _of_harness(line):
        try:
            _check_engines(_parsed(words))
        except BadInput as error:
            mended = _mended(line, words, error)
            fix = shlex.join([option, mended]) if mended else error.fix
            raise BadInput(f"{option}: {error.message}", fix=fix) from error


def writes_elsewhere(line: str, folder: str) -> bool:
    """Whether a command of the harness in lines of shell could write its results to `folder`, and none does."""
    outs = [context.params["out"] for words in _of_harness(line) if "out" in (context := _parsed(words)).params]
    return bool(outs) and folder not in map(str, outs)


def _of_harness(line: str) -> Iterator[list[str]]:
    """The words of each simple command of the harness in lines of shell, without redirections."""
    for text in line.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(text, posix=True, punctuation_chars=True)
        lexer.whitespace_split = True
        try:
            tokens = [*lexer]
        except ValueError:  # a quote that ends on another line
            continue
        command: list[str] = []
        for token in [*tokens, ";"]:
            if token and set(token) <= _ENDS:
                if command[:1] == ["harness"] and _is_plain(command):
                    yield _without_redirections(command)[1:]
                command = []
            else:
                command.append(token)


def _is_plain(words: list[str]) -> bool:
    return not any(character in word for word in words for character in "$`*?") and not {*words} & {*_HELP}


def _without_redirections(words: list[str]) -> list[str]:
    """The words before the first redirection, without the number of a descriptor in front of it."""
    at = next((index for index, word in enumerate(words) if word and set(word) <= {"<", ">", "&"}), len(words))
    return words[: at - 1] if at < len(words) and words[at - 1].isdigit() else words[:at]


def _parsed(words: list[str]) -> Any:
    from harness.cli import parsed_line

    return parsed_line(words)


def _check_engines(context: Any) -> None:
    from harness.envs.resolution import unknown
    from scenarios.engines import registry

    for name in _BACKENDS:
        backend = context.params.get(name)
        if isinstance(backend, str) and backend and registry.find(backend.partition("@")[0]) is None:
            raise unknown(backend)


def _mended(line: str, words: list[str], error: BadInput) -> str:
    """The lines with the error's fix in place of the refused command; empty where the fix is no such command."""
    typed, fix = f"harness {shlex.join(words)}", (error.fix or "").partition("   # ")[0]
    if error.instead and error.instead in words:
        fix = shlex.join(["harness", *(fix if word == error.instead else word for word in words)])
    is_command = fix.startswith("harness ") and not fix.endswith("--help")
    return line.replace(typed, fix) if is_command and typed in line else ""
