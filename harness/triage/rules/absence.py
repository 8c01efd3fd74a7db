"""Somebody has not come to an operation, does not advance, and nothing else explains it."""

from __future__ import annotations

from harness.triage import source
from harness.triage.evidence import Frame, Process
from harness.triage.graph import Subject
from harness.triage.places import users
from harness.triage.rules.processes import local_error
from harness.triage.rules.ruling import Case, Ruling
from harness.triage.stacks import EVENT_LOOP, awaits

YOUNG_S = 3.0  # one look at a live job: a wait that is younger proves nothing


def left_loop(case: Case) -> Ruling | None:
    """K1: ranks have left the loop in which the others still wait, or some go round once more than the others."""
    grouped = {wait.target for wait in case.graph.waits if wait.layer in ("collective", "store")}
    ends = [one for one in _absent(case) if one.key in grouped]
    together = ("collective", "p2p", "store")  # whoever calls one of them runs no collective himself
    waiters = [one for one in _waiters(case, ends) if one.pending is not None or one.doing.kind in together]
    if not ends or not waiters or _young(case):
        return None
    if len(ends) > len(waiters) and all(_passive(one) for one in ends):
        where = case.waited_in(one.key for one in ends)
        why = f"runs {where}, to which {len(ends)} others do not come"
        return _trip({one.key: why for one in waiters}, case, where)
    past = {one.key: line for one in ends if (line := _left(one, waiters))}
    past |= {one.key: 0 for one in ends if one.key not in past and one.doing.kind in ("finished", "ray_idle")}
    if not past:
        return None
    where = case.waited_in(past)
    why_past = {
        key: (f"has left the loop at line {line}" if line else "is through with its work")
        + f", and is {case.subject(key).state()}"
        for key, line in past.items()
    }
    return _trip(why_past, case, where)


def _trip(why: dict[str, str], case: Case, where: str) -> Ruling:
    return Ruling(
        "HUNG",
        f"a different number of collectives: {case.names(why)} {next(iter(why.values()))}",
        "K1",
        why,
        place=where,
        next=(
            "count the batches and microbatches of one epoch on each rank",
            "join the ranks' loops: torch.distributed.algorithms.join.Join, or drop_last",
        ),
    )


def outside(case: Case) -> Ruling | None:
    """K4: whoever the others wait for is alive, outside any collective, and does nothing that would end it."""
    ends = _absent(case)
    if not ends or not _waiters(case, ends) or _young(case):
        return None
    why = {one.key: _why(case, one) for one in ends}
    where = case.waited_in(why)
    return Ruling(
        "HUNG",
        f"{case.names(why)} {next(iter(why.values()))}; others wait in {where}",
        "K4",
        why,
        place=where,
        next=(
            "read the end of its log for an error that was caught",
            "py-spy dump --pid PID shows where it stands",
            "let a failed rank end: torchrun and Ray then end the others",
        ),
    )


def device(case: Case) -> Ruling | None:
    """K9: its host is as far as the others', its device is not."""
    ends = [one for one in case.sinks() if one.pending is not None and not one.progress]
    if not ends or _young(case):
        return None
    why = {
        one.key: f"{one.state()}: "
        + (
            "its device has not got to it: something earlier on its stream does not end"
            if one.pending and not one.pending.started
            else "its peers are through with it"
        )
        for one in ends
    }
    return Ruling(
        "HUNG",
        f"{case.names(why)} {next(iter(why.values()))}",
        "K9",
        why,
        place=case.waited_in(why) or ends[0].state(),
        next=("look at that device: nvidia-smi, dmesg | grep -i xid; py-spy dump --native of the rank",),
    )


def unseen(case: Case) -> Ruling | None:
    """Waiting ends where nothing was seen: no verdict, and what is missing by name."""
    stuck = [one for one in case.graph.stuck() if not one.progress]
    if not stuck:
        return None
    ends = case.sinks()
    blind = [one for one in ends if not one.seen or (one.doing.kind == "unknown" and one.pending is None)]
    if blind:
        ranks = [one for one in blind if one.rank is not None]
        names = ", ".join(str(one.rank) for one in ranks[:8]) if ranks else case.names(one.key for one in blind)
        what = "no recorder data from rank" if ranks else "neither stack nor recorder of"
        missing = tuple(f"{what} {one.rank if one.rank is not None else one.label}" for one in blind)
        return Ruling(
            "INSUFFICIENT",
            f"{what} {names}, for which the others wait",
            missing=missing,
            place=case.waited_in(one.key for one in blind),
            next=(
                "collect again on every host: harness triage PID … --out DIR",
                "run under harness watch, which switches the recorders on",
            ),
        )
    if _young(case) and ends:
        return Ruling(
            "INSUFFICIENT",
            f"the wait is younger than {YOUNG_S:.0f} s: look again",
            next=("harness triage again in a minute",),
        )
    alone = [one for one in stuck if one.key not in {wait.waiter for wait in case.graph.waits}]
    who = alone or stuck
    if outside := [one for one in ends if not one.progress and _awaits_outside(case, one)]:
        return _elsewhere(case, outside)
    if calling := [one for one in who if one.doing.kind == "http_client" and one.pending is None]:
        return _elsewhere(case, calling)
    states = f"{case.names(one.key for one in who)} ({who[0].state()})"
    return Ruling(
        "INSUFFICIENT",
        f"nothing says for whom {states} wait{'' if len(who) > 1 else 's'}",
        missing=tuple(f"for whom {one.label} waits" for one in who[:8]),
        next=(
            "run under harness watch, which records groups and open spans",
            "allow native stacks: run as root or with CAP_SYS_PTRACE",
        ),
    )


def _elsewhere(case: Case, calling: list[Subject]) -> Ruling:
    """Waiting ends in a request to a server that was not looked at, which may be at work on it."""
    served = {address for each in case.evidence.processes for address in each.listening}
    asked = list(dict.fromkeys(p for one in calling if one.process for p in one.process.peers if p not in served))
    how = "waits for an answer over HTTP" if calling[0].stuck else "may await an answer in its event loop"
    where = f" ({', '.join(asked[:4])})" if 0 < len(asked) <= 4 else ""
    return Ruling(
        "INSUFFICIENT",
        f"{case.names(one.key for one in calling)} {how}, "
        f"{calling[0].doing.frame or calling[0].doing.op}, and the server{where} was not looked at",
        missing=tuple(f"the server that {one.label} asks" for one in calling[:8]),
        place=calling[0].frame,
        next=("look at the server: harness triage PID of it", "give the request a timeout"),
    )


def _absent(case: Case) -> list[Subject]:
    """Sinks that are seen twice, do not advance, and do not wait themselves for somebody unknown."""
    return [
        one
        for one in case.sinks()
        if one.seen
        and not one.progress
        and not one.stuck
        and not one.launcher
        and (one.gone or one.process is None or len(one.process.samples) != 1)  # one look shows no rest
        and not _asked_just_now(case, one)
        and not _awaits_outside(case, one)
        and not _fetches(case, one)
        and (one.doing.kind != "unknown" or one.process is None or _recorded(case, one))
    ]


def _awaits_outside(case: Case, one: Subject) -> bool:
    """Its coroutines, which are in no stack, may await a server (a judge, a sandbox) that is on no host of the job."""
    process = one.process
    if process is None or not process.samples or one.blocked:
        return False
    if one.doing.kind not in ("select", "lock", "ray_idle", "sleep"):
        return False
    return any(map(awaits, process.samples[-1].threads)) and bool(_foreign(case, process))


def _foreign(case: Case, process: Process) -> list[str]:
    """Peers of a process whose address is none of the job's."""
    own = {_address(served) for each in case.evidence.processes for served in each.listening}
    own |= {each.environ.get("MASTER_ADDR", "") for each in case.evidence.processes}
    return [peer for peer in process.peers if not peer.startswith(("127.", "[::1]")) and _address(peer) not in own]


def _address(peer: str) -> str:
    return peer.rpartition(":")[0]


def _fetches(case: Case, one: Subject) -> bool:
    """Ray still brings the arguments of a task that it is asked for."""
    if one.process is None or not one.doing.within("ray_idle"):
        return False
    mine = [task for task in case.evidence.ray_tasks if task.pid == one.process.pid]
    return any("ARGS" in task.state and task.host in ("", one.process.host) for task in mine)


def _recorded(case: Case, one: Subject) -> bool:
    return any(
        state.key == one.key or state.rank == one.rank for group in case.groups for state in group.ranks.values()
    )


def _waiters(case: Case, ends: list[Subject]) -> list[Subject]:
    keys = {one.key for one in ends}
    return [case.subject(key) for key in dict.fromkeys(wait.waiter for wait in case.graph.waits if wait.target in keys)]


def _passive(one: Subject) -> bool:
    """Nothing went wrong with it that is known: it just does not take part."""
    return not one.gone and not one.blocked and not local_error(one.process) and one.doing.kind != "debugger"


def _young(case: Case) -> bool:
    """A single look at a job that may have been on its way."""
    if case.evidence.source != "live":
        return False
    ages = [wait.since_s for wait in case.graph.waits if wait.since_s is not None]
    ages += [one.process.beat.progress_age_s for one in case.graph.stuck() if one.process and one.process.beat]
    return bool(ages) and max([*ages, case.evidence.stall_s]) < YOUNG_S


def _asked_just_now(case: Case, one: Subject) -> bool:
    """Seen once, and every call that waits for it is young, however old the waits for others are."""
    if case.evidence.source != "live" or case.evidence.stall_s:
        return False
    waits = [wait for wait in case.graph.waits if wait.target == one.key]
    if _in_event_loop(one) and all(wait.layer == "ray" for wait in waits):
        return True  # a coroutine that awaits is in no stack: what it does shows over the time of a stall only
    return all(wait.layer == "ray" and wait.since_s is not None and wait.since_s < YOUNG_S for wait in waits)


def _in_event_loop(one: Subject) -> bool:
    """An asyncio actor of Ray: its main thread is idle, and its event loop waits in a thread of its own."""
    threads = one.process.samples[-1].threads if one.process and one.process.samples else ()
    return one.doing.within("ray_idle") and any(thread.name.startswith(EVENT_LOOP) for thread in threads)


def _left(one: Subject, waiters: list[Subject]) -> int:
    """The line of a loop that `one` has left and a waiter is in, by the program's text; 0 without one."""
    mine = _frames(one.process)
    if any(source.in_handler(frame) for frame in mine):
        return 0
    for other in dict.fromkeys(frame for waiter in waiters for frame in _frames(waiter.process)):
        for frame in mine:
            if line := source.behind_loop(frame, other):
                return line
    return 0


def _frames(process: Process | None) -> list[Frame]:
    if process is None or not process.samples:
        return []
    threads = process.samples[-1].threads
    main = [thread for thread in threads if thread.main or thread.name == "MainThread"] or list(threads[:1])
    return [frame for thread in main[:1] for frame in thread.frames if users(frame)]


def _why(case: Case, one: Subject) -> str:
    return _of_itself(case, one) + "".join(f"; {told}" for told in _lost_children(case, one))


def _lost_children(case: Case, one: Subject) -> list[str]:
    """Its children that have failed: whose end it may be waiting for without knowing it."""
    process = one.process
    some = [case.subject(each.key) for each in case.evidence.processes if process and _child(each, process)]
    return [f"its child {each.process.pid} {each.state()}" for each in some if each.process and each.process.exit_code]


def _child(process: Process, parent: Process) -> bool:
    return process.host == parent.host and process.ppid == parent.pid


def _of_itself(case: Case, one: Subject) -> str:
    if one.process is not None and (error := local_error(one.process)):
        return f"failed and stayed: {error}"
    if any(source.in_handler(frame) for frame in _frames(one.process)):
        return f"has swallowed an error, and is outside any collective: {one.state()}"
    if not any(wait.target == one.key and wait.layer in ("collective", "store") for wait in case.graph.waits):
        return f"does not answer: {one.state()}"
    if one.process is None or one.doing.kind == "unknown":
        return "has enqueued nothing more: it is outside any collective"
    return f"is outside any collective: {one.state()}"
