"""Groups made beside torch's register, as of a weight sync: they number their members in a way of their own."""

from __future__ import annotations

import pytest
from triage_evidence import FILES, HOST, TORCH, compared, evidence, group, process, rank, wording

from harness.triage.evidence import OpenSpan, Process
from harness.triage.judge import triage
from reports.model import Verdict

FILES["_new_process_group_helper"] = TORCH
JOINS = "main:5 sync init_custom_process_group _new_process_group_helper"
SERVES = "main serve run_forever select"


def making(name: str, place: int, size: int) -> tuple[OpenSpan, ...]:
    fields = {"backend": "gloo", "group_name": name, "group_size": size, "group_rank": place}
    return (OpenSpan("_new_process_group_helper", 40.0, fields),)


def engine(number: int, name: str, place: int, size: int) -> Process:
    return process(200 + number, "rollout", JOINS, spans=making(name, place, size))


def trainer(name: str, size: int, *, world: int = 2) -> list[Process]:
    """Rank 0 makes the group; its peers wait for it."""
    first = rank(0, JOINS, world=world, spans=making(name, 0, size))
    return [first, *(rank(n, "main:6 sync barrier", world=world) for n in range(1, world))]


def judged(*processes: Process) -> Verdict:
    peers = [one.rank for one in processes if one.rank]
    at = compared(group("0", {0: 16, **dict.fromkeys(peers, (17, "barrier"))})) if peers else None
    return triage(evidence(*processes), at)


def named(verdict: Verdict) -> list[int]:
    assert verdict.triage is not None
    return sorted(int(one.key.removeprefix(f"{HOST}:")) for one in verdict.triage.culprits)


def test_one_that_calls_it_otherwise() -> None:
    some = [engine(n, "actor" if n == 1 else "policy", n + 1, 5) for n in range(4)]
    found = judged(*trainer("policy", 5), *some)
    assert found.verdict == "HUNG" and named(found) == [201] and "calls it actor" in wording(found)


def test_of_two_nobody_is_named() -> None:
    found = judged(*trainer("actor", 2, world=1), engine(0, "policy", 1, 2))
    assert found.verdict == "HUNG" and not named(found) and found.triage and found.triage.hang == "K5"


def test_one_that_waits_for_more_members_than_the_others() -> None:
    """The group of the others is not the one that it waits for: nothing says who its fourth member is."""
    found = judged(*trainer("update", 4, world=1), engine(0, "update", 1, 3), engine(1, "update", 2, 3))
    assert found.verdict == "INSUFFICIENT" and not named(found)


def test_two_that_claim_one_rank() -> None:
    found = judged(*trainer("update", 3), engine(0, "update", 1, 3), engine(1, "update", 1, 3))
    assert found.verdict == "HUNG" and not named(found) and "claims rank 1" in wording(found)


@pytest.mark.parametrize("world", [1, 4])
def test_who_has_not_come_to_it_is_no_rank_of_the_trainers_world(world: int) -> None:
    """Engine 1 serves; that it is the third member, nothing says. Ranks 1 to 3 have no part in this group."""
    found = judged(*trainer("update", 3, world=world), engine(0, "update", 1, 3), process(201, "rollout", SERVES))
    assert found.verdict == "INSUFFICIENT" and not named(found), found.reason


def test_groups_of_two_policies_are_two_groups() -> None:
    """Each waits for an engine of its own."""
    some = [engine(0, "actor", 1, 3), engine(1, "critic", 0, 3), engine(2, "critic", 1, 3)]
    assert not named(judged(*trainer("actor", 3, world=1), *some))


def test_replicas_call_their_groups_alike() -> None:
    """Each engine of two ranks makes its group with its own rank: no rank is claimed twice within one group."""
    some = [process(300 + n, "rollout", JOINS, spans=making("tp", n % 2, 2)) for n in range(4)]
    assert judged(*some).verdict != "HUNG"


def test_a_group_of_the_register_is_one_whatever_its_helper_says() -> None:
    """Inside of new_group the same helper runs: its members are ranks of the world."""
    spans = (OpenSpan("new_group", 40.0, {"ranks": [0, 1, 2]}), *making("1", 0, 3))
    came = [rank(n, "main new_group _new_process_group_helper", world=3, spans=spans) for n in (0, 1)]
    found = judged(*came, rank(2, "main:2 read_config", world=3))
    assert found.verdict == "HUNG" and named(found) == [102], found.reason
    bare = [rank(n, "main new_group _new_process_group_helper", world=3, spans=making("1", n, 3)) for n in (0, 1)]
    found = judged(*bare, rank(2, "main:2 read_config", world=3))  # by the stack alone
    assert found.verdict == "HUNG" and named(found) == [102], found.reason
