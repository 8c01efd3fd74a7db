"""Threads of one process that wait for each other's locks, where the source text proves it.

A name stands for one lock throughout if a module binds it once, and nothing but the end of a `with` releases it. A
thread in the body of a `with` of such a name has that lock, and another thread at the line of such a `with` waits for
it without a limit. Looks are not taken at one moment, so each thread has to stand there at every look without any work.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.triage import source
from harness.triage.evidence import Frame, Process, Thread
from harness.triage.graph import Subject
from harness.triage.graph.motion import spent_s
from harness.triage.places import inner_frame, runs_users
from harness.triage.rules.ruling import MOST_NAMED, Case, Ruling
from harness.triage.stacks import describe

IN_ONE_ORDER = "take these locks in the same order in every thread: {places}"


@dataclass(frozen=True)
class _Wait:
    """A thread that waits for one lock, by its file and name, and the locks that it has."""

    thread: Thread
    frame: Frame
    lock: tuple[str, str]
    kept: frozenset[tuple[str, str]]


def ring(case: Case) -> Ruling | None:
    """K6: threads of a process wait for each other's locks, and no other thread of it runs code of the user's."""
    for subject in case.live():
        frames = proven(subject.process) if not subject.progress else ()
        if frames and (_main_waits(subject, frames) or subject.key in case.awaited()):
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
    return None


def _main_waits(subject: Subject, frames: Sequence[Frame]) -> bool:
    """Whether the main thread is in the ring, or waits without a limit for a thread. A server's waits for requests."""
    if any(frame in frames for frame in subject.process.main_frames):
        return True
    return subject.doing.kind in ("lock", "join") and not any(look.timed for look in subject.process.samples)


def proven(process: Process) -> tuple[Frame, ...]:
    """The frames at which threads of a process wait for each other's locks at every look; empty without such a ring, or
    where another thread that may go on runs code of the user's."""
    rings = [_ring(look.threads) for look in process.samples]
    if len(rings) < 2 or not rings[0]:
        return ()
    places = [{(each.thread.tid, each.frame) for each in its} for its in rings]
    if any(its != places[0] for its in places) or any(spent_s(process, each.thread) for each in rings[-1]):
        return ()
    locks = {each.lock for each in rings[-1]}
    others = [thread for thread in process.threads if thread not in [each.thread for each in rings[-1]]]
    behind = {each.thread for each in _waits(others) if each.lock in locks}
    apart = [thread for thread in others if thread not in behind and not thread.leads]
    if any(map(runs_users, apart)):
        return ()
    return tuple(each.frame for each in rings[-1])


def _ring(threads: Sequence[Thread]) -> list[_Wait]:
    """Two threads or more of which each has the lock for which the one before waits, the last one's by the first."""
    waits = _waits(threads)
    for first in waits:
        chain = [first]
        while keepers := [wait for wait in waits if chain[-1].lock in wait.kept]:
            if len(keepers) > 1:  # one of them stands there no more
                break
            if keepers[0] in chain:
                ring = chain[chain.index(keepers[0]) :]
                # A lock that all of them have lets only one of them in at a time.
                return ring if len(ring) > 1 and not frozenset.intersection(*(each.kept for each in ring)) else []
            chain.append(keepers[0])
    return []


def _waits(threads: Sequence[Thread]) -> list[_Wait]:
    waits = []
    for thread in threads:
        frame = inner_frame(thread.frames)
        inner = thread.frames[: thread.frames.index(frame)] if frame is not None else ()
        waited = source.sole_locks_taken(frame) if frame is not None else set()
        if frame is None or len(waited) != 1 or not all(each.file.endswith("/threading.py") for each in inner):
            continue
        if thread.active or (thread.wchan and "futex" not in thread.wchan):
            continue
        kept = frozenset((each.file, lock) for each in thread.frames for lock in source.sole_locks_kept(each))
        if (lock := (frame.file, next(iter(waited)))) not in kept:
            waits.append(_Wait(thread, frame, lock, kept))
    return waits
