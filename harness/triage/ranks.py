"""Which process is a rank, if several claim the same number in one world.

RANK is inherited: by a loader's workers, a logger's daemon, a server or an engine that a rank starts. A shell has it
before the program that it runs. A child is recognised by its parent if the parent was seen. A child that was let go
outlives its parent, and looks like a second rank that stands still, or like a new attempt of a rank that died.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

from harness.triage.evidence import Evidence, Process
from harness.triage.graph.edges import RESTART_S
from harness.triage.graph.subjects import ended
from harness.triage.graph.worlds import LOCAL_ADDRESSES, MEETING, met_at, same_world, world

MOST_RANKS = 4096  # ranks of a world on one host whose ended ones are looked for
LAUNCH_S = 10.0  # chosen: a launcher starts all its ranks within a second, on a busy host within some


def without_inherited(evidence: Evidence) -> Evidence:
    """The same evidence, in which only the process that is the rank itself has the number.

    Of two processes that lived at the same time, the one with more evidence for its rank keeps it: it took part in
    groups; else its probe calls it a rank; else its parent started another rank of the world too; else its environment
    does. With equal evidence the one that started first keeps it. Attempts of one rank follow each other in time, and
    all keep it. A dump found for an heir belongs to its rank, because NCCL names the file by RANK.
    """
    claims: dict[tuple[object, ...], list[Process]] = {}
    for process in evidence.processes:
        # Only processes that met at an address can claim the same place. A Ray worker is a child of its raylet, and
        # inherits nothing from a rank.
        if process.rank is not None and met_at(process) and not process.title.startswith("ray::"):
            place = process.host, process.rank, process.world_size, met_at(process)
            claims.setdefault(place, []).append(process)
    beside = _beside_ranks(claims)
    heirs = _forked(evidence)
    for claimants in claims.values():
        heirs |= {heir.key for heir in _heirs(claimants, beside)}
    if not heirs:
        return evidence
    return replace(
        evidence,
        processes=tuple(
            replace(process, rank=None, world_size=None, dump="", dump_taken_ns=None)
            if process.key in heirs
            else process
            for process in evidence.processes
        ),
    )


def _beside_ranks(claims: Mapping[tuple[object, ...], list[Process]]) -> frozenset[str]:
    """Keys of processes whose parent also started another rank of their world, as a launcher does.

    A child that a rank of an earlier job let go has that job's number and address, and no such parent.
    """
    ranks: dict[tuple[object, ...], set[int | None]] = {}
    started: dict[str, tuple[object, ...]] = {}
    for (host, _, world_size, address), claimants in claims.items():
        for process in claimants:
            if process.ppid > 1:
                started[process.key] = host, process.ppid, world_size, address
                ranks.setdefault(started[process.key], set()).add(process.rank)
    return frozenset(key for key, start in started.items() if len(ranks[start]) > 1)


def _forked(evidence: Evidence) -> set[str]:
    """Keys of children that have their parent's rank and no more evidence for it than the parent.

    A process that ended has no environment left that says where its world meets, but its journal names its parent.
    """
    ranked = {process.key: process for process in evidence.processes if process.rank is not None}
    return {
        process.key
        for process in ranked.values()
        if (parent := ranked.get(f"{process.host}:{process.ppid}")) is not None and parent is not process
        if parent.rank == process.rank
        and parent.world_size in (None, process.world_size)
        and _rank_evidence(parent) >= _rank_evidence(process)
    }


def _heirs(claims: Iterable[Process], beside: Collection[str]) -> list[Process]:
    """Those that only inherited the rank. They are compared with holders only: an heir proves nothing against
    others. `beside`: of `_beside_ranks`."""
    holders: list[Process] = []
    heirs: list[Process] = []

    def evidence_of(process: Process) -> tuple[int, bool]:
        return _rank_evidence(process), process.key in beside

    for claimant in sorted(claims, key=lambda each: (evidence_of(each), each.age_s), reverse=True):
        inherits = any(
            _met(claimant, holder) and (evidence_of(holder) > evidence_of(claimant) or _began_later(claimant, holder))
            for holder in holders
        )
        (heirs if inherits else holders).append(claimant)
    return heirs


def _began_later(process: Process, holder: Process) -> bool:
    # ranks of one launcher, even a rank that was started twice by mistake, start within a second
    return process.age_s > 0 and holder.age_s > process.age_s + RESTART_S


def _rank_evidence(process: Process) -> int:
    """The evidence of a process for its rank: 2 groups that contain it, 1 its probe says it, 0 only its environment."""
    groups = process.journal.groups if process.journal else ()
    counted = process.beat.sequences if process.beat else {}
    if any(process.rank in group.members for group in groups) or any(counted.values()):
        return 2
    return int(process.is_recorded)


def _met(process: Process, peer: Process) -> bool:
    """Whether both are known to have lived at the same time, in the same attempt of their rank."""
    attempts = {_attempt(process), _attempt(peer)} - {""}
    if len(attempts) > 1:
        return False
    return all(a.age_s >= _since_end_s(b) + RESTART_S or not ended(b) for a, b in ((process, peer), (peer, process)))


def _attempt(process: Process) -> str:
    return process.environ.get("TORCHELASTIC_RESTART_COUNT", "")


def _since_end_s(process: Process) -> float:
    """Seconds since the last heartbeat or journal line of a process; infinity without either."""
    ages = [process.beat.age_s] if process.beat else []
    ages += [process.journal.last_age_s] if process.journal else []
    return min(ages, default=math.inf)


def with_ended_ranks(evidence: Evidence) -> Evidence:
    """The same evidence, in which processes that ended are the ranks that are missing among their parent's children.

    A process that has ended keeps no environment, so it says itself of no rank. It was one if its parent started the
    other ranks of a world on one host, and just as many of that parent's children have ended as ranks are missing.
    Launchers start ranks in order, so the order of pids says which is which, or, where it does not rise with the ranks
    that are known, that one of these was no rank.
    """
    launched: dict[tuple[object, ...], list[Process]] = {}
    for process in evidence.processes:
        if process.rank is not None and process.ppid > 1 and _is_on_one_host(process):
            launched.setdefault((process.host, process.ppid, world(process)), []).append(process)
    ended_ranks: dict[str, Process] = {}
    for siblings in launched.values():
        ended_ranks |= _ended_beside(siblings, evidence)
    return replace(evidence, processes=tuple(ended_ranks.get(process.key, process) for process in evidence.processes))


def _is_on_one_host(process: Process) -> bool:
    """Whether all ranks of a process's world are on its host, by its environment."""
    local_size = process.environ.get("LOCAL_WORLD_SIZE", "")
    is_local = process.environ.get("MASTER_ADDR", "") in LOCAL_ADDRESSES if not local_size else False
    return is_local or local_size == str(process.world_size)


def _ended_beside(siblings: list[Process], evidence: Evidence) -> dict[str, Process]:
    """Key -> process with its rank, for the children of the siblings' parent that ended as the missing ranks."""
    first = siblings[0]
    taken = {process.rank for process in evidence.processes if process.rank is not None and same_world(process, first)}
    size = min(first.world_size or 0, MOST_RANKS)
    missing = [rank for rank in range(size) if rank not in taken]
    nameless = [process for process in evidence.processes if _is_nameless(process, siblings)]
    if not missing or len(missing) != len(nameless):
        return {}
    nameless.sort(key=lambda process: process.pid)
    meeting = {name: first.environ[name] for name in MEETING if name in first.environ}
    ended_ranks = [
        replace(process, rank=rank, world_size=first.world_size, engine=first.engine, environ=meeting)
        for process, rank in zip(nameless, missing, strict=True)
    ]
    in_order = sorted((*siblings, *ended_ranks), key=lambda process: process.pid)
    ranks = [process.rank or 0 for process in in_order]
    return {process.key: process for process in ended_ranks} if ranks == sorted(ranks) else {}


def _is_nameless(process: Process, siblings: list[Process]) -> bool:
    """Whether a process ended, says of no rank, and was started by the parent of these ranks when they were."""
    first = siblings[0]
    is_ended = process.last_look.state == "Z" and process.rank is None and not process.is_recorded
    started_s = max(abs(process.age_s - sibling.age_s) for sibling in siblings)
    return is_ended and (process.host, process.ppid) == (first.host, first.ppid) and started_s < LAUNCH_S
