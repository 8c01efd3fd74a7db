"""A world in which everybody waits: whoever is meant by a wait that no recorder holds, he waits too.

A receive and a monitored barrier are in no recorder, so nothing says for whom they wait. Where every rank of the world
was looked at over a stall, and each of them stands in a collective or in a point-to-point operation, that does not
matter: there is nobody left to come.
"""

from __future__ import annotations

from harness.triage.graph import Subject
from harness.triage.graph.motion import over_net
from harness.triage.graph.worlds import same_world
from harness.triage.rules.ruling import Case, Ruling

MAX_SHOWN = 16  # ranks, each with its operation
BETWEEN = ("collective", "p2p")


def closed(case: Case) -> Ruling | None:
    """K2: all ranks of a world wait for ranks of it, some of them in what no recorder holds. Nobody is named."""
    if not case.evidence.stall_s:  # one look: a transfer may be on its way
        return None
    lost = [one for one in case.live() if one.rank is not None and one.pending is None and one.doing.kind in BETWEEN]
    for one in lost:
        world = [other for other in case.graph.subjects.values() if other.rank is not None and _alike(one, other)]
        size = one.process.world_size if one.process else None
        if size is None or size < 2 or {other.rank for other in world} != set(range(size)):
            continue
        if not all(map(_waits, world)) or _begins(case, world):
            continue
        told = "; ".join(f"{other.label} in {_operation(other)}" for other in world[:4])
        return Ruling(
            "HUNG",
            "every rank of the world waits for another one, and nobody is left to come",
            "K2",
            evidence=tuple(f"{other.label} in {_operation(other)}" for other in world[:MAX_SHOWN]),
            cycle=tuple(other.key for other in world),
            place=told,
            next=(
                "compare the operations of the ranks at this place: each send needs its receive, in one order",
                "TORCH_DISTRIBUTED_DEBUG=DETAIL",
            ),
        )
    return None


def _begins(case: Case, world: list[Subject]) -> bool:
    """No operation was recorded yet, and they talk over TCP: NCCL makes the communicator of the first one."""
    none = bool(case.groups) and not any(group.ranks for group in case.groups)
    return none and any(one.process is not None and over_net(one.process) for one in world)


def _alike(one: Subject, other: Subject) -> bool:
    return other is one or same_world(one.process, other.process)


def _waits(one: Subject) -> bool:
    """By its own stack, at both looks, in an operation of torch.distributed, and it does not move."""
    still = one.doing.kind in BETWEEN and one.before.kind in BETWEEN
    return one.seen and still and not (one.progress or one.blocked or one.gone)


def _operation(one: Subject) -> str:
    where = f", {one.frame}" if one.frame else ""
    return (f"{one.pending.op} #{one.pending.seq}" if one.pending else one.doing.op) + where
