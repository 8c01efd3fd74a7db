"""Rule about lists of Ray's command line that were pasted: which actors and tasks wait for a node, and what for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from harness.triage.evidence import PASTED, RayActor, RayDemand, RayGroup, RayTask
from harness.triage.rules.pasted import one_look
from harness.triage.rules.resources import amounts
from harness.triage.rules.ruling import Case, Ruling, brief
from harness.triage.rules.standing import MAX_LINES
from reports.text import agreeing

FACT_WORDS = 16  # of the first fact in the headline
_INCOMPLETE = frozenset({"PENDING", "PREPARED", "RESCHEDULING"})  # states of a placement group
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
    listed = evidence.ray_actors or evidence.ray_tasks or evidence.ray_groups
    if evidence.source != PASTED or case.groups or not (listed or evidence.ray_demands):
        return None
    if not listed and any(not (error.echo or error.survived) for error in evidence.errors):
        return None  # a log that warns of requests and then has an error: the error is later
    beside = one_look(case)
    waiting = list(_waiting(evidence.ray_actors, "actor")) + list(_waiting(evidence.ray_tasks, "task"))
    waiting += _groups(evidence.ray_groups)
    demands = sorted(evidence.ray_demands, key=lambda demand: not demand.lacking)
    lacking = [_asked(demand) for demand in demands if demand.lacking]
    asked = [_asked(demand) for demand in demands if not demand.lacking]
    if beside is not None and not (waiting or asked or lacking):
        return None
    facts = [*lacking, *waiting, *asked]
    is_cut = bool(facts) and len(facts[0].split()) > FACT_WORDS
    counts = [*_counts(evidence.ray_actors, "actor"), *_counts(evidence.ray_tasks, "task")]
    return Ruling(
        "INSUFFICIENT",
        f"Ray: {brief(facts[0], FACT_WORDS)}" if facts else "Ray: no actor or task waits for a node or its arguments",
        evidence=(*facts[0 if is_cut else 1 : MAX_LINES], *counts[:MAX_LINES], *(beside.evidence if beside else ())),
        missing=("for how long they wait, and who waits for them: Ray's lists have no ages",),
        next=(
            "harness triage auto   # on a host of the cluster: ages, callers, stacks, and who holds what is asked for",
            "ray status -v   # what each node has, and what is asked for",
        ),
    )


def _asked(demand: RayDemand) -> str:
    """What is asked for, after what the cluster has too little of."""
    words = f"{demand.pending} ask for {demand.resources}"
    if demand.in_use:
        words += f": {demand.in_use}"
    return f"{demand.lacking}, and {words}" if demand.lacking else words


def _groups(groups: Iterable[RayGroup]) -> list[str]:
    """A line for the placement groups of each state that have not got all they asked for."""
    counts = Counter((group.name, group.state) for group in groups if group.state in _INCOMPLETE)
    return [
        f"{count} placement {agreeing(count, 'group', 'groups')} {f'({name}) ' if name else ''}{state}: "
        "not all bundles have a node"
        for (name, state), count in counts.most_common()
    ]


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
    counts: Counter[_Wait] = Counter()
    for row in rows:
        if row.state in _WAITING:
            counts[_wait(row)] += row.count
    for wait, count in sorted(counts.items(), key=lambda item: (item[0][:2], -item[1])):
        verb = agreeing(count, wait.verb, _PLURAL[wait.verb])
        what = agreeing(count, wait.what, wait.what.replace("its", "their"))
        noun = agreeing(count, kind, f"{kind}s")
        yield " ".join(filter(None, (str(count), *wait.name.split(), noun, verb, what, wait.asked)))


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
    counts: Counter[str] = Counter()
    for row in rows:
        counts[row.state] += row.count
    return [f"{count} {agreeing(count, kind, f'{kind}s')} {state}" for state, count in counts.most_common()]
