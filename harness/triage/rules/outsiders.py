"""Rules about waiting that ends outside the evidence: in the tasks of an event loop, or at a peer on no host of the
job.

A process there may be at work, or its answer may be on the way. So it is never named, and the ruling says what is
missing.
"""

from __future__ import annotations

import re

from harness.triage.evidence import Process
from harness.triage.graph import Subject
from harness.triage.graph.awaiting import in_loop, unseen
from harness.triage.graph.motion import loop_wakes
from harness.triage.graph.sockets import at_socket, ends
from harness.triage.rules import threads
from harness.triage.rules.polls import collects, serves
from harness.triage.rules.processes import to_free
from harness.triage.rules.ruling import NAME_WHO_IS_ASKED, Case, Live, Ruling, Watching
from harness.triage.stacks import awaits
from reports.text import agreeing

_ASYNCIO = re.compile(r"/python3\.(\d+)/asyncio/")
_BELOW = re.compile("^(kernel_)?do_wait$|pipe_read|pipe_wait")  # kernel functions: the end of a child, what it writes
_LOOPBACK = ("127.", "[::1]")


def beyond(case: Case, last: list[Subject]) -> Ruling | None:
    """INSUFFICIENT: one of `last`, where waiting ends, leads outside the evidence."""
    resting = [end for end in last if not end.progress]
    away = [end for end in resting if foreign(case, end.process)]
    if outside := [end for end in away if awaits_tasks(end) or in_client(case, end)]:
        return elsewhere(case, outside)
    if loops := [end for end in resting if awaits_tasks(end)]:
        return _in_tasks(case, loops)
    return None


def unopened(case: Case) -> Ruling | None:
    """INSUFFICIENT: a process waits for whoever opens the other end of a named pipe, and all others for that one.

    The kernel lets it wait in open(2) only while nobody has the other end open. Whoever knows the path may open it, a
    process that is stopped among them once it goes on.
    """
    waiting = [each for each in case.live() if _opens(each)]
    halted = [each for each in case.live() if each.blocked]
    if not waiting or any(each.progress for each in case.live()):
        return None
    if not all(each in waiting or each in halted or _waits_below(case, each) for each in case.live()):
        return None
    first, path = waiting[0], _opens(waiting[0])
    return Ruling(
        "INSUFFICIENT",
        f"{case.names(each.key for each in waiting)} {agreeing(len(waiting), 'waits', 'wait')} for whoever opens "
        f"{path}",
        evidence=tuple(f"{each.label} waits in open: no process has the other end of {_opens(each)} open"
                       for each in waiting[:8])
        + tuple(f"{each.label}: {each.blocked}; it may be who opens it" for each in halted[:8]),
        missing=tuple(f"who opens {_opens(each)}" for each in waiting[:8]),
        place=first.frame or path,
        next=(
            *to_free(halted),
            f"look for the program that opens {path}: whether it was started, and the end of its log",
            f"{case.again()}   # in a minute: whether somebody has opened it",
        ),
    )  # fmt: skip


def _opens(subject: Subject) -> str:
    """The named pipe that it waits to open at every look; empty without one."""
    paths = {look.opens for look in subject.process.samples}
    return paths.pop() if len(paths) == 1 else ""


def _waits_below(case: Case, subject: Subject) -> bool:
    """Whether a process waits, by its stack or by the kernel, for one below it or for a pipe; none that serves."""
    looks = subject.process.samples
    sleeps = all(_BELOW.search(look.wchan) for look in looks)
    return not serves(subject) and (subject.stuck or collects(subject) or (bool(looks) and sleeps))


def awaits_tasks(subject: Subject) -> bool:
    """Whether it waits in an event loop; that of a server may be uvloop, which is in C. No stack shows its tasks, which
    may await anything, including a server outside the job such as a judge or a sandbox. So it is never named for not
    coming."""
    if subject.blocked or subject.doing.kind not in ("select", "lock", "ray_idle", "sleep", "http_server"):
        return False
    return any(map(awaits, subject.process.threads))


def _only_waiters_wake(case: Case, subject: Subject) -> bool:
    """Whether it sleeps in an event loop that has no timer and no thread beside it, and of all that is seen only
    processes that wait for it could wake it.

    A request that somebody still sends could, so nobody in the job may move. It may ask nobody and have no other child.
    That proves nothing: a person, or a process that was not seen, may connect to it.
    """
    process = subject.process
    if process.peers or not process.wakers or any(each.progress for each in case.live()):
        return False
    waiters = set(case.graph.waiters({subject.key}))
    beside = {each.key for each in case.evidence.processes if each.is_child_of(process)}
    return {f"{process.host}:{pid}" for pid in process.wakers} | beside <= waiters


def in_client(case: Case, subject: Subject) -> bool:
    """Whether its main thread, or a thread that works for it, waits at a socket at both looks, and it is connected
    outside the job, for example to a database or an upload.

    The kernel function, the native frame or a frame of the standard library shows the wait.
    """
    return not subject.blocked and bool(foreign(case, subject.process)) and at_socket(subject.process)


def _in_tasks(case: Case, loops: list[Subject]) -> Ruling:
    """INSUFFICIENT: waiting ends in an event loop. Where no probe of ours is in the process, nothing says what its
    tasks await."""
    timers = [waiter for waiter in loops if loop_wakes(waiter.process, waiter.doing)]
    blind = [waiter for waiter in loops if unseen(waiter.process)]
    told = blind or loops
    return Ruling(
        "INSUFFICIENT",
        f"{case.names(waiter.key for waiter in told)} {in_loop(told[0].process)}",
        evidence=("only a timer wakes it",)
        if timers
        else tuple(
            f"{waiter.label} has no timer due within ten minutes and no thread beside its loop, and is connected only "
            "to processes that wait for it: unless somebody else connects, it never answers"
            for waiter in loops[:8]
            if _only_waiters_wake(case, waiter)
        ),
        missing=tuple(f"what the tasks of {waiter.label} await" for waiter in blind[:8])
        or tuple(f"who ends what the tasks of {waiter.label} await" for waiter in loops[:8]),
        place=case.waited_in(waiter.key for waiter in loops) or loops[0].frame,
        next=(
            *tasks_shown(case, blind),
            "give each awaited call a timeout: asyncio.timeout",
        ),
    )


def tasks_shown(case: Case, blind: list[Subject]) -> tuple[str, ...]:
    """What shows the tasks of these processes. From Python 3.14 on, asyncio itself reads them from outside
    (docs.python.org/3.14/library/asyncio-tools.html); before that only a probe in the process sees them."""
    readers = [
        Live(f"python{version} -m asyncio pstree {subject.process.pid}   # what its tasks await")
        for subject in blind if (version := _read_by(subject.process))
    ]  # fmt: skip
    watched = Watching(f"for the next run: {case.watched()}   # its probes say what each task awaits")
    return (*readers[:1], watched) if blind else ()


def _read_by(process: Process) -> str:
    """The version of the Python that a process runs, "3.14", if its asyncio reads tasks from outside; else empty."""
    files = (frame.file for look in process.samples for thread in look.threads for frame in thread.frames)
    version = next((match for file in files if (match := _ASYNCIO.search(file))), None)
    return f"3.{version[1]}" if version and int(version[1]) >= 14 else ""


def foreign(case: Case, process: Process) -> list[str]:
    """Peers of a process that are not of the job: at another host by address, at its own host by port as well.

    In a Ray job the address alone decides: Ray's daemons serve on every host and are not in the evidence.
    """
    processes = case.evidence.processes
    served = {address for each in processes for address in each.listening}
    job_addresses = {_address(served_address) for served_address in served} | {
        each.environ.get("MASTER_ADDR", "") for each in processes
    }
    masters = {each.environ.get("MASTER_PORT", "") for each in processes}
    here = {
        _address(listened_address)
        for each in processes
        if each.host == process.host
        for listened_address in each.listening
    }
    daemons = bool(case.evidence.ray_actors or case.evidence.ray_tasks)

    def is_own(peer: str) -> bool:
        address, _, port = peer.rpartition(":")
        if peer.startswith(_LOOPBACK) or address in here:
            return daemons or peer in served or port in masters
        return address in job_addresses

    return [peer for peer in process.peers if not is_own(peer)]


def _address(peer: str) -> str:
    return peer.rpartition(":")[0]


def _asks_itself(subject: Subject) -> bool:
    """Whether the request goes to a port on which its own process listens."""
    process = subject.process
    return any(peer in process.listening for peer in ends(process))


def _within_itself(case: Case, calling: list[Subject]) -> Ruling:
    """INSUFFICIENT: a process asks its own server, and what the thread of the request waits for proves nothing.

    A thread that waits for no lock may sleep or work, and answer then.
    """
    caller = calling[0]
    where, lock = threads.serving(caller.process, caller.doing)
    answer = f"the request is served by {where}" if where else "no thread of it serves the request"
    may_answer = bool(where) and not lock
    return Ruling(
        "INSUFFICIENT",
        f"{case.names(each.key for each in calling)} waits for an answer over HTTP of a server of its own",
        evidence=(f"it stands at {caller.doing.frame or caller.doing.op}", f"{answer}; it {lock}" if lock else answer),
        missing=tuple(
            f"whether {each.label} will still answer its own request"
            if may_answer
            else f"why {each.label} does not answer its own request"
            for each in calling[:8]
        ),
        place=caller.frame,
        next=(Live(f"{case.again()}   # in a minute: whether the thread of the request has moved"), NAME_WHO_IS_ASKED)
        if may_answer
        else ("call the function in place of the request, or keep no lock while the request waits",),
    )


def elsewhere(case: Case, calling: list[Subject]) -> Ruling:
    """INSUFFICIENT: waiting ends in a request to a server that was not looked at and may be at work on it."""
    if all(map(_asks_itself, calling)):
        return _within_itself(case, calling)
    served = {address for each in case.evidence.processes for address in each.listening}
    unseen_peers = list(dict.fromkeys(p for caller in calling for p in caller.process.peers if p not in served))
    how = "may await an answer in its event loop" if awaits_tasks(calling[0]) else "waits for an answer of a peer"
    how = "waits for an answer over HTTP" if calling[0].stuck else how
    where = f" ({', '.join(unseen_peers[:4])})" if 0 < len(unseen_peers) <= 4 else ""
    return Ruling(
        "INSUFFICIENT",
        f"{case.names(caller.key for caller in calling)} {how}, and the server was not looked at",
        evidence=(f"it stands at {calling[0].doing.frame or calling[0].doing.op}; its server{where}",) if where else (),
        missing=tuple(f"the server that {caller.label} asks" for caller in calling[:8]),
        place=calling[0].frame,
        next=("look at the server as well, by its pid: harness triage PID", "give the request a timeout"),
    )
