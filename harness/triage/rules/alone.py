"""Rule about a process whose only thread waits for what it alone could bring: a lock or an item of a queue.

A fork copies locks, not the threads that hold them; a thread that takes a lock twice waits for itself; a queue that a
thread filled stays empty once that one has ended. The kernel proves it. The process has one thread, which waits without
a limit for a lock that no other process uses (`Sample.locked_alone`), or by its text begins such a wait anew and does
nothing else. Locks of multiprocessing are shared and never show so.
"""

from __future__ import annotations

from harness.triage import inner_waits, lock_text, source
from harness.triage.copied_frames import fork_place
from harness.triage.evidence import Frame, Process
from harness.triage.graph import Subject
from harness.triage.graph.polling import from_workers
from harness.triage.places import FUTURE, inner_frame, users
from harness.triage.rules.alive import WITHIN, actor, in_condition, waits_for_itself
from harness.triage.rules.ruling import Case, Live, Ruling
from harness.triage.rules.threads import keepers, name
from harness.triage.stacks import describe, user_frame
from reports.text import agreeing

SPAWN = "multiprocessing.get_context('spawn')"
END_MARK = "put an end mark into the queue when its producer ends, or look after each time limit whether it lives"
GIVE_BACK = "look for who takes that lock a second time, or does not give it back after an error: take it in a `with`"


def locked(case: Case) -> Ruling | None:
    """K4, or K6 of a thread that waits for itself: a process waits for a lock that it alone could release."""
    locked_subjects = [subject for subject in case.suspects() if _locked(subject)]
    keys = {subject.key for subject in locked_subjects}
    stuck = [subject for subject in locked_subjects if matters(case, subject, keys, keeps_alive=_keeps_alive(subject))]
    if not stuck:
        return None
    why = {subject.key: _why(case, subject) for subject in stuck}
    first = stuck[0]
    reason = _reason(case, first)
    several = len(stuck) > 1
    return Ruling(
        "HUNG",
        f"{case.names(why)} {reason.replace('waits', 'wait', 1) if several else reason}",
        "K6" if _kept_itself(first) else "K4",
        why,
        place=_place(first),
        frames={subject.key: _place(subject) for subject in stuck},
        next=_remedies(case, first),
    )


def _remedies(case: Case, subject: Subject) -> tuple[str, ...]:
    """What to change in the program, or where to look."""
    if itself := _kept_itself(subject):
        return (f"take {itself} once, or make it a threading.RLock, which its own thread may take again",)
    if _is_forked(subject):
        return _of_forked(case, subject)
    if _for_items(subject):
        return (END_MARK,)
    return (Live("py-spy dump --pid PID   # where it stands") if _notified(subject.process) else GIVE_BACK,)


def _of_forked(case: Case, subject: Subject) -> tuple[str, ...]:
    """What to change in a program whose forked process never gets a lock."""
    if _lacks_pool(subject):
        return (
            f"start it without a copy of the pool: {SPAWN}{_at(fork_place(subject.process))}",
            "or begin the forked process with torch.set_num_threads(1), so that it asks no pool",
        )
    without = _without_copy(subject)
    return without if _copied(case, subject) else (GIVE_BACK, f"if a thread of its parent may hold it: {without[0]}")


def unreleased(case: Case) -> Ruling | None:
    """INSUFFICIENT: a forked process never gets a lock, and nobody is seen to wait for it yet."""
    stuck = [
        subject for subject in case.live() if _locked(subject) and _is_forked(subject) and not actor(case, subject)
    ]
    if not stuck:
        return None
    reason = _reason(case, stuck[0])
    return Ruling(
        "INSUFFICIENT",
        f"{case.names(each.key for each in stuck)} {agreeing(len(stuck), reason, reason.replace('waits', 'wait', 1))}",
        evidence=tuple(f"{each.label} {_why(case, each)}" for each in stuck),
        missing=tuple(f"whether somebody waits for {each.label}, now or later" for each in stuck),
        place=_place(stuck[0]),
        about=tuple(each.key for each in stuck),
        next=_of_forked(case, stuck[0]),
    )


def _is_forked(subject: Subject) -> bool:
    """Whether it was forked, and what it waits for is older than that wait."""
    process = subject.process
    waiting = inner_frame(process.main_frames)
    return process.forked and not _notified(process) and not (waiting is not None and lock_text.makes_lock(waiting))


def _without_copy(subject: Subject) -> tuple[str, ...]:
    """How to start a process without a copy of locks."""
    return (
        f"start it without a copy of the locks: {SPAWN}{_at(fork_place(subject.process))}",
        "or fork before the first thread that takes the lock is started",
    )


def _keeps_alive(subject: Subject) -> bool:
    """Whether it waits to be notified, and for no item of a queue and no result: it may only keep itself or its
    children alive until a signal."""
    return _notified(subject.process) and not (_for_items(subject) or _for_result(subject.process))


def matters(case: Case, subject: Subject, keys: set[str], *, keeps_alive: bool) -> bool:
    """Whether somebody waits without a limit for this one of the locked processes `keys`, or for all of them; or the
    job is this process alone. `keeps_alive`: it may be meant to wait until a signal."""
    waiters = [case.subject(wait.waiter) for wait in case.graph.waits if wait.target == subject.key]
    beside = case.live()
    own = [each for each in beside if parent_of(case, each) is subject and each.key not in keys]
    if keeps_alive and own and all(waiter.doing.kind == "join" for waiter in waiters):
        return False
    if any(not _has_limit(waiter) for waiter in waiters):
        return True
    parent = parent_of(case, subject)
    if parent is None:
        return len(beside) == 1 and not keeps_alive
    children = {each.key for each in beside if parent_of(case, each) is parent}
    return not waiters and children <= keys and awaits_children(case, parent, end_only=keeps_alive)


def awaits_children(case: Case, parent: Subject, *, end_only: bool) -> bool:
    """Whether a process waits without a limit for the end of a child, by the kernel, or, with nobody beside to end its
    wait, for what its children make: their end, and unless `end_only` an item or a result."""
    if not parent.has_process or parent.launcher or parent.progress:
        return False
    if {look.wchan for look in parent.process.samples} == {"do_wait"}:
        return True
    if any(source.waits_again(frame, raises=False) for frame in parent.loop[:1]):
        return True  # it asks again and again whether they have ended
    if not end_only and _reads_from_children(case, parent):
        return not actor(case, parent, WITHIN)
    if from_workers(parent.process):
        return not (end_only or actor(case, parent, WITHIN))
    if _has_limit(parent) or parent.before.kind != parent.doing.kind or actor(case, parent, WITHIN):
        return False
    if parent.doing.kind == "join" or end_only:
        return parent.doing.kind == "join"
    if parent.doing.kind == "queue":  # of multiprocessing: its children fill it, or whoever started it
        pipes = all(look.reading.startswith("pipe:") for look in parent.process.samples)
        return pipes and parent_of(case, parent) is None
    return parent.doing.kind == "lock"


def _reads_from_children(case: Case, parent: Subject) -> bool:
    """Whether its main thread reads throughout, without a limit, what its children alone can write."""
    pids = {each.process.pid for each in case.live() if parent_of(case, each) is parent}
    writers = set(parent.process.writers)
    return bool(writers) and writers <= pids and all(look.reads_for_ever for look in parent.process.samples)


def parent_of(case: Case, subject: Subject) -> Subject | None:
    return case.graph.subjects.get(f"{subject.process.host}:{subject.process.ppid}")


def _place(subject: Subject) -> str:
    """Where it waits: in the user's code, or in whatever calls the lock, as the text of `python -c` does."""
    frames = subject.process.main_frames
    return subject.frame or (describe(frames[0]) if frames else "a lock")


def _lacks_pool(subject: Subject) -> bool:
    """Whether it was forked, and waits for threads of a native pool, none of which a fork copies."""
    inner = inner_waits.of_process(subject.process)
    return inner is not None and inner.pool and _is_forked(subject)


def _kept_itself(subject: Subject) -> str:
    """The lock that its main thread waits for inside a `with` of it, where its name means one object; empty without
    one."""
    own = [frame for frame in subject.process.main_frames if users(frame)]
    taken = lock_text.sole_locks_taken(own[0]) if own else set()
    kept = {lock for frame in own[1:] if frame.file == own[0].file for lock in lock_text.sole_locks_kept(frame)}
    return next(iter(taken & kept), "")


def _reason(case: Case, subject: Subject) -> str:
    if _kept_itself(subject):
        return "waits for a lock that it keeps itself"
    if _lacks_pool(subject):
        return "waits for threads of a pool, which a fork does not copy"
    if _copied(case, subject):
        return "waits for a lock copied by fork, which nothing can release"
    if _notified(subject.process):
        return "waits for what it alone could bring"
    return "waits for a lock that it alone could release"


def _for_items(subject: Subject) -> bool:
    """Whether it waits for an item of a queue."""
    return subject.doing.within("queue") and subject.before.within("queue")


def _for_result(process: Process) -> bool:
    """Whether it waits for the result of a future of threads."""
    return any(FUTURE.search(frame.file) for frame in process.main_frames[1:2])


def _notified(process: Process) -> bool:
    return in_condition(process.main_frames)


def _locked(subject: Subject) -> bool:
    looks = subject.process.samples
    still = len(looks) > 1 and looks[0].main_switches == looks[-1].main_switches
    return (still and all(look.locked_alone for look in looks)) or waits_for_itself(subject)


def _copied(case: Case, subject: Subject) -> bool:
    """Whether it was forked with the lock: a thread of its parent keeps it, and none of its own. Otherwise it may have
    taken the lock twice itself, or not given it back."""
    process, parent = subject.process, parent_of(case, subject)
    waiting = inner_frame(process.main_frames)
    lock = lock_text.lock_of(waiting) if waiting is not None else ""
    if waiting is None or parent is None or not _is_forked(subject):
        return False
    if inner_waits.of_process(process) is inner_waits.IMPORT:
        return bool(inner_waits.importers(parent.process.threads, waiting)) and len(process.threads) == 1
    if not lock:
        return False
    kept_by_itself, kept_by_parent = (keepers(each.threads, waiting, lock) for each in (process, parent.process))
    return bool(kept_by_parent) and not kept_by_itself


def _has_limit(waiter: Subject) -> bool:
    return any(look.timed for look in waiter.process.samples)


def _why(case: Case, subject: Subject) -> str:
    process, parent = subject.process, parent_of(case, subject)
    frames = process.main_frames
    waiting = inner_frame(frames)
    lock = lock_text.lock_of(waiting) if waiting is not None else ""
    inner = inner_waits.of_process(process)
    what = inner.words if inner is not None else f"the lock {lock}" if lock else "a lock"
    where = f" at {_place(subject)}"
    unending = "none of them can come" if inner is not None and inner.pool else "nothing can release it"
    facts = [f"waits for {what}{where} with its only thread, so that {unending}"]
    if in_condition(frames):
        facts = [f"waits to be notified{where} with its only thread, so that nothing of it can do so"]
    elif _is_forked(subject):
        by = parent.label if parent is not None else f"process {process.ppid}"
        copies = "a fork copies locks but not the threads that hold them"
        if _lacks_pool(subject):
            copies = "a fork copies a pool but not its threads"
        elif not _copied(case, subject):
            copies = (
                f"either it took that lock itself before and did not give it back, or a thread of {by} held it then"
            )
        place = _at(fork_place(process)) or ", at a line that neither its stack nor the program's text shows"
        facts.append(f"{by} forked it{place}, and {copies}")
    if waiting is not None and parent is not None and inner is inner_waits.IMPORT:
        facts += [
            f"{parent.label}'s {name(thread)} stands in that import at {user_frame(thread.frames)}"
            for thread in inner_waits.importers(parent.process.threads, waiting)[:1]
        ]
    if waiting is not None and lock:
        facts += _keepers(subject, waiting, lock, "its own")
        facts += _keepers(parent, waiting, lock, f"{parent.label}'s") if parent is not None else []
    return "; ".join(facts)


def _keepers(subject: Subject, waiting: Frame, lock: str, whose: str) -> list[str]:
    """Where a thread stands inside a `with` of the lock of that text, in the same file."""
    places = [
        f"{whose} {name(thread)} stands inside `with {lock}` at {describe(frame)}"
        for thread, frame in keepers(subject.process.threads, waiting, lock)
    ]
    return places[:1]


def _at(place: str) -> str:
    return f" at {place}" if place else ""
