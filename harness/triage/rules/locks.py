"""Rules about a process that waits for the lock of a file: in the kernel, as flock makes it wait, or by trying again.

The kernel's list says who holds the lock, and for whom it waits in the kernel. Of a process that tries again and again,
as filelock does, the file is known if it is the only locked one that is opened again and again meanwhile.
"""

from __future__ import annotations

import os
import re

from harness.triage.evidence import FileLock
from harness.triage.graph import Subject
from harness.triage.rules.pauses import slow_because
from harness.triage.rules.pipes import runs_beside
from harness.triage.rules.polls import tries_to_lock
from harness.triage.rules.ruling import MOST_NAMED, Case, Live, Ruling, brief
from reports.text import agreeing, and_more

TRIES = 2  # somebody else may open a file once while it is looked at
# CPU seconds of a process that never did much. Python starts in 0.02 s, and an import of numpy or requests takes 0.11 s
# (measured), so that whoever has built or downloaded a data set and pauses has used more.
UNUSED_S = 0.1
# The kernel functions (/proc/PID/wchan) in which a thread waits for the lock of a file.
IN_LOCK = re.compile("lock_inode_wait|_setlk|do_lock_file_wait")


def ring(case: Case) -> Ruling | None:
    """K6: processes wait in the kernel for locks of files, each for one that the next of them holds."""
    locks = _ring(case)
    if not locks:
        return None
    keys = [f"{lock.host}:{lock.pid}" for lock in locks]
    waiters = [keys[-1], *keys[:-1]]  # the holder of each lock waits for the next one
    labels = {key: _label(case, lock) for key, lock in zip(keys, locks, strict=True)}
    paths = ", ".join(sorted(lock.path for lock in locks))
    files = [os.path.basename(lock.path) for lock in locks[:MOST_NAMED]]
    more = and_more(len(locks) - MOST_NAMED)
    alone = len(locks) == 1
    who = case.names(keys) if all(key in case.graph.subjects for key in keys) else " and ".join(labels.values())
    waits = "waits for a file's lock that it holds itself" if alone else "wait for each other's locks of files"
    subjects = [case.subject(key) for key in keys if key in case.graph.subjects]
    return Ruling(
        "HUNG",
        f"{who} {waits}: {' and '.join(files)}{more}",
        "K6",
        {keys[0]: f"{waits}: {locks[0].path}"} if alone else {},
        cycle=() if alone else tuple(waiters),
        waiting={
            key: f"the lock of {lock.path}"
            for lock in locks
            for pid in lock.waiters
            if (key := f"{lock.host}:{pid}") in case.graph.subjects
        },
        evidence=tuple(
            f"{labels[waiter]} waits for the lock of {lock.path}, which {labels[key]} holds ({brief(lock.command)})"
            for waiter, key, lock in zip(waiters, keys, locks, strict=True)
        ),
        place=subjects[0].frame if subjects else "",
        next=(
            "take the lock once in a process: each open() of the file makes another owner"
            if alone
            else f"take these locks in the same order in every process: {paths}",
        ),
    )


def _ring(case: Case) -> list[FileLock]:
    """Locks of which the holder of each waits for the next one, and that of the last for the first; empty without.

    Each holder has to stand. Who else may release what it holds, as the handler of a signal, `unaided` asks.
    """
    awaited: dict[tuple[str, int], list[FileLock]] = {}
    for lock in case.evidence.locks:
        for pid in lock.waiters:
            awaited.setdefault((lock.host, pid), []).append(lock)
    for first in case.evidence.locks:
        chain = [first]
        while len(behind := awaited.get((chain[-1].host, chain[-1].pid), [])) == 1 and behind[0] not in chain:
            chain.append(behind[0])
        if behind == [first] and all(_stands(case, lock) for lock in chain):
            return chain
    return []


def _stands(case: Case, lock: FileLock) -> bool:
    """Whether the holder of a lock waits for another one in the kernel, and nothing in it goes on beside."""
    holder = _holder(case, lock)
    if holder is None:  # of another job, which was looked at for as long
        return lock.idle
    looks = holder.process.samples
    in_lock = len(looks) > 1 and all(IN_LOCK.search(look.wchan) for look in looks)
    return in_lock and not (holder.progress or runs_beside(holder)) and holder.key not in case.excused


def in_a_ring(case: Case, subject: Subject) -> bool:
    """Whether a process waits for the lock of a file, and holds one for which the holder of that lock waits."""
    return any(subject.key == f"{lock.host}:{lock.pid}" for lock in _ring(case))


def _label(case: Case, lock: FileLock) -> str:
    holder = _holder(case, lock)
    return holder.label if holder is not None else f"process {lock.pid}"


def worked(case: Case) -> Ruling | None:
    """SLOW: the lock that a process waits for is held by one that works, in the job or beside it."""
    for lock, waiters in _awaited(case):
        holder = _holder(case, lock)
        if holder is not None and holder.progress:
            return slow_because(case, [holder.key])
        if holder is None and lock.works:
            return Ruling(
                "SLOW",
                f"not hung: {case.names(each.key for each in waiters)} {agreeing(len(waiters), 'waits', 'wait')} "
                f"for a file's lock, whose holder {lock.pid} works",
                "K7",
                place=waiters[0].frame,
                evidence=(_words(lock), f"process {lock.pid}, no process of the job, used {lock.works}"),
                next=(f"ps -fp {lock.pid}   # who holds the lock", f"{case.again()}   # in a minute"),
            )
    return None


def unreleased(case: Case) -> Ruling | None:
    """K4 or K6: nobody will release the lock that a process waits for. INSUFFICIENT: its holder alone knows."""
    awaited = _awaited(case)
    if not awaited:
        return None
    lock, waiters = awaited[0]
    holder = _holder(case, lock)
    names = case.names(each.key for each in waiters)
    waits = f"{agreeing(len(waiters), 'waits', 'wait')} for the lock of {os.path.basename(lock.path)}"
    ring = [waiter for waiter in waiters if holder is not None and holder.key in case.graph.waiters({waiter.key})]
    if holder is not None and ring:
        return Ruling(
            "HUNG",
            f"{names} and {holder.label} wait for each other: {holder.label} holds {os.path.basename(lock.path)}",
            "K6",
            cycle=(ring[0].key, holder.key),
            waiting={waiter.key: f"the lock of {os.path.basename(lock.path)}" for waiter in waiters},
            evidence=(_words(lock), f"{holder.label} waits for {case.names([ring[0].key])}: {holder.state()}"),
            place=waiters[0].frame,
            next=("release the lock before the collective, or take it on every rank in the same order",),
        )
    if holder is None and lock.idle and lock.abandoned and lock.spent_s < UNUSED_S:
        why = f"{waits}, which process {lock.pid} holds: its parent has ended, and it does nothing"
        return Ruling(
            "HUNG",
            f"{names} {waits}, which {lock.pid} holds, a process left over by another job",
            "K4",
            {waiter.key: why for waiter in waiters},
            evidence=(_words(lock), f"process {lock.pid} is none of the job, has used {lock.spent_s:.2f} s of CPU, and "
                      "did not wake up between two looks"),
            place=waiters[0].frame,
            next=(f"kill {lock.pid}   # releases the lock; ps -fp {lock.pid} shows whose it is",),
        )  # fmt: skip
    who = f"process {lock.pid}" if lock.pid else "a process that the kernel does not tell"
    who = holder.label if holder is not None else who
    return Ruling(
        "INSUFFICIENT",
        f"{names} {waits}, which {who} holds",
        evidence=(_words(lock), *((f"{holder.label}: {holder.state()}",) if holder is not None else ())),
        missing=(f"whether {who} will release {lock.path}",),
        place=waiters[0].frame,
        next=_of_holder(case, lock, holder),
    )


def _of_holder(case: Case, lock: FileLock, holder: Subject | None) -> tuple[str, ...]:
    """What to try where the holder of a lock alone knows whether it will release it."""
    if holder is not None:  # of this job: nothing that an earlier one left
        again = Live(f"{case.again()}   # in a minute: whether {holder.label} has moved")
        return again, f"see what {holder.label} does while it holds {lock.path}"
    if lock.pid:
        return (f"ps -fp {lock.pid}   # end it, if it is left over from an earlier job",)
    return (f"fuser -v {lock.path}   # as root, on the host of the containers",)


def in_the_kernel(case: Case, subject: Subject) -> bool:
    """Whether a process stands in the kernel for the lock of a file, which `unreleased` tells with its holder."""
    process = subject.process
    return any(process.pid in lock.waiters for lock in case.evidence.locks if lock.host == process.host)


def _awaited(case: Case) -> list[tuple[FileLock, list[Subject]]]:
    """Locks, each with the processes that wait for it and do not advance."""
    resting = [subject for subject in case.live() if not subject.progress]
    pollers = [subject for subject in resting if tries_to_lock(subject)]
    tried = [lock for lock in case.evidence.locks if lock.tries >= TRIES]
    pairs = []
    for lock in case.evidence.locks:
        waiters = [each for each in resting if each.process.host == lock.host
                   and each.process.pid in lock.waiters]  # fmt: skip
        if tried == [lock]:  # of several nothing says who tries which
            waiters += [each for each in pollers if each.process.host == lock.host
                        and each.process.pid != lock.pid]  # fmt: skip
        if waiters:
            pairs.append((lock, waiters))
    return pairs


def _holder(case: Case, lock: FileLock) -> Subject | None:
    return case.graph.subjects.get(f"{lock.host}:{lock.pid}")


def _words(lock: FileLock) -> str:
    if not lock.pid:
        return f"{lock.path} is locked, and the kernel does not tell by whom: another container or user, or several"
    return f"{lock.path} is locked by {lock.pid} ({brief(lock.command)})"
