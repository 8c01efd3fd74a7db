"""Rules about tasks, actors and placement groups of Ray that wait for resources (K14).

Ray keeps such a request without a limit. It is a hang if no node has what is asked and no autoscaler adds one, or if
every process of the cluster waits, so that nothing that is held becomes free. Nobody is named: no process is stuck by
itself.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from harness.triage.evidence import RayNode, Resources
from harness.triage.graph import Subject
from harness.triage.graph.sockets import main_frames
from harness.triage.places import plain, runs_users
from harness.triage.rules.pauses import FRESH_S, LONG_S
from harness.triage.rules.ruling import Case, Ruling
from reports.text import agreeing

MOST_NAMED = 8  # requests, nodes and holders that a verdict names
PENDING = "PENDING_NODE_ASSIGNMENT"
_WORKER = re.compile(r"ray/_private/worker")
_ARGUMENT = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}  # of ray.init and @ray.remote


@dataclass(frozen=True)
class Request:
    """What no node has taken. `bundles`: amounts that must be free on one node each. `caller`: key of who waits."""

    name: str
    kind: str  # task, actor, placement group
    bundles: tuple[Resources, ...]
    age_s: float
    caller: str

    @property
    def label(self) -> str:
        return f"{self.name} {self.kind}".lstrip()

    def fits(self, nodes: Iterable[Resources]) -> bool:
        """Whether each bundle fits on some node. Bundles that do not fit together are not found by this."""
        totals = list(map(dict, nodes))
        return all(any(_covers(node, bundle) for node in totals) for bundle in self.bundles)


def starved(case: Case) -> Ruling | None:
    """K14: no node can ever take what is asked for."""
    requests = _requests(case)
    nodes = _living_nodes(case)
    oversized = _oversized(requests, nodes)
    watched_s = max(case.evidence.stall_s, *(request.age_s for request in oversized)) if oversized else 0.0
    if oversized and case.evidence.ray_fixed and watched_s >= (case.evidence.threshold_s or LONG_S):
        return _ruling(case, "HUNG", oversized, _shortage(oversized, nodes))
    if requests and not oversized and _nobody_moves(case, requests):
        return _ruling(case, "HUNG", requests)
    return None


def unmet(case: Case) -> Ruling | None:
    """INSUFFICIENT: a process waits for a request that no node has taken, and that may change."""
    requests = _requests(case)
    if not requests:
        return None
    nodes = _living_nodes(case)
    oversized = _oversized(requests, nodes)
    if oversized:
        return _ruling(case, "INSUFFICIENT", oversized, _shortage(oversized, nodes), "whether a node will be added")
    return _ruling(case, "INSUFFICIENT", requests, unknown="when its holders free what is asked for")


def _living_nodes(case: Case) -> list[RayNode]:
    return [node for node in case.evidence.ray_nodes if node.alive]


def _oversized(requests: Iterable[Request], nodes: Sequence[RayNode]) -> list[Request]:
    """The requests that fit on no node, even if all of it were free."""
    return [request for request in requests if not request.fits(node.total for node in nodes)]


def _requests(case: Case) -> list[Request]:
    """The requests that no node has taken for some time and that a process waits for in ray.get."""
    waiting = {subject.key for subject in case.live() if _waits(subject)}
    free = [node.free for node in _living_nodes(case)]
    return [
        request for request in (*_of_tasks(case), *_of_groups(case, waiting))
        if request.caller in waiting and request.age_s >= FRESH_S and free and not request.fits(free)
    ]  # fmt: skip


def _of_tasks(case: Case) -> Iterator[Request]:
    """Yield the tasks, and the starts of actors, that no node has taken."""
    keys = {(subject.process.host, subject.process.pid): subject.key for subject in case.live()}
    for task in case.evidence.ray_tasks:
        if task.state == PENDING and not task.pid and task.resources:
            name = task.name.removesuffix(".__init__")
            kind = "actor" if task.name.endswith(".__init__") else "task"
            caller = keys.get((task.caller_host, task.caller_pid), "")
            yield Request(name, kind, (task.resources,), task.age_s, caller)


def _of_groups(case: Case, waiting: Collection[str]) -> Iterator[Request]:
    """Yield the placement groups that no node has taken. Ray does not say who waits for one: the only process of which
    nobody knows for what it waits."""
    unexplained = [key for key in waiting if key not in case.graph.waiting]
    if len(unexplained) != 1:
        return
    for group in case.evidence.ray_groups:
        if group.state in ("PENDING", "RESCHEDULING") and group.age_s is not None:
            yield Request(group.name, "placement group", group.bundles, group.age_s, unexplained[0])


def _waits(subject: Subject) -> bool:
    return subject.doing.kind == subject.before.kind == "ray_get" and not subject.progress and subject.pending is None


def _nobody_moves(case: Case, requests: list[Request]) -> bool:
    """Whether every process of the cluster waits for a request, or is idle: then nothing that is held becomes free."""
    evidence = case.evidence
    if not evidence.ray_fixed or any(node.silent for node in evidence.ray_nodes):
        return False
    callers = {request.caller for request in requests}
    waiting = callers | set(case.graph.waiters(callers))
    running = {(task.host, task.pid) for task in evidence.ray_tasks if task.state == "RUNNING"}
    living = running | {(actor.host, actor.pid) for actor in evidence.ray_actors if actor.state == "ALIVE"}
    looked = {(each.process.host, each.process.pid) for each in case.live() if each.process.samples}
    if not living <= looked:
        return False
    return all(
        not subject.progress and not _acts_beside(subject) and (subject.key in waiting or _idle(subject, running))
        for subject in case.live()
    )


def _idle(subject: Subject, running: set[tuple[str, int]]) -> bool:
    return subject.doing.idle and (subject.process.host, subject.process.pid) not in running


def _acts_beside(subject: Subject) -> bool:
    """Whether something in the process may still free a resource: a thread with user code, or a ray.wait that may have
    a time limit."""
    threads = subject.process.threads
    if any(runs_users(thread) for thread in threads if not thread.main):
        return True
    inner = [frame for frame in main_frames(threads) if _WORKER.search(frame.file)]
    return any(plain(frame.function) == "wait" for frame in inner)


def _ruling(case: Case, verdict: str, requests: list[Request], shortage: str = "", unknown: str = "") -> Ruling:
    nodes = _living_nodes(case)
    lacking = _lacking(requests[0], [node.total for node in nodes]) or _lacking(
        requests[0], [node.free for node in nodes]
    )
    holders = [] if shortage else _holders(case, lacking)
    who = _counted(holder.label for holder in holders)
    holds = agreeing(len(holders), "holds", "hold")
    waits = f" and {agreeing(len(holders), 'waits', 'wait')}" if verdict == "HUNG" else ""
    why = shortage or (f"{who} {holds} all of it{waits}" if holders else "none is free")
    each = " each" if len(requests) > 1 else ""
    what = _counted(request.label for request in requests)
    return Ruling(
        verdict,
        f"{what} {agreeing(len(requests), 'asks', 'ask')} for {amounts(tuple(lacking.items())[:1])}{each}; {why}",
        "K14" if verdict == "HUNG" else "",
        place=f"Ray's resources: {amounts(lacking)}",
        evidence=(*_facts(case, requests), *(_described(case, holder) for holder in holders[:MOST_NAMED])),
        missing=(unknown,) if unknown else (),
        next=_steps(case, lacking, requests),
    )


def _facts(case: Case, requests: list[Request]) -> Iterator[str]:
    """What is asked, and by whom; and what the nodes have, in words."""
    for request in requests[:MOST_NAMED]:
        bundles = "; ".join(map(amounts, request.bundles))
        caller = case.names([request.caller])
        yield f"{request.label} asks for {bundles} since {request.age_s:.0f} s; {caller} waits for it"
    names = {name for request in requests for bundle in request.bundles for name, _ in bundle}
    for node in _living_nodes(case)[:MOST_NAMED]:
        free = dict(node.free)
        counts = [f"{free.get(name, 0.0):g} of {amount:g} {name} free" for name, amount in node.total if name in names]
        yield f"node {node.host}: {', '.join(counts) or 'nothing of that'}"


@dataclass(frozen=True)
class Holder:
    """Who holds some of what is lacking. `key`: node of the graph; empty for a placement group."""

    label: str
    amounts: Mapping[str, float]
    key: str = ""


def _holders(case: Case, lacking: Mapping[str, float]) -> list[Holder]:
    """Actors, running tasks and placement groups that hold some of the resources that are lacking."""
    evidence = case.evidence
    workers = [(actor.host, actor.pid, f"{actor.name} actor", actor.resources) for actor in evidence.ray_actors
               if actor.state == "ALIVE"]  # fmt: skip
    workers += [(task.host, task.pid, f"{task.name} task", task.resources) for task in evidence.ray_tasks
                if task.state == "RUNNING" and not task.actor_id]  # fmt: skip
    holders = [Holder(label, _sum_of(lacking, [its]), f"{host}:{pid}") for host, pid, label, its in workers]
    holders += [Holder(f"{group.name or group.group_id[:8]} placement group", _sum_of(lacking, group.bundles))
                for group in evidence.ray_groups if group.state == "CREATED"]  # fmt: skip
    return [holder for holder in holders if holder.amounts]


def _described(case: Case, holder: Holder) -> str:
    subject = case.graph.subjects.get(holder.key)
    state = f": {subject.state()}" if subject is not None else ""
    return f"{holder.label}{f' ({holder.key})' if holder.key else ''} holds {amounts(holder.amounts)}{state}"


def _counted(labels: Iterable[str]) -> str:
    """The most frequent label with its number: "2 RolloutWorker actors and others"."""
    counts = Counter(labels).most_common(2)
    words = [f"{count} {agreeing(count, label, f'{label}s')}" for label, count in counts[:1]]
    return " and ".join([*words, *(["others"] if len(counts) > 1 else [])])


def _sum_of(names: Iterable[str], bundles: Iterable[Resources]) -> dict[str, float]:
    """The sum of bundles, of these resources only."""
    total: dict[str, float] = {}
    for name, amount in (pair for bundle in bundles for pair in bundle if pair[0] in set(names)):
        total[name] = total.get(name, 0.0) + amount
    return total


def _shortage(requests: list[Request], nodes: list[RayNode]) -> str:
    """What the cluster lacks for the first request, in words."""
    lacking = _lacking(requests[0], [node.total for node in nodes])
    most = {name: max((dict(node.total).get(name, 0.0) for node in nodes), default=0.0) for name in lacking}
    if not any(most.values()):
        return "the cluster has none"
    return f"the cluster's largest node has {amounts(most)}"


def _lacking(request: Request, nodes: list[Resources]) -> dict[str, float]:
    """What a request asks for and no node has in that amount; all of it if only the combination is lacking. Empty if
    some node covers it."""
    totals = list(map(dict, nodes))
    bundle = next((its for its in request.bundles if not any(_covers(node, its) for node in totals)), ())
    return {name: amount for name, amount in bundle if all(node.get(name, 0.0) < amount for node in totals)} or dict(
        bundle
    )


def _covers(node: Mapping[str, float], bundle: Resources) -> bool:
    return all(node.get(name, 0.0) >= amount for name, amount in bundle)


def amounts(resources: Mapping[str, float] | Resources) -> str:
    """Amounts in words: "1 CPU and 0.5 GPU"; memory in GiB."""
    pairs = resources.items() if isinstance(resources, Mapping) else resources
    return " and ".join(f"{amount / 2**30:.1f} GiB of memory" if name == "memory" else f"{amount:g} {name}"
                        for name, amount in pairs)  # fmt: skip


def _steps(case: Case, lacking: Mapping[str, float], requests: list[Request]) -> tuple[str, ...]:
    name, amount = next(iter(lacking.items()), ("CPU", 1.0))
    wanted = _sum_of([name], (bundle for request in requests for bundle in request.bundles)).get(name, amount)
    total = sum(dict(node.total).get(name, 0.0) for node in _living_nodes(case))
    argument = _ARGUMENT.get(name, "resources")
    more = f"ray.init({argument}={total + wanted:g})" if name in ("CPU", "GPU") else "another node"
    return (
        "ray status   # what is asked for, and what is free",
        f"ask for less, such as @ray.remote({argument}=0), or give the cluster more: {more}",
    )
