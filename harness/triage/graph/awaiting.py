"""What the tasks of a process's event loops await, and which of them can never go on.

A task goes on by itself (a sleep, a time limit), by somebody outside its loops (a connection, a child, a thread), or by
another task of its process (a lock, an event, a queue, a result). Only the last kind can be decided from within.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from harness.triage import source
from harness.triage.evidence import EventLoop, Frame, Process, Task
from harness.triage.graph.shape import components
from harness.triage.places import inner_frame, plain, users
from harness.triage.stacks import awaits, describe
from probes.event_loops import MOST_LISTED, MOST_LOOPS
from reports.text import agreeing

MAX_LINES = 4  # tasks of one process that are told
WITHIN = frozenset({"lock", "condition", "event", "semaphore", "barrier", "queue.get", "queue.put", "queue.join",
                    "task", "tasks"})  # fmt: skip
# Packages of clients, in whose futures and events data arrives.
_CLIENTS = re.compile(
    r"/(aiohttp/(client\w*|streams|connector)\.py|httpcore/|anyio/|websockets/|aiohttp/http_websocket)"
)
_WORDS = {
    "lock": "a {of}", "condition": "the notification of a Condition", "event": "an Event", "semaphore": "a {of}",
    "barrier": "a Barrier", "queue.get": "an item of a queue", "queue.put": "room in a queue",
    "queue.join": "a queue to be worked off", "task": "task {of}", "tasks": "other tasks", "sleep": "a sleep",
    "socket": "data from {of}", "connections": "connections", "subprocess": "{of}", "executor": "a thread of a pool",
    "future": "a future", "runs": "nothing: it runs",
}  # fmt: skip
_UNNAMED = {"socket": "a connection", "subprocess": "a child", "task": "a task", "lock": "Lock"}


@dataclass(frozen=True)
class Awaiting:
    """The tasks of a process. `own`: those that are in the user's code; a library's only serve them."""

    loops: tuple[EventLoop, ...] = ()
    tasks: tuple[Task, ...] = ()
    own: tuple[Task, ...] = ()
    _after: dict[int, tuple[int, ...]] = field(default_factory=dict)  # place of a task -> places of those it waits for

    @staticmethod
    def of(process: Process) -> Awaiting:
        loops = process.loops[:MOST_LOOPS]
        tasks = tuple(task for loop in loops for task in loop.tasks[:MOST_LISTED])  # evidence may be anybody's
        by_id = {identity: at for at, task in enumerate(tasks) for identity in task.ids}
        keepers: dict[int, list[int]] = {}
        for at, task in enumerate(tasks):
            for lock in task.keeps:
                keepers.setdefault(lock, []).append(at)
        after = {}
        for at, task in enumerate(tasks):
            targets = [by_id.get(identity, -1) for identity in _needed(task)]
            # A lock has one keeper. One that nobody is seen to keep may be released by anybody.
            if task.awaits == "lock" and len(kept := keepers.get(task.target, [])) == 1:
                targets = kept
            after[at] = tuple(targets)
        own = tuple(task for task in tasks if any(map(users, task.frames)))
        return Awaiting(loops, tasks, own, after)

    @property
    def whole(self) -> bool:
        """Whether every task is listed, and each loop shows its timers and descriptors."""
        return bool(self.loops) and not any(
            loop.left_out or loop.later is None or loop.descriptors is None for loop in self.loops
        )

    @property
    def main(self) -> Task | None:
        """The task until whose end a loop runs."""
        return next((task for task in self.tasks if task.main), None)

    def rings(self) -> list[list[Task]]:
        """Tasks each of which waits for the next one, and the last for the first, by locks that they keep and results
        that they await. None of them ever goes on."""
        edges = [
            (str(at), str(target))
            for at, targets in self._after.items()
            for target in targets
            if target >= 0 and _stands(self.tasks[at])
        ]
        return [[self.tasks[int(at)] for at in ring] for ring in components(edges)[1]] if edges else []

    def behind(self, tasks: list[Task]) -> list[Task]:
        """These tasks, and all that wait for one of them."""
        stuck = {at for at, task in enumerate(self.tasks) if task in tasks}
        while more := {at for at, targets in self._after.items() if at not in stuck
                       and _stands(self.tasks[at]) and stuck.intersection(targets)}:  # fmt: skip
            stuck |= more
        return [self.tasks[at] for at in sorted(stuck)]

    def open(self) -> list[Task]:
        """The user's tasks that may go on without another task, or of which that is not known."""
        return [task for task in self.own if not (_stands(task) and task.awaits in WITHIN and _caller_is_users(task))]

    def answers(self) -> list[Task]:
        """The tasks without which the main task does not go on and that await data from somewhere else."""
        leaves, visited = [], set()
        queue = [at for at, task in enumerate(self.tasks) if task.main]
        while queue:
            if (at := queue.pop()) in visited or at < 0 or not _stands(self.tasks[at]):
                continue
            visited.add(at)
            queue += self._after[at]
            if not self._after[at] and _of_network(self.tasks[at]):
                leaves.append(self.tasks[at])
        return leaves

    def owed(self) -> list[tuple[Task, Task]]:
        """Pairs of the user's tasks of which the first waits for the second: for a lock that it keeps, for its result,
        or for the notification that the rest of its function makes."""
        places = ((at, target) for at, targets in self._after.items() for target in targets if target >= 0)
        pairs = [(self.tasks[at], self.tasks[target]) for at, target in places]
        for waiter in self.own:
            if waiter.awaits == "condition" and (frame := inner_frame(waiter.frames)) is not None:
                condition = source.notified_by(frame)
                pairs += [(waiter, task) for task in self.own if task is not waiter and condition
                          and any(source.notifies(each, condition) for each in task.frames
                                  if users(each) and each.file == frame.file)]  # fmt: skip
        return [pair for pair in pairs if all(task in self.own and _stands(task) for task in pair)]


def words(task: Task) -> str:
    """What a task awaits, and where: "task Task-7 (update) awaits an Event at server.py:41 in acquire"."""
    outer = next((plain(frame.function) for frame in reversed(task.frames) if users(frame)), "")
    at = f" at {where}" if (where := place(task)) else ""
    count = len(task.ids) or 1
    who = f"task {task.name}" if count == 1 else f"{count} tasks"
    named = f" ({outer})" if outer and outer != task.name else ""
    return f"{who}{named} {agreeing(count, 'awaits', 'await')} {_what(task)}{at}"


def headline(task: Task) -> str:
    """The same in few words: "a task awaits an Event at server.py:41"."""
    where = place(task).partition(" in ")[0]
    return f"a task awaits {_what(task)}" + (f" at {where}" if where else "")


def _what(task: Task) -> str:
    of = task.of or _UNNAMED.get(task.awaits, "")
    return _WORDS.get(task.awaits, task.awaits).format(of=of)


def unseen(process: Process) -> bool:
    """Whether a thread of a process waits in an event loop of which nothing shows the tasks."""
    return any(map(awaits, process.threads)) and not telling(process)


def in_loop(process: Process) -> str:
    """What a process in an event loop waits for, as the verb of a sentence."""
    awaited = next(map(headline, telling(process)), "")
    return (
        f"waits in an event loop: {awaited}"
        if awaited
        else "waits in an event loop, and its tasks cannot be seen from outside"
    )


def place(task: Task) -> str:
    """The innermost frame of the user's code in a task, in words; empty without one."""
    frame = inner_frame(task.frames)
    return describe(frame) if frame is not None else ""


def _needed(task: Task) -> tuple[int, ...]:
    """The tasks without whose end it does not go on; none of several of which one may be enough, as `asyncio.wait`
    says."""
    first = bool(task.frames) and plain(task.frames[0].function) in ("_wait", "wait") and len(task.targets) > 1
    return task.targets if task.awaits in ("task", "tasks") and not first else ()


def _caller_is_users(task: Task) -> bool:
    """Whether the user's code itself awaits it. What a library awaits in its own events may come from the network."""
    return (caller := _caller(task)) is not None and users(caller)


def _of_network(task: Task) -> bool:
    caller = _caller(task)
    return task.awaits == "socket" or (caller is not None and bool(_CLIENTS.search(caller.file)))


def _caller(task: Task) -> Frame | None:
    """The innermost frame outside asyncio."""
    return next((frame for frame in task.frames if "/asyncio/" not in frame.file), None)


def _stands(task: Task) -> bool:
    return task.still and not task.limited


def telling(process: Process) -> list[Task]:
    """The first few of the user's tasks of a process, those that wait for another task first."""
    own = Awaiting.of(process).own
    return sorted(own, key=lambda task: (task.main, task.awaits not in WITHIN, task.limited))[:MAX_LINES]
