"""Who may still end a wait: a sleep that runs out, a thread that works beside, a child, whoever writes or signals.

A rank that has not come is to blame only where nothing that was seen could still bring it. A process that waits inside
itself for such a thread, or for something outside the job, may be slow, or wait for a party that nobody looked at. Then
the verdict is INSUFFICIENT, and says who would have to act.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from harness.triage import source
from harness.triage.evidence import Frame, Process, Thread
from harness.triage.graph import Subject
from harness.triage.graph.awaiting import in_loop, unseen
from harness.triage.graph.motion import handlers, hands_on, spent_s
from harness.triage.graph.polling import woke
from harness.triage.graph.sockets import main_frames
from harness.triage.places import users
from harness.triage.rules.outsiders import awaits_tasks, in_client, tasks_shown
from harness.triage.rules.processes import local_error
from harness.triage.rules.ruling import Case, Live, Ruling
from harness.triage.stacks import JOINS, classify, describe, user_frame

# Kernel functions in which only another process, a person or a device ends the wait of the caller.
_OUTSIDE = re.compile(
    r"wait_for_partner|sigtimedwait|sigsuspend|pipe_read|pipe_wait|wait_woken|inotify|^do_wait$|tty"
    r"|inet_csk_accept|skb_wait_for_more_packets"  # a connection or a datagram of anybody
)
_UNIX = re.compile(r"unix_stream|sock_alloc_send|sock_wait_for_wmem")  # a read from a Unix socket, or a send to it
_TAKES_A_REQUEST = re.compile(r"(^|\.)handle_request$")  # of socketserver: it selects on its listening socket
_IN_PROCESS = ("lock", "queue", "select", "user", "http_server")  # waits that a thread beside, or a child, may end
_PENDING = ("sleep", "http_client", "store", "device", "compile")  # kinds of what ends without this process
_SLEEPS = re.compile("nanosleep")
_SUBPROCESS = re.compile(r"/subprocess\.py$")
# Modules of the standard library that wait as long as their caller says.
_WAITS_OF_A_CALLER = re.compile(r"/(threading|queue)\.py$|/concurrent/futures/_base\.py$")


def coming(case: Case, subject: Subject) -> str:
    """Say in words who may still end what a process does or waits for; empty if nothing that was seen could.

    A process that ended, is held, failed or has caught an error is not coming. A process of which only recorder data
    was seen is judged by its counters, so this is empty too.
    """
    process = subject.process
    if process is None or not process.samples or not process.samples[-1].threads:
        return ""
    if subject.ended or subject.blocked or failed(process):
        return ""
    for who_ends in (_sleep, _limit, _thread):
        if words := who_ends(subject, process):
            return words
    signalled = handler(process) if subject.doing.kind in _IN_PROCESS else ""
    return signalled or _child(case, subject, process) or _outside(process) or _request(subject, process)


def failed(process: Process | None) -> bool:
    """Whether a process left an error or stands where one was caught."""
    return bool(local_error(process)) or any(source.in_handler(frame) for frame in user_frames(process))


def user_frames(process: Process | None) -> list[Frame]:
    """The frames of the user's code in the main thread at the last look, innermost first."""
    if process is None or not process.samples:
        return []
    return [frame for frame in main_frames(process.samples[-1].threads) if users(frame)]


def _sleep(subject: Subject, process: Process) -> str:
    """A sleep that ends by itself, as the kernel or the source text says, and behind which something is done.

    Without both a rank is judged by its counters, which stand. A process that is no rank has none, so nothing shows
    that it does not go on.
    """
    if not subject.doing.kind == subject.before.kind == "sleep":
        return ""
    frames = main_frames(process.samples[-1].threads)
    loop = source.loop_around(frames[0]) if frames else source.Loop.UNKNOWN
    left_s = process.samples[-1].sleeps_s
    if loop is source.Loop.UNKNOWN and left_s is None:
        return "" if process.rank is not None else "a sleep, and its source text cannot be read"
    length_s = left_s if left_s is not None else source.slept_s(frames[0])
    if length_s is not None and length_s >= source.LONG_S:
        return ""
    if loop is source.Loop.ENDLESS and not source.passes_on(frames[0]):
        return ""
    return f"its sleep ends in {left_s:.0f} s" if left_s is not None else "a sleep ends by itself"


def _limit(subject: Subject, process: Process) -> str:
    """A wait that the user's own code gave a time limit, outside a loop that does nothing but begin it anew for ever.

    Where the source text cannot be read, a rank is judged by its counters, as in `_sleep`.
    """
    if subject.doing.kind not in _IN_PROCESS or not all(look.timed for look in process.samples):
        return ""
    for frame in main_frames(process.samples[-1].threads):
        if users(frame):
            loop = source.loop_around(frame)
            again = loop is source.Loop.ENDLESS and not source.passes_on(frame)
            unread = loop is source.Loop.UNKNOWN and process.rank is not None
            return "" if again or unread else "its wait has a time limit"
        if not _WAITS_OF_A_CALLER.search(frame.file):
            break
    return ""


def _thread(subject: Subject, process: Process) -> str:
    """A thread beside the main one that may end its wait, or answers a request."""
    if subject.doing.kind not in _IN_PROCESS:
        return ""
    look = process.samples[-1]
    serves = subject.doing.within("http_server")
    joined = subject.doing.op in JOINS
    for thread in look.threads:
        if thread.main or thread.name == "MainThread":
            continue
        own = any(map(users, thread.frames))
        if _alive(process, thread) and ((serves and own) or hands_on(thread, joined=joined)):
            place = user_frame(thread.frames) or describe(thread.frames[0])
            return f"its thread {thread.name or thread.tid} stands at {place}"
    if serves and any("/asyncio/" in frame.file for thread in look.threads for frame in thread.frames):
        return f"it {in_loop(process)}"
    return ""


def sender(process: Process | None) -> Thread | None:
    """A thread beside the main one that sleeps and, by its source text, then sends, puts or sets something; None
    without one."""
    asleep = (thread for thread in _coming_threads(process) if _SLEEPS.search(thread.wchan))
    return next(filter(hands_on, asleep), None)


def goes_on_beside(process: Process | None) -> bool:
    """Whether a thread beside the main one computes, sleeps, or waits for what ends without this process, and then goes
    on in the user's code."""
    return any(True for _ in _coming_threads(process))


def _coming_threads(process: Process | None) -> Iterator[Thread]:
    """The threads beside the main one that will go on in the user's code. One that only ticks for ever will not.

    On a busy host the last look may lack the stacks that an earlier one has.
    """
    if process is None:
        return
    for thread in next((look.threads for look in reversed(process.samples) if look.threads), ()):
        own = [frame for frame in thread.frames if users(frame)]
        if own and not thread.main and not any(map(source.endless_loop, own)) and _alive(process, thread):
            yield thread


def handler(process: Process | None) -> str:
    """Say which signal's handler of a process may end a wait inside it; empty without one.

    Every server ends at SIGTERM, so its handler counts only where the main thread waits to be notified.
    """
    if process is None or not process.samples:
        return ""
    look = process.samples[-1]
    waits_for_it = in_condition(main_frames(look.threads))
    names = [name for name in look.handles if waits_for_it or name != "SIGTERM"]
    return f"its handler of {names[0]} may end it" if names else ""


def in_condition(frames: Sequence[Frame]) -> bool:
    """Whether a thread waits to be notified: in `Condition.wait`, which `Event.wait` and `queue.get` call."""
    return bool(frames) and frames[0].file.endswith("/threading.py") and frames[0].function.rpartition(".")[2] == "wait"


def _alive(process: Process, thread: Thread) -> bool:
    """Whether a thread computes, sleeps, or waits for something that ends without this process."""
    asleep = any(waits.search(thread.wchan) for waits in (_SLEEPS, _OUTSIDE, _UNIX))
    limited = bool(thread.frames) and source.has_time_limit(thread.frames[0])
    waits = bool(asleep) or limited or classify(thread).kind in _PENDING
    return thread.active or waits or spent_s(process, thread) > 0


def _child(case: Case, subject: Subject, process: Process) -> str:
    """A child that is alive, where the main thread may wait for it; none that waits for this process."""
    if subject.doing.kind not in _IN_PROCESS:
        return ""
    waiters, collects = case.graph.waiters({subject.key}), _in_subprocess(process)
    for each in case.live():
        its = each.process
        if (
            its is None
            or its.host != process.host
            or its.ppid != process.pid
            or its.rank is not None
            or each.key in waiters
        ):
            continue
        ends_alone = each.polls or each.doing.kind in _PENDING or woke(its) or (collects and not _has_stack(its))
        if ends_alone and not (each.blocked or failed(its)):
            return f"its child {its.pid}: {each.state()}"
    return ""


def _in_subprocess(process: Process) -> bool:
    """Whether its main thread waits in `subprocess.run` or `Popen.communicate` for the output and end of a child."""
    looks = process.samples[-1:]
    return any(_SUBPROCESS.search(frame.file) for look in looks for frame in main_frames(look.threads))


def _has_stack(process: Process) -> bool:
    return any(look.threads for look in process.samples)


def _outside(process: Process) -> str:
    """A wait for a writer, a connection, a signal or an event, which no thread of this process causes."""
    waits = [look.wchan for look in process.samples]
    if all(map(_OUTSIDE.search, waits)):
        return f"it waits in the kernel ({waits[-1]})"
    requests = (
        any(_TAKES_A_REQUEST.search(frame.function) and frame.file.endswith("/socketserver.py") for frame in frames)
        for frames in (main_frames(look.threads) for look in process.samples)
    )
    return "it waits for a request of anybody" if all(requests) else ""


def _request(subject: Subject, process: Process) -> str:
    """A thread of a server that waits for what another request may bring, by its source text; none where a thread that
    has died brought it."""
    for thread in handlers(process) if subject.doing.within("http_server") else ():
        frame = next((frame for frame in thread.frames if users(frame)), None)
        if frame is None or any(source.filled_alone(frame.file, lost.name) for lost in process.lost_threads):
            continue
        if source.brought_elsewhere(frame):
            return (
                f"another request may bring what its thread {thread.name or thread.tid} waits for at {describe(frame)}"
            )
    return ""


def undecided(case: Case) -> Ruling | None:
    """INSUFFICIENT: waiting ends at processes whose wait somebody may still end."""
    ends = [
        sink
        for sink in case.sinks()
        if sink.observed and not sink.progress and not (awaits_tasks(sink) or in_client(case, sink))
    ]
    awaited = {end.key: why for end in ends if (why := coming(case, end))}
    if not awaited or not any(wait.target in awaited for wait in case.graph.waits):
        return None
    described = {key: f"{case.subject(key).state()}; {why}" for key, why in awaited.items()}
    where = f": {case.subject(next(iter(awaited))).state()}" if len(awaited) == 1 else ""
    blind = [case.subject(key) for key in awaited if unseen(case.subject(key).process)]
    return Ruling(
        "INSUFFICIENT",
        f"others wait for {case.names(awaited)}, which may go on{where}",
        evidence=tuple(f"{case.subject(key).label}: {words}" for key, words in described.items()),
        missing=tuple(f"who ends what {case.subject(key).label} does or waits for" for key in awaited),
        place=case.subject(next(iter(awaited))).frame,
        next=(
            Live(f"{case.again()}   # in a minute: what has moved"),
            *tasks_shown(case, blind),
            "give each wait a timeout, and say in its error what has not come",
        ),
    )
