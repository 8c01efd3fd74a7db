"""What the tasks of this process's event loops await. No stack of a thread shows a coroutine that waits.

`note` remembers each loop that runs. A look from outside asks by changing `<directory>/tasks/asked`; the next beat
answers into `<directory>/tasks/<pid>.json`. It looks twice, STILL_S apart, to tell a task that stands from one that
moves. A beat for which nobody asks costs one `stat` more.

A coroutine that waits inside `async with lock` has the lock's `__aexit__` on its stack, which the garbage collector can
list. So who keeps a lock is seen, not guessed. Only frames, types and identities are read, never values of the program.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import os
import signal
import socket
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from probes import redaction
from probes.files import make_folder, write_whole
from probes.lines import encode_json
from probes.lost_threads import ERROR
from probes.spans import error_text

FOLDER, ASKED = "tasks", "asked"
STILL_S = 0.5  # between the two looks: an idle loop resumes a task within milliseconds once it is due
MOST_LOOPS, MOST_TASKS, MOST_LISTED, MOST_LOST = 8, 2000, 64, 4
LINKS, DEPTH = 200, 24  # coroutines of one chain that are followed, and innermost ones that are written
NAME = 120  # characters of a name
# The function of asyncio in which a coroutine waits, by file: what it awaits. A caller among asyncio's frames says more
# than the function that it calls, except of locks.
_PLACES = {
    ("queues.py", "get"): "queue.get", ("queues.py", "put"): "queue.put", ("queues.py", "join"): "queue.join",
    ("taskgroups.py", "__aexit__"): "tasks", ("tasks.py", "wait"): "tasks", ("tasks.py", "_wait"): "tasks",
    ("tasks.py", "sleep"): "sleep", ("base_events.py", "serve_forever"): "connections",
    ("base_events.py", "run_in_executor"): "executor",
}  # fmt: skip
_FILES = {
    "streams.py": "socket", "selector_events.py": "socket", "base_events.py": "socket", "sslproto.py": "socket",
    "subprocess.py": "subprocess", "base_subprocess.py": "subprocess", "threads.py": "executor",
}  # fmt: skip
_LOCKS = {"Lock": "lock", "Condition": "condition", "Event": "event", "Semaphore": "semaphore",
          "BoundedSemaphore": "semaphore", "Barrier": "barrier"}  # fmt: skip
# Context managers, by class or function, that end a wait after some time.
_LIMITS = frozenset({"Timeout", "CancelScope", "fail_after", "move_on_after", "timeout"})

_loops: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()  # loop -> the kernel's id of its thread
_lost: deque[dict[str, Any]] = deque()
os.register_at_fork(after_in_child=_loops.clear)
os.register_at_fork(after_in_child=_lost.clear)


def note(loop: Any) -> None:
    """Remember a loop that begins to run in this thread, and its tasks that die with an error which nobody reads."""
    with contextlib.suppress(Exception):  # a probe changes nothing
        _loops[loop] = threading.get_native_id()
        if "call_exception_handler" not in vars(loop):
            loop.call_exception_handler = _remembering(weakref.ref(loop))


def _remembering(reference: weakref.ref[Any]) -> Callable[[Any], None]:
    """The loop's own `call_exception_handler`, which remembers a lost task before. It keeps no loop alive."""

    def call_exception_handler(context: Any) -> None:
        loop = reference()
        with contextlib.suppress(Exception):
            task, error = context.get("future"), context.get("exception")
            if hasattr(task, "get_coro") and error is not None and len(_lost) < MOST_LOST:
                _lost.append({**_died(task.get_name(), error), "t_ns": time.monotonic_ns()})
        if loop is not None:
            type(loop).call_exception_handler(loop, context)

    return call_exception_handler


def running() -> list[Any]:
    """The loops that run now."""
    return [loop for loop in _listed(_loops) if loop.is_running()]


class Answers:
    """Answers the looks at one process. `wait` sleeps for some seconds."""

    def __init__(self, directory: str | os.PathLike[str], wait: Callable[[float], object]) -> None:
        self.folder, self._wait, self._answered = Path(directory) / FOLDER, wait, 0

    def answer(self) -> bool:
        """Write what the tasks await if a look has asked since the last answer. Return whether it has."""
        try:
            asked = os.stat(self.folder / ASKED).st_mtime_ns
        except OSError:  # nobody has asked yet
            return False
        if asked == self._answered or not (loops := running()):
            return False
        self._answered = asked
        before = {task: _waiter(task) for loop in loops for task in _tasks(loop)}
        self._wait(STILL_S)
        looks = [_look(loop, before) for loop in loops[:MOST_LOOPS]]
        content = {
            "host": socket.gethostname(), "asked": asked, "t_ns": time.monotonic_ns(), "loops": looks,
            "left_out": sum(len(_tasks(loop)) for loop in loops[MOST_LOOPS:]), "lost": [*_lost],
        }  # fmt: skip
        make_folder(self.folder)
        write_whole(self.folder / f"{os.getpid()}.json", encode_json(content).encode())
        return True


def _look(loop: Any, before: Mapping[Any, Any]) -> dict[str, Any]:
    tasks = _tasks(loop)
    groups: dict[str, dict[str, Any]] = {}
    calls = [handle._callback for handle in _later(loop)]
    ending = {getattr(call, "__self__", None) for call in calls if getattr(call, "__name__", "") == "cancel"}
    for task in tasks[:MOST_TASKS]:
        content = _task(task, still=task in before and before[task] is _waiter(task) is not None)
        content["limited"] |= task in ending
        key = encode_json({**content, "ids": 0, "name": ""})
        if key in groups:
            groups[key]["ids"].append(id(task))
        elif len(groups) < MOST_LISTED:
            groups[key] = content
    listed = sum(len(group["ids"]) for group in groups.values())
    return {
        "thread": _loops.get(loop, 0), "tasks": list(groups.values()), "left_out": len(tasks) - listed,
        "timers": _timers(loop), "ready": len(getattr(loop, "_ready", ())), "descriptors": _descriptors(loop),
        "lost": _unread(loop),
    }  # fmt: skip


def _tasks(loop: Any) -> list[Any]:
    asyncio: Any = sys.modules["asyncio"]
    return list(asyncio.all_tasks(loop))


def _waiter(task: Any) -> Any:
    return getattr(task, "_fut_waiter", None)


def _task(task: Any, *, still: bool) -> dict[str, Any]:
    links = list(_links(task.get_coro()))
    waiter = _waiter(task)
    awaits, target, of, targets = _awaited(links, waiter)
    kept = [_lock(each) for link in links for each in _entered(link)]
    if awaits in ("lock", "semaphore") and any(_plain(frame) == "__aenter__" for _, frame in links if _asyncio(frame)):
        kept.reverse()
        kept.remove(target)  # it is about to enter this one
    if awaits == "condition":  # whoever waits for it has given it up
        kept = [each for each in kept if each != _lock(_own(links[-1][1]))]
    return {
        "ids": [id(task)], "name": redaction.text(task.get_name(), NAME),
        "main": any("run_until_complete" in getattr(call, "__qualname__", "") for call in _callbacks(task)),
        "frames": [_place(frame) for _, frame in reversed(links[-DEPTH:])],
        "awaits": awaits, "target": target, "of": redaction.text(of, NAME), "targets": targets,
        "keeps": [each for each in kept if each], "limited": any(map(_limits, links)), "still": still,
    }  # fmt: skip


def _links(coroutine: Any) -> Iterator[tuple[Any, FrameType]]:
    """The coroutines and generators that await each other, with their frames, outermost first."""
    for _ in range(LINKS):
        frame = next((its for name in ("cr_frame", "gi_frame", "ag_frame") if (its := getattr(coroutine, name, None))),
                     None)  # fmt: skip
        if frame is not None:
            yield coroutine, frame
        inner = next((getattr(coroutine, name) for name in ("cr_await", "gi_yieldfrom", "ag_await")
                      if hasattr(coroutine, name)), None)  # fmt: skip
        if inner is None:
            # The awaitable of a coroutine, or the next item of an asynchronous generator: it refers to that one.
            inner = (
                None
                if frame is not None or coroutine is None
                else next(
                    (
                        each
                        for each in gc.get_referents(coroutine)
                        if hasattr(each, "cr_await") or hasattr(each, "ag_await")
                    ),
                    None,
                )
            )
        if inner is None:
            return
        coroutine = inner


def _awaited(links: list[tuple[Any, FrameType]], waiter: Any) -> tuple[str, int, str, list[int]]:
    """What a task awaits: kind, identity, details, and the tasks that are meant."""
    if waiter is None:
        return "runs", 0, "", []
    kind, target, of, targets = "", 0, "", [] if not hasattr(waiter, "_children") else _pending(waiter._children)
    for _, frame in reversed(links):
        if not _asyncio(frame):
            break
        file, function, own = os.path.basename(frame.f_code.co_filename), _plain(frame), _own(frame)
        if file == "locks.py" and (not kind or type(own).__name__ == "Barrier"):
            kind, target, of = _LOCKS.get(type(own).__name__, "lock"), id(own), type(own).__name__
        elif place := _PLACES.get((file, function)) or (_FILES.get(file) if not kind or file in _FILES else ""):
            kind, target, of = place, id(own) if own is not None else 0, of or _details(own)
            if place == "tasks":
                targets = _pending(getattr(own, "_tasks", None) or frame.f_locals.get("fs") or ())
        elif function == "_wait_for_one":
            kind, target = "future", 0
    if kind:
        return kind, target, of, targets
    if targets or hasattr(waiter, "_children"):
        return "tasks", id(waiter), "", targets
    if hasattr(waiter, "get_coro"):
        return "task", id(waiter), waiter.get_name(), [id(waiter)]
    if any("_chain_future" in getattr(call, "__qualname__", "") for call in _callbacks(waiter)):
        return "executor", id(waiter), "", []
    return "future", id(waiter), type(waiter).__name__, []


def _pending(futures: Iterable[Any]) -> list[int]:
    return [id(future) for future in list(futures)[:MOST_LISTED] if not future.done()]


def _details(own: Any) -> str:
    """The other end of a stream, or the pid of a subprocess."""
    with contextlib.suppress(Exception):
        transport: Any = getattr(own, "_transport", None)
        peer = transport.get_extra_info("peername") if transport is not None else None
        if isinstance(peer, tuple) and len(peer) >= 2:
            return f"{peer[0]}:{peer[1]}"
        pid = getattr(own, "pid", None) or (transport.get_pid() if hasattr(transport, "get_pid") else None)
        return f"process {pid}" if pid else ""
    return ""


def _entered(link: tuple[Any, FrameType]) -> Iterator[Any]:
    """The objects of asyncio whose `async with` a coroutine is in, outermost first."""
    for function, following in itertools.pairwise([*gc.get_referents(link[0]), None]):
        if getattr(function, "__name__", "") != "__aexit__":
            continue
        # A bound method; from Python 3.14 on the function, and its object next to it.
        own = getattr(function, "__self__", None) or following
        if type(own).__module__.startswith("asyncio."):
            yield own


def _lock(own: Any) -> int:
    """The identity of what an `async with` keeps: of a condition, that of its lock; 0 for anything else."""
    name = type(own).__name__
    if name == "Condition":
        return id(own._lock)
    return id(own) if name in _LOCKS else 0


def _limits(link: tuple[Any, FrameType]) -> bool:
    """Whether a coroutine's wait has a time limit."""
    _, frame = link
    if _asyncio(frame) and _plain(frame) in ("wait_for", "_wait", "wait") and frame.f_locals.get("timeout") is not None:
        return True
    for each in gc.get_referents(link[0]):
        own = getattr(each, "__self__", each)
        # A function with a `yield` that is used as a context manager, such as anyio's `fail_after`, has a generator.
        names = type(own).__name__, getattr(getattr(own, "gen", None), "__name__", "")
        if not _LIMITS.isdisjoint(names):
            return True
    return False


def _callbacks(future: Any) -> list[Any]:
    return [call[0] if isinstance(call, tuple) else call for call in getattr(future, "_callbacks", None) or ()]


def _own(frame: FrameType) -> Any:
    """The object of a method of asyncio."""
    return frame.f_locals.get("self")


def _plain(frame: FrameType) -> str:
    return frame.f_code.co_name


def _asyncio(frame: FrameType) -> bool:
    return os.path.basename(os.path.dirname(frame.f_code.co_filename)) == "asyncio"


def _place(frame: FrameType) -> list[Any]:
    code = frame.f_code
    return [code.co_qualname[-NAME:], redaction.text(code.co_filename, 0), frame.f_lineno]


def _timers(loop: Any) -> list[list[Any]] | None:
    """Calls that the loop makes later, those that end a sleep of a task as well: [function, file, seconds until then].
    None if this loop does not show them."""
    if not hasattr(loop, "_scheduled"):
        return None
    alarm_s = signal.getitimer(signal.ITIMER_REAL)[0]  # its handler may make a call of the loop
    timers: list[list[Any]] = [["", "", alarm_s]] if alarm_s else []
    for handle in _later(loop):
        code = getattr(getattr(handle._callback, "__func__", handle._callback), "__code__", None)
        due_s = round(handle.when() - loop.time(), 3)
        timers.append([code.co_qualname, code.co_filename, due_s] if code else ["", "", due_s])
    return sorted(timers, key=lambda timer: timer[2])[:MOST_LISTED]


def _later(loop: Any) -> list[Any]:
    return [handle for handle in list(getattr(loop, "_scheduled", ())) if not handle.cancelled()]


def _descriptors(loop: Any) -> int | None:
    """How many descriptors and signals the loop waits for, beside the one that wakes it; None if it does not show
    them."""
    try:
        return max(0, len(loop._selector.get_map()) - 1) + len(loop._signal_handlers)
    except Exception:  # a private field of asyncio's own loops
        return None


def _unread(loop: Any) -> list[dict[str, Any]]:
    """Tasks of a loop that died with an error which nobody has read, and to which the program still refers."""
    module: Any = sys.modules["asyncio.tasks"]
    known: Any = getattr(module, "_all_tasks", None) or getattr(module, "_scheduled_tasks", ())
    lost = []
    for task in _listed(known):
        if task.done() and not task.cancelled() and task.get_loop() is loop and getattr(task, "_log_traceback", False):
            lost.append(_died(task.get_name(), task._exception))
    return lost[:MOST_LOST]


def _died(name: str, error: BaseException) -> dict[str, Any]:
    traceback, place = error.__traceback__, None
    while traceback is not None:
        if "/site-packages/" not in traceback.tb_frame.f_code.co_filename and not _asyncio(traceback.tb_frame):
            place = [*_place(traceback.tb_frame)[:2], traceback.tb_lineno]
        traceback = traceback.tb_next
    return {"name": redaction.text(name, NAME), "error": error_text(error)[:ERROR], "frame": place}


def _listed(items: Iterable[Any]) -> list[Any]:
    """The items of a weak set that another thread may change meanwhile."""
    for _ in range(100):
        with contextlib.suppress(RuntimeError):
            return list(items)
    return []
