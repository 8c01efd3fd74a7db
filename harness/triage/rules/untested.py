"""What was not seen although nothing seen is pending. It has to be said before a verdict is HEALTHY.

A lock, a queue, a pipe and a socket do not say who has to release or fill them. Three kinds of process wait at them for
work and are idle: a helper that its parent feeds through a queue, a program without a rank in an endless loop, and a
main thread beside threads that serve. A process that waits for one that it started is judged by that one.
"""

from __future__ import annotations

import re

from harness.triage import source, stacks
from harness.triage.evidence import NOT_PYTHON, Process
from harness.triage.graph import Subject
from harness.triage.graph.awaiting import in_loop
from harness.triage.graph.edges import superseded
from harness.triage.graph.polling import place as polled_at
from harness.triage.graph.subjects import LAUNCHERS, wait_by_kernel
from harness.triage.places import inner_frame
from harness.triage.rules.outsiders import awaits_tasks
from harness.triage.rules.polls import SERVING, open_polls, serves
from harness.triage.rules.ruling import Case
from harness.triage.rules.threads import inside

MOMENT_S = 2.0  # two heartbeat periods
_FILE_LOCK = "a lock of a file"
_SELECT = "what has to come through one of several files"
_CHILD = "the end of a process that it started"
# Kernel functions (/proc/PID/wchan of Linux 5.10 to 6.18) in which a thread waits whose stack ends in user code.
_KERNEL = tuple(
    (re.compile(pattern), awaited)
    for pattern, awaited in (
        ("futex", "a lock"),
        ("lock_inode_wait|_setlk", _FILE_LOCK),
        ("pipe_read", "a pipe that is empty"),
        ("pipe_write", "a pipe that is full"),
        ("wait_for_partner", "the other end of a pipe"),
        (r"^(kernel_)?do_wait$", _CHILD),
        ("csk_accept|wait_for_connect", "a connection"),
        ("wait_woken|sk_wait_data|unix_stream|skb_wait_for_more", "what has to come through a socket or a terminal"),
        ("sigtimedwait", "a signal"),
        ("poll_schedule_timeout|do_select|do_(sys_)?poll|ep_poll", _SELECT),
    )
)


def untested(case: Case) -> list[str]:
    """What keeps this case from being healthy, in words; empty if everything was looked at."""
    ranks = unseen(case)
    gaps = [f"nothing is known of rank {rank}" for rank in ranks[:8]]
    if len(ranks) > 8:
        gaps.append(f"nothing is known of {len(ranks) - 8} more ranks")
    if case.comparison and not any(subject.has_process for subject in case.graph.subjects.values()):
        gaps += [missing for missing in case.comparison.missing if missing not in gaps]  # only dumps are there
    gaps += map(in_a_loop, open_polls(case))
    return [*gaps, *(f"{subject.label} {_wait_text(case, subject)}" for subject in unnamed(case))]


def in_a_loop(poller: Subject) -> str:
    """Say in words that a process polls."""
    return f"{poller.label} waits in a loop, {polled_at(poller.loop)}, and nothing says for whom"


def bereft(case: Case) -> tuple[list[Subject], list[Subject]]:
    """Processes that ended badly, or are stopped while nobody is known to release another one, and those that stand
    still beside them and are no idle servers or workers.

    None of either if somebody moves: the job goes on without those.
    """
    dead = [
        subject
        for subject in case.graph.subjects.values()
        if not subject.launcher
        and (
            (_stopped(subject) and unnamed(case))
            or (
                subject.ended and subject.process.exit_code and not superseded(subject.process, case.evidence.processes)
            )
        )
    ]
    live = [subject for subject in case.live() if not _only_started(subject.process)]
    resting = [
        subject
        for subject in live
        if not serves(subject)
        and not _stopped(subject)
        and not subject.doing.within("debugger", "finished")
        and not (subject.doing.idle and _fed(case, subject))
    ]
    if not dead or not resting or any(_moves(subject) for subject in live):
        return [], []
    return dead, resting


def _stopped(subject: Subject) -> bool:
    return subject.blocked is not None and subject.blocked.by == "stop"


def unnamed(case: Case) -> list[Subject]:
    """Processes that stand under a line of user code in a lock or a queue that nobody is known to release, or in an
    event loop whose tasks nobody sees."""
    return [subject for subject in case.live() if _unnamed(case, subject)]


def unseen(case: Case) -> list[int]:
    """Ranks of the job of which there is no stack, no recorder and no moving heartbeat."""
    recorded = set(case.comparison.ranks) if case.comparison else set()
    seen_ranks = recorded | {
        subject.rank for subject in case.graph.subjects.values() if subject.has_process and subject.rank is not None
    }
    blind = {
        subject.rank
        for subject in case.live()
        if subject.rank is not None
        and subject.rank not in recorded
        and subject.doing.kind == "unknown"
        and not _moves(subject)
    }
    sizes = [case.evidence.expected_world or 0, (case.comparison.world_size or 0) if case.comparison else 0]
    sizes += [subject.process.world_size or 0 for subject in case.live() if subject.rank is not None]
    return sorted({rank for rank in range(max(sizes)) if rank not in seen_ranks} | blind)


def _moves(subject: Subject) -> bool:
    beat = subject.process.beat
    return bool(subject.progress) or (beat is not None and beat.progress_age_s < MOMENT_S)


def unread(case: Case) -> list[Subject]:
    """Live processes of which no stack, no recorder, no heartbeat that moves, and not even the kernel tells what they
    do."""
    return [
        subject
        for subject in case.live()
        if subject.doing.kind == "unknown"
        and subject.pending is None
        and not _moves(subject)
        and not wait_by_kernel(subject.process)
    ]


def _unnamed(case: Case, subject: Subject) -> bool:
    process = subject.process
    awaited = _awaited(subject.doing, process.last_look.wchan)
    waits = awaited and _awaited(subject.before, process.first_look.wchan)
    if not process.samples or _moves(subject) or not (waits or _in_tasks(subject)):
        return False
    if _serves_beside(process) or not subject.doing.frame:
        return False
    if awaited == _CHILD and _judged_below(case, process):
        return False
    one_socket = all(look.reading.startswith("socket:") for look in process.samples)
    if awaited == _SELECT and (serves(subject) or (any(look.timed for look in process.samples) and not one_socket)):
        return False  # requests from outside, or a pause; a poll for one socket alone awaits an answer
    # The holder of a file lock does not hand out work with it.
    if subject.rank is not None or awaited == _FILE_LOCK:
        return True
    return not ((_fed(case, subject) and not _stands_with_all(case, subject)) or _loops(subject))


def _serves_beside(process: Process) -> bool:
    """Whether a thread beside the main one stands in a loop of requests."""
    return any(stacks.classify(thread).within(*SERVING) for thread in process.threads if not thread.main)


def _judged_below(case: Case, process: Process) -> bool:
    """Whether evidence holds processes that it started: it waits for whatever they wait for."""
    return any(each.samples for each in case.evidence.processes if each.is_child_of(process))


def _in_tasks(subject: Subject) -> bool:
    """Whether it waits in an event loop that is no server's. An engine's front is left out, because its requests are
    known."""
    return awaits_tasks(subject) and not subject.process.engine and not subject.doing.within(*SERVING)


def _awaited(doing: stacks.Doing, wchan: str) -> str:
    """What it waits for, in words, if nothing says who has to release it; empty if it stands in no such wait."""
    if doing.within(*SERVING, "finished", "debugger", "compile"):
        return ""
    if doing.kind in ("lock", "queue"):
        return "a queue" if doing.within("queue") else "a lock"
    if doing.kind != "user" or doing.active:
        return ""
    return next((awaited for pattern, awaited in _KERNEL if pattern.search(wchan)), "")


def _fed(case: Case, subject: Subject) -> bool:
    """Whether another process of the job started it and gives it work.

    A launcher, a shell, `timeout` and other programs that are not Python only wait for its end. A process that is no
    rank itself but has RANK in its environment was started by a rank that let it go.
    """
    process = subject.process
    if process.rank is None and process.environ.get("RANK"):
        return True
    return any(process.is_child_of(each) and not _only_started(each) for each in case.evidence.processes)


def _only_started(parent: Process) -> bool:
    foreign = any(note.startswith(NOT_PYTHON) for note in parent.notes)
    return foreign or parent.role == "shell" or parent.role in LAUNCHERS


def _stands_with_all(case: Case, subject: Subject) -> bool:
    """Whether it waits without a limit for a lock or an event, and nothing in the job moves.

    Work comes through a queue. Whoever would release a lock or set an event is not known to be idle.
    """
    looks = subject.process.samples
    ends = ((subject.before, looks[0]), (subject.doing, looks[-1])) if looks else ()
    in_lock = all(_awaited(doing, look.wchan) == "a lock" for doing, look in ends)
    return in_lock and not any(look.timed for look in looks) and not any(each.progress for each in case.live())


def _loops(subject: Subject) -> bool:
    """Whether the source text shows that it waits in a loop without an end."""
    frames = [frame for thread in subject.process.threads for frame in thread.frames]
    mine = inner_frame(frames)
    return mine is not None and source.endless_loop(mine)


def _wait_text(case: Case, node: Subject) -> str:
    if _in_tasks(node):
        return in_loop(node.process)
    if awaited := inside(node.process):
        return awaited
    where = f" ({node.doing.frame})" if node.doing.frame else ""
    waits = "waits, with a time limit," if all(look.timed for look in node.process.samples) else "waits"
    process = node.process
    if process.writer and (writer := case.graph.subjects.get(f"{process.host}:{process.writer}")) is not None:
        return (
            f"{waits} for what, of all that is seen, {writer.label} alone can write{where}; that one: {writer.state()}"
        )
    return f"{waits} for {_awaited(node.doing, process.last_look.wchan)}{where}, and nothing says who has to come"
