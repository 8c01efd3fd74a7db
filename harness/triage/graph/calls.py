"""Edges of calls: ray.get, HTTP requests, requests to an engine, a parent that waits for its child; rings of reads."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from harness.triage.evidence import Evidence, Process, RayTask
from harness.triage.graph.motion import HELD_S, hands_on
from harness.triage.graph.shape import components
from harness.triage.graph.sockets import at_socket, ends
from harness.triage.graph.subjects import Subject
from harness.triage.places import plain
from harness.triage.stacks import awaits
from reports.model import Wait

_HTTP_SERVER = re.compile(r"socketserver|http/server")  # multiprocessing's manager serves for ever as well
PIECE_S = 10.0  # chosen: as `rules.pauses.FRESH_S`, a hang that is younger need not be named yet
FINISHED_TASKS = frozenset({"FINISHED", "FAILED"})


def ray(
    evidence: Evidence, subjects: dict[str, Subject], known_waits: list[Wait]
) -> tuple[list[Wait], dict[str, Subject]]:
    """ray.get of a process: for whoever executes, or should execute, the tasks that it submitted."""
    actors = {actor.actor_id: actor for actor in evidence.ray_actors}
    open_tasks = [task for task in evidence.ray_tasks if task.state not in FINISHED_TASKS]
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
    for key in waiting:  # where Ray does not say who asked: only if a single process can be meant
        if any(wait.waiter == key for wait in waits):
            continue
        targets = {target: task for target, task in unclaimed.items() if target != key}
        if len(targets) == 1:
            target, task = next(iter(targets.items()))
            waits.append(Wait(key, target, "ray", f"ray.get, and only {task.name} is unfinished", task.age_s or None))
    return waits, subjects


def _at(host: str, pid: int, subjects: dict[str, Subject]) -> str:
    """The key of a process of Ray's; of any host where Ray does not say which. Empty where there is none."""
    if not pid or (host and f"{host}:{pid}" in subjects):
        return f"{host}:{pid}" if pid else ""
    keys = [key for key, subject in subjects.items() if subject.process and subject.process.pid == pid]
    return keys[-1] if keys and not host else ""


def _among(subject: Subject, callers: set[tuple[str, int]]) -> bool:
    return subject.process is not None and bool(
        {(subject.process.host, subject.process.pid), ("", subject.process.pid)} & callers
    )


def _unplaced(tasks: list[RayTask]) -> set[tuple[str, int]]:
    """(host, pid) of who may wait for nodes: he asked for an actor, a task or a placement group that has no place, and
    none of its kind that he asked for has one. Tasks that queue behind their like wait for those."""
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
    """A request without an answer: for the process at the other end of the connection, where that is known."""
    waits: list[Wait] = []
    clients = [
        subject
        for subject in subjects.values()
        if subject.doing.kind in ("http_client", "engine_call") and not subject.polls
    ]
    owners: dict[str, list[str]] = {}
    for subject in subjects.values():
        for address in subject.process.listening if subject.process else ():
            owners.setdefault(address, []).append(subject.key)
    for client in clients:
        waits += _requests(client, owners, subjects)
    for subject in subjects.values():
        if _stands_at_socket(subject):
            waits += _socket_waits(subject, owners, subjects)
    return waits, subjects


def _requests(client: Subject, owners: Mapping[str, list[str]], subjects: dict[str, Subject]) -> list[Wait]:
    """Waits of a client for the servers that it is connected to. `owners`: address -> who listens there."""
    keys = dict.fromkeys(key for peer in _peers(client) for key in owners.get(peer, ()) if key != client.key)
    # ranks are connected to each other for their collectives as well: only a server, or a client that may be one
    targets = [subjects[key] for key in keys if _serves(subjects[key]) or _asks(subjects[key])]
    if targets:
        operation = client.doing.op
        return [
            Wait(client.key, target.key, "http", f"{operation}: no answer from {target.label}", operation=operation)
            for target in targets
        ]
    # an engine's own processes are its children; and who is connected elsewhere means no server here
    if client.doing.kind == "http_client" and not _peers(client):
        return _answerers(client, subjects)
    return []


def _stands_at_socket(subject: Subject) -> bool:
    """It does nothing but wait at a socket, and no other layer says for whom."""
    if subject.stuck or subject.ended or subject.blocked or subject.progress or subject.polls or _takes_orders(subject):
        return False
    return subject.process is not None and at_socket(subject.process)


def _socket_waits(subject: Subject, owners: Mapping[str, list[str]], subjects: dict[str, Subject]) -> Iterator[Wait]:
    assert subject.process is not None
    for key in dict.fromkeys(key for peer in ends(subject.process) for key in owners.get(peer, ())):
        if key != subject.key and _is_service(subjects[key]):
            because = f"waits at a socket: no answer from {subjects[key].label}"
            yield Wait(subject.key, key, "http", because, operation="waits at a socket")


def answering(evidence: Evidence, subjects: dict[str, Subject], known_waits: list[Wait]) -> dict[str, Subject]:
    """Whoever sends to who waits for it advances, however slowly: a server whose answer comes in pieces. Data that came
    within the later half of the stall counts; where nobody watched, that of the last seconds."""
    limit_s = max(evidence.stall_s / 2, HELD_S) if evidence.stall_s else PIECE_S
    updated_subjects = dict(subjects)
    for wait in known_waits:
        waiter, target = subjects[wait.waiter], updated_subjects[wait.target]
        if wait.layer not in ("http", "engine") or target.progress or target.blocked or target.process is None:
            continue
        looks = waiter.process.samples if waiter.process else ()
        ages = [age for look in looks for peer, age in look.heard if peer in target.process.listening]
        if ages and min(ages) < limit_s:
            words = f"data came from it to {waiter.label} {min(ages):.1f} s ago"
            updated_subjects[wait.target] = replace(target, progress=words, moved=True)
    return updated_subjects


def _peers(subject: Subject) -> tuple[str, ...]:
    return subject.process.peers if subject.process else ()


def _is_service(subject: Subject) -> bool:
    """A process of the job that others may ask: no rank, no launcher, no engine's worker, whose connections are those
    of its group, and none of Ray's, all of which are connected."""
    ray = subject.process is not None and subject.process.title.startswith("ray::")
    return subject.rank is None and not subject.launcher and not ray and not _takes_orders(subject)


def _takes_orders(subject: Subject) -> bool:
    """It waits in the loop of an engine or of Ray's worker: no answer is due to it."""
    return subject.doing.idle and subject.doing.within("scheduler", "orders", "ray_idle")


def _answerers(client: Subject, subjects: dict[str, Subject]) -> list[Wait]:
    """Without socket tables: the one other process that serves, when there is only one."""
    servers = [peer for peer in subjects.values() if peer.key != client.key and _serves(peer)]
    if not servers:  # a process that asks and is asked in one thread shows as a client only
        servers = [peer for peer in subjects.values() if peer.key != client.key and peer.doing.kind == "http_client"]
    if len(servers) != 1:
        return []
    because = f"{client.doing.op}: {servers[0].label} is the only other server"
    return [Wait(client.key, servers[0].key, "http", because, operation=client.doing.op)]


def _asks(subject: Subject) -> bool:
    return subject.rank is None and subject.doing.kind == "http_client"


def _serves(subject: Subject) -> bool:
    if subject.process is None or not subject.process.samples:
        return False
    return any(
        "/uvicorn/" in frame.file or (plain(frame.function) == "serve_forever" and _HTTP_SERVER.search(frame.file))
        for thread in subject.process.samples[-1].threads
        for frame in thread.frames
    )


def children(
    evidence: Evidence, subjects: dict[str, Subject], known_waits: list[Wait]
) -> tuple[list[Wait], dict[str, Subject]]:
    """A process that waits for its child to end; an engine's front that waits for its schedulers; an asyncio actor that
    is asked for something and awaits its engine, which no stack shows; and whoever stands where an answer comes from a
    process that it started, while one of those is held."""
    waits: list[Wait] = []
    waited = {wait.waiter for wait in known_waits}
    requests = {wait.target: wait for wait in known_waits if wait.layer in ("ray", "http")}
    started: dict[tuple[str, int], list[Subject]] = {}
    for subject in subjects.values():
        if subject.process is not None and not subject.launcher:
            started.setdefault((subject.process.host, subject.process.ppid), []).append(subject)
    for subject in subjects.values():
        if subject.process is None or subject.launcher or subject.key in waited or subject.pending is not None:
            continue
        request = requests.get(subject.key)
        below = _called_children(subject, request, subjects, started)
        waits += _waits_for_children(subject, request, below)
        if _may_wait_below(subject, request is not None):
            held_descendants = _held_below(subject, started)
            waits += [_held_up(subject, request, child) for child in held_descendants if child not in below]
    return waits, subjects


def _awaits_engine(subject: Subject, request: Wait | None) -> bool:
    """It is asked for something, and its event loop waits: it may have passed the request on."""
    return request is not None and subject.doing.idle


def _called_children(
    subject: Subject,
    request: Wait | None,
    subjects: dict[str, Subject],
    started: dict[tuple[str, int], list[Subject]],
) -> list[Subject]:
    """The children from which it may wait for an end or an answer, by where it stands."""
    process = subject.process
    assert process is not None
    if _awaits_engine(subject, request):
        parents = {process.pid} | _passed_on(process, subjects)
    elif subject.doing.kind in ("join", "engine_call"):
        parents = {process.pid}
    else:
        return []
    return [child for pid in parents for child in started.get((process.host, pid), ())]


def _waits_for_children(subject: Subject, request: Wait | None, below: list[Subject]) -> Iterator[Wait]:
    layer = "process" if subject.doing.kind == "join" else "engine"
    several, busy = sum(not child.ended for child in below) > 1, any(child.progress for child in below)
    for child in below:
        process = child.process
        assert process is not None
        if child.blocked and busy:
            continue  # the one that advances may be who answers
        if request is not None and _awaits_engine(subject, request):
            if process.engine and (child.blocked or not child.doing.idle):  # an idle engine has answered
                yield _behind(request, subject, child, layer, f"its engine {process.pid} is not idle")
        elif not (layer == "process" and (_done(child) or (several and _rests(child)))):
            because = f"{subject.doing.op}: its child {process.pid}"
            yield Wait(subject.key, child.key, layer, because, operation=subject.doing.op)


def _held_up(subject: Subject, request: Wait | None, descendant: Subject) -> Wait:
    """It waits for a process below it that the kernel or its interpreter lock holds."""
    assert descendant.process is not None
    why = f"{descendant.process.pid}, which it started, is {descendant.blocked}"
    if request is not None:
        return _behind(request, subject, descendant, "engine", why)
    return Wait(subject.key, descendant.key, "process", why)


# Kernel functions in which a process waits for another one of its host, through a pipe or for its end.
_NEAR = re.compile("do_wait|pipe_read|unix_stream")


def _may_wait_below(subject: Subject, is_asked: bool) -> bool:
    """It does nothing, in a place where the answer or the end of a process that it started is waited for. Of a process
    without a rank, whom nobody asks for anything, only what it calls an engine for says so."""
    if subject.progress or subject.blocked or subject.ended or subject.process is None:
        return False
    kind = subject.doing.kind
    if kind in ("join", "engine_call", "transition"):
        return True
    if is_asked and kind in ("user", "unknown", "select", "queue"):
        return True  # an event loop that is run until its engine answers looks like code of its own that does nothing
    if subject.rank is None or subject.doing.within("scheduler", "orders", "ray_idle", "http_server"):
        return False  # it waits for orders
    waits = subject.process.samples and _NEAR.search(subject.process.samples[-1].wchan)
    return kind in ("select", "queue", "lock") or (kind in ("user", "unknown") and bool(waits))


def _held_below(subject: Subject, started: dict[tuple[str, int], list[Subject]]) -> list[Subject]:
    """Processes that it started, itself or through others such as a shell, and that are held; none where another one of
    them advances, for that may be who answers."""
    held_descendants: list[Subject] = []
    level, visited = [subject], {subject.key}
    while level:
        below = [child for each in level if each.process
                 for child in started.get((each.process.host, each.process.pid), ())
                 if child.key not in visited and not child.ended]  # fmt: skip
        if any(child.progress for child in below):
            return []
        held_descendants += [child for child in below if child.blocked]
        visited |= {child.key for child in below}
        level = [child for child in below if not child.blocked]
    return held_descendants


def _behind(request: Wait, subject: Subject, child: Subject, layer: str, why: str) -> Wait:
    """Who is asked waits for its child in turn."""
    return Wait(subject.key, child.key, layer, f"{request.because}; {why}", operation=request.place)


def _done(subject: Subject) -> bool:
    """It ended with nothing wrong, so that a wait for its end would be over: its parent, which collects its children
    one after another, waits for one that lives."""
    return subject.ended and subject.process is not None and not subject.process.exit_code and not subject.process.error


def _rests(subject: Subject) -> bool:
    """It lives, does nothing, and waits for nobody that is known: a monitor, beside others, whose end nobody expects.
    Of several that live, nothing says which one their parent waits for."""
    return not (subject.ended or subject.blocked or subject.stuck or subject.progress)


def _passed_on(process: Process, subjects: dict[str, Subject]) -> set[int]:
    """Its engine processes that are idle: SGLang's controller of several schedulers only hands on what it is asked."""
    return {
        subject.process.pid
        for subject in subjects.values()
        if subject.process and (subject.process.host, subject.process.ppid) == (process.host, process.pid)
        if subject.process.engine and subject.doing.idle and not subject.blocked
    }


def reads(subjects: Mapping[str, Subject], known_waits: Iterable[Wait]) -> dict[str, str]:
    """Processes that read from each other's pipes or sockets, where these close a ring of waits -> in words, what.

    No edges of the graph, for they prove nothing: a thread that is not Python's, a signal's handler or a process of
    another container may be about to write. Who waits for an order reads as who waits for an answer does, so that what
    closes no ring says nothing at all.
    """
    writers, descriptions = {}, {}
    for key, subject in subjects.items():
        process = subject.process
        target = subjects.get(f"{process.host}:{process.writer}") if process is not None and process.writer else None
        if target is not None and not subject.ended and not _writes_beside(target):
            at = f", {subject.doing.frame}" if subject.doing.frame else ""
            writers[key] = target.key
            descriptions[key] = f"reads what, of all that is seen, {target.label} alone can write{at}"
    pairs = [*((wait.waiter, wait.target) for wait in known_waits), *writers.items()]
    rings = components(pairs)[1] if writers else []
    closing = [key for ring in rings if _at_one_time(subjects[key] for key in ring) for key in ring]
    return {key: descriptions[key] for key in closing if key in descriptions}


def _writes_beside(subject: Subject) -> bool:
    """Whether a thread beside its main one may write, by itself or in a task of its event loop; or nothing is known of
    its threads."""
    threads = subject.process.samples[-1].threads if subject.process is not None and subject.process.samples else ()
    return not threads or any(
        hands_on(thread) or awaits(thread) or all(frame.file.endswith("/threading.py") for frame in thread.frames)
        for thread in threads
        if not thread.main  # one without a frame beyond threading.py is a Timer, whose function is not called yet
    )


def _at_one_time(ring: Iterable[Subject]) -> bool:
    """Whether there was a moment between both looks at every one of them."""
    looks = [subject.process.samples for subject in ring if subject.process is not None and subject.process.samples]
    return bool(looks) and max(its[0].at_s for its in looks) < min(its[-1].at_s for its in looks)
