"""Whether a held process can be why the others wait, or only stands beside them.

A process that is stopped, silent or in a debugger explains a hang if somebody is proven to wait for it. Without that
proof it may be meant only if waiting ends nowhere else, and some wait that no layer resolves could lead to it.
"""

from __future__ import annotations

from harness.triage.graph import Subject
from harness.triage.graph.worlds import same_world
from harness.triage.rules.ruling import Case


def explains(case: Case, subject: Subject) -> bool:
    """Whether this process can be why the others wait."""
    if subject.key in case.awaited():
        return True
    if elsewhere(case, {subject.key}):
        return False
    return any(_may_mean(case, waiter, subject) for waiter in lost(case) if waiter.key != subject.key)


def elsewhere(case: Case, keys: set[str]) -> bool:
    """Whether waiting ends at a process outside `keys` that was seen and does not wait itself, or in a ring without
    them."""
    if any(not keys & set(ring) for ring in case.graph.cycles):
        return True
    return any(sink.observed and not sink.stuck and not sink.launcher and sink.key not in keys for sink in case.sinks())


def lost(case: Case) -> list[Subject]:
    """Waiters of which nothing says for whom they wait."""
    resolved_keys = case.graph.waiting
    return [subject for subject in case.live() if subject.stuck and subject.rests and subject.key not in resolved_keys]


def _may_mean(case: Case, waiter: Subject, subject: Subject) -> bool:
    if waiter.doing.kind == "ray_get" and waiter.pending is None:
        return any(f"{actor.host}:{actor.pid}" == subject.key for actor in case.evidence.ray_actors)
    if subject.rank is None or not same_world(waiter.process, subject.process):
        return False
    return leads_out(case, waiter)


def leads_out(case: Case, waiter: Subject) -> bool:
    """Whether a wait may be for somebody beside those seen in it. It cannot be if a recorder knows the members of
    the group, for then all of them are in the graph."""
    if waiter.pending is None:
        return True
    members = {group.group.name: group.group.members for group in case.groups}
    return not members.get(waiter.pending.group)
