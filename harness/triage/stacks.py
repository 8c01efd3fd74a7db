"""What a process is doing, read from its stack with one table of places, matched from the innermost frame outwards.

A thread has one innermost kind (what it is blocked on or busy with), and the kinds of the frames around it: a
collective inside a checkpoint is both. Python frames decide; native frames are used if they are there. A blocking C
call (`time.sleep`, `work.wait()`) has no Python frame of its own, so the kernel's wait channel and the native stack
help.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import lru_cache

from harness.frameworks.spec import frameworks
from harness.triage.evidence import Frame, Process, Sample, Thread
from harness.triage.places import IDLE, SPAWNED, WAITING, match, plain, users
from scenarios.engines import registry

# Kinds that say inside what something happens, not what the thread is blocked on.
_AROUND = frozenset(
    {
        "checkpoint",
        "evaluation",
        "scheduler",
        "orders",
        "transition",
        "ray_idle",
        "compile",
        "engine_call",
        "http_server",
        "select",
    }
)
MAX_SHOWN = 40  # frames of a stack in a verdict; the evidence has all of them
# Loops that run user code, and are idle only while they do not.
_SERVING = frozenset({"ray_idle", "http_server"})
EVENT_LOOP = "AsyncIO Thread"  # the name that Ray gives to the thread in which an asyncio actor's coroutines run
_LOOP = re.compile(r"asyncio/|uvloop|selectors\.py|/threading\.py")  # frames of a waiting event loop and of its thread
_ASYNC, _WAITS = re.compile(r"asyncio/|uvloop"), re.compile(r"asyncio/|uvloop|selectors\.py")
JOINS = ("join", "_wait_for_tstate_lock")  # functions of threading that wait for the end of a thread
_TASK = "actor_method_executor"  # the function in ray/_private/function_manager.py that calls an actor's method
# Programs that multiprocessing starts by `python -c`.
_STARTED = re.compile(r"/multiprocessing/(spawn|forkserver|resource_tracker)\.py$")
# User functions, as `Doing.frame` ends, that write metrics or log lines if they run beside the main thread.
_VERB = re.compile(r" in _*(write|store|export|publish)(_all|_to_disk)?$")
# Frameworks with an adapter, engines, and frameworks without an adapter.
_FRAMEWORKS = re.compile(rf"/({'|'.join((*frameworks(), *registry.names(embedded=False)))}|slime|areal|nemo_rl)/")


@dataclass(frozen=True)
class Doing:
    """What one thread was doing.

    `kind`: one of TABLE, "user" (in the user's code, with nothing known below it), or "unknown". `active`: on a
    processor when it was sampled.
    """

    kind: str = "unknown"
    op: str = ""
    around: tuple[str, ...] = ()  # kinds of the frames further out, innermost first
    frame: str = ""  # innermost frame of the user's code, "train.py:42 in step"
    thread: str = ""
    active: bool = False
    gil: bool = False

    @property
    def idle(self) -> bool:
        """Whether it is in a loop that waits for work."""
        return self.kind in IDLE or (self.kind in ("select", "lock", "sleep") and bool(IDLE & set(self.around)))

    @property
    def waiting(self) -> bool:
        """Whether it is blocked on something that another process has to do."""
        return self.kind in WAITING

    def within(self, *kinds: str) -> bool:
        """Whether it does one of these, at any depth."""
        return self.kind in kinds or any(kind in kinds for kind in self.around)


UNKNOWN = Doing()


def doing(process: Process, sample: int = -1) -> Doing:
    """What a process does as a whole: its main thread, or another thread if the main one only waits or says nothing."""
    if not process.samples or not -len(process.samples) <= sample < len(process.samples):
        return UNKNOWN
    look = process.samples[sample]
    places = {thread.tid: _innermost(thread) for thread in look.threads}
    # A native stack is taken once, after the last look, so it may only be joined with threads that stand in the same
    # Python frame.
    natives = {
        thread.tid: thread
        for thread in process.native if sample == -1
        if _innermost(thread) in (None, places.get(thread.tid))  # it was taken later, and may show another place
    }  # fmt: skip
    doings = [
        (_is_main(thread, index, process.pid), classify(thread, look, natives.get(thread.tid)))
        for index, thread in enumerate(look.threads)
        if not ours(thread)
    ]
    if not doings and process.native and sample == -1:
        doings = [
            (_is_main(thread, index, process.pid), classify(thread, look))
            for index, thread in enumerate(process.native)
        ]
    mains = [thread_doing for main, thread_doing in doings if main]
    main = mains[0] if mains else doings[0][1] if doings else UNKNOWN
    # A main thread that is blocked on something known speaks for the process. Otherwise a side thread may say more.
    if main.waiting or main.kind in ("device", "debugger", "checkpoint", "evaluation", "transition", "compile"):
        return main
    if (side_work := _side_work([thread_doing for _, thread_doing in doings if thread_doing is not main])) is not None:
        return side_work
    if main.kind == "ray_idle" and (working := in_ray_task(look.threads)) is not None:
        return classify(working, look, natives.get(working.tid))
    return main


def _side_work(doings: list[Doing]) -> Doing | None:
    """The side thread that says more than an idle main thread: a debugger first, else a backward pass, an executor
    thread or a request handler. A thread that only writes metrics or log lines says nothing."""
    for side_work in doings:
        if side_work.kind == "debugger":
            return side_work
    telling = (WAITING - {"join"}) | {"transition", "checkpoint"}
    for side_work in doings:
        writes = side_work.kind == "checkpoint" and _VERB.search(side_work.frame)
        if side_work.kind in telling and not writes:
            return side_work
    return None


def _innermost(thread: Thread) -> tuple[str, str] | None:
    """The innermost Python frame of a thread; None if all its frames are of compiled code."""
    return next(((frame.function, frame.file) for frame in thread.frames if frame.file.endswith(".py")), None)


def in_ray_task(threads: Iterable[Thread]) -> Thread | None:
    """The thread in which a Ray task runs while the worker's main thread is idle, with the frames of the task; None
    without one.

    It is an asyncio actor's loop, or a thread of a pool if the actor has concurrency groups.
    """
    for thread in threads:
        if called := _called_by_loop(thread):
            return replace(thread, frames=called)
        if not thread.leads and any(plain(frame.function) == _TASK for frame in thread.frames):
            return thread
    return None


def _called_by_loop(thread: Thread) -> tuple[Frame, ...]:
    """The frames of what Ray's event loop is calling now; none while it waits.

    uvloop's own loop has no frame, so what it calls stands right above the thread's frames.
    """
    if not thread.name.startswith(EVENT_LOOP):
        return ()
    outer = ("_run_once", "run_forever", "run")
    loop = (at for at, frame in enumerate(thread.frames) if plain(frame.function) in outer and _LOOP.search(frame.file))
    called = thread.frames[: next(loop, len(thread.frames))]
    return called if any(not _LOOP.search(frame.file) for frame in called) else ()


def awaits(thread: Thread) -> bool:
    """Whether the thread is an event loop that waits for whatever its coroutines await, which no stack shows."""
    if thread.name.startswith(EVENT_LOOP):
        return not _called_by_loop(thread)
    inner = thread.frames[0].file if thread.frames else ""
    return bool(_WAITS.search(inner)) and any(_ASYNC.search(frame.file) for frame in thread.frames)


def in_event_loop(process: Process, sample: Sample) -> bool:
    """Whether a process waits in an event loop, for tasks that no stack shows.

    The loop may be in its main thread or, as in Ray's asyncio actors, in a thread of its own name while the main one
    waits.
    """
    for index, thread in enumerate(sample.threads):
        if _is_main(thread, index, process.pid):
            if awaits(thread):
                return True
        elif thread.name.startswith(EVENT_LOOP) and awaits(thread):
            return True
    return False


def asleep(thread: Thread) -> bool:
    """Whether a thread sleeps for a time that it chose, by the kernel function in which it stands."""
    return "nanosleep" in thread.wchan


def posture(thread: Thread) -> str:
    """What a thread does at its place, as the verb of a sentence."""
    return "sleeps" if asleep(thread) else "stands"


def classify(thread: Thread, sample: Sample | None = None, native: Thread | None = None) -> Doing:
    """Classify one thread's stack. `native`: the same thread with its C frames, if they were taken."""
    kinds = _kinds(thread, native)
    if kinds:
        kind, op = _waits_in(kinds)
    elif thread.frames:
        sleeps = sample is not None and "nanosleep" in sample.wchan and thread.leads
        kind, op = "sleep" if sleeps else "user", ""
    else:
        kind, op = "unknown", ""
    return Doing(
        kind=kind,
        op=op,
        around=tuple(dict.fromkeys(outer_kind for outer_kind, _ in kinds[1:] if outer_kind != kind)),
        frame=user_frame(thread.frames),
        thread=thread.name,
        active=thread.active,
        gil=thread.gil,
    )


def _kinds(thread: Thread, native: Thread | None) -> list[tuple[str, str]]:
    """(kind, operation) of each frame that says what a thread does, innermost first."""
    kinds = list(_kinds_of(thread.frames))
    if native is not None and (not kinds or kinds[0][0] in _AROUND):
        below = [(entry.kind, entry.op) for entry in map(match, native.frames) if entry and entry.function[0] == "<"]
        kinds = below[:1] + kinds
    return _from_the_call(kinds, leading=thread.leads)


@lru_cache(maxsize=4096)  # stacks; a job of a thousand ranks has few that differ
def _kinds_of(frames: tuple[Frame, ...]) -> tuple[tuple[str, str], ...]:
    """(kind, operation) of each Python frame that says what a thread does, innermost first."""
    kinds: list[tuple[str, str]] = []
    for index, frame in enumerate(frames):
        entry = match(frame)
        if entry is None:
            continue
        if entry.kind in _SERVING and any(map(_served, frames[:index])):
            continue  # the loop around a task or a request in progress
        kinds.append((entry.kind, entry.op or plain(frame.function)))
    return tuple(kinds)


def _from_the_call(kinds: list[tuple[str, str]], *, leading: bool) -> list[tuple[str, str]]:
    """The kinds without the queue, lock or select in which a call waits for its answer."""
    in_queue = next((at for at, (kind, _) in enumerate(kinds) if kind != "queue"), 0)
    if in_queue and kinds[in_queue][0] == "engine_call":
        kinds = kinds[in_queue:]  # the queue of an engine's answers: it waits in the engine call
    if [kind for kind, _ in kinds[:2]] == ["lock", "http_client"] and leading:
        kinds = kinds[1:]  # gRPC waits in a lock; only the leading thread counts, since side threads keep streams open
    if kinds[:1] == [("select", "select")] and kinds[1:2] == [("join", SPAWNED)]:
        kinds = kinds[1:]
    return kinds


# The kind and the operation of a process whose program is over, and which joins its threads.
AT_EXIT = ("finished", "the end of the interpreter")


def _waits_in(kinds: list[tuple[str, str]]) -> tuple[str, str]:
    """What the frames mean together: the kind, and the operation as its caller named it."""
    kind, op = kinds[0]
    if kind in ("join", "lock") and AT_EXIT in kinds:
        return AT_EXIT  # it joins threads that keep the process alive
    if kind == "wait":
        kind = "collective"
    ops = [name for frame_kind, name in kinds if frame_kind == kind and name != "wait"]
    if kind == "store" and ops:
        return kind, ops[-1]
    return (kind, ops[0]) if kind in ("collective", "p2p") and ops else (kind, op)


def _served(frame: Frame) -> bool:
    return users(frame) or plain(frame.function) in ("actor_method_executor", "function_executor", "finish_request")


def user_frame(frames: Iterable[Frame]) -> str:
    """The innermost frame of the user's code; without one, that of the RLHF framework or engine, or the line of the
    text that `python -c` runs; else empty."""
    return _user_frame(tuple(frames))


@lru_cache(maxsize=4096)
def _user_frame(frames: tuple[Frame, ...]) -> str:
    for frame in frames:
        if users(frame):
            return describe(frame)
    for frame in frames:
        if _FRAMEWORKS.search(frame.file):
            return describe(frame)
    of_text = frames[-1:] if not any(_STARTED.search(frame.file) for frame in frames) else []
    return next((describe(frame) for frame in of_text if (frame.file, frame.function) == ("<string>", "<module>")), "")


def main_stack(process: Process) -> list[str]:
    """The main thread's stack at the last look that has one, or that of a Ray worker's task, innermost frame first."""
    for look in reversed(process.samples):
        if frames := trail(look.threads, process.pid):
            return [f"{plain(function)} ({file}:{line})" for function, file, line in frames[:MAX_SHOWN]]
    return []


def describe(frame: Frame) -> str:
    """A frame in a few words: file, line, function."""
    return f"{frame.file.rsplit('/', 1)[-1]}:{frame.line} in {plain(frame.function)}"


def trail(threads: Iterable[Thread], pid: int = 0) -> tuple[tuple[str, str, int], ...]:
    """The main thread's stack, or that of a Ray worker's task, as comparable data. If two trails of a process
    differ, it moved."""
    threads = [thread for thread in threads if thread.leads or not ours(thread)]  # may end in our probe
    mains = [thread for index, thread in enumerate(threads) if _is_main(thread, index, pid)]
    chosen = mains[0] if mains else threads[0] if threads else None
    if chosen is not None and classify(chosen).kind == "ray_idle":
        chosen = in_ray_task(threads) or chosen
    return tuple((frame.function, frame.file, frame.line) for frame in chosen.frames) if chosen else ()


def _is_main(thread: Thread, index: int, pid: int) -> bool:
    return thread.leads or (thread.tid == pid != 0)


def beside(thread: Thread) -> bool:
    """Whether it is a side thread of the program that is on a processor."""
    return thread.active and not thread.leads and not ours(thread)


def ours(thread: Thread) -> bool:
    """Whether it is a thread of our own probe: heartbeat and worker server are no work of the program."""
    inner = [frame.file for frame in thread.frames if not frame.file.endswith(("threading.py", "socketserver.py"))]
    return bool(inner) and all(re.search(r"/probes/(site/)?\w+\.py$", file) for file in inner)
