"""Rule about a process that waits for a lock which nothing can release: a fork copies locks, not the threads that hold
them.

The kernel proves it. The process has one thread, which waits without a limit for a lock that no other process uses
(`Sample.locked_alone`). Locks of multiprocessing are shared and never show so.
"""

from __future__ import annotations

import re

from harness.triage import source
from harness.triage.evidence import Frame, Process
from harness.triage.graph import Subject
from harness.triage.graph.sockets import main_frames
from harness.triage.places import users
from harness.triage.rules.alive import in_condition
from harness.triage.rules.ruling import Case, Live, Ruling
from harness.triage.rules.threads import keepers, name
from harness.triage.stacks import describe, user_frame

_LAUNCH = re.compile(r"/multiprocessing/popen_fork\.py$")


def locked(case: Case) -> Ruling | None:
    """K4: a process that others wait for waits for a lock that it alone could release."""
    awaited = {wait.target for wait in case.graph.waits if not _has_limit(case.subject(wait.waiter))}
    stuck = [subject for subject in case.suspects()
             if _locked(subject) and (subject.key in awaited or _collected(case, subject))]  # fmt: skip
    if not stuck:
        return None
    why = {subject.key: _why(case, subject) for subject in stuck}
    first = stuck[0]
    forked = _copied(first.process)
    reason = _reason(first.process, forked)
    several = len(stuck) > 1
    return Ruling(
        "HUNG",
        f"{case.names(why)} {reason.replace('waits', 'wait', 1) if several else reason}",
        "K4",
        why,
        place=first.frame or "a lock",
        next=(
            f"start it without a copy of the locks: multiprocessing.get_context('spawn'){_at(_fork_place(first))}"
            if forked
            else Live("py-spy dump --pid PID   # where it stands"),
            "or fork before the first thread that takes the lock is started" if forked else "",
        ),
    )


def _reason(process: Process | None, forked: bool) -> str:
    if forked:
        return "waits for a lock copied by fork, which nothing can release"
    return (
        "waits for what it alone could bring" if _notified(process) else "waits for a lock that it alone could release"
    )


def _notified(process: Process | None) -> bool:
    return process is not None and in_condition(main_frames(process.samples[-1].threads))


def _locked(subject: Subject) -> bool:
    looks = subject.process.samples if subject.process else ()
    still = len(looks) > 1 and looks[0].main_switches == looks[-1].main_switches
    return still and all(look.locked_alone for look in looks)


def _copied(process: Process | None) -> bool:
    """Whether it was forked with the lock. What a thread waits in to be notified is made when it begins to wait."""
    return process is not None and process.forked and not _notified(process)


def _collected(case: Case, subject: Subject) -> bool:
    """Whether its parent waits in the kernel for the end of a child, and this is its only one that lives."""
    process = subject.process
    parent = case.graph.subjects.get(f"{process.host}:{process.ppid}") if process is not None else None
    if process is None or parent is None or parent.process is None or parent.launcher:
        return False
    living = [each for each in case.live() if each.process and each.process.ppid == process.ppid]
    return len(living) == 1 and {look.wchan for look in parent.process.samples} == {"do_wait"}


def _has_limit(waiter: Subject) -> bool:
    return waiter.process is not None and any(look.timed for look in waiter.process.samples)


def _why(case: Case, subject: Subject) -> str:
    process = subject.process
    assert process is not None
    parent = case.graph.subjects.get(f"{process.host}:{process.ppid}")
    frames = main_frames(process.samples[-1].threads)
    waiting = next((frame for frame in frames if users(frame)), None)
    lock = source.lock_of(waiting) if waiting is not None else ""
    what = f"the lock {lock}" if lock else "a lock"
    where = f" at {subject.frame}" if subject.frame else ""
    facts = [f"waits for {what}{where} with its only thread, so that nothing can release it"]
    if in_condition(frames):
        facts = [f"waits to be notified{where} with its only thread, so that nothing of it can do so"]
    elif process.forked:
        by = parent.label if parent is not None else f"process {process.ppid}"
        facts.append(
            f"{by} forked it{_at(_fork_place(subject))}, and a fork copies locks but not the threads that hold them"
        )
    if waiting is not None and lock:
        facts += _keepers(subject, waiting, lock, "its own")
        facts += _keepers(parent, waiting, lock, f"{parent.label}'s") if parent is not None else []
    return "; ".join(facts)


def _keepers(subject: Subject, waiting: Frame, lock: str, whose: str) -> list[str]:
    """Where a thread stands inside a `with` of the lock of that text, in the same file."""
    threads = subject.process.samples[-1].threads if subject.process and subject.process.samples else ()
    places = [
        f"{whose} {name(thread)} stands inside `with {lock}` at {describe(frame)}"
        for thread, frame in keepers(threads, waiting, lock)
    ]
    return places[:1]


def _fork_place(subject: Subject) -> str:
    """The user's frame that started the process by multiprocessing; empty where its stack does not show it."""
    frames = main_frames(subject.process.samples[-1].threads) if subject.process else ()
    at = next((at for at, frame in enumerate(frames) if _LAUNCH.search(frame.file)), None)
    return user_frame(frames[at:]) if at is not None else ""


def _at(place: str) -> str:
    return f" at {place}" if place else ""
