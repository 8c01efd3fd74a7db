"""Run work that may never return: in daemon threads that can be left behind, and programs that are killed at a time
limit.

A read of /proc blocks while the kernel holds the process's memory lock, and a program that waits for a device cannot be
killed. Such a thread or program is left behind, and nothing here waits for it without a limit. (ThreadPoolExecutor
would wait for its threads when the interpreter ends.)
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

REAP_S = 0.3  # seconds for a killed child to end and be reaped


class NoThread(Exception):
    """The system allows this process no more threads."""

    def __str__(self) -> str:
        return "no thread was left to look at everybody: raise `ulimit -u` or the container's pids limit"


class Work(Future[Any]):
    """A future with the name of the source that it asks."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name


def start(name: str, work: Callable[..., Any], *args: Any) -> Work:
    """Run `work` in a daemon thread of its own.

    The future holds its result or its exception, and NoThread if no thread could be started.
    """
    future = Work(name)

    def run() -> None:
        try:
            future.set_result(work(*args))
        except BaseException as error:  # it is raised where the result is asked for, in another thread
            future.set_exception(error)

    try:
        threading.Thread(target=run, name=f"collect {name}", daemon=True).start()
    except (RuntimeError, MemoryError):
        future.set_exception(NoThread())
    return future


@dataclass(frozen=True)
class Done:
    """The output of a program. `code`: its exit status, None if it was killed because its time was up."""

    code: int | None
    out: str
    err: str


def run(argv: Sequence[str], timeout_s: float, *, env: Mapping[str, str] | None = None, cwd: str | None = None) -> Done:
    """Run a program for at most `timeout_s`, and 0.3 s to end it. Raises OSError if it cannot be started.

    It runs in a session of its own, which a terminal's Ctrl-C does not reach, so it is ended if its caller is
    interrupted.
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
    """Kill the program and everything that it started."""
    with contextlib.suppress(OSError):
        os.killpg(process.pid, signal.SIGKILL)
