"""Threads of one process that wait for each other's locks, or one for its own, where the source text proves it.

A name stands for one lock throughout if a module binds it once, and nothing but the end of a `with` releases it. A
thread in the body of a `with` of such a name has that lock, and another thread at the line of such a `with` waits for
it without a limit. A thread that takes such a lock again within its `with`, as the handler of a signal does, waits for
itself, unless the lock is reentrant. Looks are not taken at one moment, so each thread has to stand there at every look
without any work.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness.triage import lock_text
from harness.triage.evidence import Frame, Process, Thread
from harness.triage.graph import Subject
from harness.triage.graph.motion import spent_s
from harness.triage.places import inner_frame, runs_users
from harness.triage.rules.ruling import MOST_NAMED, Case, Ruling
from harness.triage.stacks import describe

TAKE_ONCE = "take {lock} once, or make it a threading.RLock, which its own thread may take again"
IN_ONE_ORDER = "take these locks in the same order in every thread: {places}"


@dataclass(frozen=True)
class _Wait:
    """A thread that waits for one lock, by its file and name, and the locks that it has."""

    thread: Thread
    frame: Frame
    lock: tuple[str, str]
    kept: Mapping[tuple[str, str], Frame]  # to the frame whose `with` has it


def ring(case: Case) -> Ruling | None:
    """K6: threads of a process wait for each other's locks, and no other thread of it runs code of the user's. K4: one
    waits for a lock that it has itself."""
    for subject in case.live():
        frames = proven(subject.process) if not subject.progress else ()
        if frames and (_main_waits(subject, frames) or subject.key in case.awaited()):
            return _of_one_thread(subject, frames[0]) if len(frames) == 1 else _of_threads(subject, frames)
    return None


def _of_threads(subject: Subject, frames: Sequence[Frame]) -> Ruling:
    """The ruling on threads that wait at these frames for each other's locks."""
    places = [describe(frame) for frame in frames]
    why = f"its threads wait for each other's locks at {' and '.join(places)}: each keeps what the other needs"
    at = " and ".join(place.partition(" in ")[0] for place in places[:MOST_NAMED])
    return Ruling(
        "HUNG",
        f"{subject.label}: its threads wait for each other's locks at {at}",
        "K6",
        {subject.key: why},
        place=places[0],
        frames={subject.key: places[0]},
        next=(IN_ONE_ORDER.format(places=" and ".join(places)),),
    )


def _of_one_thread(subject: Subject, frame: Frame) -> Ruling:
    """The ruling on a thread that waits at a frame for a lock that it has itself."""
    waits = filter(None, map(_wait, subject.process.threads))
    wait = next(each for each in waits if each.frame == frame and each.lock in each.kept)
    place, lock, kept_at = describe(frame), wait.lock[1], describe(wait.kept[wait.lock])
    where = f"at {place.partition(' in ')[0]} for {lock}, which it keeps itself since {kept_at.partition(' in ')[0]}"
    return Ruling(
        "HUNG",
        f"{subject.label} waits {where}",
        "K4",
        {subject.key: f"a thread of it waits at {place} for {lock}, and is in the `with` of it at {kept_at}"},
        place=place,
        frames={subject.key: place},
        next=(TAKE_ONCE.format(lock=lock),),
    )


def _main_waits(subject: Subject, frames: Sequence[Frame]) -> bool:
    """Whether the main thread is in the ring, or waits without a limit for a thread. A server's waits for requests."""
    if any(frame in frames for frame in subject.process.main_frames):
        return True
    return subject.doing.kind in ("lock", "join") and not any(look.timed for look in subject.process.samples)


def proven(process: Process) -> tuple[Frame, ...]:
    """The frames at which threads of a process wait for each other's locks at every look, or one thread for its own;
    empty without such a ring, or where another thread that may go on runs code of the user's."""
    rings = [_ring(look.threads) for look in process.samples]
    if len(rings) < 2 or not rings[0]:
        return ()
    ring = rings[-1]
    # Looks are not taken at one moment: a thread that stood elsewhere, or worked in between, may have let a lock go.
    places = [{(wait.thread.tid, wait.frame) for wait in its} for its in rings]
    stood = all(its == places[0] for its in places) and not any(spent_s(process, wait.thread) for wait in ring)
    if stood and len(ring) == 1:  # nobody else can release it
        return (ring[0].frame,)
    if not stood or any(runs_users(thread) and not thread.leads for thread in _apart(process.threads, ring)):
        return ()
    return tuple(wait.frame for wait in ring)


def _apart(threads: Sequence[Thread], ring: Sequence[_Wait]) -> list[Thread]:
    """The threads that are not in the ring, and wait for no lock of it."""
    others = [thread for thread in threads if thread not in [wait.thread for wait in ring]]
    locks = {wait.lock for wait in ring}
    behind = {wait.thread for wait in _waits(others) if wait.lock in locks}
    return [thread for thread in others if thread not in behind]


def _ring(threads: Sequence[Thread]) -> list[_Wait]:
    """Two threads or more of which each has the lock for which the one before waits, the last one's by the first; or
    one that waits for a lock that it has and cannot take twice."""
    waits = _waits(threads)
    for wait in waits:
        file, name = wait.lock
        if wait.lock in wait.kept and name in lock_text.sole_plain_locks(file):
            return [wait]
    waits = [wait for wait in waits if wait.lock not in wait.kept]
    for first in waits:
        chain = [first]
        while keepers := [wait for wait in waits if chain[-1].lock in wait.kept]:
            if len(keepers) > 1:  # one of them stands there no more
                break
            if keepers[0] in chain:
                ring = chain[chain.index(keepers[0]) :]
                # A lock that all of them have lets only one of them in at a time.
                shared = frozenset.intersection(*(frozenset(wait.kept) for wait in ring))
                return ring if len(ring) > 1 and not shared else []
            chain.append(keepers[0])
    return []


def _waits(threads: Sequence[Thread]) -> list[_Wait]:
    return [wait for thread in threads if (wait := _wait(thread)) is not None]


def _wait(thread: Thread) -> _Wait | None:
    """The wait of a thread for one lock; None if it stands in no such wait."""
    frame = inner_frame(thread.frames)
    if frame is None or thread.active or (thread.wchan and "futex" not in thread.wchan):
        return None
    called = thread.frames[: thread.frames.index(frame)]
    waited = lock_text.sole_locks_taken(frame)
    if len(waited) != 1 or not all(each.file.endswith("/threading.py") for each in called):
        return None
    lock = frame.file, next(iter(waited))
    kept = {
        (each.file, name): each
        for each in thread.frames
        for name in lock_text.sole_locks_kept(each, takes=each is frame)
    }
    return _Wait(thread, frame, lock, kept)
