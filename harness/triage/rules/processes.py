"""One process explains the others: the kernel or the interpreter lock holds it (K9), or it has died (K4)."""

from __future__ import annotations

import re

from harness.triage.evidence import Process
from harness.triage.graph import Subject
from harness.triage.graph.edges import superseded
from harness.triage.graph.worlds import same_world
from harness.triage.rules.bystanders import elsewhere, explains, lost
from harness.triage.rules.ruling import Case, Ruling, brief

LAST_S = 5.0  # an error that much work came after is not what stopped it
# What a peer's death, or a peer's silence, looks like in the error of its victims: never a first error.
_ECHO = re.compile(
    r"timed? ?out|timeout|connection (reset|closed|refused)|broken pipe|peer|watchdog|ActorDied|ActorUnavailable"
    r"|RayActorError|WorkerCrashed|NCCL (communicator|error)|remote process exited|aborted|SIGTERM|KeyboardInterrupt",
    re.I,
)


def held(case: Case) -> Ruling | None:
    """K9: stopped, in uninterruptible sleep, or with the interpreter lock held, while others wait for it; or all that
    live are stopped."""
    held = [one for one in case.live() if one.blocked and _counts(case, one)]
    if not held or (first := held[0].blocked) is None:
        return None
    others = [one for one in case.live() if one.key not in {each.key for each in held} and one.stuck]
    keys = [one.key for one in held]
    known = any(one.rank is not None for one in held) or _all_stopped(case)
    if not others and not case.graph.waiters(set(keys)) and not known:
        return None
    where = case.waited_in(keys)
    reason = f"{case.names(keys)}: {first}"
    pids = " ".join(str(one.process.pid) for one in held if one.process)
    steps = {
        "stop": f"kill -CONT {pids}, and find out who stopped it",
        "sleep": "look at storage: dmesg, the mount of the file in its stack",
        "lock": f"py-spy dump --native --pid {pids.split(' ')[0]}   # the C call that keeps the interpreter lock",
    }
    return Ruling(
        "HUNG",
        reason,
        "K9",
        {one.key: str(one.blocked) for one in held},
        place=where or str(first),
        evidence=(*_of_whom(case, held), *((f"others wait in {where}",) if where else ())),
        next=(steps[first.by], "the network is not to blame"),
    )


def _of_whom(case: Case, held: list[Subject]) -> tuple[str, ...]:
    """What the one process that is held calls itself, and who started it, where it is no trainer's rank: a tokenizer or
    a scheduler is known by that."""
    process = held[0].process
    if process is None or len(held) > 1 or (held[0].rank is not None and not process.engine):
        return ()
    parent = case.graph.subjects.get(f"{process.host}:{process.ppid}")
    below = f"a child of {parent.label}" if parent is not None and not parent.launcher else ""
    whose = ", ".join(filter(None, (process.title, below)))
    return (f"it is {whose}",) if whose else ()


def _counts(case: Case, one: Subject) -> bool:
    """It can be why the others wait; or it is a rank, and nobody waits at all; or nobody is left to wait."""
    if explains(case, one) or _all_stopped(case):
        return True
    return one.rank is not None and not elsewhere(case, {one.key}) and not lost(case)


def _all_stopped(case: Case) -> bool:
    return all(one.blocked is not None and one.blocked.by == "stop" for one in case.live())


def died(case: Case) -> Ruling | None:
    """K4: a process ended, or failed and stayed, while others wait for it. The first error is the cause."""
    stuck = [one for one in case.graph.stuck() if not one.gone]
    waiting = stuck or [one for one in case.live() if one.key in {wait.waiter for wait in case.graph.waits}]
    if not waiting:
        return None
    awaited = case.awaited()
    dead = [
        one
        for one in case.graph.subjects.values()
        if one.gone
        and not one.launcher
        and not (one.process and superseded(one.process, case.evidence.processes))
        and (one.key in awaited or (_unclean(one.process) and _missed(one, waiting)))
    ]
    dead += [
        one
        for one in case.graph.subjects.values()
        if not one.gone
        and one.process is not None
        and one.key in {each.key for each in case.sinks()}
        and local_error(one.process)
        and not one.progress
        and not one.doing.within("scheduler")
    ]
    for actor in case.evidence.ray_actors:
        if (
            actor.state == "DEAD"
            and actor.death
            and any(one.process and one.process.pid == actor.pid and one.process.host == actor.host for one in dead)
            is False
        ):
            key = f"{actor.host}:{actor.pid}"
            if key in awaited and key in case.graph.subjects:
                dead.append(case.subject(key))
    if not dead:
        return None
    first = [one for one in dead if one.process and local_error(one.process)]
    if first:
        chosen = _first(first, apart=bool(case.evidence.directories))
    else:
        chosen = [one for one in dead if one.process and _unclean(one.process)] or dead
    why = {one.key: _why(one) for one in chosen}
    where = case.waited_in(why)
    reason = f"{case.names(why)} {brief(next(iter(why.values())), 12)}"
    steps = ["read the end of its own log: the first error is there, not in its peers' timeouts"]
    if any(one.process and one.process.exit_code == -9 for one in chosen):
        steps.append("SIGKILL is how the kernel ends a process when memory runs out: dmesg | grep -i oom")
    return Ruling("HUNG", reason, "K4", why, place=where, next=tuple(steps))


def _first(failed: list[Subject], *, apart: bool) -> list[Subject]:
    """Those that failed first. `apart`: on each host, for nothing tells which host's error was the first."""
    age = {one.key: _age(one.process) for one in failed if one.process}
    hosts = {one.key: one.process.host if apart and one.process else "" for one in failed}
    oldest = {host: max(age[key] for key in age if hosts[key] == host) for host in hosts.values()}
    return [one for one in failed if age[one.key] == oldest[hosts[one.key]]]


def _missed(one: Subject, waiting: list[Subject]) -> bool:
    """A rank of the world of somebody who waits there: its end is an end for all of them. Who waits for an answer over
    HTTP misses a server, and no rank; in a world of one nobody misses anybody."""
    if one.process is not None and one.process.world_size == 1:
        return False
    peers = [other for other in waiting if other.pending is not None or other.doing.kind != "http_client"]
    return one.rank is not None and any(same_world(one.process, other.process) for other in peers)


def local_error(process: Process | None) -> str:
    """The first error of a process that is its own, not the echo of a peer's; empty without one."""
    if process is None:
        return ""
    if process.error and not _ECHO.search(process.error):
        return process.error.strip().splitlines()[-1]
    journal = process.journal
    for age, text in journal.errors[-1:] if journal else ():
        if journal and age - journal.last_age_s < LAST_S and not _ECHO.search(text):
            return text
    return ""


def _age(process: Process) -> float:
    if process.error_age_s is not None:
        return process.error_age_s
    return process.journal.errors[0][0] if process.journal and process.journal.errors else 0.0


def _unclean(process: Process | None) -> bool:
    """It did not end as a process does that is done."""
    if process is None:
        return False
    if process.exit_code is not None and process.exit_code != 0:
        return True
    return process.journal is not None and not process.journal.closed


def _why(one: Subject) -> str:
    error = local_error(one.process)
    if one.gone:
        return one.state() + (f": {error}" if error else "")
    return f"failed and stayed: {error}"
