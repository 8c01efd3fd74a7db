"""Parses the stacks that tools print. What a tool's lines look like is in `formats`; here they become dumps.

Lines of no tool are passed over. Values of variables and lines of source, which some tools print, are dropped.
"""

from __future__ import annotations

import json
import re
import sys
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from harness.triage.collect.stacks import MAX_FRAMES, MAX_NAME, of_process, parse
from harness.triage.evidence import Frame, Thread
from harness.triage.pasted.formats import (
    BEGINNINGS,
    EU_PROCESS,
    GDB,
    PY_SPY,
    PYSTACK,
    ThreadHeader,
    begun,
    begun_without_header,
    frame_of,
)
from harness.triage.places import OF_INSTALLED, OF_STANDARD

MAX_THREADS = 1_000  # of one process
MAX_LISTS = 20_000  # of one file of JSON
MAX_JSON = 16 << 20  # characters of JSON; the worst case, empty lists, takes 395 MiB for a moment

_PROCESS = re.compile(r"Process (\d{1,10}): (.*)")  # py-spy
MAIN_THREAD = "MainThread"
_VERSION = re.compile(r"Python v\d+\.\d+")
# What begins another process: faulthandler's first line, and what gdb prints before and after one.
_NEXT_PROCESS = re.compile(
    r"Timeout \(|Fatal Python error: |Python Fatal Error|Using host libthread_db|Attaching to process|\[Inferior \d"
)
# Beginnings of all lines that are no frame of the open thread.
_HEADS = (
    *BEGINNINGS, "#0 ", "Process ", "PID ", "Python ", "Timeout (", "Fatal Python error: ", "Using host",
    "Attaching to", "[Inferior ",
)  # fmt: skip
_SPACE = re.compile(r"\s*")
# py-spy prints paths below sys.path, so that the library of a short path has to be recognised by its name.
_INSTALLED = re.compile(
    r"(accelerate|aiohttp|anyio|click|datasets|deepspeed|fastapi|filelock|flask|fsspec|grpc|httpcore|httpx"
    r"|huggingface_hub|numpy|pandas|peft|pydantic|requests|safetensors|starlette|tqdm|triton|typer|urllib3|uvicorn"
    r"|uvloop|wandb|xgrammar|zmq)(/|\.py$)"
)


@dataclass(frozen=True)
class Dump:
    """The threads of one process at one look. `pid`: 0 if the dump does not say it. `bare`: one stack without a line
    above it that names its thread."""

    pid: int
    command: str
    threads: tuple[Thread, ...]
    bare: bool = False

    @property
    def stacked(self) -> bool:
        """Whether any thread has a frame."""
        return any(thread.frames for thread in self.threads)


@lru_cache(maxsize=4_096)  # ranks of one program stand at the same lines
def _indented_frame(
    patterns: Sequence[re.Pattern[str]], between: re.Pattern[str], line: str
) -> tuple[int, Frame] | None:
    """The indentation of a line in characters, and the frame that it shows; None if it shows none, or begins something
    else."""
    words = line.strip()
    if not words or words.startswith(_HEADS) or between.match(words):
        return None
    frame = frame_of(patterns, words)
    return (len(line) - len(line.lstrip()), frame) if frame is not None else None


@dataclass
class _OpenThread:
    """A thread whose frames are read, in the order in which its tool prints them.

    indent: of its first frame, in characters; None before that.
    """

    header: ThreadHeader
    frames: list[Frame] = field(default_factory=list)
    indent: int | None = None

    def take_frame(self, line: str) -> bool:
        """Take a line that shows a frame like those before it. False: the line may be anything, and was not taken."""
        printed_by = self.header.format
        indented = _indented_frame(printed_by.frames, printed_by.between, line)
        if indented is None or self.indent != indented[0] or len(self.frames) >= MAX_FRAMES:
            return False
        self.frames.append(indented[1])
        return True

    def take(self, line: str, words: str) -> bool:
        """Take a line, `words` without its indentation. False: the thread has ended."""
        indent = len(line) - len(line.lstrip())
        printed_by = self.header.format
        if (self.indent is not None and indent > self.indent) or printed_by.between.match(words):
            return True
        frame = printed_by.frame(words) if self.indent in (None, indent) else None
        if frame is None:
            return False
        self.indent = indent
        if len(self.frames) < MAX_FRAMES or printed_by.innermost_last:
            self.frames.append(frame)
        if len(self.frames) > MAX_FRAMES:
            del self.frames[0]
        return True

    @property
    def innermost_first(self) -> tuple[Frame, ...]:
        return tuple(reversed(self.frames) if self.header.format.innermost_last else self.frames)

    @property
    def bootstrapped(self) -> bool:
        """Whether `threading` started it."""
        python = [frame for frame in self.innermost_first if frame.file.endswith(".py")]
        return bool(python) and python[-1].function == "_bootstrap" and python[-1].file.endswith("threading.py")


@dataclass
class Parser:
    """Takes the lines of one writer, in order. `dumps`: those that are whole; `close` completes the last."""

    dumps: list[Dump] = field(default_factory=list)
    _pid: int = 0
    _command: str = ""
    _threads: list[_OpenThread] = field(default_factory=list)
    _thread: _OpenThread | None = None
    _has_crashed: bool = False  # faulthandler prints what follows because of a crash
    _crashed: _OpenThread | None = None  # the thread that did

    def feed(self, line: str) -> None:
        """Take the next line."""
        if self._thread is not None and self._thread.take_frame(line):
            return
        words = line.strip()
        if not words.startswith(_HEADS):
            if words:
                self._take(line, words)
            return
        if _VERSION.match(words):
            return
        if process := _PROCESS.fullmatch(words):
            self.close()
            self._pid, self._command = int(process[1]), process[2]
        elif name := EU_PROCESS.fullmatch(words):
            self.close()
            self._pid = int(name[1])
        elif header := begun(words):
            self._begin(header)
            if self._has_crashed and words.startswith("Current thread "):
                self._crashed = self._thread
        elif _NEXT_PROCESS.match(words):
            self.close()
            self._has_crashed = words.startswith("Fatal Python error: ")
        elif (alone := begun_without_header(words)) and (self._thread is None or self._thread.frames):
            # A stack that was pasted without the line above it: each begins anew with its frame 0.
            if self._thread is None or self._thread.header.number == "":
                self.close()
                self._begin(alone)
            self._take(line, words)
        else:
            self._take(line, words)

    def _take(self, line: str, words: str) -> None:
        if self._thread is not None and not self._thread.take(line, words):
            self._thread = None

    def close(self) -> None:
        """End the dump of one process."""
        if shared := _shared(self._threads) if not self._pid else []:
            for opened in shared:
                self._threads, self._thread = [opened], None
                self._end()
        self._end()

    def _end(self) -> None:
        if self._threads:
            if self._crashed is not None:  # what the other threads did is no place of a process that crashed
                self._threads = [self._crashed]
            printed_by = self._threads[0].header.format
            threads = _of_py_spy(self._threads, self._pid) if printed_by is PY_SPY else _of_others(self._threads)
            # On Linux the id of a process is that of its main thread.
            main_tid = next((thread.tid for thread in threads if thread.main and printed_by.system_ids), 0)
            bare = self._threads[0].header.number == ""
            if not bare or len(self._threads[0].frames) > 1:
                placed = _with_marks(threads, self._command)
                self.dumps.append(Dump(self._pid or main_tid, self._command, placed, bare))
        self._pid, self._command, self._threads, self._thread = 0, "", [], None
        self._has_crashed, self._crashed = False, None

    def _begin(self, header: ThreadHeader) -> None:
        if self._threads and _is_of_another_dump(header, self._threads):
            self.close()
        self._thread = _OpenThread(header) if len(self._threads) < MAX_THREADS else None
        if self._thread is not None:
            self._threads.append(self._thread)


def _is_of_another_dump(header: ThreadHeader, threads: Sequence[_OpenThread]) -> bool:
    """Whether a thread belongs to the next dump, though no line says that one begins."""
    first, last = threads[0].header, threads[-1]
    if MAIN_THREAD in (header.name, last.header.name) and header.format is PY_SPY and not last.frames:
        return False  # headers above one stack
    if header.name == MAIN_THREAD and any(thread.header.name == MAIN_THREAD for thread in threads):
        return True
    if header.format is not first.format or header.number == first.number:
        return True
    if header.format is PYSTACK:
        return not last.bootstrapped  # the main thread is printed last
    return header.format is GDB and last.header.first and len(threads) > 1  # so it is here


def _shared(threads: Sequence[_OpenThread]) -> list[_OpenThread]:
    """Main threads whose headers stand above one stack, as people fold equal stacks of several processes; else none."""
    mains = [thread for thread in threads if thread.header.name == MAIN_THREAD]
    if len(mains) < 2 or len(mains) < len(threads):
        return []
    return [replace(thread, frames=list(mains[-1].frames)) for thread in mains]


def _of_py_spy(opened: Sequence[_OpenThread], pid: int) -> tuple[Thread, ...]:
    listed = [
        Thread(
            name=thread.header.name,
            tid=thread.header.tid,
            frames=tuple(thread.frames),
            active=thread.header.active,
            gil=thread.header.gil,
        )
        for thread in opened
    ]
    return of_process(listed, pid)


def _of_others(opened: Sequence[_OpenThread]) -> tuple[Thread, ...]:
    """Threads of a tool that does not name the main thread.

    It is the last whose stack does not begin in `threading`: the interpreter lists the newest thread first.
    """
    mains = [at for at, thread in enumerate(opened) if thread.frames and not thread.bootstrapped]
    firsts = [at for at, thread in enumerate(opened) if thread.header.first]
    main = (firsts or mains or [len(opened) - 1])[-1]
    return tuple(
        Thread(
            name=thread.header.name[:MAX_NAME],
            tid=thread.header.tid,
            frames=thread.innermost_first,
            main=at == main,
            gil=thread.header.gil,
            native=any(not frame.file.endswith((".py", ">")) for frame in thread.frames),
        )
        for at, thread in enumerate(opened)
    )


def of_json(text: str) -> Iterator[Dump]:
    """The dumps in a text that begins with a list of `py-spy dump --json`; lists may follow each other.

    Raises ValueError for anything else.
    """
    decoder, at, text = json.JSONDecoder(), 0, text.strip()
    if len(text) > MAX_JSON:
        raise ValueError(f"more than {MAX_JSON >> 20} MiB of JSON")
    for _ in range(MAX_LISTS):
        value, end = decoder.raw_decode(text, at)
        yield from _of_value(value)
        space = _SPACE.match(text, end)
        at = space.end() if space else end
        if at == len(text):
            return


def _of_value(value: Any) -> Iterator[Dump]:
    try:
        pids = {int(thread.get("pid") or 0) for thread in value[:MAX_THREADS]}
        for pid in sorted(pids):
            threads = [thread for thread in value[:MAX_THREADS] if int(thread.get("pid") or 0) == pid]
            about: dict[str, Any] = next(
                (thread["process_info"] for thread in threads if thread.get("process_info")), {}
            )
            command = str(about.get("command_line") or "")
            yield Dump(pid, command, _with_marks(parse(threads, pid), command))
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError("no list of py-spy dump --json") from error


def _with_marks(threads: tuple[Thread, ...], command: str) -> tuple[Thread, ...]:
    """The threads with short paths of libraries marked, so that a library's frame is not taken for the user's."""
    scripts = frozenset(word.rsplit("/", 1)[-1] for word in command.split() if word.endswith(".py"))
    return tuple(
        thread
        if all(_marked(frame.file, scripts) is frame.file for frame in thread.frames)
        else replace(thread, frames=tuple(_in_library(frame, scripts) for frame in thread.frames))
        for thread in threads
    )


def _in_library(frame: Frame, scripts: frozenset[str]) -> Frame:
    file = _marked(frame.file, scripts)
    return frame if file == frame.file else replace(frame, file=file)


@lru_cache(maxsize=65536)
def _marked(file: str, scripts: frozenset[str]) -> str:
    if file.startswith(("/", "<")) or not file.endswith(".py") or file in scripts:
        return file
    if _is_standard(file):
        return f"{OF_STANDARD}{file}"
    return f"{OF_INSTALLED}{file}" if _INSTALLED.match(file) else file


def _is_standard(file: str) -> bool:
    """Whether a path below `sys.path` is one of the standard library: a module of it, or a file in one of its packages.

    A folder called as a module is the user's: `code/train.py`.
    """
    package, _, inside = file.partition("/")
    if not inside:
        return package.removesuffix(".py") in sys.stdlib_module_names
    return package in _LATER_PACKAGES or package in _packages()


_LATER_PACKAGES = frozenset({"pathlib", "string", "sysconfig", "compression"})  # of Python 3.12 to 3.14


@lru_cache(maxsize=1)
def _packages() -> frozenset[str]:
    """The packages of the standard library of this interpreter."""
    folder = Path(sysconfig.get_path("stdlib"))
    return frozenset(name for name in sys.stdlib_module_names if (folder / name / "__init__.py").is_file())
