"""A rule about a server that nobody watched, whose handlers wait for a request that its waiting client sends later.

Its tasks are in no stack. The source text says what the handlers of the pending requests may await, and which requests
bring it (`harness.triage.server_text`).
"""

from __future__ import annotations

from harness.triage import server_text
from harness.triage.evidence import Frame
from harness.triage.graph import Subject
from harness.triage.graph.awaiting import unseen
from harness.triage.places import users
from harness.triage.rules.outsiders import awaits_tasks
from harness.triage.rules.polls import collects
from harness.triage.rules.ruling import Case, Ruling
from harness.triage.rules.tasks import threads_beside
from harness.triage.sought import route
from harness.triage.stacks import describe

_FOR_RANKS = frozenset({"collective", "p2p", "store", "join", "child"})  # waits that another process of the job ends
LEAST_S = 5.0  # between the looks: in a shorter time a handler may just have been slow


def closed(case: Case) -> Ruling | None:
    """K4: the handlers of a server wait for what only later requests of its waiting clients bring.

    Somebody beside the job could send these requests as well. So they have to stand in the text of a client, behind
    the place where it waits: then the job itself was to send them.
    """
    if any(subject.progress or threads_beside(subject.process) for subject in case.live()):
        return None
    return next(filter(None, (_waits_for_clients(case, server) for server in case.sinks())), None)


def _waits_for_clients(case: Case, server: Subject) -> Ruling | None:
    """K4 if the handlers of this server await later requests of clients that wait for it; else None."""
    if server.process.peers or not (awaits_tasks(server) and unseen(server.process)):
        return None
    waited_s = server.process.between_looks_s
    clients = [case.subject(key) for key in dict.fromkeys(
        wait.waiter for wait in case.graph.waits if wait.target == server.key)]  # fmt: skip
    pending = {client.key: route(_frames(client)) for client in clients}
    if waited_s < LEAST_S or not all(pending.values()) or not _all_wait(case, server, clients):
        return None
    needed = server_text.keys(_frames(server), tuple(pending.values()), waited_s)
    if needed is None:
        return None
    senders = {key: sender for key in needed.routes if (sender := _sender(clients, key)) is not None}
    if not needed.routes or len(senders) < len(set(needed.routes)):
        return None
    later = " and ".join(f"{key}, which {client.label} asks for at {describe(at)}, behind this request"
                         for key, (client, at) in senders.items())  # fmt: skip
    handlers = " and ".join(needed.handlers)
    requests = " and ".join(f"{path} of {case.subject(key).label}" for key, path in pending.items())
    return Ruling(
        "HUNG",
        f"{server.label} answers {' and '.join(dict.fromkeys(pending.values()))} only after {next(iter(senders))}",
        "K4",
        {server.key: f"its handlers {handlers} ({requests}) await what only a request for {later}, brings"},
        place=case.waited_in({server.key}) or server.frame,
        next=("answer the request that lets the others go on before one that waits for them, or give each awaited "
              "call a timeout: asyncio.timeout",),
    )  # fmt: skip


def _frames(subject: Subject) -> list[Frame]:
    """The frames of the user's code in its main thread at the last look, innermost first."""
    return [frame for frame in subject.process.main_frames if users(frame)]


def _all_wait(case: Case, server: Subject, clients: list[Subject]) -> bool:
    """Whether everybody in the job waits: the clients for the server, in the same place at each look and without a
    limit that ends soon, the others for them or for ranks that were all seen."""
    waiters = {server.key, *case.graph.waiters({server.key})}
    beside = [each for each in case.live() if each.key not in waiters and each.role != "shell" and not collects(each)]
    ranks = {each.rank for each in case.live() if each.rank is not None}
    if len(ranks) < (case.evidence.expected_world or 0) or any(each.doing.kind not in _FOR_RANKS for each in beside):
        return False
    moved = any(client.process.first_look.main_frames != client.process.main_frames for client in clients)
    return not moved and not any(
        server_text.limited(_frames(client), timed=client.process.last_look.timed) for client in clients
    )


def _sender(clients: list[Subject], key: str) -> tuple[Subject, Frame] | None:
    """The client that asks for a route behind the place where it waits, and where."""
    places = ((client, server_text.asks_behind(_frames(client), key)) for client in clients)
    return next(((client, at) for client, at in places if at is not None), None)
