"""Edges of calls: ray.get, HTTP requests, requests to an engine, a parent that waits for its child; rings of reads."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
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


def ray(evidence: Evidence, subjects: dict[str, Subject], known: list[Wait]) -> tuple[list[Wait], dict[str, Subject]]:
    """ray.get of a process: for whoever executes, or should execute, the tasks that it submitted."""
    actors = {actor.actor_id: actor for actor in evidence.ray_actors}
    open_tasks = [task for task in evidence.ray_tasks if task.state not in FINISHED_TASKS]
    unplaced = _unplaced(open_tasks)
    waiting = {
        key: one
        for key, one in subjects.items()
        if one.doing.kind == "ray_get" and one.pending is None and not _among(one, unplaced)
    }
    found = []
    unclaimed: dict[str, RayTask] = {}
    for task in open_tasks:
        place = task if task.pid else actors.get(task.actor_id, task)
        target = _at(place.host, place.pid, subjects)
        caller = _at(task.caller_host, task.caller_pid, subjects)
        if target and caller in waiting:
            found.append(Wait(caller, target, "ray", f"ray.get of {task.name} ({task.state})", task.age_s or None))
        elif target and not task.caller_pid:
            unclaimed[target] = task
    for key in waiting:  # where Ray does not say who asked: only if a single process can be meant
        if any(wait.waiter == key for wait in found):
            continue
        targets = {target: task for target, task in unclaimed.items() if target != key}
        if len(targets) == 1:
            target, task = next(iter(targets.items()))
            found.append(Wait(key, target, "ray", f"ray.get, and only {task.name} is unfinished", task.age_s or None))
    return found, subjects


def _at(host: str, pid: int, subjects: dict[str, Subject]) -> str:
    """The key of a process of Ray's; of any host where Ray does not say which. Empty where there is none."""
    if not pid or (host and f"{host}:{pid}" in subjects):
        return f"{host}:{pid}" if pid else ""
    keys = [key for key, one in subjects.items() if one.process and one.process.pid == pid]
    return keys[-1] if keys and not host else ""


def _among(one: Subject, callers: set[tuple[str, int]]) -> bool:
    return one.process is not None and bool({(one.process.host, one.process.pid), ("", one.process.pid)} & callers)


def _unplaced(tasks: list[RayTask]) -> set[tuple[str, int]]:
    """(host, pid) of who may wait for nodes: he asked for an actor, a task or a placement group that has no place, and
    none of its kind that he asked for has one. Tasks that queue behind their like wait for those."""
    asked = {task.task_id: (task.caller_host, task.caller_pid) for task in tasks if task.caller_pid}
    placed = {(asked.get(task.task_id), task.name) for task in tasks if task.pid}
    pending = [task for task in tasks if task.state == "PENDING_NODE_ASSIGNMENT" and not task.pid]
    return {
        asked[task.task_id] for task in pending
        if task.task_id in asked and (asked[task.task_id], task.name) not in placed
    }  # fmt: skip


def http(evidence: Evidence, subjects: dict[str, Subject], known: list[Wait]) -> tuple[list[Wait], dict[str, Subject]]:
    """A request without an answer: for the process at the other end of the connection, where that is known."""
    found = []
    clients = [one for one in subjects.values() if one.doing.kind in ("http_client", "engine_call") and not one.polls]
    owners: dict[str, list[str]] = {}
    for one in subjects.values():
        for address in one.process.listening if one.process else ():
            owners.setdefault(address, []).append(one.key)
    for one in clients:
        targets = dict.fromkeys(key for peer in _peers(one) for key in owners.get(peer, ()))
        targets.pop(one.key, None)
        # ranks are connected to each other for their collectives as well: only a server, or a client that may be one
        targets = {key: None for key in targets if _serves(subjects[key]) or _asks(subjects[key])}
        for target in targets:
            because = f"{one.doing.op}: no answer from {subjects[target].label}"
            found.append(Wait(one.key, target, "http", because, operation=one.doing.op))
        # an engine's own processes are its children; and who is connected elsewhere means no server here
        if not targets and one.doing.kind == "http_client" and not _peers(one):
            found += _answerers(one, subjects)
    for one in subjects.values():
        if one.stuck or one.gone or one.blocked or one.progress or one.polls or _takes_orders(one):
            continue
        if one.process is None or not at_socket(one.process):
            continue
        for key in dict.fromkeys(key for peer in ends(one.process) for key in owners.get(peer, ())):
            if key != one.key and _is_service(subjects[key]):
                because = f"waits at a socket: no answer from {subjects[key].label}"
                found.append(Wait(one.key, key, "http", because, operation="waits at a socket"))
    return found, subjects


def answering(evidence: Evidence, subjects: dict[str, Subject], known: list[Wait]) -> dict[str, Subject]:
    """Whoever sends to who waits for it advances, however slowly: a server whose answer comes in pieces. Data that came
    within the later half of the stall counts; where nobody watched, that of the last seconds."""
    limit_s = max(evidence.stall_s / 2, HELD_S) if evidence.stall_s else PIECE_S
    found = dict(subjects)
    for wait in known:
        waiter, target = subjects[wait.waiter], found[wait.target]
        if wait.layer not in ("http", "engine") or target.progress or target.blocked or target.process is None:
            continue
        looks = waiter.process.samples if waiter.process else ()
        ages = [age for look in looks for peer, age in look.heard if peer in target.process.listening]
        if ages and min(ages) < limit_s:
            words = f"data came from it to {waiter.label} {min(ages):.1f} s ago"
            found[wait.target] = replace(target, progress=words, moved=True)
    return found


def _peers(one: Subject) -> tuple[str, ...]:
    return one.process.peers if one.process else ()


def _is_service(one: Subject) -> bool:
    """A process of the job that others may ask: no rank, no launcher, no engine's worker, whose connections are those
    of its group, and none of Ray's, all of which are connected."""
    ray = one.process is not None and one.process.title.startswith("ray::")
    return one.rank is None and not one.launcher and not ray and not _takes_orders(one)


def _takes_orders(one: Subject) -> bool:
    """It waits in the loop of an engine or of Ray's worker: no answer is due to it."""
    return one.doing.idle and one.doing.within("scheduler", "orders", "ray_idle")


def _answerers(one: Subject, subjects: dict[str, Subject]) -> list[Wait]:
    """Without socket tables: the one other process that serves, when there is only one."""
    servers = [other for other in subjects.values() if other.key != one.key and _serves(other)]
    if not servers:  # a process that asks and is asked in one thread shows as a client only
        servers = [other for other in subjects.values() if other.key != one.key and other.doing.kind == "http_client"]
    if len(servers) != 1:
        return []
    because = f"{one.doing.op}: {servers[0].label} is the only other server"
    return [Wait(one.key, servers[0].key, "http", because, operation=one.doing.op)]


def _asks(one: Subject) -> bool:
    return one.rank is None and one.doing.kind == "http_client"


def _serves(one: Subject) -> bool:
    if one.process is None or not one.process.samples:
        return False
    return any(
        "/uvicorn/" in frame.file or (plain(frame.function) == "serve_forever" and _HTTP_SERVER.search(frame.file))
        for thread in one.process.samples[-1].threads
        for frame in thread.frames
    )


def children(
    evidence: Evidence, subjects: dict[str, Subject], known: list[Wait]
) -> tuple[list[Wait], dict[str, Subject]]:
    """A process that waits for its child to end; an engine's front that waits for its schedulers; an asyncio actor that
    is asked for something and awaits its engine, which no stack shows; and whoever stands where an answer comes from a
    process that it started, while one of those is held."""
    found = []
    waited = {wait.waiter for wait in known}
    asked = {wait.target: wait for wait in known if wait.layer in ("ray", "http")}
    started: dict[tuple[str, int], list[Subject]] = {}
    for one in subjects.values():
        if one.process is not None and not one.launcher:
            started.setdefault((one.process.host, one.process.ppid), []).append(one)
    for one in subjects.values():
        process = one.process
        if process is None or one.launcher or one.key in waited or one.pending is not None:
            continue
        awaits = one.key in asked and one.doing.idle
        calls = one.doing.kind in ("join", "engine_call")
        layer = "process" if one.doing.kind == "join" else "engine"
        parents = {process.pid} | (_passed_on(process, subjects) if awaits else set())
        below = [other for pid in parents for other in started.get((process.host, pid), ())] if awaits or calls else []
        several, busy = sum(not other.gone for other in below) > 1, any(other.progress for other in below)
        for other in below:
            its = other.process
            assert its is not None
            if other.blocked and busy:
                continue  # the one that advances may be who answers
            if awaits:
                if its.engine and (other.blocked or not other.doing.idle):  # an idle engine has answered
                    found.append(_behind(asked[one.key], one, other, layer, f"its engine {its.pid} is not idle"))
            elif not (layer == "process" and (_done(other) or (several and _rests(other)))):
                because = f"{one.doing.op}: its child {its.pid}"
                found.append(Wait(one.key, other.key, layer, because, operation=one.doing.op))
        if _may_wait_below(one, one.key in asked):
            for other in _held_below(one, started):
                if other in below:
                    continue  # its edge is drawn
                assert other.process is not None
                why = f"{other.process.pid}, which it started, is {other.blocked}"
                found.append(
                    _behind(asked[one.key], one, other, "engine", why) if one.key in asked
                    else Wait(one.key, other.key, "process", why)
                )  # fmt: skip
    return found, subjects


# Kernel functions in which a process waits for another one of its host, through a pipe or for its end.
_NEAR = re.compile("do_wait|pipe_read|unix_stream")


def _may_wait_below(one: Subject, asked: bool) -> bool:
    """It does nothing, in a place where the answer or the end of a process that it started is waited for. Of a process
    without a rank, whom nobody asks for anything, only what it calls an engine for says so."""
    if one.progress or one.blocked or one.gone or one.process is None:
        return False
    kind = one.doing.kind
    if kind in ("join", "engine_call", "transition"):
        return True
    if asked and kind in ("user", "unknown", "select", "queue"):
        return True  # an event loop that is run until its engine answers looks like code of its own that does nothing
    if one.rank is None or one.doing.within("scheduler", "orders", "ray_idle", "http_server"):
        return False  # it waits for orders
    waits = one.process.samples and _NEAR.search(one.process.samples[-1].wchan)
    return kind in ("select", "queue", "lock") or (kind in ("user", "unknown") and bool(waits))


def _held_below(one: Subject, started: dict[tuple[str, int], list[Subject]]) -> list[Subject]:
    """Processes that it started, itself or through others such as a shell, and that are held; none where another one of
    them advances, for that may be who answers."""
    found: list[Subject] = []
    level, seen = [one], {one.key}
    while level:
        below = [other for each in level if each.process
                 for other in started.get((each.process.host, each.process.pid), ())
                 if other.key not in seen and not other.gone]  # fmt: skip
        if any(other.progress for other in below):
            return []
        found += [other for other in below if other.blocked]
        seen |= {other.key for other in below}
        level = [other for other in below if not other.blocked]
    return found


def _behind(asked: Wait, one: Subject, child: Subject, layer: str, why: str) -> Wait:
    """Who is asked waits for its child in turn."""
    return Wait(one.key, child.key, layer, f"{asked.because}; {why}", operation=asked.place)


def _done(one: Subject) -> bool:
    """It ended with nothing wrong, so that a wait for its end would be over: its parent, which collects its children
    one after another, waits for one that lives."""
    return one.gone and one.process is not None and not one.process.exit_code and not one.process.error


def _rests(one: Subject) -> bool:
    """It lives, does nothing, and waits for nobody that is known: a monitor, beside others, whose end nobody expects.
    Of several that live, nothing says which one their parent waits for."""
    return not (one.gone or one.blocked or one.stuck or one.progress)


def _passed_on(process: Process, subjects: dict[str, Subject]) -> set[int]:
    """Its engine processes that are idle: SGLang's controller of several schedulers only hands on what it is asked."""
    return {
        one.process.pid
        for one in subjects.values()
        if one.process and (one.process.host, one.process.ppid) == (process.host, process.pid)
        if one.process.engine and one.doing.idle and not one.blocked
    }


def reads(subjects: Mapping[str, Subject], known: Iterable[Wait]) -> dict[str, str]:
    """Processes that read from each other's pipes or sockets, where these close a ring of waits -> in words, what.

    No edges of the graph, for they prove nothing: a thread that is not Python's, a signal's handler or a process of
    another container may be about to write. Who waits for an order reads as who waits for an answer does, so that what
    closes no ring says nothing at all.
    """
    writers, told = {}, {}
    for key, one in subjects.items():
        process = one.process
        target = subjects.get(f"{process.host}:{process.writer}") if process is not None and process.writer else None
        if target is not None and not one.gone and not _writes_beside(target):
            at = f", {one.doing.frame}" if one.doing.frame else ""
            writers[key] = target.key
            told[key] = f"reads what, of all that is seen, {target.label} alone can write{at}"
    pairs = [*((wait.waiter, wait.target) for wait in known), *writers.items()]
    rings = components(pairs)[1] if writers else []
    closing = [key for ring in rings if _at_one_time(subjects[key] for key in ring) for key in ring]
    return {key: told[key] for key in closing if key in told}


def _writes_beside(one: Subject) -> bool:
    """Whether a thread beside its main one may write, by itself or in a task of its event loop; or nothing is known of
    its threads."""
    threads = one.process.samples[-1].threads if one.process is not None and one.process.samples else ()
    return not threads or any(
        hands_on(thread) or awaits(thread) or all(frame.file.endswith("/threading.py") for frame in thread.frames)
        for thread in threads
        if not thread.main  # one without a frame beyond threading.py is a Timer, whose function is not called yet
    )


def _at_one_time(ring: Iterable[Subject]) -> bool:
    """Whether there was a moment between both looks at every one of them."""
    looks = [one.process.samples for one in ring if one.process is not None and one.process.samples]
    return bool(looks) and max(its[0].at_s for its in looks) < min(its[-1].at_s for its in looks)
