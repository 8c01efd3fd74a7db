"""Rule about lists of Ray's command line that were pasted: which actors and tasks wait for a node, and what for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from harness.triage.evidence import PASTED, RayActor, RayTask
from harness.triage.rules.pasted import one_look
from harness.triage.rules.ruling import Case, Ruling
from harness.triage.rules.standing import MAX_LINES

# States in which an actor or a task waits for something of the cluster, in the order in which they are told.
_WAITING = {
    "PENDING_CREATION": ("waits", "for a node"),
    "PENDING_NODE_ASSIGNMENT": ("waits", "for a node"),
    "DEPENDENCIES_UNREADY": ("waits", "for arguments"),
    "PENDING_ARGS_AVAIL": ("waits", "for arguments"),
    "PENDING_OBJ_STORE_MEM_AVAIL": ("waits", "for memory of the object store"),
    "RESTARTING": ("restarts", ""),
}


def pasted(case: Case) -> Ruling | None:
    """INSUFFICIENT: what Ray's lists show. They have no ages, so they prove no hang."""
    evidence = case.evidence
    listed = evidence.ray_actors or evidence.ray_tasks or evidence.ray_demands
    if evidence.source != PASTED or case.groups or not listed:
        return None
    beside = one_look(case)
    waiting = list(_waiting(evidence.ray_actors, "actor")) + list(_waiting(evidence.ray_tasks, "task"))
    asked = [f"{demand.pending} ask for {demand.resources}" for demand in evidence.ray_demands]
    if beside is not None and not (waiting or asked):
        return None
    facts = [*waiting, *asked]
    counts = [*_counts(evidence.ray_actors, "actor"), *_counts(evidence.ray_tasks, "task")]
    return Ruling(
        "INSUFFICIENT",
        f"Ray: {facts[0]}" if facts else "Ray: no actor or task waits for a node or its arguments",
        evidence=(*facts[1:MAX_LINES], *counts[:MAX_LINES], *(beside.evidence if beside else ())),
        missing=("for how long they wait, and who waits for them: Ray's lists have no ages",),
        next=(
            "harness triage auto   # on a host of the cluster: ages, callers, stacks, and who holds what is asked for",
            "ray status -v   # what each node has, and what is asked for",
        ),
    )


def _waiting(rows: Iterable[RayActor | RayTask], kind: str) -> Iterator[str]:
    """A line for each name and state that waits, the most frequent first."""
    counts = Counter((row.state, row.name) for row in rows if row.state in _WAITING)
    for (state, name), count in sorted(counts.items(), key=lambda item: (list(_WAITING).index(item[0][0]), -item[1])):
        verb, what = _WAITING[state]
        words = [str(count), *name.split(), kind if count == 1 else f"{kind}s", verb if count == 1 else verb[:-1], what]
        yield " ".join(filter(None, words))


def _counts(rows: Iterable[RayActor | RayTask], kind: str) -> list[str]:
    counts = Counter(row.state for row in rows)
    return [f"{count} {kind}{'s' if count > 1 else ''} {state}" for state, count in counts.most_common()]
