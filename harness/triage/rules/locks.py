"""A wait in the kernel for the lock of a file, as flock and lockf make it: the kernel's list says who holds it."""

from __future__ import annotations

from harness.triage.rules.pauses import slow_because
from harness.triage.rules.ruling import Case, Ruling, brief


def unreleased(case: Case) -> Ruling | None:
    """INSUFFICIENT: a process waits in the kernel for the lock of a file; when it is released, its holder alone knows.
    SLOW where the holder is seen to work."""
    waiting = [(subject, lock) for lock in case.evidence.locks for subject in case.live()
               if subject.process and subject.process.host == lock.host and subject.process.pid in lock.waiters
               and not subject.progress]  # fmt: skip
    if not waiting:
        return None
    lock = waiting[0][1]
    holder = case.graph.subjects.get(f"{lock.host}:{lock.pid}")
    if holder is not None and holder.progress:
        return slow_because(case, [holder.key])
    waiters = [subject for subject, its in waiting if its is lock]
    return Ruling(
        "INSUFFICIENT",
        f"{case.names(subject.key for subject in waiters)} wait{'s' if len(waiters) == 1 else ''} for the lock of a "
        f"file, which process {lock.pid} holds",
        evidence=(f"{lock.path} is locked by {lock.pid} ({brief(lock.command)})",),
        missing=(f"whether process {lock.pid} will release {lock.path}",),
        place=waiters[0].frame,
        next=(f"ps -fp {lock.pid}   # end it, if it is left over from an earlier job",),
    )
