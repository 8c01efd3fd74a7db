"""What a thread waits for below its program: a lock of the interpreter, or the threads of a native library's pool.

There is one table; a new library is one more line in it. The innermost frame that is not of the C library decides: a
library of threads further out only calls what computes. Shared objects mostly have no symbols, so their name decides.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.triage.evidence import Frame, Process, Thread
from harness.triage.places import SYSTEM
from harness.triage.source import function_of, holds


@dataclass(frozen=True)
class InnerWait:
    """What is waited for, in words. `pool`: threads of the process that a fork does not copy."""

    words: str
    pool: bool = False


IMPORT = InnerWait("the lock of an import")
_IMPORTLIB = "<frozen importlib._bootstrap>"
_OF_LOCKS = re.compile(r"_?PyThread_acquire_lock\w*|_?PyMutex_Lock\w*|lock_PyThread_acquire_lock|_?PySemaphore_\w+")
_SO = r"(-[-\w.]+?)?\.so[.\w]*"  # the end of a shared object's name, which wheels give a hash
# Function and file. Python 3.11 to 3.13; GCC's, LLVM's and Intel's OpenMP, MKL, oneTBB and OpenBLAS.
TABLE: tuple[tuple[re.Pattern[str], re.Pattern[str], InnerWait], ...] = tuple(
    (re.compile(function), re.compile(file), wait)
    for function, file, wait in (
        (r"(_ModuleLock\.)?acquire|(_ModuleLockManager\.)?__enter__|_lock_unlock_module",
         rf"{re.escape(_IMPORTLIB)}", IMPORT),
        (r"take_gil|PyEval_(Restore|Acquire)Thread|PyGILState_Ensure|_?PyThreadState_Attach", r".*",
         InnerWait("the interpreter lock (GIL)")),
        (r".*", rf"(.*/)?libgomp{_SO}", InnerWait("the threads of its OpenMP pool (libgomp)", pool=True)),
        (r".*", rf"(.*/)?lib(iomp5|omp5?){_SO}", InnerWait("the threads of its OpenMP pool (libomp)", pool=True)),
        (r".*", rf"(.*/)?libmkl_(intel|gnu|tbb)_thread{_SO}", InnerWait("the threads of MKL", pool=True)),
        (r".*", rf"(.*/)?libtbb{_SO}", InnerWait("the threads of its pool of TBB", pool=True)),
        (r"exec_blas\w*|blas_thread\w*", rf"(.*/)?lib\w*openblas\w*{_SO}",
         InnerWait("the threads of OpenBLAS", pool=True)),
    )
)  # fmt: skip


def awaited(frames: Sequence[Frame]) -> InnerWait | None:
    """What a thread waits for by its frames, innermost first; None if they show nothing of the table."""
    outer = (frame for frame in frames if not SYSTEM.search(frame.file) and not _OF_LOCKS.fullmatch(frame.function))
    first = next(outer, None)
    if first is None:
        return None
    return next(
        (wait for function, file, wait in TABLE if function.fullmatch(first.function) and file.fullmatch(first.file)),
        None,
    )


def of_process(process: Process) -> InnerWait | None:
    """What its main thread waits for, by its Python stack, else by its native one if that stands at the same line."""
    frames = process.main_frames
    natives = (thread for thread in process.native if frames and _in_python(thread) == _places(frames))
    stacks = [frames, *(thread.frames for thread in natives)]
    return next(filter(None, map(awaited, stacks)), None)


def _in_python(thread: Thread) -> tuple[tuple[str, int], ...]:
    return _places([frame for frame in thread.frames if frame.line and frame.file.endswith((".py", ">"))])


def _places(frames: Sequence[Frame]) -> tuple[tuple[str, int], ...]:
    return tuple((frame.file, frame.line) for frame in frames)


def importers(threads: Sequence[Thread], waiting: Frame) -> list[Thread]:
    """The threads that stand in the import, by the text, for whose lock a frame waits: of the same module, or of a
    package that it is in."""
    wanted = {name for module, names in _imported(waiting) for name in (module, *names)}
    return [
        thread
        for thread in threads
        if awaited(thread.frames) is not IMPORT
        and any(
            name == module or name.startswith(f"{module}.")
            for caller in _callers_of_imports(thread.frames)
            for module, _ in _imported(caller)
            for name in wanted
        )
    ]


def _callers_of_imports(frames: Sequence[Frame]) -> Iterator[Frame]:
    """The frames whose line begins an import that has not ended."""
    for frame, caller in itertools.pairwise(frames):
        if frame.file == _IMPORTLIB and frame.function == "_find_and_load" and caller.file != _IMPORTLIB:
            yield caller


def _imported(frame: Frame) -> Iterator[tuple[str, tuple[str, ...]]]:
    """The modules that the line of a frame imports, each with the names that may be modules of it. A relative import
    names no module by itself."""
    body = function_of(frame)
    for node in ast.walk(body) if body is not None else ():
        if isinstance(node, ast.Import) and holds(node, frame.line):
            yield from ((alias.name, ()) for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and holds(node, frame.line) and node.module and not node.level:
            yield node.module, tuple(f"{node.module}.{alias.name}" for alias in node.names)
