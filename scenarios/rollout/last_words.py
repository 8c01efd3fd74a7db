"""What a process said before it died: the root cause from its own output, where its successor says only "see above".

An engine runs in processes of its own, below the actor that drives it. Their standard output and standard error are
the actor's, and Ray keeps those in files: worker-<id>-<pid>.out and .err in the logs of the session.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable
from pathlib import Path

TAIL = 1 << 20  # bytes of each file that are read; an engine logs a few hundred lines at its start
LONGEST = 300  # characters of one sentence
# A prefix that an engine or Ray writes before each line: "(EngineCore pid=12) ERROR 11-23 01:02:03 [core.py:1100] ".
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_PREFIX = re.compile(r"^(?:\([^()]{1,60}\) ?)*(?:(?:ERROR|CRITICAL) [\d:. -]{5,30} )?(?:\[[^\]]{1,80}\] ?)*")
_RAISED = re.compile(r"^(?:[A-Za-z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception|Refused|NotImplemented|Interrupt)\b(?::.*)?$")
_FATAL = re.compile(
    r"^(?:Fatal Python error: .*|terminate called .*|.*\bSegmentation fault\b.*|.*: symbol lookup error.*)$"
)
# Exceptions that only point at another one: vLLM (v1/engine/utils, executor/multiproc_executor), SGLang (engine).
_POINTERS = ("See root cause above", "See stack trace", "initialization failed", "scheduler is dead", "EngineDeadError")


def own_output() -> list[Path]:
    """The files that the standard output and standard error of this process go to; none where they are a terminal."""
    found = []
    for number in (1, 2):
        try:
            if stat.S_ISREG(os.fstat(number).st_mode):
                found.append(Path(os.readlink(f"/proc/self/fd/{number}")))
        except OSError:  # closed, or no /proc
            continue
    return list(dict.fromkeys(found))


def sizes(files: Iterable[Path]) -> dict[Path, int]:
    """Bytes in each file now: where the output of what starts next begins."""
    return {file: file.stat().st_size for file in files if file.exists()}


def root_cause(begun: dict[Path, int]) -> str:
    """The exception that ended a process, in one sentence, from what its files hold beyond these offsets; "" if none.

    The last exception that is not a pointer to another: chained and forwarded ones are printed after their cause.
    """
    said = [line for file, begin in begun.items() for line in _read(file, begin).splitlines()]
    lines = [_PREFIX.sub("", _COLOUR.sub("", line).strip()) for line in said]
    ends = [line for line in lines if _RAISED.match(line) or _FATAL.match(line)]
    causes = [line for line in ends if not any(words in line for words in _POINTERS)]
    return causes[-1][:LONGEST] if causes else ""


def _read(file: Path, begin: int) -> str:
    try:
        with file.open("rb") as source:
            source.seek(max(begin, file.stat().st_size - TAIL))
            return source.read(TAIL).decode("utf-8", "replace")
    except OSError:
        return ""
