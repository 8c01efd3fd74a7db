"""Rule about lists of Ray's command line that were pasted: which actors and tasks wait for a node, and what for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from harness.triage.evidence import PASTED, RayActor, RayTask
from harness.triage.rules.pasted import one_look
from harness.triage.rules.resources import amounts
from harness.triage.rules.ruling import Case, Ruling
from harness.triage.rules.standing import MAX_LINES

_PLURAL = {"waits": "wait", "restarts": "restart", "has": "have"}
NODE, ACTOR = "for a node", "for its actor"
# States in which an actor or a task waits for something of the cluster, in the order in which they are told.
_WAITING = {
    "PENDING_CREATION": ("waits", NODE),
    "PENDING_NODE_ASSIGNMENT": ("waits", NODE),
    "DEPENDENCIES_UNREADY": ("waits", "for arguments"),
    "PENDING_ARGS_AVAIL": ("waits", "for arguments"),
    "PENDING_OBJ_STORE_MEM_AVAIL": ("waits", "for memory of the object store"),
    "PENDING_ACTOR_TASK_ORDERING_OR_CONCURRENCY": ("waits", "for its turn in its actor"),
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


class _Wait(NamedTuple):
    """What an actor or a task waits for, in words for one of them. `placed`: it has a node already."""

    placed: bool
    order: int
    name: str
    verb: str
    what: str
    asked: str = ""


def _waiting(rows: Iterable[RayActor | RayTask], kind: str) -> Iterator[str]:
    """A line for each name and state that waits: first what has no node, then the most frequent."""
    counts = Counter(_wait(row) for row in rows if row.state in _WAITING)
    for wait, count in sorted(counts.items(), key=lambda item: (item[0][:2], -item[1])):
        several = count > 1
        verb = _PLURAL[wait.verb] if several else wait.verb
        what = wait.what.replace("its", "their") if several else wait.what
        nouns = f"{kind}s" if several else kind
        yield " ".join(filter(None, (str(count), *wait.name.split(), nouns, verb, what, wait.asked)))


def _wait(row: RayActor | RayTask) -> _Wait:
    verb, what = _WAITING[row.state]
    order = list(_WAITING).index(row.state)
    if what != NODE:
        return _Wait(False, order, row.name, verb, what)
    if isinstance(row, RayTask) and row.actor_id:  # Ray gives calls of methods this state too, and they need no node
        return _Wait(False, order, row.name, verb, ACTOR)
    if row.host or row.pid:
        # An actor has its node while it is constructed. Of a task the record is late, or of the attempt before.
        late = f"a node, though the state is {row.state}"
        constructed = "a node, and the constructor has not returned"
        return _Wait(True, order, row.name, "has", late if isinstance(row, RayTask) else constructed)
    return _Wait(False, order, row.name, verb, what, f"with {amounts(row.resources)}" if row.resources else "")


def _counts(rows: Iterable[RayActor | RayTask], kind: str) -> list[str]:
    counts = Counter(row.state for row in rows)
    return [f"{count} {kind}{'s' if count > 1 else ''} {state}" for state, count in counts.most_common()]
