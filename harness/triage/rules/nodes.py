"""Rules about evidence from several nodes: is a node missing, was all of it taken at one moment, is the network cut?

Clocks of two hosts are never compared. What two hosts share is the sequence number of a collective. An operation in
which every rank waits for every rank cannot end anywhere before each member has enqueued it. Two conclusions follow:

- If it ended on one host and was not even enqueued on another, the directories were taken at different times.
- If it ended on one host and is pending on all of another, every rank has come to it, and no rank is to blame.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import permutations
from typing import NamedTuple
from urllib.parse import urlsplit

from harness.triage.flight.model import GroupState, RankState
from harness.triage.graph import Subject
from harness.triage.graph.calls import FINISHED_TASKS
from harness.triage.graph.edges import Names, title
from harness.triage.nodes import World, missing_ranks, worlds
from harness.triage.rules.ruling import Case, Ruling, brief
from harness.triage.rules.untested import unseen
from probes import limits
from reports.sections.triage import ranks
from reports.text import agreeing

AGAIN = "take the evidence of all nodes at one time: harness triage PID --out DIR on each, while the job stands still"


def incomplete(case: Case) -> Ruling | None:
    """INSUFFICIENT: no directory holds evidence of some rank of the world, and that rank may be why the others wait."""
    if not case.evidence.directories:
        return None
    missing = missing_ranks(case.evidence)
    rank_texts = [f"rank {_runs(ranks)} of {world[2]}{_node(case, world, ranks)}" for world, ranks in missing.items()]
    # A recorder can name members of a group whose world size nothing else tells.
    held_ranks = {process.rank for process in case.evidence.processes}
    members = {rank for group in case.groups if not group.joined for rank in group.absent}
    if not rank_texts and members - held_ranks:
        rank_texts = [f"rank {_runs(sorted(members - held_ranks))}, a member of a group of the recorders"]
    if not rank_texts:
        return None
    host_text = ", ".join(_hosts(case))
    # A watch that was asked and did not answer is the likely reason; ask for that host instead of a directory.
    if silent := _unreached(case):
        return Ruling(
            "INSUFFICIENT",
            f"{_unanswered(case)} gave no evidence, and no directory holds {_which(missing, members - held_ranks)}",
            evidence=(
                silent,
                f"missing is {'; '.join(rank_texts)}; there is some of {host_text}",
                *_silence_reasons(case),
            ),
            missing=tuple(f"nothing from {rank_text}" for rank_text in rank_texts),
            next=_reach(case),
        )
    return Ruling(
        "INSUFFICIENT",
        f"no directory holds {_which(missing, members - held_ranks)}",
        evidence=(f"missing is {'; '.join(rank_texts)}; those given are of {host_text}",),
        missing=tuple(f"nothing from {rank_text}" for rank_text in rank_texts),
        next=("give the directory of every node: harness triage DIR DIR ...",),
    )


def unlooked(case: Case) -> Ruling | None:
    """INSUFFICIENT: nobody collected evidence on a host that has ranks. Its directory holds only their last
    heartbeats."""
    if not case.evidence.directories:
        return None
    ranks: dict[str, list[Subject]] = {}
    for subject in case.graph.subjects.values():
        if subject.has_process and subject.rank is not None:
            ranks.setdefault(subject.process.host, []).append(subject)
    blind = {host: its for host, its in ranks.items() if not any(member.process.samples for member in its)}
    if not blind or len(blind) == len(ranks):
        return None
    description = "; ".join(
        f"{host} (rank {_runs([member.rank for member in its if member.rank is not None])})"
        for host, its in blind.items()
    )
    return Ruling(
        "INSUFFICIENT",
        f"no evidence was taken on {together(list(blind)[:4])}: only last heartbeats are there",
        evidence=(f"{description}: the host died, was cut off, or its job was ended before anybody looked",),
        missing=tuple(f"a look at {host}" for host in blind),
        next=(f"is {next(iter(blind))} up? its console, dmesg and the scheduler's log say how it ended", AGAIN),
    )


def moments(case: Case) -> Ruling | None:
    """INSUFFICIENT: the directories show the same job at two different times."""
    for group, ahead, behind, leader, laggard in _across(case):
        failed = leader.process.error or (leader.process.journal and leader.process.journal.errors)
        if behind.enqueued < ahead.joint and not failed:  # gloo's recorder calls a failed operation done
            return Ruling(
                "INSUFFICIENT",
                f"the evidence is not of one moment: that of {laggard.process.host} is older than that of "
                f"{leader.process.host}",
                evidence=(
                    f"{case.names([leader.key])} was through with #{ahead.joint} of {title(group)}, which "
                    f"{case.names([laggard.key])} had not even begun (its last: #{behind.enqueued})",
                    "one directory is older, or of another attempt",
                ),
                next=(AGAIN,),
            )
    return None


def between(case: Case) -> Ruling | None:
    """K12 or INSUFFICIENT: every rank has come to an operation that ended on one host and is pending on another.

    K12 where TCP shows which network is cut, as `groups.wedged` says of ranks that are all inside: a cut may come in
    the middle of an operation. Without that proof INSUFFICIENT, and only if the operation ended on no rank of the
    second host.
    """
    names = Names.of(case.evidence, case.comparison)
    for group, ahead, behind, leader, laggard in _across(case):
        if behind.pending is None or leader.progress or laggard.progress:
            continue
        seq = behind.pending.seq
        if seq > ahead.joint or (ahead.pending is not None and ahead.pending.seq <= seq):
            continue
        hosts = {rank: case.subject(names.key(group, rank)).process.host for rank in group.ranks}
        cut = severed(case, {*hosts.values()})
        beside = [its for rank, its in group.ranks.items() if hosts[rank] == laggard.process.host]
        # If a rank of the same host is through, the network of that host works unless TCP says otherwise.
        through = any(its.pending is None or its.pending.seq > seq for its in beside)
        if through and (cut is None or laggard.process.host not in cut.hosts):
            continue
        place = f"{behind.pending.op} #{seq} of {title(group)}"
        headline = (
            f"every rank has come to {place}, which ended on {leader.process.host} and not on {laggard.process.host}"
        )
        if cut is not None:
            why = f"every rank has come to {place}: {cut.network}, not a rank"
            return Ruling(
                "HUNG", why, "K12", place=place, evidence=(headline, cut.description), next=(ping(*cut.ends), AGAIN)
            )  # fmt: skip
        return Ruling(
            "INSUFFICIENT",
            headline,
            place=place,
            evidence=(f"the network between them lost it, or the evidence of {laggard.process.host} is older",),
            next=(ping(leader.process.host, laggard.process.host), AGAIN),
        )
    return None


def unreachable(case: Case) -> Ruling | None:
    """K5: the ranks of one host listen at an interface that the other hosts cannot reach.

    Three facts together show this. No other host has a connection to the addresses at which these ranks listen. Another
    host keeps asking for such a connection. And the host itself is connected to the others by another address, so that
    its network works. A firewall or a cut cable is different: the address that is in use stays in use. If the ranks of
    a second host also listen at unused addresses, the network may be at fault, and this rule says nothing.
    """
    ranks = _standing_ranks(case)
    by_host = _by_host(ranks)
    strange = {host: places for host in by_host if (places := _unused(case, host, by_host[host]))}
    # If several hosts listen at unused addresses, the network may be at fault as well.
    if len(strange) != 1 or len(by_host) < 2:
        return None
    [(host, places)] = strange.items()
    wrong = {subject.key: at for subject in by_host[host] for at in subject.process.listening if _machine(at) in places}
    asking = [
        subject
        for subject in ranks
        if subject.process.host != host and set(subject.process.asked) & set(wrong.values())
    ]
    # Without a rank that keeps asking, nothing needs the address. Without another connection of the host, its whole
    # network may be down.
    if not asking or not _reaches_others(case, host):
        return None
    address_text = ", ".join(sorted({_machine(at) for at in wrong.values()}))
    settings = _interface_settings(by_host[host])
    by = " and ".join(f"{name}={value}" for name, value in sorted(settings.items()))
    names = case.names(wrong)
    hosts = sorted({subject.process.host for subject in asking})
    return Ruling(
        "HUNG",
        f"{names} listen at {address_text}, which {together(hosts[:3])} does not reach",
        "K5",
        evidence=(
            f"{case.names(subject.key for subject in asking)} asked for a connection again and again, while {host} is "
            f"connected to the others by another address{f'; {by}' if by else ''}",
        ),
        culprits={
            key: f"listens at {at}, which no other host reaches{f': {by}' if by else ''}" for key, at in wrong.items()
        },
        next=(
            f"on {host} set {' and '.join(sorted(settings)) or ' or '.join(_NICS[:2])} to the interface that the hosts "
            f"share: ip route get {by_host[host][0].process.environ.get('MASTER_ADDR', 'MASTER_ADDR')} names it",
            f"harness doctor   # on {host}",
        ),
    )


def _standing_ranks(case: Case) -> list[Subject]:
    return [subject for subject in case.live() if subject.rank is not None and not subject.progress]


def _by_host(ranks: list[Subject]) -> dict[str, list[Subject]]:
    by_host: dict[str, list[Subject]] = {}
    for subject in ranks:
        by_host.setdefault(subject.process.host, []).append(subject)
    return by_host


def _reaches_others(case: Case, host: str) -> bool:
    """Whether a process of this host is connected to an address at which another host listens."""
    elsewhere = {
        _machine(at) for process in case.evidence.processes if process.host != host for at in process.listening
    } - {""}
    peers = {_machine(peer) for process in case.evidence.processes if process.host == host for peer in process.peers}
    return bool(peers & elsewhere)


def _interface_settings(ranks: list[Subject]) -> dict[str, str]:
    """The variables that choose a network interface, with the values that these ranks have."""
    return {name: value for subject in ranks for name, value in subject.process.environ.items() if name in _NICS}


def _unused(case: Case, host: str, ranks: list[Subject]) -> set[str]:
    """The addresses at which the ranks of a host listen; empty if another host is connected to any of them."""
    places = {_machine(at) for subject in ranks for at in subject.process.listening} - {""}
    connected_addresses = {
        _machine(peer) for process in case.evidence.processes if process.host != host for peer in process.peers
    }
    return set() if places & connected_addresses else places


_NICS = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")


class Severed(NamedTuple):
    """Hosts between which TCP data is not acknowledged, in words; `ends` are two of them."""

    network: str
    description: str
    ends: tuple[str, str]
    hosts: tuple[str, ...]  # every host that a cut connection touches


def severed(case: Case, among: Collection[str] = ()) -> Severed | None:
    """Find the part of the network that is cut, by connections whose data is not acknowledged; None if there is none.

    `among`: look only at connections between these hosts; empty for all hosts. If at least two pairs of hosts are cut
    and all share one host, the network of that host is blamed: a link on which nothing was sent may be down as well. A
    connection to a peer outside the evidence, such as an experiment tracker, does not count.
    """
    holders: dict[str, set[str]] = {}  # address -> hosts that have it: each host has the same one for its containers
    ends: list[tuple[str, str]] = []
    for process in case.evidence.processes:
        mine = [(local, remote) for local, _, remote in (link.partition(" ") for link in process.unanswered)]
        for address in (*process.listening, *(local for local, _ in mine)):
            holders.setdefault(_machine(address), set()).add(process.host)
        ends += [(process.host, _machine(remote)) for _, remote in mine]
    # An address that several hosts have does not say which of them is meant.
    at = {address: min(hosts) for address, hosts in holders.items() if address and len(hosts) == 1}
    pairs = sorted(
        {
            (min(near_host, at[far_address]), max(near_host, at[far_address]))
            for near_host, far_address in ends
            if at.get(far_address, near_host) != near_host
        }
    )
    pairs = [pair for pair in pairs if not among or {*pair} <= {*among}]
    if not pairs:
        return None
    hosts = sorted({host for pair in pairs for host in pair})
    common = set.intersection(*map(set, pairs))
    if len(pairs) > 1 and common:
        [host] = common
        peer_hosts = [peer_host for peer_host in hosts if peer_host != host]
        explanation = (
            f"TCP data between it and {together(peer_hosts)} is not acknowledged; between the others none is on its way"
        )
        return Severed(f"the network of {host}", explanation, (host, peer_hosts[0]), tuple(hosts))
    explanation = "TCP data between them is not acknowledged"
    return Severed(f"the {network(hosts)}", explanation, pairs[0], tuple(hosts))


def network(hosts: Sequence[str]) -> str:
    """Return "network between a and b"; from four hosts on, their number instead of their names."""
    return f"network between {together(hosts) if len(hosts) < 4 else f'{len(hosts)} hosts'}"


def together(hosts: Sequence[str]) -> str:
    """Return host names as a list in words: "a, b and c", or "a, b and 14 more"."""
    displayed = list(hosts) if len(hosts) <= 9 else [*hosts[:8], f"{len(hosts) - 8} more"]
    return " and ".join([", ".join(displayed[:-1]), displayed[-1]] if len(displayed) > 1 else displayed)


def _machine(address: str) -> str:
    """The host part of "host:port"; empty for an address that every machine has, such as 127.0.0.1."""
    host = address.rpartition(":")[0]
    return "" if host.startswith("127.") or host in ("0.0.0.0", "[::]", "[::1]") else host


def ping(host: str, peer_host: str) -> str:
    return f"ping {host} from {peer_host}; compare their interfaces, routes and firewalls"


def lost(case: Case) -> Ruling | None:
    """INSUFFICIENT: processes wait, and a node of the Ray cluster that runs part of the job is dead or does not answer.

    The node or the network to it may have failed. None of its processes was seen, so none of them is blamed.
    """
    waiters = [waiter for waiter in case.graph.stuck() if not waiter.progress]
    if waiters and case.evidence.unreached:
        return _without_watches(case, waiters)
    if case.evidence.ray_lost and (waiters or case.cut_off() or unseen(case)):
        return _without_head(case, waiters or case.cut_off())
    away = _lost_nodes(case)
    work_by_host = _work_on(case, away)
    if not work_by_host or not waiters:
        return None
    description = "; ".join(
        f"{host} {away[host]}, and {_listed(work)} ran there" for host, work in work_by_host.items()
    )
    host = next(iter(work_by_host))
    return Ruling(
        "INSUFFICIENT",
        f"a node of the Ray cluster is lost: {host}, while {case.names(waiter.key for waiter in waiters)} waited",
        evidence=(description, "the host died, or the network to it is cut"),
        missing=tuple(f"a look at {host}" for host in work_by_host),
        next=(f"is {host} up? ping {host}; ray status; its console and dmesg say how it ended", AGAIN),
    )


def _lost_nodes(case: Case) -> dict[str, str]:
    """Host -> what is wrong with it, for Ray nodes without evidence that are dead or silent."""
    seen_hosts = {process.host for process in case.evidence.processes if process.samples}
    seen_hosts |= {node.host for node in case.evidence.ray_nodes if node.alive and not node.silent}
    return {
        node.host: f"did not answer ({node.silent})"
        if node.alive
        else f"is dead: {node.death or 'Ray does not say why'}"
        for node in case.evidence.ray_nodes
        if node.host not in seen_hosts and (node.silent or not node.alive)
    }


def _work_on(case: Case, hosts: Collection[str]) -> dict[str, list[str]]:
    """Host -> the unfinished tasks there, and the actors that live there or ended with their node."""
    work_by_host: dict[str, dict[str, None]] = {}
    for task in case.evidence.ray_tasks:
        if task.host in hosts and task.state not in FINISHED_TASKS:
            work_by_host.setdefault(task.host, {})[task.name] = None
    for actor in case.evidence.ray_actors:
        if actor.host in hosts and (actor.state != "DEAD" or WITH_ITS_NODE in actor.death):
            work_by_host.setdefault(actor.host, {})[actor.name] = None
    return {host: list(names) for host, names in work_by_host.items()}


def _without_watches(case: Case, waiters: list[Subject]) -> Ruling:
    return Ruling(
        "INSUFFICIENT",
        f"{_unanswered(case)} gave no evidence, while {case.names(waiter.key for waiter in waiters)} waited",
        evidence=(_unreached(case), *_silence_reasons(case)),
        missing=tuple(f"a look at {address}" for address in case.evidence.unreached),
        next=_reach(case),
    )


def _without_head(case: Case, waiters: list[Subject]) -> Ruling:
    blind = [f"rank {rank}" for rank in unseen(case)[:8]]
    held_up = f"{case.names(waiter.key for waiter in waiters)} cannot go on without it" if waiters else ""
    return Ruling(
        "INSUFFICIENT",
        f"the head of the Ray cluster is lost: {brief(case.evidence.ray_lost)}",
        evidence=(
            held_up or f"nothing was seen of {_listed(blind)}",
            "its host died, its Ray was stopped, or the network to it is cut",
        ),
        missing=("what the cluster's tasks and actors do", *blind),
        next=("is that host up? ping it; ray status; its console and dmesg say how it ended", AGAIN),
    )


# Ray's words for an actor that ended because its node did, not by an error, by ray.kill or because nobody refers to it
# any more.
WITH_ITS_NODE = "because its node has died"


def _unreached(case: Case) -> str:
    """The watches that were asked and gave no evidence, each with its reason; empty if all answered."""
    reasons = [f"{address} gave no evidence ({silence.why})" for address, silence in case.evidence.unreached.items()]
    return "; ".join([*reasons[:8], *([f"{len(reasons) - 8} more gave none"] if len(reasons) > 8 else [])])


def _silence_reasons(case: Case) -> tuple[str, ...]:
    """Possible reasons why watches gave no evidence; empty if their hosts answered, because then the watches' own
    answers say why."""
    up = all(silence.up for silence in case.evidence.unreached.values())
    return () if up else ("the host died, was cut off, or its watch has ended",)


def _unanswered(case: Case) -> str:
    """The watches that gave no evidence, in few words."""
    addresses = list(case.evidence.unreached)
    return addresses[0] if len(addresses) == 1 else f"{addresses[0]} and {len(addresses) - 1} more"


def _which(missing: Mapping[World, list[int]], members: Collection[int]) -> str:
    """Missing ranks, in few words."""
    ranks = next(iter(missing.values()), sorted(members))
    more = f" and {len(ranks) - 4} more" if len(ranks) > 4 and _runs(ranks).count(",") > 3 else ""
    return f"{agreeing(len(ranks), 'rank', 'ranks')} {_runs(ranks[:4] if more else ranks)}{more}"


def _reach(case: Case) -> tuple[str, ...]:
    steps: dict[bool, str] = {}
    for address, silence in case.evidence.unreached.items():
        parts = urlsplit(address)
        steps.setdefault(
            silence.up,
            f"the host {parts.hostname} answers: does its watch run there, and serve at port {parts.port}? it says "
            "where when it starts (evidence is served at ...)"
            if silence.up
            else f"is {parts.hostname} up? ping it; its console, dmesg and the scheduler's log say how it ended",
        )
    return (*steps.values(), "then ask all again")


def _listed(names: list[str]) -> str:
    return ", ".join([*names[:3], *([f"{len(names) - 3} more"] if len(names) > 3 else [])])


def _across(case: Case) -> Iterator[tuple[GroupState, RankState, RankState, Subject, Subject]]:
    """For each group and each ordered pair of hosts, yield the furthest rank of the first and the rank least far of the
    second.

    Progress is counted in operations in which every rank waits for every rank. Yields the group, the two states, and
    the two subjects; nothing unless the evidence comes from directories.
    """
    if not case.evidence.directories:
        return
    names = Names.of(case.evidence, case.comparison)
    for group in case.groups:
        by_host: dict[str, list[RankState]] = {}
        for rank, state in group.ranks.items():
            by_host.setdefault(case.subject(names.key(group, rank)).process.host, []).append(state)
        by_host.pop("", None)
        far = {host: max(its, key=lambda state: state.joint) for host, its in by_host.items()}
        least = {host: min(its, key=lambda state: (state.enqueued, state.completed)) for host, its in by_host.items()}
        for here, peer_host in permutations(by_host, 2):
            leader, laggard = (case.subject(names.key(group, state.rank)) for state in (far[here], least[peer_host]))
            yield group, far[here], least[peer_host], leader, laggard


def _hosts(case: Case) -> list[str]:
    return sorted({process.host for process in case.evidence.processes})


def _node(case: Case, world: World, missing: list[int]) -> str:
    """Which node of the launch the missing ranks belong to, in words; empty if ranks are not numbered node by node."""
    processes = worlds(case.evidence)[world].values()
    sizes = {limits.rank(process.environ.get("LOCAL_WORLD_SIZE")) for process in processes}
    size = next(iter(sizes), None)
    if len(sizes) != 1 or not size or world[2] % size:
        return ""
    nodes = sorted({rank // size for rank in missing})
    return f" (node {_runs(nodes)} of {world[2] // size}, counted from 0)"


def _runs(numbers: list[int]) -> str:
    """Numbers as ranges: "0, 2-7"."""
    return ranks(numbers)
