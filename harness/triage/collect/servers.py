"""Servers beside a job: whoever listens at a port of this host to which a process of the job is connected, or has
accepted the connection and listens no more.

They are found by the kernel's tables, whatever they run: /proc/PID/net/tcp has the inode of a socket, /proc/PID/fd the
process that has it open.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from os import getpid

from harness.triage.collect import job, proc, roles
from harness.triage.collect.connections import Sockets, inodes

MAX_BESIDE = 64  # servers and their children that are looked at beside a job; an engine of 8 GPUs has about 20


def beside(pids: Collection[int], sockets: Sockets, table: Mapping[int, int]) -> tuple[int, ...]:
    """The servers that processes of a job are connected to, and all below them; without those of the job itself.

    `table`: pid -> parent of every visible process. Ranks of another job, Ray's own processes, harness, and whatever
    started the job or this process are left out.
    """
    serving = sockets.servers(pids)
    if not serving:
        return ()
    ignored = {*pids, *(above for pid in (*pids, getpid()) for above in job.ancestors(pid, table)), getpid()}
    owners = tuple(pid for pid in table if pid not in ignored and inodes(pid) & serving and not job.is_foreign(pid))
    below = (pid for pid in proc.descendants(owners, dict(table)) if pid not in ignored)
    return tuple(_worldless(below))[:MAX_BESIDE]


def _worldless(pids: Iterator[int]) -> Iterator[int]:
    for pid in pids:
        if not (job.meeting_of(pid) or roles.infrastructure(proc.arguments(pid))):
            yield pid
