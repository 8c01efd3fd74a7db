"""Whether each process of a run was on a host that its placement asked for."""

from __future__ import annotations

from pathlib import Path

import pytest
from recordings import Recording, check, make, put, scenario

pytestmark = pytest.mark.slow

ASKED = {
    "engine": {"resource": "engine", "hosts": ["node-2", "node-3"]},
    "learner": {"resource": "learner", "hosts": ["node-1"]},
}


def run(side: str, **hosts: str) -> Recording:
    """A run in which these logs were written on these hosts; all others on node-1."""
    made = make(side, scenario(steps=2))
    made.manifest["placement"] = ASKED
    for name, log in made.logs.items():
        for kind, fields in log.events:
            if kind == "open":
                fields["host"] = hosts.get(name, "node-2" if log.role == "rollout" else "node-1")
    return made


def test_a_run_where_it_was_asked_for(tmp_path: Path) -> None:
    verdict = put(tmp_path, run("baseline"), run("candidate", rollout="node-3"))
    told = check(verdict, "placement")
    assert told.state == "ruled out" and "node-2, node-3" in told.evidence, told.evidence
    assert not [one for one in verdict.findings if one.name == "placement"]


@pytest.mark.parametrize(
    ("hosts", "named"), [({"rollout": "node-1"}, "rollout ran on node-1"), ({"actor": "node-2"}, "actor ran on node-2")]
)
def test_a_role_on_another_node_is_named(hosts: dict[str, str], named: str, tmp_path: Path) -> None:
    verdict = put(tmp_path, run("baseline"), run("candidate", **hosts))
    told = check(verdict, "placement")
    assert told.state == "confirmed" and f"candidate: {named}" in told.evidence, told.evidence
    [finding] = [one for one in verdict.findings if one.name == "placement"]
    assert finding.where == "candidate" and finding.severity == "warning"
    assert verdict.verdict == "EQUIVALENT", "the comparison holds; it is not the one that was asked for"


def test_hosts_that_nobody_recorded_are_not_tested(tmp_path: Path) -> None:
    silent = run("candidate")
    for fields in silent.events("open"):
        fields.pop("host", None)
    assert check(put(tmp_path, run("baseline"), silent), "placement").state == "not tested"


def test_hosts_that_were_asked_for_of_one_run_are_not_those_of_the_other(tmp_path: Path) -> None:
    silent = run("candidate")
    del silent.manifest["placement"]
    silent.manifest["scenario"]["placement"] = {"engine": "engine", "learner": ""}
    told = check(put(tmp_path, run("baseline"), silent), "placement")
    assert told.state == "not tested" and "candidate: no host of engine" in told.evidence


def test_a_run_that_asks_for_nothing_has_no_such_check(tmp_path: Path) -> None:
    verdict = put(tmp_path, make("baseline", scenario(steps=2)), make("candidate", scenario(steps=2)))
    assert verdict.parity and all(one.name != "placement" for one in verdict.parity.checks)
