"""A process that a rank started and let go has that rank's environment, and is no second holder of its number."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from triage_evidence import TORCH, compared, evidence, group, process, rank

from harness.triage.evidence import Beat, Frame, Group, Journal, OpenSpan, Process, Sample
from harness.triage.judge import triage
from harness.triage.ranks import with_ended_ranks, without_inherited
from reports.model import Verdict

WORLD = 4
REDUCE = "main:10 step:42 all_reduce"
LOOP = "main serve run_forever select"
LAUNCHER, INIT = 7, 1


def environ(number: int, *, world: int = WORLD, port: int = 29500, **more: str) -> dict[str, str]:
    names = {"RANK": str(number), "WORLD_SIZE": str(world), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return {**names, **more}


def recorded(*, world: int = WORLD, closed: bool = False, last_age_s: float = 60.0, groups: bool = True) -> Journal:
    made = (Group("0", tuple(range(world)), "gloo", "default_pg", world),) if groups else ()
    return Journal("j", 5, last_age_s, groups=made, closed=closed)


def member(
    number: int, stack: str = "", *, pid: int = 0, age_s: float = 300.0, world: int = WORLD, **more: Any
) -> Process:
    """A rank that took part in the world's group."""
    fields = {"journal": recorded(world=world), "environ": environ(number, world=world), "ppid": LAUNCHER, **more}
    return dataclasses.replace(rank(number, stack, world=world, age_s=age_s, **fields), pid=pid or 100 + number)


def daemon(number: int, pid: int, *, age_s: float = 200.0, stack: str = LOOP, **more: Any) -> Process:
    """What a rank started and let go: its parent has ended, and it belongs to no group."""
    fields = {"journal": recorded(groups=False), "environ": environ(number), "ppid": INIT, **more}
    return dataclasses.replace(rank(number, stack, age_s=age_s, **fields), pid=pid)


def finished(number: int, *, ago_s: float = 2.0, age_s: float = 300.0, **more: Any) -> Process:
    """A rank that ended in good order."""
    one = member(number, gone=True, age_s=age_s, journal=recorded(closed=True, last_age_s=ago_s), **more)
    return dataclasses.replace(one, beat=Beat(90, ago_s, ago_s, ended=True))


def killed(number: int, *, ago_s: float = 40.0, **more: Any) -> Process:
    """A rank that was ended by a signal, and left no last word."""
    one = member(number, gone=True, journal=recorded(last_age_s=ago_s), **more)
    return dataclasses.replace(one, beat=Beat(90, ago_s, ago_s))


def named(verdict: Verdict) -> list[str]:
    assert verdict.triage is not None
    return sorted(one.key for one in verdict.triage.culprits)


def ranks_of(*processes: Process) -> dict[int, int | None]:
    return {one.pid: one.rank for one in without_inherited(evidence(*processes)).processes}


# --- the false alarm


def test_ranks_that_finished_are_not_blamed_for_their_daemons_rest() -> None:
    """Two ranks are done, and the servers that they started wait for requests until they end of themselves."""
    launcher = process(LAUNCHER, "process", "main sleep")
    done = [finished(number, world=2) for number in (0, 1)]
    left = [daemon(n, 200 + n, environ=environ(n, world=2), world=2, listening=("127.0.0.1:4000",)) for n in (0, 1)]
    found = triage(evidence(launcher, *done, *left, stall_s=17.0, threshold_s=5.0), None)
    assert found.verdict == "HEALTHY" and not named(found), found.reason


def test_whoever_belongs_to_no_group_does_not_wait_for_a_rank_that_finished() -> None:
    """Where nothing tells whose rank it is, the groups do."""
    done = [finished(number, world=2, environ={}, age_s=0.0) for number in (0, 1)]
    left = [daemon(n, 200 + n, environ={}, world=2, age_s=0.0) for n in (0, 1)]
    found = triage(evidence(*done, *left, stall_s=17.0, threshold_s=5.0), None)
    assert found.verdict != "HUNG" and not named(found), found.reason


def test_a_fork_on_the_way_to_a_daemon_is_no_rank_that_ended() -> None:
    """It was forked from a rank, so its journal has that one's groups; it lived for a moment and left no last word."""
    fork = member(0, gone=True, pid=150, age_s=90.0, journal=recorded(last_age_s=89.0))
    fork = dataclasses.replace(fork, beat=Beat(1, 89.5, 89.5))
    ranks = [member(number, REDUCE) for number in (1, 2, 3)]
    late = member(0, "main:10 step:44 wait_for_reply")
    at = compared(group("0", {0: 16, **dict.fromkeys((1, 2, 3), (17, "all_reduce"))}))
    found = triage(evidence(late, *ranks, fork, daemon(0, 200, age_s=89.0)), at)
    assert found.verdict == "HUNG" and named(found) == ["node0:100"], found.reason


def test_a_fork_that_has_ended_is_told_by_its_parent() -> None:
    """Of what has ended no environment is left; its journal names its parent. Nobody misses it."""
    fork = member(0, gone=True, pid=150, ppid=100, journal=recorded(last_age_s=89.0), environ={}, age_s=0.0)
    asks, waits = member(0, LOOP), member(1, REDUCE)
    at = compared(group("0", {0: 16, 1: (17, "all_reduce")}, members=(0, 1)))
    assert ranks_of(asks, waits, fork) == {100: 0, 101: 1, 150: None}
    assert not named(triage(evidence(asks, waits, fork), at))


@pytest.mark.parametrize("parent", [INIT, 101])
def test_an_orphan_of_an_earlier_job_of_the_same_address_is_no_rank_of_this_one(parent: int) -> None:
    """A child that the earlier rank 1 started is older than the rank 1 that was started now, and knows no more."""
    bare = {"journal": None, "beat": None, "world": 2}
    ranks = [dataclasses.replace(member(number, REDUCE, environ=environ(number, world=2), **bare), beat=None)
             for number in (0, 1)]  # fmt: skip
    orphan = daemon(1, 200, age_s=9000.0, environ=environ(1, world=2), **{**bare, "ppid": parent})
    orphan = dataclasses.replace(orphan, beat=None)
    assert ranks_of(*ranks, orphan) == {100: 0, 101: 1, 200: None}
    # With one rank on this host no sibling tells, and who started first keeps the number.
    apart = dataclasses.replace(orphan, ppid=INIT)
    assert ranks_of(ranks[1], apart) == {101: None, 200: 1}


# --- hangs that a daemon must not hide, nor be blamed for


def test_a_loaders_orphan_is_no_restart_of_the_rank_that_was_killed() -> None:
    """Its workers outlive a rank by seconds, with its RANK: the rank is still who died."""
    ranks = [member(number, REDUCE) for number in (0, 1, 2)]
    orphan = daemon(3, 203, stack="main:5 worker_loop queue.get", age_s=250.0)
    at = compared(group("0", dict.fromkeys((0, 1, 2), (17, "all_reduce")), members=range(4), missing=(3,)))
    found = triage(evidence(*ranks, killed(3), orphan), at)
    assert found.verdict == "HUNG" and named(found) == ["node0:103"], found.reason
    assert found.triage is not None and found.triage.hang == "K4"


def test_a_loggers_daemon_has_not_to_come_to_a_group() -> None:
    """wandb.init before init_process_group: rank 2 has not come, and the daemon of rank 0 never will."""
    opening = (OpenSpan("init_process_group", 60.0, {"world_size": WORLD}),)
    came = [
        member(n, "main:3 setup init_process_group", spans=opening, journal=recorded(groups=False)) for n in (0, 1, 3)
    ]
    late = member(2, "main:2 read_config", journal=recorded(groups=False))
    found = triage(evidence(*came, late, daemon(0, 200, age_s=290.0)), None)
    assert found.verdict == "HUNG" and named(found) == ["node0:102"], found.reason


def test_a_shell_around_a_rank_is_not_the_rank() -> None:
    """`torchrun --no-python run.sh`: the script has RANK first, and the program below it takes part."""
    claims = [{"rank": n, "world_size": WORLD, "environ": environ(n), "age_s": 301.0} for n in range(WORLD)]
    shells = [dataclasses.replace(process(50 + n, "shell"), beat=None, **claims[n]) for n in range(WORLD)]
    ranks = [member(n, REDUCE, ppid=50 + n) for n in (1, 2, 3)]
    late = member(0, "main:10 step:44 wait_for_reply", ppid=50)
    at = group("0", {0: 16, **dict.fromkeys((1, 2, 3), (17, "all_reduce"))}, keyed=False)
    found = triage(evidence(*shells, late, *ranks), compared(at))
    assert found.verdict == "HUNG" and named(found) == ["node0:100"], found.reason


# --- who keeps the number


def test_a_daemon_beside_its_rank_has_none() -> None:
    assert ranks_of(member(0), daemon(0, 200)) == {100: 0, 200: None}
    # before any group was made: by its age
    assert ranks_of(member(0, journal=None), daemon(0, 200, journal=None)) == {100: 0, 200: None}
    assert ranks_of(daemon(0, 200, journal=None), member(0, journal=None)) == {100: 0, 200: None}
    # a program without a heartbeat
    assert ranks_of(member(0, journal=None, age_s=0.0), daemon(0, 200, beat=None, journal=None)) == {100: 0, 200: None}


def test_of_two_that_nothing_tells_apart_both_keep_it() -> None:
    pair = member(0, age_s=0.0), member(0, pid=200, age_s=0.0)
    assert ranks_of(*pair) == {100: 0, 200: 0}


def test_a_rank_that_was_started_again_keeps_its_number() -> None:
    """It has made no group yet; a daemon of the first attempt lives on beside it, and has none."""
    dead = killed(0, ago_s=40.0)
    again = member(0, pid=160, age_s=30.0, journal=recorded(groups=False))
    left = daemon(0, 200, age_s=200.0)
    for some in ((dead, again, left), (left, again, dead), (again, left, dead)):
        assert ranks_of(*some) == {100: 0, 160: 0, 200: None}


@pytest.mark.parametrize("attempts", [("0", "1"), ("1", "2")])
def test_a_later_attempt_is_told_by_its_number(attempts: tuple[str, str]) -> None:
    """Where the first one's last word is later than the start of the second (a slow disk)."""
    first, second = ({"TORCHELASTIC_RESTART_COUNT": count} for count in attempts)
    dead = killed(0, ago_s=20.0, environ=environ(0, **first))
    again = member(0, pid=160, age_s=30.0, journal=recorded(groups=False), environ=environ(0, **second))
    left = daemon(0, 200, environ=environ(0, **first))
    assert ranks_of(dead, again, left) == {100: 0, 160: 0, 200: None}


def test_worlds_of_one_job_number_their_ranks_alike() -> None:
    """Actor and critic meet at different places, or nobody knows where; Ray starts each worker by itself."""
    actor = member(0)
    elsewhere = member(0, pid=160, age_s=100.0, environ=environ(0, port=29600), journal=recorded(groups=False))
    unknown = member(0, pid=161, age_s=100.0, environ={}, journal=recorded(groups=False))
    of_ray = member(0, pid=162, age_s=100.0, title="ray::WorkerDict.update", journal=recorded(groups=False))
    other_host = dataclasses.replace(daemon(0, 163), host="node1")
    engine = member(0, pid=164, world=2, age_s=100.0, engine="vllm", environ=environ(0))
    everyone = (actor, elsewhere, unknown, of_ray, other_host, engine)
    assert ranks_of(*everyone) == {one.pid: 0 for one in everyone}


def test_what_an_orphan_took_for_its_own_dump_is_its_ranks() -> None:
    """By its RANK it finds the file that NCCL wrote of the rank."""
    pair = member(0, dump="recorder/node0-100.pickle"), daemon(0, 200, dump="recorder/node0-200.pickle")
    found = {one.pid: one.dump for one in without_inherited(evidence(*pair)).processes}
    assert found == {100: "recorder/node0-100.pickle", 200: ""}


@pytest.mark.slow
def test_a_thousand_ranks_each_with_a_daemon() -> None:
    ranks = [member(n, REDUCE, world=1000, pid=1000 + n) for n in range(1000)]
    left = [daemon(n, 5000 + n, world=1000, environ=environ(n, world=1000)) for n in range(1000)]
    found = ranks_of(*left, *ranks)
    assert all(found[1000 + n] == n and found[5000 + n] is None for n in range(1000))


def test_a_rank_of_which_only_an_end_was_seen_counts_as_ended() -> None:
    """A sample alone: neither a beat nor a journal says when."""
    unknown = member(0, pid=150, journal=None, age_s=0.0)
    unknown = dataclasses.replace(unknown, beat=None, samples=(Sample(0.0, "gone"),))
    assert ranks_of(unknown, member(0, journal=recorded(groups=False))) == {150: 0, 100: 0}


def child(number: int, stack: str = REDUCE, *, age_s: float = 300.0, world: int = 3, **more: Any) -> Process:
    """A rank that nothing records, started by the launcher of a job on one host."""
    return rank(
        number, stack, world=world, age_s=age_s, beat=None, ppid=LAUNCHER, environ=environ(number, world=world), **more
    )


def zombie(pid: int, *, code: int = -9, age_s: float = 300.0, ppid: int = LAUNCHER) -> Process:
    """A child that has ended, of which only its parent's number and its exit code are left."""
    looks = (Sample(0.0, "Z"), Sample(1.5, "Z"))
    return Process("node", pid, ppid, "[python]", exit_code=code, age_s=age_s, samples=looks)


def ended_rank(*processes: Process) -> dict[int, int | None]:
    hosted = [dataclasses.replace(each, host="node") for each in processes]
    return {each.pid: each.rank for each in with_ended_ranks(evidence(*hosted)).processes}


def test_a_child_that_ended_is_the_rank_that_is_missing() -> None:
    assert ended_rank(child(0), child(1), zombie(102)) == {100: 0, 101: 1, 102: 2}
    assert ended_rank(child(0), zombie(101), zombie(102)) == {100: 0, 101: 1, 102: 2}


@pytest.mark.parametrize(
    "processes",
    [
        pytest.param((child(0), child(2), zombie(99)), id="it was started before rank 0"),
        pytest.param((child(0), zombie(101)), id="two ranks are missing"),
        pytest.param((child(0), child(1), child(2), zombie(103)), id="no rank is missing"),
        pytest.param((child(0), child(1), zombie(102, age_s=30.0)), id="it was started much later"),
        pytest.param((child(0), child(1), zombie(102, ppid=8)), id="of another parent"),
    ],
)
def test_another_child_that_ended_is_no_rank(processes: tuple[Process, ...]) -> None:
    assert {pid: number for pid, number in ended_rank(*processes).items() if pid in (99, 101, 102, 103)}.get(
        processes[-1].pid
    ) is None


def test_a_child_that_ended_is_no_rank_where_a_world_has_other_hosts() -> None:
    far = {"MASTER_ADDR": "10.0.0.1"}
    ranks = [dataclasses.replace(child(number), environ={**environ(number, world=3), **far}) for number in (0, 1)]
    assert ended_rank(*ranks, zombie(102))[102] is None
    local = [dataclasses.replace(each, environ={**each.environ, "LOCAL_WORLD_SIZE": "3"}) for each in ranks]
    assert ended_rank(*local, zombie(102))[102] == 2


def test_the_rank_that_ended_is_named_where_the_others_wait() -> None:
    ranks = [dataclasses.replace(each, host="node") for each in (child(0), child(1), zombie(102))]
    verdict = triage(evidence(*ranks, source="pid"))
    assert verdict.triage is not None and named(verdict) == ["node:102"]
    assert (verdict.triage.hang, verdict.triage.culprits[0].rank) == ("K4", 2)


@pytest.mark.parametrize(("group", "missed"), [("", True), (", group=actors", False)])
def test_a_rank_that_ended_well_is_missed_in_the_groups_of_the_world_alone(
    tmp_path: Path, group: str, missed: bool
) -> None:
    program = tmp_path / "job.py"
    program.write_text(f"def main():\n    dist.all_reduce(x{group})\n")
    frames = (Frame("all_reduce", TORCH, 100), Frame("main", str(program), 2))
    ranks = []
    for each in (child(0), child(1)):
        looks = tuple(dataclasses.replace(look, threads=(dataclasses.replace(look.threads[0], frames=frames),),
                                          net_quiet_s=60.0) for look in each.samples)  # fmt: skip
        ranks.append(dataclasses.replace(each, host="node", samples=looks))
    verdict = triage(evidence(*ranks, zombie(102, code=0), source="live", stall_s=0.0))
    assert (named(verdict) == ["node:102"]) is missed, verdict.reason
