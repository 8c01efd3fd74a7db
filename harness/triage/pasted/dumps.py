"""Parses the stacks that tools print: `py-spy dump` as text and JSON, and Python's faulthandler.

Lines that are neither are passed over. Values of variables, which `py-spy dump --locals` prints, are dropped.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from harness.triage.collect.stacks import MAX_FRAMES, MAX_NAME, parse
from harness.triage.evidence import Frame, Thread

MAX_THREADS = 1_000  # of one process
MAX_FILE = 1_000  # characters of a file's name in a frame
MAX_LISTS = 20_000  # of one file of JSON
MAX_JSON = 16 << 20  # characters of JSON; the worst case, empty lists, takes 395 MiB for a moment

_PROCESS = re.compile(r"Process (\d{1,10}): (.*)")
_VERSION = re.compile(r"Python v\d+\.\d+")
_THREAD = re.compile(r'Thread (0x[0-9A-Fa-f]{1,16}|\d{1,10}) \((active|idle)([+\w]*)\)(?:: "(.*)")?')
_FAULT_THREAD = re.compile(r"(Current thread|Thread) 0x([0-9A-Fa-f]{1,16})(?: \[(.*)\])? \(most recent call first\):")
_FAULT_BEGINS = re.compile(r"Timeout \(|Fatal Python error: |Python Fatal Error")
_FRAME = re.compile(r"(.+) \(([^()]*?)(?::(\d{1,9}))?\)")
_FAULT_FRAME = re.compile(r'File "([^"]*)", line (\d{1,9}|\?\?\?) in (.+)')
_SPACE = re.compile(r"\s*")
_VARIABLE = re.compile(r"(Arguments|Locals):$|[A-Za-z_.]\w*: ")
# py-spy prints paths below sys.path, so that the library of a short path has to be recognised by its name.
_INSTALLED = re.compile(
    r"(accelerate|aiohttp|anyio|click|datasets|deepspeed|fastapi|filelock|flask|fsspec|grpc|httpcore|httpx"
    r"|huggingface_hub|numpy|pandas|peft|pydantic|requests|safetensors|starlette|tqdm|triton|typer|urllib3|uvicorn"
    r"|uvloop|wandb|xgrammar|zmq)(/|\.py$)"
)


@dataclass(frozen=True)
class Dump:
    """The threads of one process at one look. `pid`: 0 if the dump does not say it."""

    pid: int
    command: str
    threads: tuple[Thread, ...]

    @property
    def stacked(self) -> bool:
        """Whether any thread has a frame."""
        return any(thread.frames for thread in self.threads)


@dataclass
class _Open:
    """The thread whose frames come next. `fault`: it is of faulthandler."""

    raw: dict[str, Any]
    fault: bool
    indent: int | None = None


@dataclass
class Parser:
    """Takes the lines of one writer, in order. `dumps`: those that are whole; `close` completes the last."""

    dumps: list[Dump] = field(default_factory=list)
    _pid: int = 0
    _command: str = ""
    _threads: list[_Open] = field(default_factory=list)
    _thread: _Open | None = None

    def feed(self, line: str) -> None:
        """Take the next line."""
        words = line.strip()
        if not words or _VERSION.match(words):
            return
        if header := _PROCESS.fullmatch(words):
            self.close()
            self._pid, self._command = int(header[1]), header[2]
        elif words.startswith(("Thread ", "Current thread ")) and (opened := _opened(words)):
            self._open(opened)
        elif _FAULT_BEGINS.match(words):
            self.close()
        elif self._thread is not None and not _take(self._thread, line, words):
            self._thread = None

    def close(self) -> None:
        """End the dump of one process."""
        if self._threads:
            faults = self._threads[0].fault
            threads = _faults(self._threads) if faults else parse([each.raw for each in self._threads], self._pid)
            main = next((thread.tid for thread in threads if thread.main and not faults), 0)
            self.dumps.append(Dump(self._pid or main, self._command, _placed(threads, self._command)))
        self._pid, self._command, self._threads, self._thread = 0, "", [], None

    def _open(self, thread: _Open) -> None:
        number, fault = thread.raw["number"], thread.fault
        if any(each.fault is not fault or each.raw["number"] == number for each in self._threads[:1]):
            self.close()  # the first thread again: the next dump, without a header
        self._thread = thread if len(self._threads) < MAX_THREADS else None
        if self._thread is not None:
            self._threads.append(self._thread)


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
            yield Dump(pid, command, _placed(parse(threads, pid), command))
    except (KeyError, TypeError, AttributeError, OverflowError) as error:
        raise ValueError("no list of py-spy dump --json") from error


def _opened(words: str) -> _Open | None:
    """The thread that a line begins; None if it begins none."""
    if thread := _THREAD.fullmatch(words):
        number, state, more, name = thread.groups()
        tid = 0 if number.startswith("0x") else int(number)
        raw: dict[str, Any] = {"number": number, "os_thread_id": tid, "thread_name": name, "active": state == "active",
               "owns_gil": "gil" in more, "frames": []}  # fmt: skip
        return _Open(raw, fault=False)
    if thread := _FAULT_THREAD.fullmatch(words):
        return _Open({"number": thread[2], "thread_name": thread[3] or "", "frames": [],
                      "current": thread[1] != "Thread"}, fault=True)  # fmt: skip
    return None


def _take(thread: _Open, line: str, words: str) -> bool:
    """Take a line as a frame of the thread, or as a value of a variable. False: the thread has ended."""
    frames: list[dict[str, Any]] = thread.raw["frames"]
    if thread.fault:
        frame = _FAULT_FRAME.fullmatch(words)
        if frame and len(frames) < MAX_FRAMES:
            number = int(frame[2]) if frame[2].isdigit() else 0
            frames.append({"name": frame[3], "filename": frame[1][:MAX_FILE], "line": number})
        return frame is not None or words in ("...", "<no Python frame>")
    indent = len(line) - len(line.lstrip())
    thread.indent = indent if thread.indent is None else thread.indent
    if indent > thread.indent or _VARIABLE.match(words):
        return True
    frame = _FRAME.fullmatch(words) if indent == thread.indent else None
    if frame and len(frames) < MAX_FRAMES:
        frames.append({"name": frame[1], "filename": frame[2][:MAX_FILE], "line": int(frame[3] or 0)})
    return frame is not None


def _faults(opened: list[_Open]) -> tuple[Thread, ...]:
    """Threads of a faulthandler dump. The main thread is the last whose stack does not begin in `threading`: the
    interpreter lists the newest thread first."""
    mains = [at for at, each in enumerate(opened) if each.raw["frames"] and not _bootstrapped(each)]
    return tuple(
        Thread(
            name=each.raw["thread_name"][:MAX_NAME],
            tid=int(each.raw["number"], 16) & ((1 << 62) - 1),
            frames=tuple(Frame(raw["name"][:MAX_NAME], raw["filename"], raw["line"]) for raw in each.raw["frames"]),
            main=at == (mains or [len(opened) - 1])[-1],
        )
        for at, each in enumerate(opened)
    )


def _bootstrapped(thread: _Open) -> bool:
    outer = thread.raw["frames"][-1]
    return bool(outer["name"] == "_bootstrap" and outer["filename"].endswith("threading.py"))


def _placed(threads: tuple[Thread, ...], command: str) -> tuple[Thread, ...]:
    """The threads with short paths of libraries completed, so that a library's frame is not taken for the user's."""
    scripts = frozenset(word.rsplit("/", 1)[-1] for word in command.split() if word.endswith(".py"))
    return tuple(replace(thread, frames=tuple(_in_library(frame, scripts) for frame in thread.frames))
                 for thread in threads)  # fmt: skip


def _in_library(frame: Frame, scripts: frozenset[str]) -> Frame:
    file = _completed(frame.file, scripts)
    return frame if file == frame.file else replace(frame, file=file)


@lru_cache(maxsize=65536)
def _completed(file: str, scripts: frozenset[str]) -> str:
    package = file.split("/", 1)[0].removesuffix(".py")
    if file.startswith(("/", "<")) or not file.endswith(".py") or file in scripts:
        return file
    if package in sys.stdlib_module_names:
        return f"/lib/python3/{file}"
    return f"/site-packages/{file}" if _INSTALLED.match(file) else file
