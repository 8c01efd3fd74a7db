"""Work that is given up on: daemon threads whose answer may never come, and programs that are ended when time is up.

A read of /proc blocks while the kernel holds the process's memory lock, and a program that waits on a device cannot be
killed. Such a thread or program is left behind; nothing here ever waits for it without a limit. (ThreadPoolExecutor
waits for its threads when the interpreter ends.)
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

REAP_S = 0.3  # for a child that was killed to be collected


class NoThread(Exception):
    """The system lets this process have no more threads."""

    def __str__(self) -> str:
        return "no thread was left to look at everybody: raise `ulimit -u` or the container's pids limit"


class Work(Future[Any]):
    """A future with the name of what is asked."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name


def start(name: str, work: Callable[..., Any], *args: Any) -> Work:
    """Run `work` in a daemon thread of its own; the future holds its result or its exception, NoThread where none is
    to be had."""
    future = Work(name)

    def run() -> None:
        try:
            future.set_result(work(*args))
        except BaseException as error:  # it belongs to whoever asks for the result, in another thread
            future.set_exception(error)

    try:
        threading.Thread(target=run, name=f"collect {name}", daemon=True).start()
    except (RuntimeError, MemoryError):
        future.set_exception(NoThread())
    return future


@dataclass(frozen=True)
class Done:
    """What a program said. `code`: its exit status, None when it was ended because its time was up."""

    code: int | None
    out: str
    err: str


def run(argv: Sequence[str], timeout_s: float, *, env: Mapping[str, str] | None = None, cwd: str | None = None) -> Done:
    """Run a program for at most `timeout_s` (and 0.3 s to end it). Raises OSError when it cannot be started.

    It has a session of its own, which a terminal's Ctrl-C does not reach: it is ended where its caller is interrupted.
    """
    process = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env, cwd=cwd,
        start_new_session=True,
    )  # fmt: skip
    try:
        reading = start("output", process.communicate)
        out, err = reading.result(max(0.0, timeout_s))
        return Done(process.returncode, out.decode(errors="replace"), err.decode(errors="replace"))
    except NoThread as error:
        process.kill()
        process.communicate()
        return Done(None, "", str(error))
    except TimeoutError:
        _end(process)
        with contextlib.suppress(TimeoutError):
            out, err = reading.result(REAP_S)
            return Done(None, out.decode(errors="replace"), err.decode(errors="replace"))
        return Done(None, "", "")
    except KeyboardInterrupt:
        _end(process)
        raise


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the program and what it started."""
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
