"""What the dumps alone can say about who is to blame. It presumes a stall: whether there is one, they cannot know.

An operation waits for the members that have not enqueued it; these may themselves wait in another group, and so on to
the root. Only a rank at a root is a suspect: victims of victims are none. A cycle and an operation that everybody has
enqueued name nobody. Where operations differ at one sequence number, the side that is alone with its own is at fault.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from harness.triage.flight.compare import laggards, without_entry
from harness.triage.flight.model import Comparison, GroupState, Mismatch
from harness.triage.flight.operations import peers

HINTS = {
    "": "nothing waits",
    "mismatch": "ranks do different operations at one sequence number",
    "host": "a rank never enqueued what its peers wait for, and waits for nothing itself",
    "device": "a rank enqueued what its peers wait for, and its device does not get to it",
    "alone": "one rank waits in an operation that nobody else wants",
    "cycle": "ranks wait for each other in different groups",
    "wedge": "everybody has enqueued the operation, and it does not end",
    "insufficient": "the dumps that would tell are missing",
    "jobs": "the dumps are of several jobs",
}


class Opinion(NamedTuple):
    """`ranks`: suspects, empty where the dumps blame nobody. `hint`: a key of HINTS. `reason`: one sentence."""

    ranks: frozenset[int]
    hint: str
    reason: str


@dataclass(frozen=True)
class Blocked:
    """One operation that is not done. `on`: ranks that it waits for; empty: nobody in the dumps explains it.

    `why`: "host" (they have not enqueued it), "device" (they have, and their device does not get to it), "no dump",
    "unknown" (nobody recorded the group's members, or a ring has overflowed), "mismatch", "wedge" (all enqueued it).
    """

    state: GroupState
    seq: int
    op: str
    waiters: tuple[int, ...]
    on: tuple[int, ...]
    why: str

    def __str__(self) -> str:
        group = self.state.group
        desc = f" ({group.desc})" if group.desc not in ("", "undefined") else ""
        return f"{self.op} #{self.seq} of group {group.name}{desc}"


def blocked(comparison: Comparison) -> tuple[Blocked, ...]:
    """Every operation that is not done, with whom it waits for, whether or not these wait themselves."""
    return tuple(one for state in comparison.groups for one in (*_collectives(state), *_point_to_point(state)))


def suspects(comparison: Comparison) -> Opinion:
    """Who is to blame, as far as the dumps alone say."""
    if comparison.jobs > 1:
        return Opinion(frozenset(), "jobs", f"the dumps are of {comparison.jobs} jobs: compare each on its own")
    waits = blocked(comparison)
    if not waits:
        lacking = not comparison.ranks or not comparison.groups
        reason = "; ".join(comparison.missing) or "no dumps"
        return Opinion(frozenset(), "insufficient" if lacking else "", reason if lacking else "no operation is pending")
    differing = [(state, one) for state in comparison.groups for one in state.mismatches[:1] if _current(state, one)]
    if differing:
        return _of_mismatches(differing)
    return _of_roots(comparison, waits)


def odd_side(state: GroupState, mismatch: Mismatch) -> frozenset[int]:
    """The ranks that are wrong in a mismatch: not the majority; in a tie, not what is usual there; else by the two
    signals (completed less than its peers, or enqueued less); empty where none of these tells."""
    sides = sorted(mismatch.values.items(), key=lambda item: -len(item[1]))
    everybody = frozenset(rank for _, ranks in sides for rank in ranks)
    if 2 * len(sides[0][1]) > len(everybody):
        return everybody - set(sides[0][1])
    if mismatch.usual in mismatch.values:
        return everybody - set(mismatch.values[mismatch.usual])
    for signal in (laggards(state), without_entry(state)):
        for _, ranks in sides:
            if signal and signal == frozenset(ranks):
                return signal
    return frozenset()


def _collectives(state: GroupState) -> Iterator[Blocked]:
    first = min((one.seq for one in state.mismatches if _current(state, one)), default=None)
    pending: dict[int, list[int]] = {}
    for rank in state.waiting:
        pending.setdefault(state.ranks[rank].pending.seq, []).append(rank)  # type: ignore[union-attr]
    for seq, waiters in sorted(pending.items()):
        op = state.ranks[waiters[0]].pending.op  # type: ignore[union-attr]
        if first is not None and seq >= first:
            yield Blocked(
                state, seq, op, tuple(waiters), tuple(sorted(odd_side(state, state.mismatches[0]))), "mismatch"
            )
            continue
        on, why = _awaited(state, seq, waiters)
        yield Blocked(state, seq, op, tuple(waiters), on, why)


def _awaited(state: GroupState, seq: int, waiters: list[int]) -> tuple[tuple[int, ...], str]:
    behind = [rank for rank, one in state.ranks.items() if one.enqueued < seq]
    behind += [rank for rank in state.silent if rank not in state.unsure]
    if behind:
        return tuple(sorted(behind)), "host"
    if state.absent:
        return state.absent, "no dump"
    if not state.group.members or state.unsure:
        return (), "unknown"
    if len(state.group.members) == 1:
        return tuple(waiters), "device"  # it needs nobody else
    # Without timing NCCL never reports a start: only a difference between ranks says something.
    idle = [rank for rank in waiters if not state.ranks[rank].pending.started]  # type: ignore[union-attr]
    if idle and 2 * len(idle) <= len(state.ranks):
        return tuple(idle), "device"
    over = len(state.ranks) - len(waiters)  # the others have completed it
    if over > len(waiters):
        return tuple(waiters), "device"
    return (), "wedge"


def _point_to_point(state: GroupState) -> Iterator[Blocked]:
    wanted: Counter[tuple[int, int, str]] = Counter()
    for many in state.p2p.values():
        for one in many:
            ends = peers(one.op)
            if ends:
                wanted[(*ends, one.op.partition(" ")[0])] += 1
    members = state.group.members
    for rank, many in state.p2p.items():
        one = many[0]
        ends = peers(one.op)
        if ends is None:
            continue
        sending = one.op.startswith("send")
        place = ends[1] if sending else ends[0]
        if place >= len(members):
            yield Blocked(state, one.seq, one.op, (rank,), (), "unknown")
        elif members[place] in state.absent:
            yield Blocked(state, one.seq, one.op, (rank,), (members[place],), "no dump")
        elif wanted[(*ends, "recv" if sending else "send")]:
            yield Blocked(state, one.seq, one.op, (rank,), (), "wedge")
        else:
            yield Blocked(state, one.seq, one.op, (rank,), (members[place],), "host")


def _current(state: GroupState, mismatch: Mismatch) -> bool:
    """Somebody still waits at the mismatch or behind it: otherwise it went through and explains no stall."""
    return any(one.pending is not None and one.pending.seq >= mismatch.seq for one in state.ranks.values())


def _of_mismatches(differing: list[tuple[GroupState, Mismatch]]) -> Opinion:
    told = [(state, one, odd_side(state, one)) for state, one in differing]
    named = [item for item in told if item[2]]
    state, one, _ = (named or told)[0]
    sides = "; ".join(
        f"{_ranks(ranks)}: {value}" for value, ranks in sorted(one.values.items(), key=lambda i: -len(i[1]))
    )
    where = f"at #{one.seq} of group {state.group.name} ranks differ in {one.field} ({sides})"
    if not named:
        return Opinion(frozenset(), "mismatch", f"{where}, and the dumps do not say which side is wrong")
    return Opinion(frozenset().union(*(ranks for _, _, ranks in named)), "mismatch", where)


def _of_roots(comparison: Comparison, waits: tuple[Blocked, ...]) -> Opinion:
    graph: dict[Hashable, list[Hashable]] = {}
    for number, one in enumerate(waits):
        node = ("op", number)
        graph[node] = [("rank", rank) for rank in one.on]
        stalled = set(one.on) if one.why == "device" else set()
        for rank in one.waiters:
            if rank not in stalled:
                graph.setdefault(("rank", rank), []).append(node)
    ends = [component for component in components(graph) if _is_end(component, graph)]
    for component in ends:
        ring = sorted(node[1] for node in component if node[0] == "rank")  # type: ignore[index]
        if len(component) > 1:
            places = [str(waits[node[1]]) for node in component if node[0] == "op"]  # type: ignore[index]
            return Opinion(
                frozenset(), "cycle", f"ranks {_ranks(ring)} wait for each other: {', '.join(sorted(places))}"
            )
    roots = frozenset(node[1] for [node] in ends if node[0] == "rank")  # type: ignore[index]
    with_dump = roots & set(comparison.ranks)
    if with_dump:
        return _of_ranks(with_dump, waits)
    if roots:
        one = next(one for one in waits if roots & set(one.on))
        return Opinion(frozenset(), "insufficient",
                       f"no recorder data from rank {_ranks(sorted(roots))}, for which {one} waits")  # fmt: skip
    open_ends = [waits[node[1]] for [node] in ends]  # type: ignore[index]
    unknown = [one for one in open_ends if one.why == "unknown"]
    if unknown:
        where = f"{unknown[0]} is not done on {_ranks(unknown[0].waiters)}"
        return Opinion(frozenset(), "insufficient", f"{where}, and who else should take part is not known")
    one = open_ends[0]
    return Opinion(frozenset(), "wedge", f"{one} was enqueued by all its ranks and does not end: nobody is behind")


def _of_ranks(roots: frozenset[int], waits: tuple[Blocked, ...]) -> Opinion:
    direct = [one for one in waits if roots & set(one.on)]
    one = min(direct, key=lambda one: (len(one.on), -len(one.waiters)))  # the one that they alone hold up
    if len(direct) == 1 and len(one.waiters) == 1 and len(one.on) > 1 and one.why == "host" and roots == set(one.on):
        others = f"ranks {_ranks(one.on)} have not enqueued it and wait for nothing"
        return Opinion(frozenset(one.waiters), "alone", f"rank {one.waiters[0]} alone waits in {one}: {others}")
    verb = "enqueued" if one.why == "host" else "started"
    return Opinion(roots, one.why, f"rank {_ranks(sorted(roots & set(one.on)))} has not {verb} {one}, for which "
                   f"{_ranks(one.waiters)} wait, and waits for nothing itself")  # fmt: skip


def _is_end(component: list[Hashable], graph: Mapping[Hashable, list[Hashable]]) -> bool:
    inside = set(component)
    return all(target in inside for node in component for target in graph.get(node, ()))


def components(graph: Mapping[Hashable, list[Hashable]]) -> list[list[Hashable]]:
    """Strongly connected components (Tarjan 1972), without recursion: a thousand ranks deep is nothing unusual."""
    index: dict[Hashable, int] = {}
    low: dict[Hashable, int] = {}
    stack: list[Hashable] = []
    inside: set[Hashable] = set()
    found: list[list[Hashable]] = []
    for root in list(graph):
        if root in index:
            continue
        work = [(root, iter(graph.get(root, ())))]
        index[root] = low[root] = len(index)
        stack.append(root)
        inside.add(root)
        while work:
            node, targets = work[-1]
            target = next(targets, None)
            if target is None:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    cut = stack.index(node)
                    found.append(stack[cut:])
                    inside.difference_update(stack[cut:])
                    del stack[cut:]
            elif target not in index:
                index[target] = low[target] = len(index)
                stack.append(target)
                inside.add(target)
                work.append((target, iter(graph.get(target, ()))))
            elif target in inside:
                low[node] = min(low[node], index[target])
    return found


def _ranks(ranks: Iterable[int]) -> str:
    listed = list(ranks)
    return ", ".join(map(str, listed[:8])) + (f", ... ({len(listed)} in all)" if len(listed) > 8 else "")
