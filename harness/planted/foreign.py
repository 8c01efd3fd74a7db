"""Execute a user's Python file for `--from`. An error in it becomes one sentence."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

from harness.errors import BadInput
from scenarios.planted.differences.foreign import imported, module_name

FIX = "harness faults run --from FILE.py"


def listed(path: Path, name: str, *, problem: Callable[[object], str], example: str) -> list[Any]:
    """Return the list `name` at the top level of the Python file `path`, which is executed.

    `problem`: returns what is wrong with an entry; empty where nothing is. Raises BadInput, also for an entry with a
    problem and for entries of the same name.
    """
    entries = getattr(executed(path), name, None)
    if not isinstance(entries, (list, tuple)):
        raise BadInput(f"{path} has no list {name} at its top level", fix=example)
    if not entries:
        raise BadInput(f"{path}: its list {name} is empty", fix=example)
    for number, entry in enumerate(entries):
        if wrong := problem(entry):
            raise BadInput(f"{path}: {name}[{number}] {wrong}", fix=example)
    counts = Counter(entry.name for entry in entries)
    twice = sorted(entry_name for entry_name, count in counts.items() if count > 1)
    if twice:
        raise BadInput(f"{path}: several {name.lower()} are called {', '.join(twice)}", fix=example)
    return list(entries)


def executed(path: Path) -> ModuleType:
    """Return the module in the file `path`. Raises BadInput for a file that cannot be executed."""
    if not path.is_file():
        raise BadInput(f"{path}: no such file", fix=FIX)
    try:
        return imported(path)
    except (Exception, SystemExit) as error:  # a user's file may raise anything, and the user needs its message
        raise BadInput(
            f"{path} cannot be executed: {_error_text(error, path)}",
            fix=f"python {shlex.quote(str(path))}   # shows its traceback",
        ) from error


def _error_text(error: BaseException, path: Path) -> str:
    line = getattr(error, "lineno", None) if isinstance(error, SyntaxError) else _last_line(error, path)
    message = error.msg if isinstance(error, SyntaxError) else str(error)  # its text would repeat file and line
    text = message.splitlines()[0] if message else ""
    return f"{type(error).__name__}{': ' + text if text else ''}" + (f" (line {line})" if line else "")


def _last_line(error: BaseException, path: Path) -> int | None:
    trace, line = error.__traceback__, None
    while trace is not None:
        if trace.tb_frame.f_globals.get("__name__") == module_name(path):
            line = trace.tb_lineno
        trace = trace.tb_next
    return line
