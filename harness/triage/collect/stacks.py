"""Python stacks of another process, taken from outside by py-spy. Never with locals, which would print secrets.

The non-blocking mode comes first. It neither stops the process nor waits for it. It works while C code holds the
interpreter lock (16 ms), under SIGSTOP and in state D, where the blocking mode fails or hangs. Native frames need the
blocking mode. They are taken second, within a limit, and only of a process that can be stopped and whose Python frames
do not explain its wait. A stop ends some system calls early: a write to a full pipe returns short, and the job goes on
otherwise than without the look. No native stack is taken of a process in such a call.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from harness import extras
from harness.triage.collect import bounded, channels, proc
from harness.triage.evidence import NOT_PERMITTED, NOT_PYTHON, Frame, Thread

TIMEOUT_S = 4.0  # chosen: half of the eight seconds of a look (`collect`)
YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")
MAX_FRAMES = 200  # innermost frames; a runaway recursion has thousands
TOO_BUSY = "this host was too busy"  # the end of a note about a process without stacks
NO_ANSWER = "py-spy had no answer"
NO_PY_SPY = "no Python stacks: py-spy is not installed here"
MAX_NAME = 200  # a C++ template's name may have thousands of characters
# Files whose frames show by themselves what is waited for. An idle thread anywhere else may wait in C.
EXPLAINED = re.compile(
    r"/torch/distributed/|/ray/|/(threading|selectors|queue|socket|ssl|subprocess|asyncio/\w+|multiprocessing/\w+"
    r"|concurrent/futures/\w+|socketserver|http/client)\.py$|/zmq/|/grpc/|/uvloop/|/uvicorn/|/tornado/|/pdb\.py$"
)


@dataclass(frozen=True)
class Stacks:
    """The threads of one dump, or a note. `denied`: the kernel does not let this user inspect the process."""

    threads: tuple[Thread, ...] = ()
    note: str = ""
    denied: bool = False


def program() -> str | None:
    """The py-spy of this environment, else of the PATH; None if there is none."""
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy")


def missing() -> str:
    """What to tell the user before anything hangs if py-spy is missing; empty if it is there."""
    if program() is not None:
        return ""
    fix = extras.repair_command("py-spy")
    return f"py-spy is missing from {sys.executable}: no stack of a process can be read; fix: {fix}"


def dump(pid: int, *, timeout_s: float = TIMEOUT_S) -> Stacks:
    """Dump every Python thread of a process without stopping it."""
    return _dump(pid, ("--nonblocking",), timeout_s)


def dump_native(pid: int, *, timeout_s: float) -> Stacks:
    """Dump every thread with C and C++ frames. The process is stopped during the look and then continued."""
    before = proc.look(pid).state
    if before not in ("R", "S"):
        return Stacks(note=f"no native stack: a process in state {before or 'gone'} cannot be stopped for it")
    if call := channels.cut_short(pid):
        return Stacks(note=f"no native stack: its {call} would end early if it were stopped for it")
    native_stacks = _dump(pid, ("--native",), timeout_s)
    if not native_stacks.threads and proc.look(pid).state == "T":
        # py-spy was killed between its SIGSTOP and its detaching. Let the process continue as it was found.
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGCONT)
    return native_stacks


def unexplained(threads: Sequence[Thread]) -> bool:
    """Whether the main thread's Python frames leave open what it waits for, or C code holds the interpreter lock."""
    if any(thread.gil and not thread.active for thread in threads):
        return True
    main = next((thread for thread in threads if thread.main), None)
    return main is not None and bool(main.frames) and not EXPLAINED.search(main.frames[0].file)


def _dump(pid: int, mode: tuple[str, ...], timeout_s: float) -> Stacks:
    spy = program()
    if spy is None:
        return Stacks(note=f"{NO_PY_SPY} (pip install py-spy)")
    try:
        done = bounded.run([spy, "dump", "--pid", str(pid), "--json", *mode], timeout_s)
    except OSError as error:
        return Stacks(note=f"no Python stacks: {spy} cannot be run: {error.strerror}")
    kind = "native" if "--native" in mode else "Python"
    if done.code is None:
        return Stacks(note=f"no {kind} stacks: {NO_ANSWER} within {timeout_s:.1f} s")
    try:
        return Stacks(parse(json.loads(done.out), pid, proc.outer_tids(pid)))
    except (ValueError, KeyError, TypeError, AttributeError):  # no JSON, or not py-spy's: it reports errors as text
        return refused(pid, done.err, kind)


def parse(dumped: Any, pid: int, outer_tids: Mapping[int, int] | None = None) -> tuple[Thread, ...]:
    """Parse the threads of `py-spy dump --json`. Raises KeyError, TypeError or AttributeError for anything else.

    `outer_tids`: thread id in the pid namespace of the process -> that of this namespace, where they differ.
    """
    outer = outer_tids or {}
    threads = []
    for raw_thread in dumped:
        tid = int(raw_thread.get("os_thread_id") or 0)
        threads.append(
            Thread(
                name=str(raw_thread.get("thread_name") or ""),
                tid=outer.get(tid, tid),
                frames=tuple(_frame(frame) for frame in raw_thread["frames"][:MAX_FRAMES]),
                # py-spy calls each thread active whose id it does not find among those of this namespace.
                active=proc.is_running(pid, outer[tid]) if tid in outer else bool(raw_thread.get("active")),
                gil=bool(raw_thread.get("owns_gil")),
            )
        )
    return of_process(threads, pid)


def of_process(listed: Sequence[Thread], pid: int) -> tuple[Thread, ...]:
    """The threads that py-spy lists of a process, the main thread first."""
    threads: dict[tuple[int, int], Thread] = {}
    for at, thread in enumerate(listed):
        # A thread id of another namespace may not be translated. Then the interpreter's own name decides.
        main = thread.tid == pid or thread.name == "MainThread" or (len(listed) == 1 and not thread.name)
        tid = thread.tid or (pid if main else 0)
        key = (tid, 0 if tid else at + 1)
        if key in threads and not thread.frames:
            continue  # while threads start or end, py-spy lists some twice, once without a stack
        threads[key] = replace(
            thread,
            name=thread.name or ("MainThread" if main else ""),
            tid=tid,
            main=main,
            # Before Python 3.11 py-spy cannot tell the system thread of a Python thread, and calls each one active.
            active=thread.active and thread.tid != 0,
            native=any(not frame.file.endswith((".py", ">")) for frame in thread.frames),
        )
    return tuple(sorted(threads.values(), key=lambda thread: (not thread.main, not thread.frames, thread.tid)))


def _frame(frame: dict[str, Any]) -> Frame:
    return Frame(
        str(frame["name"])[:MAX_NAME], str(frame["filename"]), int(frame["line"]), str(frame.get("module") or "")
    )


def refused(pid: int, error: str, kind: str = "Python") -> Stacks:
    """Explain py-spy's error in a sentence that says what to do. `kind`: of the stacks that were asked for."""
    lowercase_error = error.lower()
    if (
        "permission denied" in lowercase_error
        or "operation not permitted" in lowercase_error
        or "eperm" in lowercase_error
    ):
        return Stacks(note=not_permitted(), denied=True)
    if proc.look(pid).state in ("gone", "Z", "X"):
        return Stacks(note="no Python stacks: the process has ended")
    if "no such process" in lowercase_error or "check that the process is" in lowercase_error:
        return Stacks(note="no Python stacks: py-spy could not open the process")
    if (
        "failed to find python version" in lowercase_error
        or "failed to find a python" in lowercase_error
        or "libpython" in lowercase_error
    ):
        return Stacks(note=f"{NOT_PYTHON}: no Python stacks")
    first = next((line.strip() for line in error.splitlines() if line.strip()), "no message")
    return Stacks(note=f"no {kind} stacks: py-spy says {first[:200]!r}")


def not_permitted() -> str:
    """Why ptrace was refused here, and what enables it."""
    try:
        scope = int(YAMA.read_text())
    except (OSError, ValueError):  # the kernel has no Yama
        scope = 0
    lowered = "sudo sysctl kernel.yama.ptrace_scope=0, or " if scope else ""
    return (
        f"{NOT_PERMITTED}: no Python stacks from outside. To enable: {lowered}run harness as root or as the "
        "process's own user; in a container, start it with --cap-add SYS_PTRACE"
    )


# --- the fallback: the process's own faulthandler, through its worker server

_BEAT = re.compile(r"(.*):(\d+) (.*)")
_HEAD = re.compile(r"^(Current thread|Thread) 0x([0-9a-f]+)(?: \[(.*?)\])? \(most recent call first\):$")
_LINE = re.compile(r'^  File "(.*)", line (\d+|\?\?\?) in (.*)$')


def parse_faulthandler(text: str) -> tuple[Thread, ...]:
    """Threads of a faulthandler traceback. The last one listed is the interpreter's first, the main thread."""
    named_stacks: list[tuple[str, list[Frame]]] = []
    for line in text.splitlines():
        if head := _HEAD.match(line):
            named_stacks.append((head[3] or "", []))
        elif (frame := _LINE.match(line)) and named_stacks and len(named_stacks[-1][1]) < MAX_FRAMES:
            number = int(frame[2]) if frame[2].isdigit() else 0
            named_stacks[-1][1].append(Frame(frame[3], frame[1], number))
    last = len(named_stacks) - 1
    return tuple(
        Thread(name or ("MainThread" if at == last else ""), 0, tuple(frames), main=at == last)
        for at, (name, frames) in reversed(list(enumerate(named_stacks)))
    )


def of_beat(stack: Sequence[str]) -> tuple[Thread, ...]:
    """The main thread as the heartbeat saw it, from "file:line function" of its innermost frames."""
    matches = [_BEAT.fullmatch(line) for line in stack]
    frames = tuple(Frame(match[3], match[1], int(match[2])) for match in matches if match)
    return (Thread("MainThread", 0, frames, main=True),) if frames else ()
