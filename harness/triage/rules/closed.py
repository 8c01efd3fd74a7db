"""Rule about a world in which every rank waits: whichever rank a wait is for, that rank waits too.

No recorder holds a receive or a monitored barrier, so nothing says for whom they wait. That does not matter if every
rank of the world was watched over a stall and each stands in a collective or a point-to-point operation. Then no rank
is left that could come.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from harness.triage.graph import Subject
from harness.triage.graph.motion import BETWEEN_RANKS, over_net
from harness.triage.graph.worlds import same_world
from harness.triage.rules import standing
from harness.triage.rules.escapes import escaped
from harness.triage.rules.ruling import Case, Ruling

NOBODY_LEFT = "nobody is left to come"  # and who stands where
MAX_SHOWN = 16  # ranks that the verdict lists with their operations


def closed(case: Case) -> Ruling | None:
    """K2: all ranks of a world wait for ranks of that world, some of them in operations that no recorder holds.
    Nobody is named."""
    if not case.evidence.stall_s:  # one look cannot tell a hang from a transfer on its way
        return None
    lost = [
        subject
        for subject in case.live()
        if subject.rank is not None and subject.pending is None and subject.doing.kind in BETWEEN_RANKS
    ]
    for waiter in lost:
        world = [peer for peer in case.graph.subjects.values() if peer.rank is not None and _shares_world(waiter, peer)]
        size = waiter.process.world_size
        if size is None or size < 2 or {member.rank for member in world} != set(range(size)):
            continue
        if not all(map(_waits, world)) or _begins(case, world):
            continue
        if by_error := escaped(case, standing.places_of(world)):
            return by_error if by_error.culprits else replace(by_error, cycle=cycle(case, world))
        waiting = {member.key: _operation(member) for member in world}
        operation_text = "; ".join(f"{member.label} in {_operation(member)}" for member in world[:4])
        return Ruling(
            "HUNG",
            f"{NOBODY_LEFT}: {standing.headline(standing.places_of(world), 2)}",
            "K2",
            evidence=tuple(f"{member.label} in {_operation(member)}" for member in world[:MAX_SHOWN]),
            cycle=cycle(case, world),
            waiting=waiting,
            place=operation_text,
            next=(
                "compare the operations of the ranks at this place: each send needs its receive, in one order",
                "TORCH_DISTRIBUTED_DEBUG=DETAIL COMMAND   # compares operations as they are enqueued",
            ),
        )
    return None


def cycle(case: Case, world: Sequence[Subject]) -> tuple[str, ...]:
    """The cycle that the evidence shows among ranks that all wait for one of their world, and of which none is missing.

    In a world of two each can wait for the other one alone.
    """
    members = tuple(member.key for member in world)
    return next((ring for ring in case.graph.cycles if set(ring) <= set(members)), members if len(world) == 2 else ())


def _begins(case: Case, world: list[Subject]) -> bool:
    """Whether no operation was recorded yet and ranks exchange TCP data: NCCL sets up the communicator for the first
    one."""
    none = bool(case.groups) and not any(group.ranks for group in case.groups)
    return none and any(over_net(member.process) for member in world)


def _shares_world(subject: Subject, peer: Subject) -> bool:
    return peer is subject or same_world(subject.process, peer.process)


def _waits(subject: Subject) -> bool:
    """Whether its own stack shows it in an operation of torch.distributed at both looks, and it does not move."""
    still = subject.doing.kind in BETWEEN_RANKS and subject.before.kind in BETWEEN_RANKS
    return subject.observed and still and subject.rests


def _operation(subject: Subject) -> str:
    where = f", {subject.frame}" if subject.frame else ""
    return (f"{subject.pending.op} #{subject.pending.seq}" if subject.pending else subject.doing.op) + where
