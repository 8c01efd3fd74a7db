"""Waits of calls: ray.get, HTTP requests, requests to an engine, a parent that waits for its child; and rings of
reads."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from harness.triage import source
from harness.triage.evidence import Evidence, Process, RayTask
from harness.triage.graph.awaiting import Awaiting, headline, unseen
from harness.triage.graph.motion import BETWEEN_RANKS, HELD_S, hands_on
from harness.triage.graph.shape import components
from harness.triage.graph.sockets import at_socket, ends
from harness.triage.graph.subjects import Subject
from harness.triage.graph.worlds import same_world
from harness.triage.places import plain, runs_users
from harness.triage.stacks import awaits
from reports.model import Wait

_HTTP_SERVER = re.compile(r"socketserver|http/server")  # multiprocessing's manager has a serve_forever as well
_SENDS = re.compile("sock_alloc_send|sock_wait_for_wmem")  # kernel functions that wait for room in a Unix socket
PIECE_S = 10.0  # chosen, as `rules.pauses.FRESH_S`: a younger hang need not be named yet
FINISHED_TASKS = frozenset({"FINISHED", "FAILED"})


def ray(
    evidence: Evidence, subjects: dict[str, Subject], known_waits: list[Wait]
) -> tuple[list[Wait], dict[str, Subject]]:
    """Waits of ray.get for the process that executes, or should execute, the tasks that the caller submitted."""
    actors = {actor.actor_id: actor for actor in evidence.ray_actors}
    open_tasks = [task for task in evidence.ray_tasks if task.state not in FINISHED_TASKS]
    # A caller whose tasks have no node waits for resources and not for a process.
    unplaced = _unplaced(open_tasks)
    waiting = {
        key: subject
        for key, subject in subjects.items()
        if subject.doing.kind == "ray_get" and subject.pending is None and not _among(subject, unplaced)
    }
    waits = []
    unclaimed: dict[str, RayTask] = {}
    for task in open_tasks:
        place = task if task.pid else actors.get(task.actor_id, task)
        target = _at(place.host, place.pid, subjects)
        caller = _at(task.caller_host, task.caller_pid, subjects)
        if target and caller in waiting:
            waits.append(Wait(caller, target, "ray", f"ray.get of {task.name} ({task.state})", task.age_s or None))
        elif target and not task.caller_pid:
            unclaimed[target] = task
    for key in waiting:  # If Ray does not name the caller, a wait is proven only if a single process can be meant.
        if any(wait.waiter == key for wait in waits):
            continue
        targets = {target: task for target, task in unclaimed.items() if target != key}
        if len(targets) == 1:
            target, task = next(iter(targets.items()))
            waits.append(Wait(key, target, "ray", f"ray.get, and only {task.name} is unfinished", task.age_s or None))
    return waits, subjects


def _at(host: str, pid: int, subjects: dict[str, Subject]) -> str:
    """The key of a Ray process. If Ray does not say its host, the pid may be on any host. Empty if there is no such
    process."""
    if not pid or (host and f"{host}:{pid}" in subjects):
        return f"{host}:{pid}" if pid else ""
    keys = [key for key, subject in subjects.items() if subject.process.pid == pid]
    return keys[-1] if keys and not host else ""


def _among(subject: Subject, callers: set[tuple[str, int]]) -> bool:
    return bool({(subject.process.host, subject.process.pid), ("", subject.process.pid)} & callers)


def _unplaced(tasks: list[RayTask]) -> set[tuple[str, int]]:
    """Callers, as (host, pid), that may be waiting for cluster resources.

    Such a caller submitted an actor, a task or a placement group that no node has taken, and none of the same name that
    it submitted has a place. Tasks that queue behind others of the same name wait for those instead.
    """
    callers = {task.task_id: (task.caller_host, task.caller_pid) for task in tasks if task.caller_pid}
    placed = {(callers.get(task.task_id), task.name) for task in tasks if task.pid}
    pending = [task for task in tasks if task.state == "PENDING_NODE_ASSIGNMENT" and not task.pid]
    return {
        callers[task.task_id] for task in pending
        if task.task_id in callers and (callers[task.task_id], task.name) not in placed
    }  # fmt: skip


def http(
    evidence: Evidence, subjects: dict[str, Subject], known_waits: list[Wait]
) -> tuple[list[Wait], dict[str, Subject]]:
    """Waits of HTTP requests for the process at the other end of the connection, if that is known."""
    waits: list[Wait] = []
    clients = [
        subject
        for subject in subjects.values()
        if subject.doing.kind in ("http_client", "engine_call") and not subject.polls
    ]
    # The address of a connection's other end tells the process that listens there.
    owners: dict[str, list[str]] = {}
    for subject in subjects.values():
        for address in subject.process.listening:
            owners.setdefault(address, []).append(subject.key)
    for client in clients:
        waits += _requests(client, owners, subjects)
    for subject in subjects.values():
        if _stands_at_socket(subject):
            waits += _socket_waits(subject, owners, subjects)
        elif not (subject.ended or subject.blocked or subject.pending):
            waits += _task_waits(subject, owners, subjects)
            waits += _loop_waits(subject, owners, subjects)
            waits += _send_waits(subject, subjects)
    return waits, subjects


def _loop_waits(subject: Subject, owners: Mapping[str, list[str]], subjects: dict[str, Subject]) -> Iterator[Wait]:
    """The wait of a rank in an event loop whose tasks nobody shows for the only process that owes it an answer, by the
    kernel's times of its connections. What its children or its store owe it is in none of these."""
    process = subject.process
    if subject.rank is None or subject.doing.kind != "select" or subject.progress:
        return
    beside = [each.process for each in subjects.values() if each.has_process]
    if not unseen(process) or any(each.is_child_of(process) for each in beside):
        return
    owed = set.intersection(*(set(look.owed) for look in process.samples)) & set(process.peers)
    # "": somebody outside the job
    owing = {key for peer in _without_store(process, owed) for key in owners.get(peer, ("",))}
    owing = {key for key in owing if not key or subjects[key].rank is None}
    service = subjects.get(next(iter(owing))) if len(owing) == 1 else None
    if service is not None and _is_service(service):
        because = f"its event loop has sent a request: no answer from {service.label}"
        yield Wait(subject.key, service.key, "http", because, operation="a request of an event loop")


def _task_waits(subject: Subject, owners: Mapping[str, list[str]], subjects: dict[str, Subject]) -> Iterator[Wait]:
    """Waits of the main task of an event loop for the processes that own the other ends of the connections in which
    it, or a task that it needs, awaits data."""
    answers = Awaiting.of(subject.process).answers()
    named = all(task.awaits == "socket" and task.of for task in answers)
    peers = (task.of for task in answers) if named else subject.process.peers if answers else ()
    targets = dict.fromkeys(key for peer in peers for key in owners.get(peer, ()) if key != subject.key)
    services = [subjects[key] for key in targets if _is_service(subjects[key])]
    if named or len(services) == 1:
        for service in services:
            because = f"{headline(answers[0])}: no data from {service.label}"
            yield Wait(subject.key, service.key, "http", because, operation="a read of data in a task")


def _requests(client: Subject, owners: Mapping[str, list[str]], subjects: dict[str, Subject]) -> list[Wait]:
    """Waits of a client for the servers that it is connected to. `owners`: address -> processes that listen there."""
    asked_peers = _without_store(client.process, ends(client.process))
    keys = dict.fromkeys(key for peer in asked_peers for key in owners.get(peer, ()) if key != client.key)
    # Ranks are also connected for their collectives. Whoever owns the port of the only request is its server, whatever
    # it runs; otherwise a process that serves, or a client that may serve as well.
    services = [subjects[key] for key in keys if _is_service(subjects[key])]
    targets = [subjects[key] for key in keys if _serves(subjects[key]) or _asks(subjects[key])]
    targets = targets or (services if len({target.key for target in services}) == 1 else [])
    if targets:
        operation = client.doing.op
        return [
            Wait(client.key, target.key, "http", f"{operation}: no answer from {target.label}", operation=operation)
            for target in targets
        ]
    # Processes of an engine are children, found elsewhere. A client with connections to others means no server here.
    if client.doing.kind == "http_client" and not client.process.peers:
        return _answerers(client, subjects)
    return []


def _without_store(process: Process, peers: Iterable[str]) -> list[str]:
    """These peers of a process without the store at which the ranks of its job meet."""
    port = process.environ.get("MASTER_PORT", "")
    return [peer for peer in peers if not (port and peer.endswith(f":{port}"))]


def _stands_at_socket(subject: Subject) -> bool:
    """Whether it only waits at a socket, and no other layer says for whom."""
    if not subject.rests or subject.stuck or subject.polls or _takes_orders(subject):
        return False
    return at_socket(subject.process)


def _socket_waits(subject: Subject, owners: Mapping[str, list[str]], subjects: dict[str, Subject]) -> Iterator[Wait]:
    for key in dict.fromkeys(key for peer in ends(subject.process) for key in owners.get(peer, ())):
        if key != subject.key and _is_service(subjects[key]):
            because = f"a wait at a socket: no answer from {subjects[key].label}"
            yield Wait(subject.key, key, "http", because, operation="a wait at a socket")


def _send_waits(subject: Subject, subjects: dict[str, Subject]) -> Iterator[Wait]:
    """The wait of a process whose main thread sends to a full Unix socket for the only process that can read it."""
    process = subject.process
    reader = subjects.get(f"{process.host}:{process.reader}") if process.reader else None
    if reader is None or subject.progress:
        return
    if all(look.writing.startswith("socket:") and _SENDS.search(look.wchan) for look in process.samples):
        because = f"a send to a socket: {reader.label} does not read"
        yield Wait(subject.key, reader.key, "http", because, operation="a send to a socket")


def answering(evidence: Evidence, subjects: dict[str, Subject], known_waits: list[Wait]) -> dict[str, Subject]:
    """Mark servers that still send data to a process that waits for them: they advance, however slowly.

    If a stall was watched, data of its later half counts; otherwise data of the last PIECE_S seconds.
    """
    limit_s = max(evidence.stall_s / 2, HELD_S) if evidence.stall_s else PIECE_S
    updated_subjects = dict(subjects)
    for wait in known_waits:
        waiter, target = subjects[wait.waiter], updated_subjects[wait.target]
        if wait.layer not in ("http", "engine") or target.progress or target.blocked:
            continue
        ages = [age for look in waiter.process.samples for peer, age in look.heard if peer in target.process.listening]
        if ages and min(ages) < limit_s:
            words = f"data came from it to {waiter.label} {min(ages):.1f} s ago"
            updated_subjects[wait.target] = replace(target, progress=words, moved=True)
    return updated_subjects


def _is_service(subject: Subject) -> bool:
    """Whether other processes of the job may send requests to this one.

    Excluded are ranks, launchers, an engine's workers (their connections are those of their group), and Ray's workers
    (all of them are connected to each other).
    """
    ray = subject.process.title.startswith("ray::")
    return subject.rank is None and not subject.launcher and not ray and not _takes_orders(subject)


def _takes_orders(subject: Subject) -> bool:
    """Whether it waits for requests in the loop of an engine or a Ray worker: it owes nobody an answer."""
    return subject.doing.idle and subject.doing.within("scheduler", "orders", "ray_idle")


def _answerers(client: Subject, subjects: dict[str, Subject]) -> list[Wait]:
    """Without socket tables: a wait for the only other process that serves, if there is exactly one."""
    servers = [peer for peer in subjects.values() if peer.key != client.key and _serves(peer)]
    if not servers:  # a process that sends and serves requests in one thread shows as a client only
        servers = [peer for peer in subjects.values() if peer.key != client.key and peer.doing.kind == "http_client"]
    if len(servers) != 1:
        return []
    because = f"{client.doing.op}: {servers[0].label} is the only other server"
    return [Wait(client.key, servers[0].key, "http", because, operation=client.doing.op)]


def _asks(subject: Subject) -> bool:
    return subject.rank is None and subject.doing.kind == "http_client"


def _serves(subject: Subject) -> bool:
    return any(
        "/uvicorn/" in frame.file or (plain(frame.function) == "serve_forever" and _HTTP_SERVER.search(frame.file))
        for thread in subject.process.threads
        for frame in thread.frames
    )


def children(
    evidence: Evidence, subjects: dict[str, Subject], known_waits: list[Wait]
) -> tuple[list[Wait], dict[str, Subject]]:
    """Waits of a process for one that it started.

    Five cases: a process that waits for its child to end; an engine's front that waits for its schedulers; an asyncio
    actor that received a request and awaits its engine, which no stack shows; a process that stands where the
    answer of a child is expected while one of its descendants is held; and one that reads a pipe whose writers have
    ended.
    """
    waits: list[Wait] = []
    waited = {wait.waiter for wait in known_waits}
    requests = {wait.target: wait for wait in known_waits if wait.layer in ("ray", "http")}
    started: dict[tuple[str, int], list[Subject]] = {}
    for subject in subjects.values():
        if subject.has_process and not subject.launcher:
            started.setdefault((subject.process.host, subject.process.ppid), []).append(subject)
    for subject in subjects.values():
        # Waits that another layer has proven are stronger than where a process stands.
        if not subject.has_process or subject.launcher or subject.key in waited or subject.pending is not None:
            continue
        request = requests.get(subject.key)
        below = _called_children(subject, request, subjects, started)
        waits += _waits_for_children(subject, request, below)
        waits += _writers_that_ended(subject, started)
        if _may_wait_below(subject, request is not None):
            held_descendants = _held_below(subject, started)
            waits += [_held_up(subject, request, child) for child in held_descendants if child not in below]
    return waits, subjects


def _awaits_engine(subject: Subject, request: Wait | None) -> bool:
    """Whether it received a request and its event loop waits: it may have passed the request on to its engine."""
    return request is not None and subject.doing.idle


def _called_children(
    subject: Subject,
    request: Wait | None,
    subjects: dict[str, Subject],
    started: dict[tuple[str, int], list[Subject]],
) -> list[Subject]:
    """The children whose end or answer it may be waiting for, by where it stands."""
    process = subject.process
    if _awaits_engine(subject, request):
        parents = {process.pid} | _passed_on(process, subjects)
    elif subject.doing.kind in ("join", "engine_call"):
        parents = {process.pid}
    else:
        return []
    below = [child for pid in parents for child in started.get((process.host, pid), ())]
    # The kernel says for which child a process waits. Where that one was not looked at, any may be meant.
    awaited = [child for child in below if child.process.pid == process.last_look.awaited_child]
    return awaited or below


def _waits_for_children(subject: Subject, request: Wait | None, below: list[Subject]) -> Iterator[Wait]:
    joins = subject.doing.kind == "join"
    layer = "process" if joins else "engine"
    several, busy = sum(not child.ended for child in below) > 1, any(child.progress for child in below)
    for child in below:
        if (child.blocked or child.ended) and busy:
            continue  # the child that advances may be the one that answers; a failed tool may have been dealt with
        if joins and _left_uncollected(subject, child) and len(below) > 1:
            continue
        if request is not None and _awaits_engine(subject, request):
            if child.process.engine and (child.blocked or not child.doing.idle):  # an idle engine has answered
                yield _behind(request, subject, child, layer, f"its engine {child.process.pid} is not idle")
        elif not (joins and _need_not_end(child, several=several)):
            because = f"{subject.doing.op}: its child {child.process.pid}"
            yield Wait(subject.key, child.key, layer, because, operation=subject.doing.op)


def _need_not_end(child: Subject, *, several: bool) -> bool:
    """Whether nothing says that a parent that joins its children waits for the end of this one. `several` of them
    live."""
    return _done(child) or (_waits_for_nobody(child) and (several or _in_wait(child)))


def _writers_that_ended(subject: Subject, started: dict[tuple[str, int], list[Subject]]) -> Iterator[Wait]:
    """Waits for children that ended, where only they could have written what the process reads.

    One that ended in good order counts if it is the only one and a queue or connection of multiprocessing is read: of
    several, any may have been a mere helper. Of a plain pipe the reader itself keeps the end open (`keeps_open`).
    """
    process = subject.process
    if not (unwritten(subject) or _reads_its_pipe(subject)):
        return
    over = [child for child in started.get((process.host, process.pid), ()) if child.ended]
    failed = [child for child in over if not _done(child)]
    for child in failed or (over if len(over) == 1 and unwritten(subject) else []):
        operation = subject.doing.op or "a read"
        because = f"{operation}: {child.label} has ended, and no other process can write to its pipe"
        yield Wait(subject.key, child.key, "process", because, operation=operation)


def unwritten(subject: Subject) -> bool:
    """Whether it reads a queue or connection of multiprocessing to which nobody is left that could write: no other
    process has the other end of its pipe, and no thread of its own beside the main one runs code of the user's."""
    return subject.doing.kind == "queue" and _alone_with_pipe(subject)


def _reads_its_pipe(subject: Subject) -> bool:
    """Whether its own code reads, by its text, a pipe to which nobody is left that could write, as `unwritten` says."""
    if subject.doing.kind not in ("user", "unknown") or not _alone_with_pipe(subject):
        return False
    return any(source.reads(frame) for frame in subject.process.main_frames[:1])


def keeps_open(subject: Subject, children: list[Subject]) -> bool:
    """Whether it reads a plain pipe that nobody has open to write but itself, and those of its children that ended did
    so in good order: the read meets no end, because its own end to write to is open."""
    over = [child for child in children if child.ended]
    return _reads_its_pipe(subject) and bool(over) and all(map(_done, over))


def _alone_with_pipe(subject: Subject) -> bool:
    process = subject.process
    if not process.own_pipe or not subject.rests or _writes_beside(subject):
        return False
    beside = [each for each in process.threads if not each.leads]
    return not any(map(runs_users, beside))


def _held_up(subject: Subject, request: Wait | None, descendant: Subject) -> Wait:
    """A wait for a descendant that is stopped, or that the kernel or its interpreter lock holds."""
    why = f"{descendant.process.pid}, which it started, is {descendant.blocked}"
    if request is not None:
        return _behind(request, subject, descendant, "engine", why)
    return Wait(subject.key, descendant.key, "process", why)


# Kernel functions in which a process waits for another one on its host: through a pipe, or for its end.
_NEAR = re.compile("do_wait|pipe_read|unix_stream")


def _may_wait_below(subject: Subject, is_asked: bool) -> bool:
    """Whether it does nothing, at a place where a process waits for an answer or the end of one that it started.

    For a process without a rank that received no request, only a join, an engine call or a transition shows this.
    """
    if not subject.rests:
        return False
    kind = subject.doing.kind
    if kind in ("join", "engine_call", "transition"):
        return True
    if is_asked and kind in ("user", "unknown", "select", "queue"):
        return True  # an event loop that runs until its engine answers looks like idle user code
    if subject.rank is None or subject.doing.within("scheduler", "orders", "ray_idle", "http_server"):
        return False  # it waits for requests
    waits = _NEAR.search(subject.process.last_look.wchan)
    return kind in ("select", "queue", "lock") or (kind in ("user", "unknown") and bool(waits))


def _held_below(subject: Subject, started: dict[tuple[str, int], list[Subject]]) -> list[Subject]:
    """Its held descendants, through shells and other intermediate processes; none if any descendant advances,
    because that one may be the one that answers."""
    held_descendants: list[Subject] = []
    level, visited = [subject], {subject.key}
    while level:
        below = [child for each in level
                 for child in started.get((each.process.host, each.process.pid), ())
                 if child.key not in visited and not child.ended]  # fmt: skip
        if any(child.progress for child in below):
            return []
        held_descendants += [child for child in below if child.blocked]
        visited |= {child.key for child in below}
        level = [child for child in below if not child.blocked]
    return held_descendants


def _behind(request: Wait, subject: Subject, child: Subject, layer: str, why: str) -> Wait:
    """A wait of a process that received a request for its own child."""
    return Wait(subject.key, child.key, layer, f"{request.because}; {why}", operation=request.place)


def _done(subject: Subject) -> bool:
    """Whether it ended without an error, so that a wait for its end is over. A parent that joins its children one
    after another waits for one that is alive."""
    return subject.ended and not subject.process.exit_code and not subject.process.error


def _left_uncollected(subject: Subject, child: Subject) -> bool:
    """Whether a child was over while its parent slept in wait(2): the kernel would have woken the parent if it waited
    for that child."""
    return child.process.last_look.state == "Z" and subject.process.last_look.wchan == "do_wait"


def _waits_for_nobody(subject: Subject) -> bool:
    """Whether it is alive, does nothing, and waits for nobody known, like a monitor whose end nobody expects. Among
    several such children nothing says which one the parent waits for."""
    return subject.rests and not subject.stuck


def _in_wait(subject: Subject) -> bool:
    """Whether it waits without an error for work, a message or a lock, as an idle server does: somebody outside may
    bring that."""
    return subject.doing.kind in ("select", "queue", "lock") and not subject.process.error


def _passed_on(process: Process, subjects: dict[str, Subject]) -> set[int]:
    """The pids of its idle engine processes. SGLang's controller of several schedulers only passes requests on."""
    return {
        subject.process.pid
        for subject in subjects.values()
        if subject.process.is_child_of(process)
        if subject.process.engine and subject.doing.idle and not subject.blocked
    }


def closed_reads(
    evidence: Evidence, subjects: dict[str, Subject], known_waits: list[Wait]
) -> tuple[list[Wait], dict[str, Subject]]:
    """Waits of processes for each other that read from pipes or sockets to which only these processes can write.

    Each has one thread, which reads without a limit from its first look to its last. None of them can write before
    another one has written. A process that may read for another reason, or somebody else who can write, leaves it open:
    no waits then, for a process that waits for a request reads in the same way. A reader also waits for writers whose
    only thread waits for a lock that no other process has.
    """
    reading = {key: subject for key, subject in subjects.items() if _only_reads(subject)}
    while open_keys := {key for key, subject in reading.items() if not _writer_keys(subject) <= reading.keys()}:
        reading = {key: subject for key, subject in reading.items() if key not in open_keys}
    reading |= {key: subject for key, subject in subjects.items() if _awaits_locked_writers(subject, subjects)}
    if any(subject.progress for subject in subjects.values()) or not _at_one_time(reading.values()):
        return [], subjects
    waited = {wait.waiter for wait in known_waits}
    return [
        Wait(key, writer, "read", f"a read from a {_channel(subject)}: {subjects[writer].label} has not written",
             operation=f"a read from a {_channel(subject)}")
        for key, subject in reading.items()
        for writer in sorted(_writer_keys(subject) - {key})
        if key not in waited
    ], subjects  # fmt: skip


def _awaits_locked_writers(subject: Subject, subjects: Mapping[str, Subject]) -> bool:
    """Whether it reads a connection of multiprocessing, and the only thread of each other process that can write to it
    waits throughout for a lock that no other process has."""
    others = [subjects.get(key) for key in _writer_keys(subject) - {subject.key}]
    if not others or not _awaits_message_alone(subject):
        return False
    return all(
        other is not None
        and len(other.process.samples) > 1
        and all(look.locked_alone for look in other.process.samples)
        for other in others
    )


def owed_reads(
    evidence: Evidence, subjects: dict[str, Subject], known_waits: list[Wait]
) -> tuple[list[Wait], dict[str, Subject]]:
    """Waits of processes that read a connection of multiprocessing for those that alone can write to it, and that wait
    in a collective for the reader, themselves or through others.

    Only code of Python writes to such a connection. Each writer that is not in a collective waits for the reader as
    well, none has a thread beside that may write, and the read has no limit from the first look to the last.
    """
    waited = {wait.waiter for wait in known_waits}
    waiters: dict[str, set[str]] = {}
    for wait in known_waits:
        waiters.setdefault(wait.target, set()).add(wait.waiter)
    waits = []
    for key, subject in subjects.items():
        writers = sorted(_writer_keys(subject) - {key})
        if key in waited or not writers or not _awaits_message(subject) or _writes_beside(subject):
            continue
        behind = _leading_to(key, waiters)
        if not all(writer in behind and _stands_for(subjects[writer]) for writer in writers):
            continue
        waits += [
            Wait(key, writer, "read", f"a read at {subject.doing.frame}: {subjects[writer].label} has not written",
                 operation=f"a read at {subject.doing.frame}")
            for writer in writers if _is_proven(subjects[writer], subject)
            if _at_one_time((subject, subjects[writer]))
        ]  # fmt: skip
    return waits, subjects


def _awaits_message(subject: Subject) -> bool:
    """Whether its main thread reads a connection of multiprocessing throughout, without a limit or a wakening."""
    looks = subject.process.samples
    reads_on = subject.doing.kind == subject.before.kind == "queue" and all(look.reads_for_ever for look in looks)
    slept = len({look.main_switches for look in looks}) == 1
    frames = subject.process.main_frames
    return (
        subject.rests
        and reads_on
        and slept
        and bool(frames)
        and frames[0].file.endswith("/multiprocessing/connection.py")
    )


def _leading_to(target: str, waiters: Mapping[str, set[str]]) -> set[str]:
    """The processes that wait for one, themselves or through others."""
    reached, pending = set[str](), [target]
    while pending:
        new = waiters.get(pending.pop(), set()) - reached
        reached |= new
        pending += new
    return reached


def _stands_for(writer: Subject) -> bool:
    """Whether a process rests, and no thread of it beside the main one may write."""
    return writer.rests and not _writes_beside(writer)


def _is_proven(writer: Subject, reader: Subject) -> bool:
    """Whether a process waits in a collective in which its recorder, or a world of two, says that the reader is
    missing. By stacks alone it may be in a group without the reader."""
    sizes = {writer.process.world_size, reader.process.world_size}
    alone = sizes == {2} and {writer.rank, reader.rank} == {0, 1} and same_world(writer.process, reader.process)
    return writer.pending is not None or (writer.doing.kind in BETWEEN_RANKS and alone)


def _only_reads(subject: Subject) -> bool:
    """Whether its only thread reads throughout, without a limit, what known processes can write.

    Only code of Python writes to a connection of multiprocessing, so that native threads beside do not count there.
    """
    looks = subject.process.samples
    alone = all(look.alone and look.reads_for_ever for look in looks) or _awaits_message_alone(subject)
    return subject.rests and bool(subject.process.writers) and alone


def _awaits_message_alone(subject: Subject) -> bool:
    """Whether it reads a connection of multiprocessing, and no thread of Python beside the main one runs the user's
    code or may write. The handler of a signal may write as well."""
    if not _awaits_message(subject) or subject.process.last_look.handles or _writes_beside(subject):
        return False
    return not any(runs_users(thread) for thread in subject.process.threads if not thread.leads)


def _writer_keys(subject: Subject) -> set[str]:
    process = subject.process
    return {f"{process.host}:{pid}" for pid in process.writers}


def _channel(subject: Subject) -> str:
    """What it reads from, in a word."""
    return "pipe" if subject.process.last_look.reading.startswith("pipe:") else "socket"


class Read(NamedTuple):
    """What a process of a ring of reads waits for: the `channel` from which it reads, and the whole in words."""

    channel: str
    words: str


def reads(subjects: Mapping[str, Subject], known_waits: Iterable[Wait]) -> dict[str, Read]:
    """Processes that read from each other's pipes or sockets, if this closes a ring of waits, by their keys.

    These are no edges of the graph because they prove nothing. A native thread, a signal handler or a process of
    another container may be about to write. A process that waits for a request reads in the same way as one that waits
    for an answer, so a read that closes no ring says nothing.
    """
    writers: dict[str, str] = {}
    ring_reads: dict[str, Read] = {}
    for wait in known_waits:
        ring_reads.setdefault(wait.waiter, Read(_channel(subjects[wait.waiter]), wait.because))
    for key, subject in subjects.items():
        process = subject.process
        target = subjects.get(f"{process.host}:{process.writer}") if process.writer else None
        if target is not None and not subject.ended and not _writes_beside(target):
            at = f", {subject.doing.frame}" if subject.doing.frame else ""
            writers[key] = target.key
            what = f"reads what, of all that is seen, {target.label} alone can write{at}"
            ring_reads[key] = Read(_channel(subject), what)
    pairs = [*((wait.waiter, wait.target) for wait in known_waits), *writers.items()]
    rings = [ring for ring in components(pairs)[1] if writers.keys() & set(ring)] if writers else []
    closing = [key for ring in rings if _at_one_time(subjects[key] for key in ring) for key in ring]
    return {key: ring_reads[key] for key in closing}


def _writes_beside(subject: Subject) -> bool:
    """Whether a thread other than the main one may write, itself or in a task of its event loop, or nothing is known
    of its threads."""
    threads = subject.process.threads
    return not threads or any(
        hands_on(thread) or awaits(thread) or all(frame.file.endswith("/threading.py") for frame in thread.frames)
        for thread in threads
        if not thread.main  # a thread with no frame outside threading.py is a Timer that has not fired yet
    )


def _at_one_time(ring: Iterable[Subject]) -> bool:
    """Whether some moment lies between the two looks at each process of the ring."""
    looks = [subject.process.samples for subject in ring if subject.process.samples]
    return bool(looks) and max(its[0].at_s for its in looks) < min(its[-1].at_s for its in looks)
