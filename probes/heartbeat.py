"""The heartbeat of a process. It shows two facts separately: the interpreter is alive, and its work progresses.

A daemon thread writes one block of 4,096 bytes into `<directory>/beats/<pid>.json` once per period. It calls nothing
that could block: it only reads the main thread's stack, the counters of process groups and those of recorders. An old
beat means that the interpreter lock is held or that the process is stopped. An old `progress_ns` means that the main
thread has not moved.
"""

from __future__ import annotations

import contextlib
import os
import socket
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from probes import collectives, handled_errors, lost_threads, redaction
from probes.engines import ENGINES
from probes.files import FILE_MODE, make_folder
from probes.identity import started
from probes.lines import encode_json

BEATS, BLOCK, PERIOD_S = "beats", 4096, 1.0
WATCHDOG = "watchdog.json"  # the beat of `harness watch`, beside those of the job
DEPTH = 100  # frames in a fingerprint; deeper ones do not change
SHOWN = 8  # innermost frames in a beat, for jobs whose stacks cannot be read from outside
# A polling loop visits a few places again and again, so only a place that is not among the last PLACES is progress. A
# waiting loop of SGLang's scheduler was seen to have some tens of places.
PLACES = 256
TEXT = 120  # characters of a name or of a field

# Files of libraries through which callers wait. What a thread waits for is told by the next frame outside these
# files.
_PASSED = (
    "/threading.py", "/queue.py", "/selectors.py", "/socket.py", "/ssl.py", "/multiprocessing/connection.py",
    "/torch/_ops.py", "/zmq/sugar/socket.py", "/zmq/sugar/poll.py",
)  # fmt: skip
# What the main thread waits for, by file and function of the first frame outside those files. Only that frame counts:
# FSDP's forward is around the user's code, and Ray's main loop is around every task. `idle`: it waits for orders, and
# may do so forever.
_KNOWN: tuple[tuple[str, str, str], ...] = (
    ("/ray/_private/worker.py", "main_loop", "idle"),
    ("/torch/distributed/elastic/", "", "idle"),
    ("/torch/distributed/launcher/", "", "idle"),
    ("/torch/_inductor/compile_worker/", "", "idle"),
    *((file, function, "idle") for engine in ENGINES.values() for file, function in engine.idle),
    ("/asyncio/base_events.py", "_run_once", "idle"),
    ("/asyncio/runners.py", "run", "idle"),
    ("/multiprocessing/queues.py", "get", "idle"),
    ("/socketserver.py", "serve_forever", "idle"),
    ("/torch/distributed/", "", "collective"),
    ("/torch/autograd/graph.py", "_engine_run_backward", "backward"),
    ("/torch/cuda/__init__.py", "synchronize", "device"),
    ("/torch/cuda/streams.py", "", "device"),
    ("/torch/accelerator/__init__.py", "synchronize", "device"),
    ("/torch/xpu/__init__.py", "synchronize", "device"),
    ("/torch_npu/npu/utils.py", "synchronize", "device"),
    ("/ray/_private/worker.py", "", "ray"),
    ("/http/client.py", "", "http"),
    ("/httpcore/", "", "http"),
    ("/urllib3/", "", "http"),
    ("/subprocess.py", "", "child"),
    ("/multiprocessing/popen_fork.py", "", "child"),
    ("/torch/multiprocessing/spawn.py", "join", "child"),
)
# Inside these functions a rank waits for orders, whatever they call; that includes endless broadcasts to its peers.
_ORDERS = tuple(place for engine in ENGINES.values() for place in engine.orders)
_BREAKPOINTS = {  # debugger.py: IPython's and pudb's
    ("pdb.py", "interaction"), ("debugger.py", "interaction"), ("code.py", "interact"),
    ("pydevd.py", "do_wait_suspend"),
}  # fmt: skip


@dataclass(frozen=True)
class Place:
    """Where a main thread is. `wait`: idle, collective, backward, device, ray, http, child, or empty for unknown."""

    wait: str
    breakpoint: bool
    stack: tuple[str, ...]  # "file:line function", innermost first


def fingerprint(frame: FrameType | None) -> int:
    """Return a number that changes with the stack: a hash of code objects and instructions. About 0.1 µs per frame."""
    instructions: list[int] = []
    for _ in range(DEPTH):
        if frame is None:
            break
        instructions += (id(frame.f_code), frame.f_lasti)
        frame = frame.f_back
    return hash(tuple(instructions))


def place(frame: FrameType | None) -> Place:
    """Classify a stack, from its innermost frame outwards."""
    wait, stopped, outside, stack = "", False, False, []
    for depth in range(DEPTH):
        if frame is None:
            break
        code = frame.f_code
        if depth < SHOWN:
            stack.append(f"{_short(code.co_filename)}:{frame.f_lineno} {code.co_name}"[:TEXT])
        # Further out than the wait itself, and stronger: what a rank calls to get its orders is not its work.
        if any(code.co_name == function and code.co_filename.endswith(file) for file, function in _ORDERS):
            wait = "idle"
        stopped = stopped or (os.path.basename(code.co_filename), code.co_name) in _BREAKPOINTS
        if not outside and not code.co_filename.endswith(_PASSED):
            wait, outside = _meaning(code.co_filename, code.co_name), True
        frame = frame.f_back
    return Place(wait, stopped, tuple(stack))


def _meaning(file: str, function: str) -> str:
    for path, name, meaning in _KNOWN:
        if name in ("", function) and (path in file if path.endswith("/") else file.endswith(path)):
            return meaning
    return ""


def main_frame() -> FrameType | None:
    """Return the innermost Python frame of this process's main thread."""
    return sys._current_frames().get(threading.main_thread().ident or 0)


def _free(folder: Path) -> Path:
    """Return the file for this process's beats.

    Nodes that share the folder may have equal process ids, containers often do. A file of another host gets a name
    with this host's name in it.
    """
    file, host = folder / f"{os.getpid()}.json", socket.gethostname()
    try:
        is_foreign = f'"host":{encode_json(host)},'.encode() not in file.read_bytes()
    except OSError:  # it is not there
        is_foreign = False
    return folder / f"{os.getpid()}-{host}.json" if is_foreign else file


@dataclass(frozen=True)
class Sources:
    """What a beat is made from.

    `clock`: monotonic nanoseconds. `frame`: the main thread's innermost frame. `sequences`: collectives enqueued, by
    group. `handles`: the error that the main thread handles.
    """

    clock: Callable[[], int] = time.monotonic_ns
    frame: Callable[[], FrameType | None] = main_frame
    sequences: Callable[[], dict[str, int]] = collectives.sequences
    handles: Callable[[], dict[str, Any] | None] = handled_errors.handled


PROCESS = Sources()


class Heartbeat:
    """Observes this process and writes its beats.

    `identity`: returns role, rank, world_size and whatever else the process knows about itself. `recorders`: returns
    the recorders whose events count as progress and whose open spans are shown.
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        identity: Callable[[], Mapping[str, Any]] = dict,
        recorders: Callable[[], Iterable[Any]] = tuple,
        sources: Sources = PROCESS,
        period_s: float = PERIOD_S,
    ) -> None:
        self.path = _free(Path(directory) / BEATS)
        self.count, self.self_ns, self.period_s = 0, 0, period_s
        self._identity, self._recorders, self._frame = identity, recorders, sources.frame
        self._sequences, self._clock, self._progress_ns = sources.sequences, sources.clock, sources.clock()
        self._handles = sources.handles
        self._places: OrderedDict[int, Place] = OrderedDict()
        self._counters: tuple[dict[str, int], int] = ({}, 0)
        self._fixed = {"host": socket.gethostname(), "pid": os.getpid(), "start_ticks": started()}
        self.lost = 0  # beats that could not be written
        self._fd = -1
        self._open()

    def beat(self, **more: Any) -> dict[str, Any]:
        """Look once, write the block, and return what was written. `more`: further fields, such as `ended`."""
        began = time.thread_time_ns()
        now = self._clock()
        sources = list(self._recorders())
        where = self._where(now)
        # Progress is a collective, an event, or a stack that was not seen before (`_where`).
        counters = self._sequences(), sum(source.events for source in sources)
        if counters != self._counters:
            self._counters, self._progress_ns = counters, now
        self.count += 1
        content = {
            **self._fixed, "rank": None, "world_size": None, "role": "process", "socket": "", **self._identity(),
            "tid": threading.get_native_id(), "t_ns": now, "count": self.count, "period_s": self.period_s,
            "progress_ns": self._progress_ns,
            "open": [_span(span) for source in sources for span in list(source.running.values())],
            "states": {key: redaction.fields(say()) for source in sources for key, say in list(source.states.items())},
            "sequences": counters[0], "breakpoint": where.breakpoint, "wait": where.wait,
            "stack": [redaction.text(entry) for entry in where.stack], "self_ns": self.self_ns, **more,
        }  # fmt: skip
        if lost := lost_threads.lost():
            content["lost_threads"] = [{**thread, "name": redaction.text(thread["name"], TEXT)} for thread in lost]
        content["handles"] = self._handles()
        self._write(block(content))
        self.self_ns += time.thread_time_ns() - began
        return content

    def close(self) -> None:
        """Close the file; the last beat stays readable."""
        if self._fd >= 0:
            with contextlib.suppress(OSError):  # a network file system reports a full disk here
                os.close(self._fd)
            self._fd = -1

    def _open(self) -> None:
        make_folder(self.path.parent)
        self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, FILE_MODE)

    def _write(self, data: bytes) -> None:
        """Write the block, or remove the file where writing fails; the next beat tries again.

        A file that only aged would look like a process that does not answer.
        """
        try:
            if self._fd < 0:
                self._open()
            os.pwrite(self._fd, data, 0)
            if not os.fstat(self._fd).st_nlink:  # the directory was removed: the next beat makes it again
                self.close()
        except OSError:
            self.lost += 1
            self.close()
            with contextlib.suppress(OSError):
                os.unlink(self.path)

    def _where(self, now: int) -> Place:
        frame = self._frame()
        key = fingerprint(frame)
        cached_place = self._places.get(key)
        if cached_place is not None:
            self._places.move_to_end(key)
            return cached_place
        # A stack that is not among the last `PLACES`: the process is somewhere else, so it advanced.
        self._progress_ns = now
        new_place = self._places[key] = place(frame)
        if len(self._places) > PLACES:
            self._places.popitem(last=False)
        return new_place


def block(beat: Mapping[str, Any]) -> bytes:
    """Return one beat as the bytes that are written: JSON, padded with spaces. Fields that do not fit are emptied."""
    data = encode_json(beat).encode()
    for key, empty in (("stack", []), ("journals", []), ("states", {}), ("open", []), ("lost_threads", []),
                       ("handles", None),
                       ("sequences", {})):  # fmt: skip
        if len(data) <= BLOCK:
            break
        beat = {**beat, key: empty, "cut": True}
        data = encode_json(beat).encode()
    return data[:BLOCK].ljust(BLOCK)


def _span(span: Any) -> dict[str, Any]:
    opened = span.opened
    fields = {
        key: redaction.text(value, TEXT) if isinstance(value, str) else value
        for key, value in list(opened["fields"].items())
        if isinstance(value, (str, int, float, bool)) or (isinstance(value, list) and len(value) <= 64)
    }
    return {"name": opened["name"], "start_ns": opened["start_ns"], "fields": redaction.fields(fields)}


def _short(path: str) -> str:
    return "/".join(path.rsplit("/", 3)[-3:])
