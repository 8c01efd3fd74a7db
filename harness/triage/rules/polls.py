"""Rules about waits that somebody unknown has to end: a poll, an idle worker that may owe no answer, a full pipe.

The verdict is INSUFFICIENT and says what is missing. Nobody is blamed for not having been seen.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from harness.triage import source, stacks
from harness.triage.graph import Subject
from harness.triage.graph.polling import place as polled_at
from harness.triage.graph.polling import woke
from harness.triage.places import users
from harness.triage.rules.pipes import fills, unread
from harness.triage.rules.ruling import Case, Live, Ruling, brief
from reports.text import agreeing

# Packages whose loops try to lock a file.
_LOCKER = re.compile(r"/(filelock|portalocker|fasteners)/")
SERVING = frozenset({"scheduler", "ray_idle", "http_server"})  # loops that take requests from outside
MOST_LOCKS = MOST_READERS = 8  # that a verdict names


def reads(subject: Subject) -> bool:
    """Whether it reads throughout from a queue, pipe or socket that another process writes: it waits for that
    process. One that waits at torch's store reads from the store's connection, and waits for whoever sets the key."""
    return subject.process.fed and not subject.doing.within("store")


def takes_orders(case: Case, subject: Subject) -> bool:
    """Whether this is an engine's worker in its idle loop while its engine waits for its answer: nothing says that
    it owes one."""
    waits = case.graph.waits_for(subject.key)
    return subject.doing.idle and subject.doing.within("scheduler") and all(wait.layer == "engine" for wait in waits)


def undecided(case: Case) -> Ruling | None:
    """INSUFFICIENT: waiting ends at a poll, at workers that wait for requests, at a full pipe, or at a read."""
    ends = [sink for sink in case.sinks() if not sink.progress and not sink.ended]
    if ends_that_poll := pollers(case):
        return polling(case, ends_that_poll)
    if idle := [end for end in ends if takes_orders(case, end)]:
        keys = {worker.key for worker in idle}
        return _lost(case, idle, [wait.waiter for wait in case.graph.waits if wait.target in keys])
    for poller in open_polls(case):
        if workers := _share_with(case, poller):
            return _lost(case, workers, [poller.key], poller)
    if full := [end for end in ends if fills(end)]:
        return unread(case, full)
    if reading := [end for end in ends if reads(end)]:
        return _without_input(case, reading)
    return None


def _without_input(case: Case, reading: list[Subject]) -> Ruling:
    """Return the INSUFFICIENT ruling for processes that read what another one writes."""
    writers = [(reader, _writer(case, reader)) for reader in reading[:MOST_READERS]]
    for reader, writer in writers:
        if writer is not None and (child := _left_open(case, reader, writer)) is not None:
            return _kept_open(reader, writer, child)
    names, read = case.names(reader.key for reader in reading), agreeing(len(reading), "reads", "read")
    return Ruling(
        "INSUFFICIENT",
        f"{names} {read} what another process writes, and nothing came between the looks",
        evidence=tuple(_told_of(reader, writer) for reader, writer in writers if writer is not None),
        missing=tuple(
            f"who writes what {reader.label} reads" if writer is None else f"why {writer.label} writes nothing"
            for reader, writer in writers
        ),
        place=reading[0].frame,
        next=(
            "look for the process that writes to it, and read its log: what it has not sent",
            "give each read a timeout",
        ),
    )


def _told_of(reader: Subject, writer: Subject) -> str:
    """What is known of the one process that can write what another one reads."""
    place = f"stands at {writer.frame}" if writer.frame else "shows no place of its program"
    return f"of all that is seen, {writer.label} alone can write what {reader.label} reads; it {place}"


def _left_open(case: Case, reader: Subject, writer: Subject | None) -> Subject | None:
    """The child of a reader that has ended, and whose output another process keeps open, such as a service that a
    shell started in the background; None without one."""
    if writer is None or writer.process.is_child_of(reader.process):
        return None
    subjects = case.graph.subjects.values()
    return next((each for each in subjects if each.ended and each.process.is_child_of(reader.process)), None)


def _kept_open(reader: Subject, writer: Subject, child: Subject) -> Ruling:
    """Return the INSUFFICIENT ruling for a process that reads the output of a child to its end, which another process
    keeps from coming."""
    pid = writer.process.pid
    return Ruling(
        "INSUFFICIENT",
        f"{reader.label} reads the output of a child to its end; {writer.label} keeps it open",
        evidence=(f"its child {child.process.pid} has ended; {_told_of(reader, writer)}",),
        missing=(f"when {writer.label} ends, or closes its output",),
        place=reader.frame,
        next=(
            "give what the child leaves behind its own output: COMMAND > FILE 2>&1 &, or read the child's from a file",
            Live(f"kill {pid}   # if nobody needs {writer.label}: {reader.label} goes on then"),
        ),
    )


def pollers(case: Case) -> list[Subject]:
    """The processes that poll at which waiting ends; else ranks that poll, beside waiters of whom nothing says for whom
    they wait."""
    ends = [sink for sink in case.sinks() if sink.polls and not collects(sink)]
    return ends or _polled_beside(case)


def _writer(case: Case, reader: Subject) -> Subject | None:
    """The one process that can write what this one reads; None where there are several, or it was not looked at."""
    process = reader.process
    return case.graph.subjects.get(f"{process.host}:{process.writer}") if process.writer else None


def _polled_beside(case: Case) -> list[Subject]:
    """Ranks that poll, if there are waiters of which nothing says for whom they wait."""
    waiting = [waiter for waiter in case.graph.stuck() if not waiter.progress]
    waiters = case.graph.waiting
    if not any(waiter.key not in waiters for waiter in waiting):
        return []
    return [subject for subject in case.live() if subject.polls and subject.rank is not None]


def polling(case: Case, pollers: list[Subject]) -> Ruling:
    """Return the INSUFFICIENT ruling for processes that poll: nothing says who makes what they look for.

    A rank that others wait for is not said to wait itself, because a loop that sleeps may be its work.
    """
    awaited = case.awaited()
    waiting = [poller for poller in pollers if poller.key not in awaited and _seeks(poller)]
    named = waiting or pollers
    place = polled_at(named[0].loop)
    sought = [(poller, thing) for poller in named for thing in poller.process.sought]
    thing = sought[0][1] if len({thing for _, thing in sought}) == 1 else ""
    who = case.names(poller.key for poller in named)
    if waiting:
        whom = f"for {thing}" if thing else "and nothing says for whom"
        reason = f"{who} {agreeing(len(named), 'waits', 'wait')} in a loop, {place}, {whom}"
    else:
        spins = all(source.spins(poller.loop[0]) for poller in named)
        acts = agreeing(len(named), "spins", "spin") if spins else agreeing(len(named), "sleeps", "sleep")
        reason = f"{who} {acts} in a loop, {place}: at work or waiting, nothing says which"
    locked = locked_files(case, named) if any(map(tries_to_lock, named)) else ()
    unmade = [f"{poller.label} looks for {what}; no process is seen that {_makes(what)} it" for poller, what in sought]
    # A loop of rounds that only sleeps looks for nothing.
    rounds = all(source.loop_around(poller.loop[0]) is source.Loop.ROUNDS for poller in named)
    looks = bool(locked or unmade) or not rounds
    return Ruling(
        "INSUFFICIENT",
        reason,
        evidence=(*locked, *unmade[:MOST_READERS], *_conditions(named)),
        missing=tuple(
            f"who makes what {poller.label} looks for in {polled_at(poller.loop)}"
            if looks
            else f"for what {poller.label} sleeps in {polled_at(poller.loop)}"
            for poller in pollers[:8]
        ),
        place=place,
        next=(
            "end whoever holds the lock of its file, if that is no part of this job"
            if locked
            else f"look for the process that {_makes(thing)} {thing or f'what {place} looks for'}: whether it lives, "
            "and the end of its log",
            "give the loop a limit, and say in its error what has not come",
        )
        if looks
        else (Live(f"{case.again()}   # in a minute: whether it still sleeps"), f"read at {place} what it sleeps for"),
    )


def _makes(thing: str) -> str:
    """What the process does for which a poll waits: of an address it serves, a file it makes."""
    return "serves" if thing and not thing.startswith("/") else "makes"


def _conditions(pollers: Sequence[Subject]) -> list[str]:
    """While what the user's loops go on of which nothing more is known, by their text."""
    unread = [poller for poller in pollers[:MOST_READERS] if not poller.process.sought]
    conditions = [(poller, source.condition(poller.loop[0])) for poller in unread if users(poller.loop[0])]
    return [f"{poller.label} repeats its loop while `{brief(text)}`" for poller, text in conditions if text]


def tries_to_lock(subject: Subject) -> bool:
    """Whether it polls in the loop of a package that tries to lock a file."""
    return subject.polls and bool(_LOCKER.search(subject.loop[0].file))


def locked_files(case: Case, waiting: Sequence[Subject]) -> tuple[str, ...]:
    """In words, locks of files on the hosts of these that others hold: any of them may be what a loop of tries waits
    for, since the kernel lists no such waiter."""
    hosts = {subject.process.host for subject in waiting}
    pids = {subject.process.pid for subject in waiting}
    locks = [lock for lock in case.evidence.locks if lock.host in hosts and lock.pid not in pids and lock.tries]
    return tuple(f"{lock.path} is locked by {lock.pid} ({brief(lock.command)})" for lock in locks[:MOST_LOCKS])


def _seeks(poller: Subject) -> bool:
    """Whether its loop repeats until something has come. A loop with a fixed number of rounds, or without source
    text, may be work."""
    return source.loop_around(poller.loop[0]) is source.Loop.UNTIL


def _share_with(case: Case, poller: Subject) -> list[Subject]:
    """The idle workers that share memory with a process that polls: each waits for what the other one writes. If it is
    known which memory it polls, only those that share that."""
    return [
        each
        for each in _partners(case, poller)
        if each.doing.idle
        and each.doing.within("scheduler")
        and (_polled_of(poller, each) or not poller.process.touched)
    ]


def _polled_of(poller: Subject, partner: Subject) -> tuple[str, ...]:
    """The memory that a process polls and that another one has mapped as well."""
    return tuple(name for name in poller.process.touched if name in partner.process.shared)


def _partners(case: Case, poller: Subject) -> list[Subject]:
    """The processes that share memory with one."""
    mine = set(poller.process.shared)
    return [
        each
        for each in case.live()
        if each is not poller and each.process.host == poller.process.host and mine & set(each.process.shared)
    ]


def _lost(case: Case, idle: list[Subject], asking: list[str], poller: Subject | None = None) -> Ruling:
    """INSUFFICIENT: processes wait for an answer of workers that wait for orders. `poller`: the one that polls memory
    which it shares with them.

    Of several workers, nothing says whose answer is missing, so the headline names none.
    """
    how = " in a loop" if poller is not None else ""
    keys = [worker.key for worker in idle]
    whose = f"of {case.names(keys)}, which waits for orders"
    if len(keys) > 1:
        whose = f"of one of {len(keys)} workers, which wait for orders"
    return Ruling(
        "INSUFFICIENT",
        f"{case.names(dict.fromkeys(asking))} waits{how} for an answer {whose}",
        evidence=tuple(
            f"{poller.label} reads {', '.join(polled)} again and again, which {worker.label} has mapped"
            if (polled := _polled_of(poller, worker))
            else f"{worker.label} has mapped {', '.join(worker.process.shared[:MOST_READERS])}"
            for worker in idle[:MOST_READERS]
            if poller is not None
        ),
        missing=(
            *(["whose answer did not come: neither a stack nor the kernel says it"] if len(keys) > 1 else ()),
            *(f"the last order and answer of {worker.label}" for worker in idle[:8]),
        ),
        place=polled_at(poller.loop) if poller is not None else case.waited_in(keys) or case.subject(asking[0]).frame,
        next=("number orders and answers, and give each read a timeout: an order or an answer was lost",),
    )


def collects(subject: Subject) -> bool:
    """Whether it asks again and again if its children have ended, as a launcher does."""
    return any(map(source.asks_for_children, subject.loop[:1]))


def open_polls(case: Case) -> list[Subject]:
    """If nobody is known to wait: ranks that poll, processes that poll while everything that they started is idle, and
    programs that look for what nobody is seen to make.

    They woke up between the looks, or wait for an item of a queue with a time limit. A single sleep in a loop is a
    pause.
    """
    pollers = [
        subject for subject in case.live() if subject.polls and (woke(subject.process) or _in_limited_wait(subject))
    ]
    return [
        poller
        for poller in pollers
        if (poller.rank is not None and not _has_idle_engine(case, poller))
        or _asks_below(case, poller)
        or _nobody_makes(case, poller)
    ]


def _in_limited_wait(poller: Subject) -> bool:
    """Whether each look met it in a wait for an item of a queue that its loop begins anew; not where one other process
    is seen that fills the queue, as that of a worker is filled. A wait for an event may only keep it alive."""
    process = poller.process
    if process.feeder or not all(look.timed for look in process.samples):
        return False
    return poller.doing.within("queue") and poller.before.within("queue")


def _nobody_makes(case: Case, poller: Subject) -> bool:
    """Whether a process without a rank looks for something until it has come, while nobody moves who might make it.

    A server, which asks whether it shall stop, is none.
    """
    if any(each.progress for each in case.live()) or serves(poller) or collects(poller):
        return False
    return _seeks(poller) and not _has_idle_engine(case, poller)


def serves(subject: Subject) -> bool:
    """Whether a process takes requests: it is of an engine, one of its threads stands in a loop of requests, or it
    listens. A rank listens for its peers."""
    process = subject.process
    return (
        bool(process.engine or (process.listening and subject.rank is None))
        or subject.doing.within(*SERVING)
        or any(stacks.classify(thread).within(*SERVING) for thread in process.threads)
    )


def _has_idle_engine(case: Case, poller: Subject) -> bool:
    """Whether a process that polls shares memory, and all with which it does so wait for requests: it waits for
    orders."""
    partners = _partners(case, poller)
    return bool(partners) and all(partner.doing.idle and partner.before.idle for partner in partners)


def _asks_below(case: Case, subject: Subject) -> bool:
    process = subject.process
    if collects(subject):
        return False
    workers = [each for each in case.live() if each.process.is_child_of(process)]
    return any(each.doing.within("scheduler") for each in workers) and all(
        each.doing.within("scheduler") and each.doing.idle for each in workers
    )
