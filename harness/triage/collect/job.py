"""Which processes of this host are one job, from the pid of any of them: a rank, a launcher, a worker, a server beside.

Ranks of one job meet at one place, which their launcher sets in their environment. From the given process upwards, a
parent belongs to the job if it is a launcher, if it forked the process, or if it is of the same process group and all
ranks below it meet at one place: the script that starts a server and the ranks. A parent with ranks of several jobs
below it, such as a sweep, belongs to none.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from os import getpid

from harness.triage.collect import proc, roles

_SPAWNED = re.compile(r"multiprocessing\.(spawn|forkserver) import|--multiprocessing-fork")
_HARNESS = re.compile(r"(^|/)harness$|^harness\.entry$")
Meeting = tuple[str, ...]


def roots(pid: int, table: Mapping[int, int]) -> tuple[int, ...]:
    """Return processes of which all processes of the job on this host are descendants. For a process of which nothing
    says to which job it belongs, itself.

    `table`: pid -> parent of every visible process.
    """
    if pid not in table:
        return (pid,)
    tree = dict(table)
    top, meeting = _top(pid, tree)
    if not meeting:
        return (top,)
    below = set(proc.descendants((top,), tree))
    peers = (other for other in sorted(tree) if other not in below and meeting_of(other) == meeting)
    return (top, *dict.fromkeys(_top(peer, tree)[0] for peer in peers))


def _top(pid: int, table: dict[int, int]) -> tuple[int, Meeting]:
    """The highest process above `pid` that belongs to its job, and where the ranks of the job meet, if it has any."""
    top, meetings = pid, _meetings(pid, table)
    for parent in _above(pid, table):
        above = _meetings(parent, table)
        if len(above) > 1:
            break
        if above or (top == pid and (_is_part(pid, parent) or _is_launcher(parent))):
            top, meetings = parent, above
        pid = parent
    return top, next(iter(meetings)) if len(meetings) == 1 else ()


def _above(pid: int, table: dict[int, int]) -> Iterator[int]:
    """The parents of a process that its command line started, nearest first."""
    ours = set(ancestors(getpid(), table))
    for parent in ancestors(pid, table):
        started = _is_part(pid, parent) or _is_launcher(parent) or proc.process_group(parent) == proc.process_group(pid)
        if parent in ours or not started or is_foreign(parent):
            return
        yield parent
        pid = parent


def ancestors(pid: int, table: Mapping[int, int]) -> Iterator[int]:
    """The processes above one, nearest first."""
    while (pid := table.get(pid, 0)) > 0:
        yield pid


def _meetings(root: int, table: dict[int, int]) -> set[Meeting]:
    """Where ranks meet that are below a process, itself included."""
    return {meeting for pid in proc.descendants((root,), table) if (meeting := meeting_of(pid))}


def meeting_of(pid: int) -> Meeting:
    """Where the ranks of a process's job meet; empty for a process that no launcher made a rank of several."""
    environ = proc.environment(pid)
    if "RANK" in environ and environ.get("MASTER_PORT"):
        if environ.get("WORLD_SIZE", "1") == "1":
            return ()
        return tuple(environ.get(name, "") for name in ("MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE"))
    if environ.get("OMPI_COMM_WORLD_SIZE", "1") != "1":
        return ("mpi", environ.get("PMIX_NAMESPACE", "") or environ.get("OMPI_MCA_orte_hnp_uri", ""))
    if environ.get("SLURM_STEP_NUM_TASKS", "1") != "1":
        return ("slurm", environ.get("SLURM_JOB_ID", ""), environ.get("SLURM_STEP_ID", ""))
    return ()


def _is_part(pid: int, parent: int) -> bool:
    """Whether a process runs the program of its parent: forked, or spawned by multiprocessing."""
    return any(map(_SPAWNED.search, proc.arguments(pid)[1:5])) or proc.forked(pid, parent)


def _is_launcher(pid: int) -> bool:
    return roles.role_of(proc.facts(pid)) == "launcher"


def is_foreign(pid: int) -> bool:
    """Whether it is a process of Ray itself, whose cluster is found otherwise, or of harness."""
    argv = proc.arguments(pid)
    return roles.infrastructure(argv) or any(map(_HARNESS.search, argv[:3]))
