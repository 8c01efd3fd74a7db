"""Rule about a server that stands still while what its clients sent lies unread, by the kernel's queues.

It may sleep, or wait for something else first, so it is not called hung. But it is not healthy: somebody waits for an
answer. A client that was not looked at is seen in these queues alone.
"""

from __future__ import annotations

import itertools

from harness.triage.evidence import Process
from harness.triage.graph import Subject
from harness.triage.rules.alive import actor
from harness.triage.rules.ruling import Case, Live, Ruling
from reports.text import counted

MOST_CLIENTS = 4  # of one process that the verdict names


def unread(case: Case) -> Ruling | None:
    """INSUFFICIENT: a server that does not move has connections whose data it does not read, or accepts none."""
    mute = [subject for subject in case.live() if _queue(case, subject)]
    # Children of a server have its sockets open as well.
    pids = {(its.host, its.pid) for its in (subject.process for subject in mute)}
    mute = [each for each in mute if (each.process.host, each.process.ppid) not in pids]
    if not mute:
        return None
    first = mute[0]
    states = {subject.key: subject.state() for subject in mute}
    later = {subject.key: why for subject in mute if (why := actor(case, subject))}
    return Ruling(
        "INSUFFICIENT",
        f"{first.label} {_queue(case, first)}; it stands at {first.frame or first.state()}",
        evidence=tuple(
            f"{case.subject(key).label}: {state}; {_clients(case.subject(key).process)}"
            + (f"; {later[key]}" if key in later else "")
            for key, state in states.items()
        ),
        missing=tuple(f"whether {case.subject(key).label} still answers its clients" for key in states),
        place=first.frame,
        about=tuple(states),
        next=(
            Live(f"{case.again()}   # in a minute: whether it has read on"),
            Live("py-spy dump --pid PID   # what each of its threads waits for"),
            f"read at {first.frame} whether it ever reads from a connection that it has accepted"
            if first.frame
            else "",
        ),
    )


def _queue(case: Case, subject: Subject) -> str:
    """What a server leaves at every look, as the verb of a sentence; empty if it leaves nothing, or moves."""
    process = subject.process
    if subject.rank is not None or subject.progress or len(process.samples) < 2:
        return ""
    if subject.doing.within("debugger"):
        return ""
    if clients := _still_unread(process):
        return f"does not read what {counted(len(clients), 'client')} sent"
    moving = [each.process for each in case.live() if each.progress]
    shared = any(set(its.listening) & set(process.listening) for its in moving)
    least = min(look.unaccepted for look in process.samples)
    if least and not shared:
        return f"does not accept {counted(least, 'connection')}"
    return ""


def _still_unread(process: Process) -> dict[str, float]:
    """Client -> bytes of it that lie unread throughout: at no look fewer than at the one before."""
    looks = [dict(look.unread) for look in process.samples]
    clients = set.intersection(*(set(look) for look in looks))
    pairs = list(itertools.pairwise(looks))
    return {
        client: looks[-1][client]
        for client in sorted(clients)
        if all(before[client] <= after[client] for before, after in pairs)
    }


def _clients(process: Process) -> str:
    clients = _still_unread(process)
    words = [f"{size:.0f} bytes of {client}" for client, size in list(clients.items())[:MOST_CLIENTS]]
    more = f" and of {len(clients) - MOST_CLIENTS} more" if len(clients) > MOST_CLIENTS else ""
    waiting = process.last_look.unaccepted
    unaccepted = [f"{counted(waiting, 'connection')} not accepted"] if waiting else []
    lie = f"{', '.join(words)}{more} lie unread" if words else ""
    return ", ".join(filter(None, (lie, *unaccepted)))
