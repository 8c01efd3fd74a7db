"""What a main thread waits for inside its process: which thread keeps the lock, is joined or runs the task, and where.

The stacks do not name the owner of a lock. A thread that stands inside a `with` of the same expression in the same file
keeps it by the text; another object may have the same name, so this is told and proves nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from harness.triage import inner_waits, lock_text
from harness.triage.evidence import Frame, LostTask, LostThread, Process, Thread
from harness.triage.graph import Subject, awaiting
from harness.triage.graph.motion import handlers
from harness.triage.graph.sockets import main_frames
from harness.triage.places import FUTURE, inner_frame, plain, runs_users, users
from harness.triage.rules.lock_rings import IN_ONE_ORDER, proven
from harness.triage.rules.ruling import MOST_NAMED, Case, Ruling
from harness.triage.stacks import JOINS, Doing, asleep, classify, describe, posture, user_frame
from reports.text import agreeing, first_of

MAX_LINES = 8  # of one verdict
MAX_THREADS = 4  # of one process
_POOL = re.compile(r"/concurrent/futures/thread\.py$")


def lines(case: Case, ruling: Ruling) -> list[str]:
    """A sentence for each process that waits inside itself: the culprits, or everybody who waits if nobody is named."""
    subjects = [case.subject(key) for key in ruling.culprits if key in case.graph.subjects]
    if not subjects and ruling.verdict == "INSUFFICIENT":
        subjects = [subject for subject in case.live() if not subject.progress and subject.pending is None]
    texts = [f"{subject.label} {text}" for subject in subjects if (text := inside(subject.process))]
    if ruling.verdict in ("HUNG", "INSUFFICIENT") and not ruling.culprits:
        texts += [f"{subject.label}: {awaiting.words(task)}" for subject in subjects
                  for task in awaiting.telling(subject.process)]  # fmt: skip
    lost = _lost(case) if ruling.verdict in ("HUNG", "INSUFFICIENT") else []
    sentences = [
        *(f"{subject.label} lost its {kind} {died.name}{_ago(died)}: {died.error}" for subject, kind, died in lost),
        *texts,
    ]
    return [line for line in sentences if line not in ruling.evidence][:MAX_LINES]


def with_lost_threads(case: Case, ruling: Ruling) -> Ruling:
    """The ruling with advice about a thread or a task that ended with an error, where nobody is named.

    Whoever waits for its work waits for ever. Whether anybody does is not known, so its process is not blamed.
    """
    lost = _lost(case) if ruling.verdict == "INSUFFICIENT" else []
    advice = (f"see why {kind} {died.name} of {subject.label} ended, and whether it made what is waited for"
              for subject, kind, died in lost[:1])  # fmt: skip
    return replace(ruling, next=(*advice, *ruling.next))


def _lost(case: Case) -> list[tuple[Subject, str, LostThread | LostTask]]:
    """Threads and tasks that ended with an error while their process went on, the first of them first."""
    processes = [(subject, subject.process) for subject in case.live()]
    lost: list[tuple[Subject, str, LostThread | LostTask]] = [
        (subject, "thread", thread) for subject, process in processes for thread in process.lost_threads
    ]  # fmt: skip
    lost += [(subject, "task", task) for subject, process in processes for loop in process.loops for task in loop.lost]
    return sorted(lost, key=lambda each: -(each[2].age_s or 0.0))


def _ago(died: LostThread | LostTask) -> str:
    return f" {died.age_s:.0f} s ago" if died.age_s is not None else ""


def keepers(threads: Sequence[Thread], waiting: Frame, lock: str) -> list[tuple[Thread, Frame]]:
    """Threads that stand inside a `with` of the lock of that text, in the file of the frame that waits for it."""
    return [
        (thread, frame)
        for thread in threads
        for frame in thread.frames
        if frame != waiting and frame.file == waiting.file
        if lock_text.keeps_lock(frame, lock) or (lock_text.lock_of(frame) == lock and _has_taken(thread))
    ]


def _has_taken(thread: Thread) -> bool:
    """Whether a thread at the line of a `with` waits for something else than its lock: what the same line does then."""
    return bool(thread.wchan) and "futex" not in thread.wchan


def name(thread: Thread) -> str:
    return f"thread {thread.name or thread.tid}"


def for_whom(case: Case, waiters: Sequence[Subject]) -> str:
    """Who waits of whom the graph has no target, in a headline: for a thread of their own, if that shows of all."""
    names, wait = case.names(waiter.key for waiter in waiters), agreeing(len(waiters), "waits", "wait")
    if all(inside(waiter.process) for waiter in waiters):
        return f"{names} {wait} for threads of {agreeing(len(waiters), 'its', 'their')} own at {waiters[0].frame}"
    if len(waiters) == 1 and awaiting.telling(waiters[0].process):
        return f"{names} {awaiting.in_loop(waiters[0].process)}"
    return f"nothing says for whom {names} {wait}"


def may_bring(case: Case, waiter: Subject) -> list[str]:
    """Where the threads and children of a process stand that waits for a lock or an item of a queue: one of them may
    bring it."""
    process = waiter.process
    if waiter.doing.kind not in ("lock", "queue"):
        return []
    threads = process.threads
    main = main_frames(threads)
    beside = [thread for thread in threads if thread.frames != main and runs_users(thread)]
    below = [each for each in case.live() if each.process.is_child_of(process) and each.doing.frame]
    lines = [f"its {name(thread)} {posture(thread)} at {user_frame(thread.frames)}" for thread in beside]
    lines += [f"its child {child.label}: {child.state()}" for child in below]
    return lines[:MAX_THREADS]


def inside(process: Process) -> str:
    """For which of its own threads a process waits, as the verb of a sentence; empty if its main thread waits for
    none."""
    threads = process.threads
    frames = main_frames(threads)
    main = next((thread for thread in threads if thread.frames is frames), None)
    beside = [thread for thread in threads if thread is not main]
    waiting = inner_frame(frames)
    if main is None or waiting is None:
        return ""
    if below := _below(process, beside, waiting):
        return below
    if not beside:
        return ""
    doing = classify(main)
    calls = [frame for frame in frames if not users(frame)]
    if any(FUTURE.search(frame.file) for frame in calls):
        return _future(beside, waiting)
    if doing.op in JOINS:
        joined = [thread for thread in beside if runs_users(thread)]
        return f"joins a thread at {describe(waiting)}: {_where(joined)}" if joined else ""
    if doing.kind == "lock" or doing.kind == "user":
        return _lock(threads, waiting)
    return ""


def _below(process: Process, beside: Sequence[Thread], waiting: Frame) -> str:
    """Of a lock of the interpreter, which thread keeps it by the text; of a pool of native threads, which one it is.

    Who has the interpreter lock is told by the rules about it.
    """
    inner = inner_waits.of_process(process)
    if inner is not None and inner.pool:
        return f"waits for {inner.words} at {describe(waiting)}"
    importers = inner_waits.importers(beside, waiting) if inner is inner_waits.IMPORT else []
    if not importers:
        return ""
    return f"waits for {inner_waits.IMPORT.words} at {describe(waiting)}, which is not through: {_where(importers)}"


def _future(beside: Sequence[Thread], waiting: Frame) -> str:
    """Of a future: the threads of pools that work on a task, and how many wait for one."""
    workers = [thread for thread in beside if any(_POOL.search(frame.file) for frame in thread.frames)]
    busy = [thread for thread in workers
            if any(_POOL.search(frame.file) and plain(frame.function) == "run" for frame in thread.frames)]  # fmt: skip
    if not workers:
        return ""
    at = f"waits for a future at {describe(waiting)}"
    waiting_too = sum(any(FUTURE.search(frame.file) for frame in thread.frames) for thread in busy)
    counted = f"{len(busy)} of {len(workers)} threads of its pools work"
    counted += f", {waiting_too} of these wait for futures as well" if waiting_too else ""
    return f"{at}: {counted}" + (f", {_where(busy)}" if busy else "")


def serving(process: Process, caller: Doing) -> tuple[str, str]:
    """Where the threads stand that handle requests in this process, without those that stand where the caller does;
    and which lock the first of them waits for, in words. Both are empty without one."""
    servers = [
        thread for thread in handlers(process) if not thread.main and runs_users(thread) and not _calls(thread, caller)
    ]
    if not servers:
        return "", ""
    waiting = next(frame for frame in servers[0].frames if users(frame))
    return _where(servers), _lock(process.threads, waiting)


def _calls(thread: Thread, caller: Doing) -> bool:
    its = classify(thread)
    return (its.kind, its.frame) == (caller.kind, caller.frame)


def crossed(process: Process) -> list[str]:
    """Where threads of a process wait for each other's locks, by the text; empty if none do, or one of them gives
    up."""
    threads = process.threads
    for thread in threads:
        waiting = inner_frame(thread.frames)
        visited, _, at = _kept(threads, waiting)
        ring = visited[visited.index(at) :] if at in visited else []
        if len(visited) > 1 and ring and not any(map(lock_text.gives_up, ring)):
            return [describe(frame) for frame in ring]
    return []


def with_crossed_locks(case: Case, ruling: Ruling) -> Ruling:
    """The ruling with a headline and advice about threads of one process that wait for each other's locks, where no
    rule knows more of that process than its wait."""
    if ruling.verdict != "INSUFFICIENT" and ruling.hang != "K4":
        return ruling
    named = [case.subject(key) for key in ruling.culprits if key in case.graph.subjects]
    for subject in named or [subject for subject in case.live() if not subject.progress]:
        if places := crossed(subject.process):
            at = " and ".join(place.partition(" in ")[0] for place in places[:MOST_NAMED])
            wait = "wait" if proven(subject.process) else "seem to wait"
            return replace(
                ruling,
                reason=f"{subject.label}: its threads {wait} for each other's locks at {at}",
                next=(IN_ONE_ORDER.format(places=" and ".join(places)), *ruling.next),
            )
    return ruling


def _kept(threads: Sequence[Thread], waiting: Frame | None) -> tuple[list[Frame], list[str], Frame | None]:
    """From a frame that waits for a lock to the thread that keeps it by the text, and so on.

    Returns the frames that wait, a text of each, and the last frame: one of these again if each waits for the next.
    """
    texts: list[str] = []
    visited: list[Frame] = []
    at = waiting
    while at is not None and at not in visited and (lock := lock_text.lock_of(at)):
        kept = keepers(threads, at, lock)
        if not kept:
            break
        visited.append(at)
        thread, frame = kept[0]
        at = inner_frame(thread.frames)
        waits = "waits, with a time limit," if lock_text.gives_up(visited[-1]) else "waits"
        texts.append(f"{waits} for {lock}, which {name(thread)} keeps, inside `with {lock}` at {describe(frame)}")
    return visited, texts, at


def _lock(threads: Sequence[Thread], waiting: Frame) -> str:
    """Of a lock: who keeps it by the text, whom that thread waits for, and so on."""
    visited, texts, at = _kept(threads, waiting)
    if not texts:
        return ""
    if at in visited:
        return f"{', which '.join(texts)}: each waits for the next"
    return f"{', which '.join(texts)}; that thread stands at {describe(at) if at is not None else 'an unknown place'}"


def _where(threads: Sequence[Thread]) -> str:
    places = [
        f"{name(thread)}{' asleep' if asleep(thread) else ''} at {user_frame(thread.frames) or 'an unknown place'}"
        for thread in threads
    ]
    return first_of(places, MAX_THREADS)
