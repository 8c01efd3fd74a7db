"""Rules about tasks of an event loop that wait for each other (K6), or for what no task is left to do (K4).

They need the probe in the process: from outside a task that waits is not seen. What a connection, a thread, a child or
a timer may still bring is never called a hang.
"""

from __future__ import annotations

import re

from harness.triage.evidence import EventLoop, Frame, LostTask, Process, Task, Thread
from harness.triage.graph import Subject
from harness.triage.graph.awaiting import WITHIN, Awaiting, place, words
from harness.triage.places import users
from harness.triage.rules.polls import collects
from harness.triage.rules.ruling import Case, Ruling, brief
from harness.triage.stacks import describe, ours

# Files of workers of pools, and of the thread with which tqdm looks at its own bars; and those in which they wait.
_POOL = re.compile(r"/(concurrent/futures/thread|tqdm/_monitor)\.py$|/anyio/_backends/")
_WAITS = re.compile(r"/(threading|queue)\.py$")
_OBJECTS = re.compile(r"/asyncio/(locks|queues)\.py$")
MAX_TOLD = 4  # tasks in the reason of one process
_LOCKS = "take these locks in the same order in every task, or release one before the other is awaited"
_RESULTS = "let one of these tasks go on without the result of the other: pass on a value, not the task that makes it"
_DIED = "await the tasks that others depend on, as asyncio.TaskGroup does, so that their errors end the program"
_TIMEOUT = "give each awaited call a timeout: asyncio.timeout"


def ring(case: Case) -> Ruling | None:
    """K6: tasks of a process wait for each other's locks and results, and somebody waits for what they do."""
    for subject in case.live():
        tasks = Awaiting.of(subject.process)
        for members in tasks.rings():
            if _matters(case, subject, tasks, members):
                return _ring(case, subject, members)
    return None


def _ring(case: Case, subject: Subject, members: list[Task]) -> Ruling:
    locked, owner = any(task.awaits == "lock" for task in members), case.names([subject.key])
    if len(members) == 1:
        reason = f"a task of {owner} waits for itself at {place(members[0])}"
        why = "it keeps that lock itself" if locked else "it waits for its own result"
    else:
        places = " and ".join(dict.fromkeys(map(_line, members[:2])))
        reason = f"{len(members)} tasks of {owner} wait for each other at {places}"
        why = "each keeps what the one before it awaits" if locked else "each awaits the result of the next one"
    why = f"{'; '.join(map(words, members[:MAX_TOLD]))}: {why}"
    return _hung("K6", subject, reason, why, members[0], _LOCKS if locked else _RESULTS)


def _matters(case: Case, subject: Subject, tasks: Awaiting, members: list[Task]) -> bool:
    """Whether the main task waits for these, or another process waits for this one and no task of it does anything
    else."""
    if any(task.main for task in tasks.behind(members)):
        return True
    others = [task for task in tasks.open() if task.awaits not in ("sleep", "connections")]
    return subject.key in case.awaited() and not others


def unfilled(case: Case) -> Ruling | None:
    """K4: every task of a process awaits what only another task of it could do: an item, an event, a lock.

    Its loop waits for no connection, signal, timer, thread or child. A main task that awaits an event and for which
    nobody waits may only keep its process alive.
    """
    for subject in case.suspects():
        tasks, process = Awaiting.of(subject.process), subject.process
        main = tasks.main
        if main is None or tasks.open() or not _alone(case, process, tasks):
            continue
        lost = [died for loop in tasks.loops for died in loop.lost]
        if main.awaits != "event" or lost or subject.key in case.awaited():
            told = [*map(_death, lost[:MAX_TOLD]), *map(words, tasks.own[:MAX_TOLD])]
            why = f"{'; '.join(told)}: no task of it is left that could end this"
            of = f", whose task {lost[0].name} died: {brief(lost[0].error)}" if lost else ""
            reason = f"{case.names([subject.key])} waits for a task of its own{of}"
            return _hung("K4", subject, reason, why, main, _DIED if lost else _TIMEOUT)
    return None


def owed(case: Case) -> Ruling | None:
    """K4: a request waits for another task of its server, which waits for a request that nobody is left to send.

    Every process of the job waits for that server, through a watched stall. Somebody beside the job could still send
    it, so a task that waits for an event alone is not enough: only one that keeps another task waiting shows that the
    server lets a request in which the other cannot survive.
    """
    if not case.evidence.stall_s or any(subject.progress for subject in case.live()):
        return None
    for subject in case.sinks():
        if subject.key in case.excused:
            continue
        tasks, process = Awaiting.of(subject.process), subject.process
        pairs = tasks.owed()
        if not pairs or process.peers or threads_beside(process) or _may_go_on(tasks):
            continue
        waiters = case.graph.waiters({subject.key})
        others = [each for each in case.live() if each.key not in (subject.key, *waiters) and not collects(each)]
        if not waiters or others:
            continue
        waiter, keeper = next(((first, second) for first, second in pairs if not first.main), pairs[0])
        why = (f"{words(waiter)}; {words(keeper)}, and owes the other what it awaits: of all that is seen, nobody is "
               "left to go on first")  # fmt: skip
        reason = f"{case.names([subject.key])}: its task at {_line(waiter)} waits for the one at {_line(keeper)}"
        return _hung("K4", subject, reason, why, waiter, _TIMEOUT)
    return None


def _hung(kind: str, subject: Subject, reason: str, why: str, task: Task, advice: str) -> Ruling:
    return Ruling(
        "HUNG", reason, kind, {subject.key: why}, place=place(task), frames={subject.key: place(task)}, next=(advice,)
    )


def _alone(case: Case, process: Process, tasks: Awaiting) -> bool:
    """Whether nothing but its own tasks wakes the one loop of a process, which its main thread runs."""
    if len(tasks.loops) != 1 or not tasks.whole or not tasks.own or threads_beside(process):
        return False
    [loop] = tasks.loops
    if loop.tid != process.pid or loop.later or loop.ready or loop.descriptors:
        return False
    if any(task.awaits not in WITHIN for task in tasks.tasks):
        return False
    return not any(subject.process.is_child_of(process) for subject in case.live())


def _may_go_on(tasks: Awaiting) -> bool:
    """Whether a task or a call of its loops may go on by itself, or some tasks are not listed. A server's tasks that
    wait for connections are open for ever."""
    if any(task.awaits != "connections" for task in tasks.open()):
        return True
    return any(loop.left_out or _calls(loop) for loop in tasks.loops)


def _calls(loop: EventLoop) -> bool:
    """Whether a call that a loop makes later may end the wait of a task of the user's: one of the user's code, one of
    asyncio's objects such as `Event.set`, or one without a name. The end of a sleep, or of a connection that a library
    keeps open, is none."""
    calls = [Frame(call.function, call.file, 0) for call in loop.later or ()]
    return loop.ready > 0 or any(not call.file or users(call) or _OBJECTS.search(call.file) for call in calls)


def threads_beside(process: Process) -> bool:
    """Whether a thread beside the main one may end the wait of a task. A library's may as well, by a callback of the
    user's that is in no stack yet; a worker of a pool that waits for its next call may not."""
    return any(not (thread.main or ours(thread) or _rests(thread)) for thread in process.threads)


def _rests(thread: Thread) -> bool:
    rest = [frame.file for frame in thread.frames if not _WAITS.search(frame.file)]
    return bool(rest) and all(map(_POOL.search, rest))


def _line(task: Task) -> str:
    return place(task).partition(" in ")[0]


def _death(died: LostTask) -> str:
    at = f" at {describe(died.frame)}" if died.frame is not None else ""
    return f"its task {died.name} died{at}: {died.error}"
