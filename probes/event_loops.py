"""What the tasks of this process's event loops await. No stack of a thread shows a coroutine that waits.

`note` remembers each loop that runs. The collector of triage asks by changing `<directory>/tasks/asked`. The next beat
answers into `<directory>/tasks/<pid>.json`. It looks twice, STILL_S apart, to see which tasks move. Without a question
a beat costs one `stat` more.

A coroutine inside `async with lock` has the lock's `__aexit__` on its stack, and the garbage collector lists it. So the
holder of a lock is observed, not guessed. Only frames, types and identities are read, never values of the program.
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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

from probes import redaction
from probes.files import make_folder, write_whole
from probes.lines import encode_json
from probes.lost_threads import ERROR
from probes.spans import error_text

FOLDER, ASKED = "tasks", "asked"
STILL_S = 0.5  # between the two looks: an idle loop resumes a task that is due within milliseconds
MOST_LOOPS, MOST_TASKS, MOST_LISTED, MOST_LOST = 8, 2000, 64, 4
LINKS, DEPTH = 200, 24  # coroutines of a chain that are followed, and the innermost of them that are written
NAME = 120  # characters of a name
# What a coroutine awaits, by the file and function of asyncio in which it waits. Files without an entry for a function
# are in _FILES.
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
# Classes and functions whose context manager ends a wait after some time.
_LIMITS = frozenset({"Timeout", "CancelScope", "fail_after", "move_on_after", "timeout"})

# The attributes of a coroutine, a generator and an asynchronous generator that hold its frame, and what it awaits.
_FRAMES = ("cr_frame", "gi_frame", "ag_frame")
_INNER = ("cr_await", "gi_yieldfrom", "ag_await")

_loops: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()  # loop -> the kernel's id of its thread
_lost: deque[dict[str, Any]] = deque()
os.register_at_fork(after_in_child=_loops.clear)
os.register_at_fork(after_in_child=_lost.clear)


class _Link(NamedTuple):
    """A coroutine or generator in the chain of those that await each other."""

    coroutine: Any
    frame: FrameType

    @property
    def function(self) -> str:
        return self.frame.f_code.co_name

    @property
    def in_asyncio(self) -> bool:
        return _in_asyncio(self.frame)


class _Awaited(NamedTuple):
    """What a task awaits: kind, identity of the object, details, and identities of the tasks that it awaits."""

    kind: str
    target: int = 0
    of: str = ""
    targets: Sequence[int] = ()


def note(loop: Any) -> None:
    """Remember a loop that begins to run in this thread, and its tasks that die with an error that is never read."""
    with contextlib.suppress(Exception):  # a probe changes nothing
        _loops[loop] = threading.get_native_id()
        if "call_exception_handler" not in vars(loop):
            loop.call_exception_handler = _remembering(weakref.ref(loop))


def _remembering(reference: weakref.ref[Any]) -> Callable[[Any], None]:
    """A `call_exception_handler` that remembers a lost task, then calls that of the loop. It keeps no loop alive."""

    def call_exception_handler(context: Any) -> None:
        loop = reference()
        with contextlib.suppress(Exception):
            task, error = context.get("future"), context.get("exception")
            if hasattr(task, "get_coro") and error is not None and len(_lost) < MOST_LOST:
                _lost.append({**_lost_task(task.get_name(), error), "t_ns": time.monotonic_ns()})
        if loop is not None:
            type(loop).call_exception_handler(loop, context)

    return call_exception_handler


def running() -> list[Any]:
    """The loops that run now."""
    return [loop for loop in _snapshot(_loops) if loop.is_running()]


class Answers:
    """Answers the looks at one process. `wait` sleeps for some seconds."""

    def __init__(self, directory: str | os.PathLike[str], wait: Callable[[float], object]) -> None:
        self.folder, self._wait, self._answered = Path(directory) / FOLDER, wait, 0

    def answer(self) -> bool:
        """Write what the tasks await, if there is a question since the last answer. Return whether it was written."""
        try:
            question = os.stat(self.folder / ASKED).st_mtime_ns
        except OSError:  # no question yet
            return False
        if question == self._answered or not (loops := running()):
            return False
        self._answered = question
        # Two looks tell what is stuck from what is merely waiting at this moment: the same future, a moment later.
        before = {task: _waiter(task) for loop in loops for task in _tasks(loop)}
        self._wait(STILL_S)
        looks = [_look(loop, before) for loop in loops[:MOST_LOOPS]]
        content = {
            "host": socket.gethostname(), "asked": question, "t_ns": time.monotonic_ns(), "loops": looks,
            "left_out": sum(len(_tasks(loop)) for loop in loops[MOST_LOOPS:]), "lost": [*_lost],
        }  # fmt: skip
        make_folder(self.folder)
        write_whole(self.folder / f"{os.getpid()}.json", encode_json(content).encode())
        return True


def _look(loop: Any, before: Mapping[Any, Any]) -> dict[str, Any]:
    """The tasks of a loop, those that differ in name alone as one entry; `before` has what each awaited at first."""
    tasks = _tasks(loop)
    groups: dict[str, dict[str, Any]] = {}
    # A timer that will cancel a task limits its wait: such a task does not hang for good.
    calls = [handle._callback for handle in _later(loop)]
    ending = {getattr(call, "__self__", None) for call in calls if getattr(call, "__name__", "") == "cancel"}
    for task in tasks[:MOST_TASKS]:
        content = _task(task, still=task in before and before[task] is _waiter(task) is not None)
        content["limited"] |= task in ending
        # A server may have thousands of tasks at one place: they are one entry with many ids.
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
    awaited = _awaited(links, _waiter(task))
    return {
        "ids": [id(task)], "name": redaction.text(task.get_name(), NAME),
        "main": any("run_until_complete" in name for name in _callbacks(task)),
        "frames": [_place(link.frame) for link in reversed(links[-DEPTH:])],
        "awaits": awaited.kind, "target": awaited.target, "of": redaction.text(awaited.of, NAME),
        "targets": awaited.targets, "keeps": _kept_locks(links, awaited),
        "limited": any(map(_has_time_limit, links)), "still": still,
    }  # fmt: skip


def _links(coroutine: Any) -> Iterator[_Link]:
    """The coroutines and generators that await each other, outermost first."""
    for _ in range(LINKS):
        frame = _first_attribute(coroutine, _FRAMES)
        if frame is not None:
            yield _Link(coroutine, frame)
        inner = _first_attribute(coroutine, _INNER)
        if inner is None and frame is None:
            inner = _wrapped_coroutine(coroutine)
        if inner is None:
            return
        coroutine = inner


def _first_attribute(owner: Any, names: Iterable[str]) -> Any:
    """The first of the attributes that is not None; None if there is none."""
    values = (getattr(owner, name, None) for name in names)
    return next((value for value in values if value is not None), None)


def _wrapped_coroutine(awaitable: Any) -> Any:
    """The coroutine of `coroutine.__await__()`, or the asynchronous generator whose next item this is. Neither object
    names it; both refer to it."""
    referents = gc.get_referents(awaitable)
    return next((inner for inner in referents if hasattr(inner, "cr_await") or hasattr(inner, "ag_await")), None)


def _awaited(links: list[_Link], waiter: Any) -> _Awaited:
    """What a task awaits. `waiter` is the future that resumes the task; None if the task is ready to run."""
    if waiter is None:
        return _Awaited("runs")
    awaited = _awaited_in_asyncio(links, waiter)
    return awaited if awaited.kind else _awaited_future(waiter)


def _awaited_in_asyncio(links: list[_Link], waiter: Any) -> _Awaited:
    """What the frames of asyncio at the end of a chain wait for; without a kind if they do not say.

    An outer frame says more than the frames that it calls: `Queue.join` waits for its queue, not for the event that it
    uses. Among locks the innermost counts, except in a barrier: `Condition.wait` may be waiting for its lock.
    """
    awaited = _Awaited("", targets=_pending(getattr(waiter, "_children", ())))
    for link in itertools.takewhile(lambda link: link.in_asyncio, reversed(links)):
        file, receiver = os.path.basename(link.frame.f_code.co_filename), _receiver(link.frame)
        receiver_type = type(receiver).__name__
        if file == "locks.py" and (not awaited.kind or receiver_type == "Barrier"):
            awaited = awaited._replace(kind=_LOCKS.get(receiver_type, "lock"), target=id(receiver), of=receiver_type)
        elif kind := _PLACES.get((file, link.function)) or _FILES.get(file):
            target, details = id(receiver) if receiver is not None else 0, awaited.of or _details(receiver)
            awaited = awaited._replace(kind=kind, target=target, of=details)
            if kind == "tasks":
                futures = getattr(receiver, "_tasks", None) or link.frame.f_locals.get("fs") or ()
                awaited = awaited._replace(targets=_pending(futures))
        elif link.function == "_wait_for_one":  # of `as_completed`
            awaited = awaited._replace(kind="future", target=0)
    return awaited


def _awaited_future(waiter: Any) -> _Awaited:
    """What a task awaits, by the future that resumes it."""
    if hasattr(waiter, "_children"):  # of `gather`
        return _Awaited("tasks", id(waiter), "", _pending(waiter._children))
    if hasattr(waiter, "get_coro"):
        return _Awaited("task", id(waiter), waiter.get_name(), [id(waiter)])
    if any("_chain_future" in name for name in _callbacks(waiter)):
        return _Awaited("executor", id(waiter))
    return _Awaited("future", id(waiter), type(waiter).__name__)


def _pending(futures: Iterable[Any]) -> list[int]:
    return [id(future) for future in list(futures)[:MOST_LISTED] if not future.done()]


def _details(receiver: Any) -> str:
    """The other end of a stream, or the pid of a subprocess."""
    with contextlib.suppress(Exception):
        transport: Any = getattr(receiver, "_transport", None)
        peer = transport.get_extra_info("peername") if transport is not None else None
        if isinstance(peer, tuple) and len(peer) >= 2:
            return f"{peer[0]}:{peer[1]}"
        pid = getattr(receiver, "pid", None) or (transport.get_pid() if hasattr(transport, "get_pid") else None)
        return f"process {pid}" if pid else ""
    return ""


def _kept_locks(links: list[_Link], awaited: _Awaited) -> list[int]:
    """The identities of the locks that a task keeps while it waits."""
    kept = [_lock_identity(primitive) for link in links for primitive in _entered(link)]
    enters = any(link.in_asyncio and link.function == "__aenter__" for link in links)
    if enters and awaited.kind in ("lock", "semaphore"):
        # The task is about to enter this lock. Its `__aexit__` is on the stack already, the innermost of all.
        kept.reverse()
        if awaited.target in kept:
            kept.remove(awaited.target)
    if awaited.kind == "condition":  # `Condition.wait` releases the lock meanwhile
        released = _lock_identity(_receiver(links[-1].frame))
        kept = [identity for identity in kept if identity != released]
    return [identity for identity in kept if identity]


def _entered(link: _Link) -> Iterator[Any]:
    """The objects of asyncio whose `async with` a coroutine is in, outermost first."""
    for function, following in itertools.pairwise([*gc.get_referents(link.coroutine), None]):
        if getattr(function, "__name__", "") != "__aexit__":
            continue
        # A bound method; from Python 3.14 on the function, and its object next to it.
        primitive = getattr(function, "__self__", None) or following
        if type(primitive).__module__.startswith("asyncio."):
            yield primitive


def _lock_identity(primitive: Any) -> int:
    """The identity of what an `async with` keeps: of a condition, that of its lock; 0 for anything else."""
    name = type(primitive).__name__
    if name == "Condition":
        return id(primitive._lock)
    return id(primitive) if name in _LOCKS else 0


def _has_time_limit(link: _Link) -> bool:
    """Whether a coroutine's wait has a time limit."""
    is_wait = link.in_asyncio and link.function in ("wait_for", "_wait", "wait")
    if is_wait and link.frame.f_locals.get("timeout") is not None:
        return True
    return any(not _LIMITS.isdisjoint(_names(referent)) for referent in gc.get_referents(link.coroutine))


def _names(referent: Any) -> tuple[str, str]:
    """The class of an object, or of the object of a bound method, and the function of its generator.

    A function with a `yield` that is used as a context manager, such as anyio's `fail_after`, has a generator.
    """
    receiver = getattr(referent, "__self__", referent)
    return type(receiver).__name__, getattr(getattr(receiver, "gen", None), "__name__", "")


def _callbacks(future: Any) -> list[str]:
    """The names of the functions that are called when a future is done."""
    calls = getattr(future, "_callbacks", None) or ()
    return [getattr(call[0] if isinstance(call, tuple) else call, "__qualname__", "") for call in calls]


def _receiver(frame: FrameType) -> Any:
    """The object whose method a frame runs."""
    return frame.f_locals.get("self")


def _in_asyncio(frame: FrameType) -> bool:
    return os.path.basename(os.path.dirname(frame.f_code.co_filename)) == "asyncio"


def _place(frame: FrameType) -> list[Any]:
    code = frame.f_code
    return [code.co_qualname[-NAME:], redaction.text(code.co_filename, 0), frame.f_lineno]


def _timers(loop: Any) -> list[list[Any]] | None:
    """Calls that the loop makes later, those that end a sleep of a task as well: [function, file, seconds until then].
    None if this type of loop does not list them."""
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
    """Count of descriptors and signals that the loop waits for, except the one that wakes it; None if this type of
    loop does not list them."""
    try:
        return max(0, len(loop._selector.get_map()) - 1) + len(loop._signal_handlers)
    except Exception:  # a private field of asyncio's own loops
        return None


def _unread(loop: Any) -> list[dict[str, Any]]:
    """Tasks of a loop that died with an error that was not read yet, and to which the program still refers."""
    module: Any = sys.modules["asyncio.tasks"]
    tasks: Any = getattr(module, "_all_tasks", None) or getattr(module, "_scheduled_tasks", ())
    lost = []
    for task in _snapshot(tasks):
        if task.done() and not task.cancelled() and task.get_loop() is loop and getattr(task, "_log_traceback", False):
            lost.append(_lost_task(task.get_name(), task._exception))
    return lost[:MOST_LOST]


def _lost_task(name: str, error: BaseException) -> dict[str, Any]:
    """A task's name, its error, and the innermost frame of the program itself."""
    traceback, place = error.__traceback__, None
    while traceback is not None:
        if "/site-packages/" not in traceback.tb_frame.f_code.co_filename and not _in_asyncio(traceback.tb_frame):
            place = [*_place(traceback.tb_frame)[:2], traceback.tb_lineno]
        traceback = traceback.tb_next
    return {"name": redaction.text(name, NAME), "error": error_text(error)[:ERROR], "frame": place}


def _snapshot(items: Iterable[Any]) -> list[Any]:
    """The items of a weak set that another thread may change meanwhile."""
    for _ in range(100):
        with contextlib.suppress(RuntimeError):
            return list(items)
    return []
