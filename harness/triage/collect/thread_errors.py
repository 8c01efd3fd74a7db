"""Threads that ended with an error which nobody caught, by the traceback that Python wrote to the log of the job.

A process that nobody watches remembers no such thread. If its standard error is a file, the traceback is there. All
processes of a job may write to one file, so a traceback belongs to a process only if it alone runs a function, or a
method of the class, in which the source text starts that thread.
"""

from __future__ import annotations

import ast
import contextlib
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence

from harness.triage import source
from harness.triage.collect import redact
from harness.triage.collect.connections import PROC
from harness.triage.evidence import Frame, LostThread, Thread
from harness.triage.places import plain

MAX_TAIL = 1 << 20  # bytes of a log that are read, from its end
MAX_ERRORS = 16  # threads of one log
MAX_ERROR = 200  # characters of an error
_BEGINS = re.compile(r"^Exception in thread (?P<name>.{1,200}):\nTraceback \(most recent call last\):\n", re.MULTILINE)
_FRAME = re.compile(
    r'^  File "(?P<file>[^"]{1,1000})", line (?P<line>\d{1,9}), in (?P<function>\S{1,200})$', re.MULTILINE
)
_ERROR = re.compile(r"^(?! )\S.*$", re.MULTILINE)


def lost(threads: Mapping[int, Sequence[Thread]]) -> dict[int, tuple[LostThread, ...]]:
    """Pid -> its threads that ended with an error, by its log. `threads`: pid -> its threads that live."""
    logs: dict[str, list[int]] = {}
    for pid in threads:
        if log := _log(pid):
            logs.setdefault(log, []).append(pid)
    losses: dict[int, list[LostThread]] = {}
    for log, pids in logs.items():
        for name, error, frames in errors(_tail(log)):
            owners = [pid for pid in pids if _starts(threads[pid], frames)]
            alive = any(thread.name == name for pid in owners for thread in threads[pid])
            if len(owners) == 1 and not alive:
                losses.setdefault(owners[0], []).append(LostThread(name, redact.text(error)[:MAX_ERROR]))
    return {pid: tuple(its) for pid, its in losses.items()}


def errors(text: str) -> Iterator[tuple[str, str, tuple[Frame, ...]]]:
    """Yield (name of the thread, error, frames, outermost first) of each traceback of a thread in a log."""
    for begin in list(_BEGINS.finditer(text))[-MAX_ERRORS:]:
        error = _ERROR.search(text, begin.end())
        if error is not None:
            part = text[begin.end() : error.start()]
            frames = (Frame(match["function"], match["file"], int(match["line"])) for match in _FRAME.finditer(part))
            yield begin["name"], error[0], tuple(frames)


def _log(pid: int) -> str:
    """The file to which a process writes its errors; empty if it is none, or was there before: what it holds may then
    be of an earlier run."""
    try:
        path = PROC / str(pid) / "fd" / "2"
        if not stat.S_ISREG(path.stat().st_mode):
            return ""
        info = (PROC / str(pid) / "fdinfo" / "2").read_text()
        flags = next((int(line.split()[1], 8) for line in info.splitlines() if line.startswith("flags:")), os.O_APPEND)
        return "" if flags & os.O_APPEND else os.readlink(path)
    except (OSError, ValueError):  # it ended, or it is another user's
        return ""


def _tail(path: str) -> str:
    with contextlib.suppress(OSError), open(path, "rb") as log:
        log.seek(max(0, os.fstat(log.fileno()).st_size - MAX_TAIL))
        return log.read(MAX_TAIL).decode(errors="replace")
    return ""


def _starts(threads: Sequence[Thread], frames: Sequence[Frame]) -> bool:
    """Whether a process stands in a function, or in a method of a class, that starts the thread of these frames."""
    target = next((frame for frame in frames if not frame.file.endswith("/threading.py")), None)
    tree = source.tree_of(target.file) if target is not None else None
    if target is None or tree is None:
        return False
    calls = [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and any(
            word.arg == "target" and plain(ast.unparse(word.value)) == plain(target.function) for word in node.keywords
        )
    ]
    around = [
        node
        for node in ast.walk(tree)
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef))
        and any(source.holds(node, call.lineno) for call in calls)
    ]
    return any(
        frame.file == target.file and any(source.holds(node, frame.line) for node in around)
        for thread in threads
        for frame in thread.frames
    )
