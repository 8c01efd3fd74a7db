"""Who may still end a wait: a sleep that runs out, a thread that works beside, a child, whoever writes or signals.

A rank that has not come is to blame only where nothing that was seen could still bring it. A process that waits inside
itself for such a thread, or for something outside the job, may be slow, or wait for a party that nobody looked at. Then
the verdict is INSUFFICIENT, and says who would have to act.

`KINDS` lists all who may act. A rule that proves a hang by "nobody is seen who could end this wait" is registered by
`unaided`, which asks all of them; such a rule has no exceptions of its own for what they know.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import replace

from harness.triage import lock_text, queue_text, source, wchan
from harness.triage.evidence import Frame, Process, Thread
from harness.triage.graph import Subject
from harness.triage.graph.awaiting import in_loop, unseen
from harness.triage.graph.motion import BETWEEN_RANKS, handlers, hands_on, spent_s
from harness.triage.graph.polling import woke
from harness.triage.places import WAITING, inner_frame, users
from harness.triage.rules.locks import in_a_ring, in_the_kernel
from harness.triage.rules.outsiders import awaits_tasks, in_client, tasks_shown
from harness.triage.rules.pipes import fills
from harness.triage.rules.polls import reads, takes_orders
from harness.triage.rules.processes import local_error
from harness.triage.rules.ruling import Case, Live, Rule, Ruling
from harness.triage.rules.threads import keepers
from harness.triage.stacks import AT_EXIT, JOINS, classify, describe, posture, user_frame

# Kernel functions in which a wait is one that the other kinds look at: for a lock, a sleep, polled descriptors, a
# socket, the lock of a file, room in a pipe. Any other wait is for somebody outside (a timer, a device, a message, a
# person), so a name that no list has leaves it undecided, and blames nobody.
_LOOKED_AT = re.compile(
    r"futex|nanosleep|poll|do_select|sk_wait|tcp_|inet_stream|sk_stream|unix_stream|sock_alloc_send|sock_wait_for_wmem"
    r"|flock|fcntl_setlk|posix_lock|locks_lock|pipe_write|exit"
)
_POLL = re.compile("poll|do_select")
_PIPE = re.compile("pipe_read|pipe_wait")
_UNIX = re.compile(r"unix_stream|sock_alloc_send|sock_wait_for_wmem")  # a read from a Unix socket, or a send to it
_TAKES_A_REQUEST = re.compile(r"(^|\.)handle_request$")  # of socketserver: it selects on its listening socket
# Waits that a thread beside, or a child, may end.
_IN_PROCESS = ("lock", "queue", "select", "user", "http_server", "join")
_PENDING = ("sleep", "http_client", "store", "device", "compile")  # kinds of what ends without this process
_SLEEPS = re.compile("nanosleep")
_CONNECT = re.compile("wait_woken|inet_wait_for_connect|inet_stream_connect")  # in connect(2), where it is not accepted
_SUBPROCESS = re.compile(r"/subprocess\.py$")
SERVER_CALLS = frozenset({"accept", "serve_forever"})  # functions of the standard library's socket and socketserver
SERVER_FRAMES = 2  # `serve_forever` stands below its selector's `select`
Kind = Callable[[Case, Subject, Process], str]
Kinds = tuple[Kind, ...]
UNAIDED: set[str] = set()  # the rules that conclude from absence, by module and name
# Modules of the standard library that wait as long as their caller says.
_WAITS_OF_A_CALLER = re.compile(r"/(threading|queue)\.py$|/concurrent/futures/_base\.py$")


def actor(case: Case, subject: Subject, kinds: Kinds = (), *, excludes: Kind | None = None) -> str:
    """Say in words who may still end what a process does or waits for; empty if nobody is seen who could.

    This is the one place that answers it, for every rule that concludes from absence (`unaided`). A process that ended
    or is held is not coming, nor is one that failed or has caught an error, unless it looks for something. A process of
    which only recorder data was seen is judged by its counters, so this is empty too. `kinds`: only some of KINDS.
    `excludes`: one of them that does not count.
    """
    process = subject.process
    if not process.threads:
        return ""
    if subject.ended or subject.blocked:
        return ""
    kinds = kinds or (NEVERTHELESS if failed(process) else KINDS)
    counted = (kind for kind in kinds if kind is not excludes)
    return next((words for may_end in counted if (words := may_end(case, subject, process))), "")


def unaided(rule: Rule, *, excludes: Kind | None = None) -> Rule:
    """The rule, where it concludes from absence: nobody is seen who could end a wait.

    Its ruling does not stand on a process whose wait somebody may end: the rule is asked again without that one. A
    ruling that comes back to such a process falls. `excludes`: a kind of actor that the rule itself has looked at.
    """

    @functools.wraps(rule)
    def checked(case: Case) -> Ruling | None:
        while (ruling := rule(case)) is not None and ruling.verdict == "HUNG":
            inside = [case.subject(key) for key in ruling.stands_on if key in case.graph.subjects]
            helped = frozenset(subject.key for subject in inside if actor(case, subject, excludes=excludes))
            if not helped:
                return ruling
            if helped <= case.excused:
                return None
            case = replace(case, excused=case.excused | helped)
        return ruling

    UNAIDED.add(f"{rule.__module__.rpartition('.')[2]}.{rule.__name__}")
    return checked


def failed(process: Process) -> bool:
    """Whether a process left an error or stands where one was caught."""
    return bool(local_error(process)) or any(source.handler_line(frame) for frame in user_frames(process))


def user_frames(process: Process) -> list[Frame]:
    """The frames of the user's code in the main thread at the last look, innermost first."""
    return [frame for frame in process.main_frames if users(frame)]


def _sleep(case: Case, subject: Subject, process: Process) -> str:
    """A sleep that ends by itself, as the kernel or the source text says, and behind which something is done.

    Without both a rank is judged by its counters, which stand. A process that is no rank has none, so nothing shows
    that it does not go on.
    """
    is_sleep = subject.doing.kind == "sleep" and (subject.before.kind == "sleep" or _stood_in_limited_call(process))
    if not is_sleep and not (process.last_look.sleeps_s is not None and _stood_in_limited_call(process)):
        return ""
    frames = process.main_frames
    loop = source.loop_around(frames[0]) if frames else source.Loop.UNKNOWN
    left_s = next((look.sleeps_s for look in reversed(process.samples) if look.sleeps_s is not None), None)
    if loop is source.Loop.UNKNOWN and left_s is None:
        return "" if process.rank is not None else "a sleep, and its source text cannot be read"
    length_s = left_s if left_s is not None else source.slept_s(frames[0])
    if length_s is not None and length_s >= source.LONG_S:
        return ""
    if loop is source.Loop.ENDLESS and not source.passes_on(frames[0]):
        return ""
    return f"its sleep ends in {left_s:.0f} s" if left_s is not None else "a sleep ends by itself"


def _stood_in_limited_call(process: Process) -> bool:
    """Whether the main thread stood at one place in a call with a time limit at every look: a sleep in compiled code,
    which the native stack, taken last, shows to be one."""
    looks = process.samples
    return all(look.timed for look in looks) and process.first_look.main_frames == process.main_frames


def _limit(case: Case, subject: Subject, process: Process) -> str:
    """A wait that the user's own code gave a time limit, outside a loop that does nothing but begin it anew for ever.

    Where the source text cannot be read, a rank is judged by its counters, as in `_sleep`.
    """
    if subject.doing.kind not in _IN_PROCESS or not all(look.timed for look in process.samples):
        return ""
    for frame in process.main_frames:
        if users(frame):
            loop = source.loop_around(frame)
            again = (loop is source.Loop.ENDLESS and not source.passes_on(frame)) or source.begins_anew(frame)
            unread = loop is source.Loop.UNKNOWN and process.rank is not None
            return "" if again or unread else "its wait has a time limit"
        if not _WAITS_OF_A_CALLER.search(frame.file):
            break
    return ""


def _thread(case: Case, subject: Subject, process: Process) -> str:
    """A thread beside the main one that may end its wait, answers a request, or may come to the collective for which
    the others wait.

    One that only ticks for ever will not. On a busy host the last look may lack the stacks that an earlier one has.
    """
    if not (_may_be_ended(case, subject) or _in_group(subject)):
        return ""
    threads = next((look.threads for look in reversed(process.samples) if look.threads), ())
    for thread in threads:
        if thread.leads or _waits_like(case, subject, thread) or not _alive(process, thread):
            continue
        if _may_end_wait(subject, thread):
            place = user_frame(thread.frames) or describe(thread.frames[0])
            return f"its thread {thread.name or thread.tid} {posture(thread)} at {place}"
    return ""


def _may_end_wait(subject: Subject, thread: Thread) -> bool:
    """Whether a thread answers a request of a server, may come to the collective of its process, may write what its
    process alone can, or hands something on."""
    if own := [frame for frame in thread.frames if users(frame)]:
        comes = _in_group(subject) and not any(map(source.endless_loop, own))
        if comes or subject.process.own_pipe or subject.doing.within("http_server"):
            return True
    return hands_on(thread, joined=subject.doing.op in JOINS or _exits(subject)) or _may_release(subject, thread)


def _may_release(subject: Subject, thread: Thread) -> bool:
    """Whether a thread stands, by the text, in a `with` of the lock for which the main thread waits, and leaves it."""
    waiting = inner_frame(subject.process.main_frames)
    lock = lock_text.lock_of(waiting) if waiting is not None else ""
    if waiting is None or not lock:
        return False
    return any(not lock_text.keeps_for_good(frame, lock) for _, frame in keepers([thread], waiting, lock))


def event_loop(case: Case, subject: Subject, process: Process) -> str:
    """A task of the event loop in which a server waits."""
    serves = subject.doing.within("http_server") and _may_be_ended(case, subject)
    frames = (frame for thread in process.threads for frame in thread.frames)
    return f"it {in_loop(process)}" if serves and any("/asyncio/" in frame.file for frame in frames) else ""


def _in_group(subject: Subject) -> bool:
    """Whether it waits for its peers or its device in C, where no handler of a signal runs."""
    return subject.pending is not None or subject.doing.kind in (*BETWEEN_RANKS, "store", "device")


def _waits_like(case: Case, subject: Subject, thread: Thread) -> bool:
    """Whether a thread waits for other processes as its process does: in a collective as well, or for an answer."""
    kinds = BETWEEN_RANKS if _in_group(subject) else WAITING if _resolved(case, subject) else ()
    return classify(thread).kind in kinds


def _resolved(case: Case, subject: Subject) -> bool:
    """Whether the graph says for whom it waits."""
    return subject.key in case.graph.waiting


def _may_be_ended(case: Case, subject: Subject) -> bool:
    """Whether it stands in a wait that a thread beside, a handler or a child may end."""
    locked = any(look.locked_alone for look in subject.process.samples)
    inside = subject.doing.kind in _IN_PROCESS or _exits(subject)
    return not _in_group(subject) and (inside or locked or _resolved(case, subject))


def _exits(subject: Subject) -> bool:
    """Whether it stands at the end of its interpreter, which joins the threads that are no daemons."""
    return (subject.doing.kind, subject.doing.op) == AT_EXIT


def _signal(case: Case, subject: Subject, process: Process) -> str:
    """The handler of a signal.

    Every server ends at SIGTERM, so its handler counts only where the main thread waits to be notified.
    """
    if not _may_be_ended(case, subject):
        return ""
    look = process.last_look
    waits_for_it = in_condition(look.main_frames)
    names = [name for name in look.handles if waits_for_it or name != "SIGTERM"]
    return f"its handler of {names[0]} may end it" if names else ""


def waits_for_itself(subject: Subject) -> bool:
    """Whether its only thread waits to be notified, for a limited time, and then does nothing but begin that anew."""
    looks = subject.process.samples
    if len(looks) < 2 or not all(look.alone and look.timed for look in looks):
        return False
    stacks = [look.main_frames for look in looks]
    own = (inner_frame(frames) for frames in stacks)
    return all(map(in_condition, stacks)) and all(frame is not None and source.begins_anew(frame) for frame in own)


def in_condition(frames: Sequence[Frame]) -> bool:
    """Whether a thread waits to be notified: in `Condition.wait`, which `Event.wait` and `queue.get` call."""
    return bool(frames) and frames[0].file.endswith("/threading.py") and frames[0].function.rpartition(".")[2] == "wait"


def _alive(process: Process, thread: Thread) -> bool:
    """Whether a thread computes, sleeps, or waits for something that ends without this process."""
    asleep = _sleeps_elsewhere(thread.wchan) or any(waits.search(thread.wchan) for waits in (_SLEEPS, _UNIX))
    limited = bool(thread.frames) and source.has_time_limit(thread.frames[0])
    waits = bool(asleep) or limited or classify(thread).kind in _PENDING
    return thread.active or waits or spent_s(process, thread) > 0


def _is_stuck_behind(case: Case, child: Subject, parent: Process) -> bool:
    """Whether a program without a stack waits for its parent: it fills a pipe that the parent alone can read, or waits
    for the end of children that all do, as a shell."""
    its = child.process
    if its.reader == parent.pid and fills(child) and all("pipe_write" in look.wchan for look in its.samples):
        return True
    below = [each for each in case.live() if each.process.is_child_of(its)]
    waits = all(look.wchan == "do_wait" for look in its.samples)
    return waits and bool(below) and all(_is_stuck_behind(case, each, parent) for each in below)


def _child(case: Case, subject: Subject, process: Process) -> str:
    """A child that is alive, where the main thread may wait for it; none that waits for this process."""
    if not _may_be_ended(case, subject):
        return ""
    waiters, collects = case.graph.waiters({subject.key}), _in_subprocess(process)
    for each in case.live():
        its = each.process
        if not its.is_child_of(process) or its.rank is not None or each.key in waiters:
            continue
        is_opaque = collects and not _has_stack(its) and not _is_stuck_behind(case, each, process)
        ends_alone = each.polls or each.doing.kind in _PENDING or woke(its) or is_opaque
        if ends_alone and not (each.blocked or failed(its)):
            return f"its child {its.pid}: {each.state()}"
    return ""


def _in_subprocess(process: Process) -> bool:
    """Whether its main thread waits in `subprocess.run` or `Popen.communicate` for the output and end of a child."""
    return any(_SUBPROCESS.search(frame.file) for frame in process.main_frames)


def _has_stack(process: Process) -> bool:
    return any(look.threads for look in process.samples)


def _sharer(case: Case, subject: Subject, process: Process) -> str:
    """A parent, sibling or child that shares the lock, event or semaphore of multiprocessing for which it waits: one
    that moves, or waits for what ends by itself, may release or set it later."""
    if not process.last_look.in_shared_lock:
        return ""
    file = process.shared_lock.path if process.shared_lock is not None else ""
    if file.startswith("/") and not file.endswith(" (deleted)"):  # a lock of multiprocessing has no name any more
        return f"whoever opens {file} may release it"
    waiters = case.graph.waiters({subject.key})
    for each in case.live():
        its = each.process
        if its.host != process.host or each.key == subject.key or each.key in waiters:
            continue
        kin = its.pid == process.ppid or its.ppid in (process.pid, process.ppid)
        may_act = each.progress or each.doing.kind in _PENDING or woke(its)
        if kin and may_act and not (each.blocked or failed(its)):
            return f"process {its.pid}, which may share its lock: {each.state()}"
    return ""


def _outside(case: Case, subject: Subject, process: Process) -> str:
    """A wait for a writer, a connection, a signal or an event, which no thread of this process causes."""
    waits = [look.wchan for look in process.samples]
    no_writer = process.own_pipe or _writes(case, process, process.writer)
    if _resolved(case, subject) or (no_writer and all(map(_PIPE.search, waits))) or _fed_by_a_child(case, process):
        return ""
    if process.asked and all(map(_CONNECT.search, waits)):
        return f"it waits for a connection to {process.asked[0]}{_listener(case, process.asked[0])}"
    if all(map(_sleeps_elsewhere, waits)):
        awaited = wchan.words(waits[-1])
        wait = f"it waits for {awaited}" if awaited else f"it waits in the kernel ({waits[-1]})"
        return f"{wait}, and keeps the interpreter lock" if _main_keeps_interpreter_lock(process) else wait
    if all(map(_POLL.search, waits)) and _may_be_woken(subject):
        return "it waits for what may come through one of several files"
    requests = (
        any(_TAKES_A_REQUEST.search(frame.function) and frame.file.endswith("/socketserver.py") for frame in frames)
        for frames in (look.main_frames for look in process.samples)
    )
    return "it waits for a request of anybody" if all(requests) else ""


def _main_keeps_interpreter_lock(process: Process) -> bool:
    """Whether the main thread holds the interpreter lock at every look, as in a native call that does not let it go."""
    return all(any(thread.gil and thread.leads for thread in look.threads) for look in process.samples)


def _listener(case: Case, address: str) -> str:
    """Who of the job listens at an address and has not accepted, in words; empty where nobody is seen to."""
    port = address.rpartition(":")[2]
    owners = (each for each in case.live() for at in each.process.listening if at.rpartition(":")[2] == port)
    owner = next(owners, None)
    return f", which {owner.label} has not accepted: {owner.state()}" if owner is not None else ""


def _sleeps_elsewhere(wchan: str) -> bool:
    """Whether a thread sleeps in a kernel function that is none of _LOOKED_AT; not where the kernel does not say."""
    return bool(wchan) and _LOOKED_AT.search(wchan) is None


def _may_be_woken(subject: Subject) -> bool:
    """Whether something that nobody looked at may end a wait for several files.

    Not where the wait has a limit, where the tasks of its event loop are listed, or where the kernel shows which
    processes can write to them. The requests of a server are looked at by themselves.
    """
    process = subject.process
    is_limited = any(look.timed for look in process.samples)
    is_known = process.loops or process.wakers == () or process.fed
    return not (is_limited or is_known or subject.doing.within("http_server"))


def _fed_by_a_child(case: Case, process: Process) -> bool:
    """Whether a child waits until this process, which alone can, reads the pipe that it fills: so it does not end."""
    return any(
        each.process.is_child_of(process) and each.process.reader == process.pid and fills(each) for each in case.live()
    )


def _request(case: Case, subject: Subject, process: Process) -> str:
    """A thread of a server that waits for what another request may bring, by its source text; none where a thread that
    has ended brought it."""
    for thread in handlers(process) if subject.doing.within("http_server") else ():
        frame = inner_frame(thread.frames)
        if frame is None or any(source.filled_alone(frame.file, lost.name) for lost in process.lost_threads):
            continue
        if bringers_over(process, frame):
            continue
        if source.brought_elsewhere(frame):
            return (
                f"another request may bring what its thread {thread.name or thread.tid} waits for at {describe(frame)}"
            )
    return ""


def bringers_over(process: Process, frame: Frame) -> dict[str, int]:
    """The functions that bring what the line of a frame waits for, each with its line, where only threads run them that
    the main thread has started before, and none stands in them any more; else none."""
    bringers = source.bringing(frame)
    frames = [each for look in process.samples for thread in look.threads for each in thread.frames]
    runs = any(each.file == frame.file and each.function.rpartition(".")[2] in bringers for each in frames)
    over = bool(bringers) and not runs and queue_text.started_once(frame.file, bringers, process.main_frames)
    return bringers if over else {}


def _moved_lately(case: Case, subject: Subject, process: Process) -> str:
    """Progress by its heartbeat within half of the stall threshold: it did not stand still with the others."""
    beat, threshold_s = process.beat, case.evidence.threshold_s
    moved = beat is not None and not beat.ended and 0 < beat.progress_age_s < threshold_s / 2
    return f"it moved {beat.progress_age_s:.0f} s ago" if beat is not None and moved else ""


def _maker(case: Case, subject: Subject, process: Process) -> str:
    """Whoever makes what it looks for again and again, or gives orders to an engine's worker."""
    if subject.polls and not waits_for_itself(subject):
        return "it looks for what somebody may make"
    return "it waits for orders" if takes_orders(case, subject) else ""


def _other_end(case: Case, subject: Subject, process: Process) -> str:
    """A process that has the other end of the pipe or socket open that it reads from, or that it fills; none where the
    only one waits to write itself."""
    if _resolved(case, subject):
        return ""
    if reads(subject) and not _writes(case, process, process.writer):
        return "another process can write what it reads"
    if fills(subject) and not _writes(case, process, process.reader):
        return "what it writes to is full, and somebody may read it"
    return ""


def _writes(case: Case, process: Process, pid: int) -> bool:
    """Whether the process of that pid waits to write to a full pipe."""
    other = case.graph.subjects.get(f"{process.host}:{pid}")
    return other is not None and fills(other)


def _holder(case: Case, subject: Subject, process: Process) -> str:
    """The holder of the lock of a file for which it stands in the kernel; none that waits for its lock in turn."""
    waits = in_the_kernel(case, subject) and not in_a_ring(case, subject)
    return "the holder of its file's lock may release it" if waits else ""


def _client(case: Case, subject: Subject, process: Process) -> str:
    """Whoever connects to a server, if those who wait for it wait for its end only: an idle server is not dead."""
    waits = case.graph.waits_for(subject.key)
    innermost = process.main_frames[:SERVER_FRAMES]
    calls = {frame.function.rpartition(".")[2] for frame in innermost}
    idle = all(wait.layer == "process" for wait in waits) and not SERVER_CALLS.isdisjoint(calls)
    return "it waits for a connection of anybody" if idle else ""


# Kinds of who may end a wait, each as words; empty if there is none. The first are those that end it even where a
# process has caught an error. WITHIN: itself.
NEVERTHELESS: Kinds = (_moved_lately, _maker, _other_end, _holder, _sharer, _client)
WITHIN: Kinds = (_sleep, _limit, _thread, event_loop, _signal)
KINDS: Kinds = (*WITHIN, _child, _outside, _request, *NEVERTHELESS)


def undecided(case: Case) -> Ruling | None:
    """INSUFFICIENT: waiting ends at processes whose wait somebody may still end."""
    ends = [
        sink
        for sink in case.sinks()
        if sink.observed and not sink.progress and not (awaits_tasks(sink) or in_client(case, sink))
    ]
    awaited = {end.key: why for end in ends if (why := actor(case, end))}
    if not awaited.keys() & case.awaited():
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
