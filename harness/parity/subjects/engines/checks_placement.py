"""The check of placement: whether each process of a run was on a host that its placement asked for."""

from __future__ import annotations

from harness.parity.checks.registry import Outcome, by_findings, check
from harness.parity.facts.evidence import Evidence, Side
from reports.model import Finding
from scenarios.settings import Placement

NAME = "placement"
KINDS = Placement(engine="engine", learner="learner")  # role -> key of run.json's `placement`


@check(NAME, applies=lambda e: any(_asked_hosts(side) for side in e.sides), alone=True)
def placement(e: Evidence) -> Outcome:
    """Whether learner and engines ran on the nodes that `placement.learner` and `placement.engine` ask for."""
    astray, silent, kept = [], [], []
    for side in e.sides:
        asked_hosts, hosts_by_role = _asked_hosts(side), _hosts_by_role(side)
        for kind, hosts in asked_hosts.items():
            ran = {role: role_hosts for role, role_hosts in hosts_by_role.items() if KINDS.of(role) == kind}
            if not hosts or not ran:
                silent.append(f"{side.name}: {'no host' if ran else 'no process'} of {kind} was recorded")
                continue
            wrong = [_astray(side, role, role_hosts, hosts) for role, role_hosts in ran.items() if role_hosts - hosts]
            astray += wrong
            if not wrong:
                kept.append(f"{side.name}, {kind}: {', '.join(sorted(set().union(*ran.values())))}")
    return by_findings(NAME, astray, silent, kept)


def _astray(side: Side, role: str, ran_on: set[str], asked_hosts: set[str]) -> Finding:
    """Return the finding that processes of a role ran on hosts that were not asked for."""
    return Finding(
        "placement",
        f"{role} ran on {', '.join(sorted(ran_on - asked_hosts))}, and {', '.join(sorted(asked_hosts))} was asked for",
        effect="another node than asked for",
        severity="warning",
        where=side.name,
        about="setting",
    )


def _asked_hosts(side: Side) -> dict[str, set[str]]:
    """Return "engine" or "learner" -> hosts that offered what was asked for; an empty set where none was recorded."""
    records = side.recording.records
    hosts, placement = records.manifest.hosts, records.settings.placement
    kinds = dict.fromkeys([*hosts, *(kind for kind, place in placement.items() if place)])
    return {kind: {*hosts.get(kind, ())} for kind in kinds}


def _hosts_by_role(side: Side) -> dict[str, set[str]]:
    """Return role -> hosts of its processes, as far as they recorded one."""
    hosts_by_role: dict[str, set[str]] = {}
    for start in side.recording.records.starts:
        if start.host:
            hosts_by_role.setdefault(start.role or "", set()).add(start.host)
    return hosts_by_role
