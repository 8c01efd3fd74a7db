"""What every command and every group of commands has: an example that parses, and a fix for words that are wrong."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Any

import pytest

from harness import cli


def walk(command: Any, words: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Every group and every command below it, with its words."""
    yield words, command
    for name, child in getattr(command, "commands", {}).items():
        yield from walk(child, (*words, name))


EVERY = dict(walk(cli.commands()))
COMMANDS = [words for words, command in EVERY.items() if not hasattr(command, "commands")]
PASSED_ON = ("command", "words", "options")  # of another program, which may take an empty word


def names_of(words: tuple[str, ...]) -> set[str]:
    """The names of a command's arguments."""
    return {item.name for item in EVERY[words].params if item.param_type_name == "argument"}


def test_groups_are_enumerated_with_their_commands() -> None:
    assert {(), ("env",), ("env", "create"), ("render",), ("faults",), ("history",), ("adapters",)} <= EVERY.keys()


@pytest.mark.parametrize("words", EVERY)
def test_every_help_has_an_example_that_parses(words: tuple[str, ...]) -> None:
    examples = re.findall(r"^ *(harness .*)$", EVERY[words].help.partition("Example:\n")[2], re.M)
    assert examples
    for line in examples:
        typed = tuple(shlex.split(line)[1:])
        command = next(path for path in COMMANDS if typed[: len(path)] == path)
        assert command[: len(words)] == words
        EVERY[command].make_context(" ".join(command), [*typed[len(command) :]])


@pytest.mark.parametrize("words", EVERY)
def test_an_unknown_option_has_a_fix_that_parses(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([*words, "--qqq"]) == 2
    assert capsys.readouterr().err.splitlines()[1] == f"  fix: {shlex.join(['harness', *words])} --help"


@pytest.mark.parametrize("words", [words for words in COMMANDS if not {*PASSED_ON} & names_of(words)])
def test_an_empty_argument_is_no_path(words: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    """As a path it would be the current directory. The words of a job's command may be empty."""
    if not names_of(words):
        return
    required = [name for item in EVERY[words].params if item.param_type_name == "option" and item.required
                for name in (item.opts[0], "x")]  # fmt: skip
    assert cli.main([*words, *[""] * len(names_of(words)), *required]) == 2
    message, fix = capsys.readouterr().err.splitlines()
    assert "is empty" in message or "Invalid value" in message or message.startswith("harness: . "), message
    assert fix.startswith("  fix: harness ")


@pytest.mark.parametrize(
    ("typed", "fix"),
    [
        ("traige 7461", "harness triage 7461"),
        ("triage --formt json 7461", "harness triage --format json 7461"),
        ("triage --formt=json 7461", "harness triage --format=json 7461"),
        ("env lst", "harness env list"),
        ("env create", "harness env create vllm"),
        ("parity vllm", "harness parity vllm sglang"),
        ("triage --out", "harness triage --help"),
        ("parity vllm sglang --steps many", "harness parity vllm sglang --steps 1"),
        ("help triag", "harness help triage"),
        ("help nothing-like-it", "harness --help"),
        ("help env nothing-like-it", "harness env --help"),
        ("triage --pid 7461", "harness triage --help"),
        ("nothing-like-a-command", "harness --help"),
    ],
)
def test_words_that_the_parser_refuses_have_a_fix(typed: str, fix: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(typed.split()) == 2
    message, fixes = capsys.readouterr().err.splitlines()
    assert message.startswith("harness: ") and fixes == f"  fix: {fix}"
