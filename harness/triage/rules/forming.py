"""Rules about a process group that never forms (K5): which rank has not come, and whether anybody looked at its
host."""

from __future__ import annotations

import re
from collections import Counter

from harness.triage.graph import Subject
from harness.triage.graph.edges import forming
from harness.triage.graph.subjects import LAUNCHERS
from harness.triage.rules.outsiders import awaits_tasks, in_client
from harness.triage.rules.pauses import slow_because
from harness.triage.rules.polls import polling
from harness.triage.rules.ruling import NO_MAJORITY, Case, Ruling
from probes import limits
from reports.text import listed

_OF_ONE_HOST = re.compile(r"(^|/| )(torchrun|accelerate|torch[./]distributed[./](run|launch)(\.py)?)( |$)")
_NODES = re.compile(r"--(?:nnodes|num_machines)[= ](\S+)")
_MAY_HAVE_ENDED = "read what the launcher printed: whether that rank has ended, and how"
_STEPS = (
    "compare world size, MASTER_ADDR and MASTER_PORT on every rank",
    "every rank of the world must call new_group, members or not",
)


def unformed(case: Case) -> Ruling | None:
    """K5: members wait for a group to form, and some ranks have not come, nor is anything seen by which they would."""
    making = {
        subject.key: what for subject in case.live() if (what := forming(subject)) is not None and not subject.progress
    }
    # A group made beside torch's register numbers its members itself; torch's world size and ranks do not apply.
    if ruling := _beside(case, [case.subject(key) for key, what in making.items() if what.name]):
        return ruling
    joining = [case.subject(key) for key, what in making.items() if not what.name]
    if not joining:
        return None
    awaited = _awaited(case, joining)
    members = {member.key for member in joining}
    targets = [target for target in awaited if not _may_come(case, target, members)]
    if awaited and not targets:
        return None
    moving = [target for target in targets if target.progress]
    if moving:
        return slow_because(case, [moving[0].key])
    if apart := _memberships(case, joining):
        return apart
    place = _place(joining[0])
    # Nobody is missing, so the members meet at different places or cannot reach each other.
    if not targets:
        return _addresses(case, joining, place)
    return _without_members(case, joining, targets, place)


def _may_come(case: Case, target: Subject, members: set[str]) -> bool:
    """Whether a rank waits for somebody else: who may still end that wait (`alive.unaided`), a server outside the job,
    or a process that is no member and is judged itself."""
    if target.key in case.excused:
        return True
    asks = any(wait.waiter == target.key and wait.target not in members for wait in case.graph.waits)
    return target.observed and not target.stuck and (asks or awaits_tasks(target) or in_client(case, target))


def _awaited(case: Case, joining: list[Subject]) -> list[Subject]:
    """The ranks for which the members wait at the group's store."""
    keys = {member.key for member in joining}
    waits = [wait for wait in case.graph.waits if wait.waiter in keys and wait.layer == "store"]
    return [case.subject(key) for key in dict.fromkeys(wait.target for wait in waits)]


def _place(member: Subject) -> str:
    group = forming(member)
    assert group is not None
    return group.op + (f" of {group.world_size} ranks" if group.world_size else "")


def _without_members(case: Case, joining: list[Subject], targets: list[Subject], place: str) -> Ruling | None:
    """Rule on ranks that have not come: where nobody looked, in the next operation, in a poll, or somewhere else."""
    if not _would_be_seen(case, joining):
        elsewhere = [target for target in targets if not target.observed]
        if elsewhere and len(elsewhere) == len(targets):
            return _not_looked_at(elsewhere, place)
        targets = [target for target in targets if target.observed]
    # Ranks that have gone on wait for the few that make the group: that is a ring, and `_alone` decides who is odd.
    if any(target.stuck or forming(target) for target in targets) and len(targets) >= len(joining):
        ring = _alone(case, joining, targets, place)
        if ring is not None or len(targets) > len(joining):
            return ring
    if targets and all(target.polls for target in targets):
        return polling(case, targets)
    return _not_come(case, [target for target in targets if not target.polls], place)


def _not_looked_at(ranks: list[Subject], place: str) -> Ruling:
    numbers = ", ".join(str(subject.rank) for subject in ranks[:8])
    return Ruling(
        "INSUFFICIENT",
        f"{place} waits for rank {numbers}, which was not looked at",
        place=place,
        missing=tuple(f"nothing from rank {subject.rank}" for subject in ranks),
        next=("name the launcher's pid instead of one rank's", "take evidence on every host, into one directory"),
    )


def _not_come(case: Case, targets: list[Subject], place: str) -> Ruling:
    why = {
        target.key: "no process has this rank: it has ended, or never started"
        if not target.observed
        else f"has not come: {target.state()}"
        for target in targets
    }
    ended = () if all(target.observed for target in targets) else (_MAY_HAVE_ENDED,)
    reason = f"{place} never forms: {case.names(why)} {_how(targets[0])}"
    return Ruling("HUNG", reason, "K5", why, place=place, next=(*ended, *_STEPS))


def _how(subject: Subject) -> str:
    return "has not come" if subject.observed else "is not there"


def _memberships(case: Case, joining: list[Subject]) -> Ruling | None:
    """K5: ranks make a group with each other, but with different lists of members or a different order."""
    lists = {
        member.key: what.members for member in joining if (what := forming(member)) and member.rank in what.members
    }
    ranks = {member.key: member.rank for member in joining}

    def disagree(key: str, peer_key: str) -> bool:
        """Whether each of two ranks is in the other's list, and the lists differ."""
        members, theirs = lists[key], lists[peer_key]
        return theirs != members and ranks[key] in theirs and ranks[peer_key] in members

    apart = [key for key in lists if any(disagree(key, peer_key) for peer_key in lists)]
    if not apart:
        return None
    lists_apart = {lists[key] for key in apart}
    lists = {key: members for key, members in lists.items() if members in lists_apart}
    counts = Counter(lists.values()).most_common()
    usual = counts[0][0] if counts[0][1] > counts[1][1] else None
    why = {key: f"makes a group of ranks {listed(lists[key])}, {counts[0][1]} others one of {listed(usual)}"
           for key in lists if usual is not None and lists[key] != usual}  # fmt: skip
    descriptions = tuple(f"{case.subject(key).label} makes one of ranks {listed(lists[key])}" for key in apart[:4])
    return Ruling(
        "HUNG", f"ranks make different groups with each other: {case.names(why or apart)}", "K5", why,
        place="new_group", evidence=descriptions if why else (*descriptions, NO_MAJORITY),
        next=("make the groups in one order, with one list of ranks, on every rank", *_STEPS),
    )  # fmt: skip


def _alone(case: Case, joining: list[Subject], targets: list[Subject], place: str) -> Ruling | None:
    """K5: a few ranks make a group or wait at its store, and the ranks that do not come wait for them in the next
    operation.

    This is a ring. The smaller side is named; nobody is if both sides are equal.
    """
    keys = [member.key for member in joining]
    if case.sinks() or not any(set(keys) & set(ring) for ring in case.graph.cycles):
        return None
    reason = (
        f"waits there, and the others do not come; {case.names(target.key for target in targets)}: {targets[0].state()}"
    )
    is_minority = len(joining) < len(targets)
    return Ruling(
        "HUNG",
        f"{place} never forms: {case.names(keys)} waits there, and the others do not come",
        "K5",
        dict.fromkeys(keys, reason) if is_minority else {},
        () if is_minority else tuple(keys + [target.key for target in targets]),
        place,
        evidence=(reason,) if is_minority else (reason, NO_MAJORITY),
        next=_STEPS,
    )


def _would_be_seen(case: Case, joining: list[Subject]) -> bool:
    """Whether a rank that runs somewhere would be in the evidence: it is of a whole job, on hosts that were looked
    at."""
    if not _all_here(case, joining):
        return False
    if case.evidence.source != "live":
        return True
    pids = {(each.host, each.pid) for each in case.evidence.processes}
    if any((member.process.host, member.process.ppid) in pids for member in joining):
        return True  # their launcher is in the evidence, with everything below it
    return len(joining) > 1 and all(member.process.beat for member in joining)


def _all_here(case: Case, joining: list[Subject]) -> bool:
    """Whether the whole world was started on the hosts that were looked at, by what the launcher says.

    Either LOCAL_WORLD_SIZE adds up to WORLD_SIZE over these hosts, or the launcher's command starts ranks on one host
    only. Under srun, mpirun or a shell nothing says so.
    """
    local: dict[str, int] = {}
    world = 0
    for member in joining:
        here, everywhere = (
            limits.rank(member.process.environ.get(name)) for name in ("LOCAL_WORLD_SIZE", "WORLD_SIZE")
        )
        if here is not None and everywhere is not None:
            local[member.process.host] = max(here, local.get(member.process.host, 0))
            world = max(everywhere, world)
    if local:
        return sum(local.values()) >= world
    parents = {(member.process.host, member.process.ppid) for member in joining}
    above = [each for each in case.evidence.processes if (each.host, each.pid) in parents]
    return len(parents) == len(above) == 1 and above[0].role in LAUNCHERS and _single_host(above[0].command)


def _single_host(command: str) -> bool:
    """Whether a launcher's command starts ranks on its own host only."""
    nodes = _NODES.search(command)
    return bool(_OF_ONE_HOST.search(command)) and (nodes is None or nodes[1] in ("1", "1:1"))


def _addresses(case: Case, joining: list[Subject], place: str) -> Ruling | None:
    """K5: everybody waits in the rendezvous and nobody is missing, so the ranks meet at different addresses or
    nowhere."""
    at = {
        member.key: f"{env.get('MASTER_ADDR', '?')}:{env.get('MASTER_PORT', '?')}"
        for member in joining
        if (env := member.process.environ)
    }
    places = Counter(at.values()).most_common()
    if len(places) < 2:
        return _apart(joining, place)
    alone = {
        key: f"meets at {where}, the others at {places[0][0]}"
        for key, where in at.items()
        if places[0][1] > places[1][1] and where != places[0][0]
    }
    return Ruling(
        "HUNG",
        f"{place} never forms: its members meet at {len(places)} different addresses",
        "K5",
        alone,
        place=place,
        next=_STEPS,
    )


def _apart(joining: list[Subject], place: str) -> Ruling | None:
    """INSUFFICIENT: ranks of several hosts have all come to the rendezvous, and none gets out: they do not reach
    each other."""
    worlds = {what.world_size for member in joining if (what := forming(member)) is not None}
    hosts = sorted({member.process.host for member in joining})
    if len(hosts) < 2 or worlds != {len({member.rank for member in joining})}:
        return None
    between = f"{', '.join(hosts[:-1])} and {hosts[-1]}"
    return Ruling(
        "INSUFFICIENT",
        f"every rank has come to {place}, and none comes out",
        place=place,
        evidence=(f"ranks of {between} do not reach one another, though they reach the rendezvous",),
        missing=(f"whether {between} let the ranks' own ports through",),
        next=(
            f"does a firewall between {between} pass all ports? the kernel picks those of the ranks",
            "is GLOO_SOCKET_IFNAME or NCCL_SOCKET_IFNAME an interface that the hosts share? harness doctor on each",
        ),
    )


def _beside(case: Case, joining: list[Subject]) -> Ruling | None:
    """K5: the members of a group beside torch's register, such as that of a weight sync, do not describe it alike.

    They call it by different names, or two of them claim the same rank. There must be as many of them as the group has
    ranks: one name may stand for several groups, and a group that waits for somebody else has another fault.
    """
    meant = {member.key: what for member in joining if (what := forming(member)) is not None}
    if {what.world_size for what in meant.values()} != {len(meant)}:
        return None
    names = Counter(what.name for what in meant.values())
    claims = Counter(what.place for what in meant.values())
    if len(names) > 1 and len(claims) == len(meant):
        (usual, most), (_, next_most), *_ = names.most_common()
        descriptions = {
            key: f"calls it {what.name}" for key, what in meant.items() if what.name != usual or most == next_most
        }
        why = (
            {key: f"{description}, {most} others {usual}" for key, description in descriptions.items()}
            if most > next_most
            else {}
        )
    elif len(names) == 1 and len(claims) == len(meant) - 1:
        descriptions = {key: f"claims rank {what.place}" for key, what in meant.items() if claims[what.place] > 1}
        why = {}
    else:
        return None
    place = names.most_common(1)[0][0]
    ways = tuple(f"{case.names([key])} {description}" for key, description in list((why or descriptions).items())[:4])
    tie_note = () if why else ("nothing tells who is right, so nobody is named",)
    return Ruling(
        "HUNG", f"group {place} of {len(meant)} ranks never forms: {case.names(why or descriptions)}", "K5", why,
        place=place, evidence=(*ways, *tie_note),
        next=("give the trainer and every engine one name, and a rank of its own, for this group",),
    )  # fmt: skip
