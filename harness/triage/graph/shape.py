"""Where waiting ends: strongly connected components without an edge that leaves them (Tarjan 1972, without
recursion)."""

from __future__ import annotations

from collections.abc import Iterable


def components(edges: Iterable[tuple[str, str]]) -> tuple[list[str], list[list[str]]]:
    """Return (sinks, cycles) of a graph of (waiter, target) edges.

    Sinks are nodes that wait for nobody. Cycles are rings of nodes that wait for nobody outside the ring, each in
    order.
    """
    after: dict[str, list[str]] = {}
    for waiter, target in edges:
        after.setdefault(waiter, [])
        after.setdefault(target, [])
        if target not in after[waiter]:
            after[waiter].append(target)
    sinks, cycles = [], []
    for members in _strong(after):
        inside = set(members)
        if any(target not in inside for member in members for target in after[member]):
            continue
        if len(members) > 1 or members[0] in after[members[0]]:
            cycles.append(_ring(after, inside))
        else:
            sinks.append(members[0])
    return sorted(sinks), sorted(cycles)


def _strong(after: dict[str, list[str]]) -> list[list[str]]:
    # Tarjan's algorithm. `index` numbers nodes as they are first visited; `low` is the smallest index that a node can
    # reach over nodes that are still on the stack.
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    on_stack: set[str] = set()
    strong_components = []
    for root in after:
        if root in index:
            continue
        # An explicit stack of (node, next edge) replaces recursion, whose depth a long chain of waits would exceed.
        work = [(root, 0)]
        while work:
            node, at = work.pop()
            if at == 0:
                index[node] = low[node] = len(index)
                stack.append(node)
                on_stack.add(node)
            descended = False
            for position in range(at, len(after[node])):
                target = after[node][position]
                if target not in index:
                    work += [(node, position + 1), (target, 0)]
                    descended = True
                    break
                if target in on_stack:
                    low[node] = min(low[node], index[target])
            if descended:
                continue
            # A node that reaches nothing older than itself is the root of a component: everything above it on the
            # stack.
            if low[node] == index[node]:
                members: list[str] = []
                while not members or members[-1] != node:
                    members.append(stack.pop())
                    on_stack.discard(members[-1])
                strong_components.append(sorted(members))
            if work:
                parent = work[-1][0]
                low[parent] = min(low[parent], low[node])
    return strong_components


def _ring(after: dict[str, list[str]], inside: set[str]) -> list[str]:
    """Return a shortest ring through the first member, so that a cycle can be read in order."""
    start = min(inside)
    if start in after[start]:
        return [start]
    before: dict[str, str] = {}
    queue = [start]
    for node in queue:
        for target in sorted(after[node]):
            if target == start:
                ring = [node]
                while ring[-1] != start:
                    ring.append(before[ring[-1]])
                return ring[::-1]
            if target in inside and target not in before:
                before[target] = node
                queue.append(target)
    return sorted(inside)
