"""Which arguments an engine accepts: asked of the engine in its own interpreter, and kept in a file.

With the list, an unknown argument is refused before anything starts. Importing an engine takes 10 to 40 s, so this is
done once, when its environment is made.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import importlib
import json
import sys
from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scenarios.engines import registry

FILE = "accepted.json"  # in the folder of an environment


@dataclass(frozen=True)
class Accepted:
    """Names of the arguments that start an engine, and of its sampling parameters; empty where unknown.

    `head_sizes`: the head sizes with which its attention works on this machine. `server`: the options of the command
    that serves it, with underscores. `choices`: argument -> the only words that it may be, where the engine lists them.
    """

    engine: tuple[str, ...] = ()
    sampling: tuple[str, ...] = ()
    head_sizes: tuple[int, ...] = ()
    server: tuple[str, ...] = ()
    choices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @staticmethod
    def of(data: Mapping[str, Any]) -> Accepted:
        """Make one from plain data, also from that of an older version, which had no choices. Raises TypeError,
        ValueError or KeyError for anything else.
        """
        return Accepted(
            engine=tuple(data["engine"]),
            sampling=tuple(data["sampling"]),
            head_sizes=tuple(data["head_sizes"]),
            server=tuple(data["server"]),
            choices={name: tuple(words) for name, words in dict(data.get("choices", ())).items()},
        )

    def refusal(self, name: str, value: Any) -> str:
        """Return why an argument cannot be this word: the nearest choices, and all; empty where it may be.

        Case and hyphens do not count, because some options are read without them.
        """
        words = self.choices.get(name, ())
        if not words or not isinstance(value, str) or _plain(value) in map(_plain, words):
            return ""
        near = difflib.get_close_matches(value, words)
        meant = f"did you mean {' or '.join(near)}? " if near else ""
        return f"{meant}{name} is one of {', '.join(words)}"


def _plain(word: str) -> str:
    return word.lower().replace("-", "_")


def options(parser: argparse.ArgumentParser) -> tuple[str, ...]:
    """Return the long options of a parser, with underscores."""
    names = {name for action in parser._actions for name in action.option_strings if name.startswith("--")}
    return tuple(sorted(name.removeprefix("--").replace("-", "_") for name in names))


def choices(parser: argparse.ArgumentParser, arguments: Container[str]) -> dict[str, tuple[str, ...]]:
    """Return the words that a parser lists for each of these arguments that takes one word."""
    listed = {
        action.dest: [word for word in action.choices if word is not None]
        for action in parser._actions
        if action.choices and action.nargs is None and action.dest in arguments
    }
    return {
        name: tuple(sorted(words))
        for name, words in listed.items()
        if words and all(isinstance(word, str) for word in words)
    }


def ask_engine(engine: str) -> Accepted:
    """Return what the engine reports about itself. Imports the engine."""
    module, _, function = registry.get(engine).accepts.partition(":")
    if not module:
        return Accepted()
    accepted: Accepted = getattr(importlib.import_module(module), function)()
    return accepted


def keep(engine: str, version: str, file: str) -> None:
    """Write what the engine accepts into `file`. Never raises: an engine that does not report it is checked when it
    starts.
    """
    try:
        data = {"version": version, **dataclasses.asdict(ask_engine(engine))}
        Path(file).write_text(json.dumps(data, indent=2) + "\n", encoding="utf-8")
    except BaseException as error:  # another version of an engine may raise anything
        print(f"what {engine} takes is not known: {type(error).__name__}: {error}", file=sys.stderr)


if __name__ == "__main__":
    keep(*sys.argv[1:])
