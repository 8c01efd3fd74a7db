"""Rule about a lock of multiprocessing that nobody is left to release: its holder was killed, or took it twice.

The kernel does not know who holds such a lock, and does not free it at the holder's end. But only processes that have
its file mapped can release it. Where each of these waits for the lock, without a limit, or for processes that do, none
of them ever goes on.
"""

from __future__ import annotations

import signal

from harness.triage.evidence import SharedLock
from harness.triage.graph import Subject
from harness.triage.places import plain
from harness.triage.rules.alone import awaits_children, matters, parent_of
from harness.triage.rules.ruling import Case, Ruling

RELEASED_AT_END = (
    "read how each process ended that took this lock (multiprocessing: exitcode, -9 is SIGKILL): one that is "
    "killed inside `with lock` leaves it locked",
    "or lock a file with fcntl.flock, which the kernel frees when its holder ends",
)
_WHO_TOOK_IT = "who took the lock last: it has ended, or waits for the lock itself"
_TO_NOTIFY = (
    "set the event, or notify, before its maker joins the child that waits for it; or make that child a daemon",
    "or wait for a limited time in the child, and look then whether its parent lives: multiprocessing.parent_process()",
)
_CONDITIONS = frozenset({"wait", "wait_for"})  # functions of multiprocessing.synchronize that wait to be notified


def orphaned(case: Case) -> Ruling | None:
    """K4: all processes that could release a lock wait for it, or for those that do."""
    waiters = {subject.key: lock for subject in case.suspects() if (lock := _lock(subject)) is not None}
    keys = {key for key, lock in waiters.items() if all(_stands(case, waiters, key, pid) for pid in lock.sharers)}
    stuck = [case.subject(key) for key in sorted(keys, key=list(waiters).index)]
    stuck = [subject for subject in stuck if matters(case, subject, keys, keeps_alive=_is_to_be_notified(subject))]
    if not stuck:
        return None
    first = stuck[0]
    wait = "wait" if len(stuck) > 1 else "waits"
    awaited = "a lock of processes that nobody is left to release"
    if _is_to_be_notified(first):
        awaited = "an event of processes that nobody is left to set"
    killed = [f"{subject.label} {subject.state()}" for subject in _killed(case, stuck)]
    return Ruling(
        "HUNG",
        f"{case.names(subject.key for subject in stuck)} {wait} for {awaited}",
        "K4",
        {subject.key: _why(subject, waiters[subject.key]) for subject in stuck},
        place=first.frame,
        evidence=tuple(f"{line}: it may have kept the lock" for line in killed),
        missing=() if killed or _is_to_be_notified(first) else (_WHO_TOOK_IT,),
        next=_TO_NOTIFY if _is_to_be_notified(first) and not killed else RELEASED_AT_END,
    )


def _lock(subject: Subject) -> SharedLock | None:
    """The lock for which it waits without a limit, and does nothing else."""
    process = subject.process
    if subject.progress or any(look.timed for look in process.samples):
        return None
    return process.shared_lock


def _stands(case: Case, waiters: dict[str, SharedLock], key: str, pid: int) -> bool:
    """Whether a process that could release the lock of `key` never goes on unless somebody releases it."""
    process, lock = case.subject(key).process, waiters[key]
    sharer = case.graph.subjects.get(f"{process.host}:{pid}")
    if sharer is None:
        return False  # nobody looked at it
    return sharer.ended or (pid not in lock.running and _waits(case, waiters, lock, sharer))


def _waits(case: Case, waiters: dict[str, SharedLock], lock: SharedLock, sharer: Subject) -> bool:
    """Whether it waits for this lock, or for the end or the work of its children, all of which do."""
    if (its := waiters.get(sharer.key)) is not None:
        return its.path == lock.path
    below = [each for each in case.live() if parent_of(case, each) is sharer]
    inside = all(_waits(case, waiters, lock, child) for child in below)
    return bool(below) and inside and awaits_children(case, sharer, end_only=False)


def _is_to_be_notified(subject: Subject) -> bool:
    """Whether it waits to be notified, as by an event of multiprocessing: it may be meant to wait until a signal."""
    inner = [frame for frame in subject.process.main_frames if frame.file.endswith("/multiprocessing/synchronize.py")]
    return any(plain(frame.function) in _CONDITIONS for frame in inner)


def _killed(case: Case, stuck: list[Subject]) -> list[Subject]:
    """Processes of the same parents that were killed: one of them may have kept the lock."""
    parents = {(subject.process.host, subject.process.ppid) for subject in stuck}
    ended = (each for each in case.graph.subjects.values() if each.ended)
    return [
        each for each in ended
        if (each.process.host, each.process.ppid) in parents
        and each.process.exit_code == -signal.SIGKILL
    ]  # fmt: skip


def _why(subject: Subject, lock: SharedLock) -> str:
    where = f" at {subject.frame}" if subject.frame else ""
    count = len(lock.sharers)
    others = f"all {count} processes that have it open wait" if count > 1 else "no other process has it open"
    end = " for it, or for those that do" if count > 1 else ""
    if _is_to_be_notified(subject):
        return (
            f"waits{where} to be notified by another process; {others}{end}: whoever could has ended, or waits as well"
        )
    return (
        f"waits{where} for a lock of multiprocessing; {others}{end}: whoever took it has ended without release, "
        "or waits for it as well"
    )
