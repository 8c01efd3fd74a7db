"""Runs commands of the harness in processes with limits: what a fuzzer needs to call a crash a crash.

`Server` starts one process that has imported the harness. It forks for each command, so a command costs no start of an
interpreter, inherits nothing of the one before it and may be ended.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import pkgutil
import resource
import select
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import harness
import reports

MEMORY_BYTES = 2 << 30  # address space of a command and of the processes that it starts
CPU_S = 30  # processor time of a command: the load of a machine does not count
CLOCK_S = 120.0  # time on the clock after which a command waits for something that does not come
OUTPUT_BYTES = 64 << 20
_STOPPED = (-signal.SIGKILL, -signal.SIGXCPU)
_ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True)
class Answer:
    """`code`: the exit code, or minus the signal that ended the process."""

    code: int
    seconds: float  # of processor time
    peak_bytes: int
    stdout: bytes
    stderr: str

    @property
    def stopped(self) -> bool:
        """Whether a limit ended it."""
        return self.code in _STOPPED


class Server:
    """Use as a context manager; `run` answers one command at a time. `seconds`: of processor time, of all of them."""

    seconds = 0.0

    def __enter__(self) -> Server:
        paths = os.pathsep.join((str(_ROOT), str(Path(__file__).parent)))
        environ = {
            **os.environ, "PYTHONPATH": paths, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "COLUMNS": "100",
        }  # fmt: skip
        self._process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ, text=True
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.kill()
        self._process.communicate()

    def run(
        self, words: tuple[str, ...], folder: Path, *, function: str = "", debug: bool = False, clock_s: float = CLOCK_S
    ) -> Answer:
        """`harness WORDS` in `folder`, or a function of tests/support/hostile_inputs.py; ended after `clock_s`."""
        assert self._process.stdin and self._process.stdout
        request = {"words": words, "folder": str(folder), "function": function, "debug": debug, "clock_s": clock_s}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        self.seconds += answer["seconds"]
        stdout, stderr = (folder.parent / name for name in ("stdout", "stderr"))
        return Answer(**answer, stdout=stdout.read_bytes(), stderr=stderr.read_text(errors="replace"))


def serve() -> None:
    for package in (harness, reports):  # now, and not in every command
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
    importlib.import_module("harness.parity.causes.registry")
    gc.freeze()  # otherwise a collection in a fork would copy every page
    for line in sys.stdin:
        print(json.dumps(_answered(json.loads(line))), flush=True)


def _answered(request: dict[str, Any]) -> dict[str, Any]:
    child = os.fork()
    if not child:
        _become(request)
    descriptor = os.pidfd_open(child)
    began = time.monotonic()
    while not select.select([descriptor], [], [], 1.0)[0]:
        if time.monotonic() - began > request["clock_s"]:
            os.killpg(child, signal.SIGKILL)
    _, status, usage = os.wait4(child, 0)
    os.close(descriptor)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child, signal.SIGKILL)  # what it started and did not end
    seconds = usage.ru_utime + usage.ru_stime
    return {"code": os.waitstatus_to_exitcode(status), "seconds": seconds, "peak_bytes": usage.ru_maxrss << 10}


def _become(request: dict[str, Any]) -> None:
    """Be the command, with its limits."""
    code = 70
    try:
        os.setpgid(0, 0)
        folder = Path(request["folder"])
        for descriptor, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(folder.parent / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), descriptor)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.chdir(folder)
        os.environ["HARNESS_DEBUG"] = "1" if request["debug"] else ""
        for limit, most in (
            (resource.RLIMIT_AS, MEMORY_BYTES), (resource.RLIMIT_CPU, CPU_S), (resource.RLIMIT_FSIZE, OUTPUT_BYTES),
            (resource.RLIMIT_CORE, 0),
        ):  # fmt: skip
            resource.setrlimit(limit, (most, most))
        if request["function"]:
            import hostile_inputs

            code = getattr(hostile_inputs, request["function"])(*request["words"])
        else:
            from harness import entry

            sys.argv = ["harness", *request["words"]]
            entry.main()
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        os._exit(code)


if __name__ == "__main__":
    serve()
