"""Which process is a rank, where several claim one number of one world.

RANK is inherited: by a loader's workers, a logger's daemon, a server or an engine that a rank starts, and a shell has
it before the program that it runs. A child whose parent is seen is told by that parent; one that was let go outlives
it, and looks like a second rank that stands still, or like a new attempt of one that died.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace

from harness.triage.evidence import Evidence, Process
from harness.triage.graph.edges import RESTART_S
from harness.triage.graph.subjects import ended
from harness.triage.graph.worlds import met_at


def without_inherited(evidence: Evidence) -> Evidence:
    """The same evidence, in which a number is held by who has it of itself.

    Of two that lived at the same time, that is the one with more to show for it: it took part in groups, its probe
    calls it a rank, its environment does; of two with as much, the one that was started first. Attempts of one rank
    follow each other, and all keep it. A dump that an heir found is its rank's: NCCL names the file by RANK.
    """
    claims: dict[tuple[object, ...], list[Process]] = {}
    for process in evidence.processes:
        if process.rank is not None and met_at(process) and not process.title.startswith("ray::"):
            place = process.host, process.rank, process.world_size, met_at(process)
            claims.setdefault(place, []).append(process)
    heirs = {heir.key for claimants in claims.values() if len(claimants) > 1 for heir in _heirs(claimants)} | _forked(
        evidence
    )
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


def _forked(evidence: Evidence) -> set[str]:
    """Children of a process that has their rank and no less to show for it. One that ended has no environment left
    that says where its world meets; its journal knows its parent."""
    ranked = {process.key: process for process in evidence.processes if process.rank is not None}
    return {
        process.key
        for process in ranked.values()
        if (parent := ranked.get(f"{process.host}:{process.ppid}")) is not None and parent is not process
        if parent.rank == process.rank
        and parent.world_size in (None, process.world_size)
        and _rank_evidence(parent) >= _rank_evidence(process)
    }


def _heirs(claims: Iterable[Process]) -> list[Process]:
    """Those of them that only inherited it. An heir leaves nothing to others: who it is, is asked of the rest."""
    holders: list[Process] = []
    heirs: list[Process] = []
    for claimant in sorted(claims, key=lambda each: (-_rank_evidence(each), -each.age_s)):
        destination = heirs if any(_inherits(claimant, holder) for holder in holders) else holders
        destination.append(claimant)
    return heirs


def _inherits(process: Process, holder: Process) -> bool:
    if not _met(process, holder):
        return False
    if _rank_evidence(holder) != _rank_evidence(process):
        return _rank_evidence(holder) > _rank_evidence(process)
    # ranks that one launcher starts, twice by mistake too, begin within a second
    return process.age_s > 0 and holder.age_s > process.age_s + RESTART_S


def _rank_evidence(process: Process) -> int:
    """What a process has to show for its rank: 2 groups with it, 1 its probe's word, 0 its environment."""
    groups = process.journal.groups if process.journal else ()
    counted = process.beat.sequences if process.beat else {}
    if any(process.rank in group.members for group in groups) or any(counted.values()):
        return 2
    return int(process.beat is not None or process.journal is not None)


def _met(process: Process, peer: Process) -> bool:
    """Whether both are known to have lived at the same time, in one attempt of their rank."""
    attempts = {_attempt(process), _attempt(peer)} - {""}
    if len(attempts) > 1:
        return False
    return all(a.age_s >= _since_end_s(b) + RESTART_S or not ended(b) for a, b in ((process, peer), (peer, process)))


def _attempt(process: Process) -> str:
    return process.environ.get("TORCHELASTIC_RESTART_COUNT", "")


def _since_end_s(process: Process) -> float:
    """Seconds since the last word of a process that has ended; infinite where it left none."""
    ages = [process.beat.age_s] if process.beat else []
    ages += [process.journal.last_age_s] if process.journal else []
    return min(ages, default=math.inf)
