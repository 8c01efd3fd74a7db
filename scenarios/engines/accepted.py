"""Which arguments an engine accepts: asked of the engine in its own interpreter, and kept in a file.

With the list, an unknown argument is refused before anything starts. Importing an engine takes 10 to 40 s, so this is
done once, when its environment is made.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib
import json
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scenarios.engines import registry

FILE = "accepted.json"  # in the folder of an environment


@dataclass(frozen=True)
class Accepted:
    """Names of the arguments that start an engine, and of its sampling parameters; empty where unknown.

    `head_sizes`: the head sizes with which its attention works on this machine. `server`: the options of the command
    that serves it, with underscores.
    """

    engine: tuple[str, ...] = ()
    sampling: tuple[str, ...] = ()
    head_sizes: tuple[int, ...] = ()
    server: tuple[str, ...] = ()

    @staticmethod
    def of(data: Mapping[str, Any]) -> Accepted:
        """Make one from plain data. Raises TypeError or KeyError for anything else."""
        return Accepted(*(tuple(data[field.name]) for field in dataclasses.fields(Accepted)))


def options(parser: argparse.ArgumentParser) -> tuple[str, ...]:
    """Return the long options of a parser, with underscores."""
    names = {name for action in parser._actions for name in action.option_strings if name.startswith("--")}
    return tuple(sorted(name.removeprefix("--").replace("-", "_") for name in names))


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
