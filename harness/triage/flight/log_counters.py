"""Counters that lines of a log give, beside flight recorder dumps of the same job.

A rank whose process was killed, or whose interpreter lock is held, writes no dump, and its watchdog often still wrote a
line. Such lines stand in for the dump that is missing. They never replace one, and they are used only if nothing in
them contradicts the dumps: a log may be of another job, or of an earlier attempt.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from harness.triage.evidence import Group
from harness.triage.flight.compare import compare
from harness.triage.flight.flight import Flight
from harness.triage.flight.loading import Flights
from harness.triage.flight.mismatches import named
from harness.triage.flight.model import Comparison, GroupState, RankState
from harness.triage.flight.operations import Kind, signature

OF_LOG = "lines of a log: "  # begins the name of a dump that holds what a log says; no file is called so
NO_GROUPS = "lines about timeouts were not used: the dumps beside them have no group with members to compare them with"


def numbered(flight: Flight) -> Flight:
    """Counters of a log with the group that each number means. The groups of a rank are numbered as they are listed."""
    return replace(flight, handles={str(at): group.name for at, group in enumerate(flight.config)} | flight.handles)


def compared(recorded: Flights, logged: Mapping[str, Flight], memberships: Iterable[Group]) -> Comparison:
    """Compare dumps, together with what a log says of ranks without one, as far as it fits."""
    groups = tuple(memberships)
    comparison = compare(recorded, groups, strays=True)
    states = {state.group.name: state for state in comparison.groups if state.group.members}
    if comparison.jobs > 1 or not states:
        return replace(comparison, missing=(*comparison.missing, NO_GROUPS))
    claims = [claim for flight in logged.values() for claim in _claims(flight)]
    if contradiction := next(filter(None, (_contradiction(claim, states, comparison) for claim in claims)), ""):
        return replace(comparison, contradiction=contradiction)
    confirmed = any(claim.rank in comparison.ranks for claim in claims)
    fitting: dict[int, list[_Claim]] = {}
    for claim in claims:
        if claim.rank not in comparison.ranks and claim.group in states and (confirmed or _is_bounded(claim, states)):
            fitting.setdefault(claim.rank, []).append(claim)
    if not fitting:
        return comparison
    series = next((flight.series for flight in recorded.values() if flight.rank is not None), "")
    named_flights = {name: _fitted(flight, fitting[flight.rank], states, series)
                     for name, flight in logged.items() if flight.rank in fitting}  # fmt: skip
    together = Flights({**recorded, **named_flights})
    together.notes, together.left_out = recorded.notes, recorded.left_out
    merged = compare(together, groups, strays=True)
    note = f"by lines of a log, without a dump: {', '.join(f'rank {rank}' for rank in sorted(fitting))}"
    return replace(merged, missing=(*merged.missing, note))


@dataclass(frozen=True)
class _Claim:
    """What a log says of one rank in one group. `pending`: the operation that timed out, if a line names one."""

    rank: int
    group: str
    desc: str
    enqueued: int
    completed: int
    pending: Kind | None = None
    seq: int = -1

    @property
    def words(self) -> str:
        if self.pending is not None:
            return f"in {self.pending.op} #{self.seq}"
        return f"at #{self.completed} of #{self.enqueued}"


def _claims(flight: Flight) -> Iterator[_Claim]:
    """What a log says of a rank, group by group."""
    assert flight.rank is not None
    pending = {flight.groups[number].name: row for row, number in enumerate(flight.group)}
    descriptions = {group.name: group.desc for group in (*flight.config, *flight.groups)}
    standing = flight.standing()
    for name in sorted({*pending, *standing}):
        status, row = standing.get(name), pending.get(name)
        seq = flight.seq[row] if row is not None else -1
        yield _Claim(
            flight.rank,
            name,
            descriptions.get(name, ""),
            enqueued=max(status.enqueued if status else -1, seq),
            completed=status.completed if status else seq - 1,
            pending=flight.kinds[flight.kind[row]] if row is not None else None,
            seq=seq,
        )


def _contradiction(claim: _Claim, states: Mapping[str, GroupState], comparison: Comparison) -> str:
    """How a log contradicts the dumps, in words; empty if it may be of their job and moment."""
    size = comparison.world_size
    if size and claim.rank >= size:
        return f"the log has a rank {claim.rank:,}, and the dumps are of {size:,} ranks"
    state = states.get(claim.group)
    if state is None:
        return ""
    if claim.rank not in state.group.members:
        return f"the log has rank {claim.rank} in group {named(state.group)}, and by the dumps it is no member"
    if claim.desc and state.group.desc and claim.desc != state.group.desc:
        return f"group {claim.group} is {claim.desc} in the log and {state.group.desc} in the dumps"
    dumped = state.ranks.get(claim.rank)
    if dumped is None:
        return "" if _may_be(claim, state) else f"by the log rank {claim.rank} is {claim.words}, {_span(state)}"
    if _agrees(claim, dumped):
        return ""
    return f"rank {claim.rank} is {_standing(dumped)} by its dump, and {claim.words} by the log"


def _standing(state: RankState) -> str:
    pending = state.pending
    return f"in {pending.op} #{pending.seq}" if pending else f"at #{state.completed} of #{state.enqueued}"


def _span(state: GroupState) -> str:
    enqueued = max(peer.enqueued for peer in state.ranks.values())
    return f"and by the dumps its group has got to #{enqueued}"


def _agrees(claim: _Claim, dumped: RankState) -> bool:
    """Whether dump and lines of a rank may be of one moment: what each counts as under way overlaps, and what both say
    is pending is the same."""
    if claim.completed > dumped.enqueued or dumped.completed > claim.enqueued:
        return False
    pending = dumped.pending
    if claim.pending is None or pending is None:
        return claim.pending is None or claim.seq <= dumped.enqueued
    return claim.seq == pending.seq and _is_same_operation(claim.pending.op, pending.op)


def _is_same_operation(op: str, other: str) -> bool:
    """Whether two names may mean one operation. A coalesced one is named after its parts in a dump alone."""
    plain, other_plain = (name.lower().replace("_", "") for name in (op, other))
    return plain == other_plain or "coalesced" in f"{plain} {other_plain}" or other == "a collective"


def _least(state: GroupState) -> int:
    """The last operation that ended for a peer and ends for no rank before all have come: every rank enqueued it."""
    return max((peer.joint for peer in state.ranks.values()), default=-1)


def _may_be(claim: _Claim, state: GroupState) -> bool:
    """Whether a rank without a dump can stand there: its peers could not be where they are otherwise."""
    furthest = max((peer.enqueued for peer in state.ranks.values()), default=-1)
    return claim.enqueued >= _least(state) and claim.completed <= furthest


def _is_bounded(claim: _Claim, states: Mapping[str, GroupState]) -> bool:
    """Whether the dumps of others bound where this rank can be, so that lines of another job would hardly fit."""
    return _least(states[claim.group]) >= 0


def _fitted(flight: Flight, claims: Iterable[_Claim], states: Mapping[str, GroupState], series: str) -> Flight:
    """The counters of a log as part of the dumps: with their groups, and of the same operation its sizes and types,
    which a log does not have. Whether an operation began on the device is not known, so it is not said."""
    used = {claim.group for claim in claims}
    kept = flight.without({group.name for group in flight.groups} - used)
    groups = tuple(states[group.name].group if group.name in used else group for group in flight.groups)
    kinds = list(flight.kinds)
    for claim in claims:
        if claim.pending is not None:
            kinds[flight.kinds.index(claim.pending)] = _like_peers(claim, states[claim.group])
    return replace(
        kept,
        series=series,
        world_size=None,
        mentioned=(),
        config=(),
        groups=groups,
        kinds=tuple(kinds),
        started=b"\1" * len(kept),
        backend=next((states[name].group.backend for name in sorted(used)), flight.backend),
        status={number: status for number, status in flight.status.items() if flight.handles.get(number) in used},
    )


def _like_peers(claim: _Claim, state: GroupState) -> Kind:
    """The pending operation of a claim as the dumps have it, if it may be the same one."""
    assert claim.pending is not None
    for part in state.shares.values():
        its = part.at(claim.seq)
        if its is None or not _is_same_operation(claim.pending.op, its.op):
            continue
        if _elements(claim.pending) in ((), _elements(its)):
            return its
        return claim.pending._replace(op=its.op, input_dtypes=its.input_dtypes, output_dtypes=its.output_dtypes)
    return claim.pending


def _elements(kind: Kind) -> tuple[int, ...]:
    """How many elements an operation has on the side that all ranks share; empty if nothing says it."""
    numels = signature(kind).numels
    return (sum(numels),) if numels else ()
