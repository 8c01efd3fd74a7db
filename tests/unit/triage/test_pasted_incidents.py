"""Several incidents in one log: the last one is judged alone, with its own errors."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.triage import pasted
from harness.triage.evidence import Evidence
from harness.triage.run import triage

OOM = "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.50 GiB."
RESTART = (
    "[2026-06-06 03:09:20,000] torch.distributed.elastic.agent.server.api: [INFO] [default] Worker group FAILED. "
    "3/3 attempts left; will restart worker group"
)
TRACEBACK = "[rank3]: Traceback (most recent call last):"


def timeout(at: str, rank: int, seq: int = 411, group: str = "0(default_pg)", ran_s: int = 600) -> list[str]:
    number = group[0]
    return [
        f"[rank{rank}]:[E606 {at}.1 ProcessGroupNCCL.cpp:632] [Rank {rank}] Watchdog caught collective operation "
        f"timeout: WorkNCCL(SeqNum={seq}, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)={ran_s}000) ran for "
        f"{ran_s}004 milliseconds before timing out.",
        f"[rank{rank}]:[E606 {at}.2 ProcessGroupNCCL.cpp:2268] [PG ID {number} PG GUID {group} Rank {rank}]  failure "
        f"detected by watchdog at work sequence id: {seq} PG status: last enqueued work: {seq + 1}, last completed "
        f"work: {seq - 1}",
    ]


def dump_signal(at: str, rank: int, enqueued: int = 96, group: str = "1(fsdp)") -> str:
    return (
        f"[rank{rank}]:[E606 {at}.3 ProcessGroupNCCL.cpp:1682] [PG ID {group[0]} PG GUID {group} Rank {rank}] Received "
        "a dump signal due to a collective timeout from  rank 2 and we will try our best to dump the debug info. Last "
        f"enqueued NCCL work: {enqueued}, last completed NCCL work: {enqueued}."
    )


FIRST = [*timeout("03:09:08", 0), *timeout("03:09:08", 1)]
LAST = [*timeout("09:09:08", 2, 97, "1(fsdp)"), dump_signal("09:09:08", 0)]


def evidence(folder: Path, *lines: str) -> Evidence:
    (folder / "job.log").write_text("\n".join(lines) + "\n")
    evidence = pasted.evidence([str(folder / "job.log")])
    assert evidence is not None
    return evidence


@pytest.mark.parametrize("before", [[], [TRACEBACK, OOM]], ids=["timeouts", "an-error-first"])
@pytest.mark.parametrize("between", [[], ["step 1"], [RESTART]], ids=["nothing", "step", "restart"])
def test_the_last_of_two_incidents_is_judged_alone(tmp_path: Path, before: list[str], between: list[str]) -> None:
    (tmp_path / "job.log").write_text("\n".join([*before, *FIRST, *between, *LAST]) + "\n")
    verdict = triage([str(tmp_path / "job.log")])
    assert verdict.triage is not None
    assert (verdict.verdict, [party.rank for party in verdict.triage.culprits]) == ("HUNG", [0])
    assert {node.label for node in verdict.triage.nodes} == {"rank 0", "rank 2"}


def test_errors_of_an_earlier_incident_are_left_out_and_told(tmp_path: Path) -> None:
    timed = "[rank1]: [2026-06-06 03:09:10] RuntimeError: CUDA error: an illegal memory access"
    its_own = "[rank1]: [2026-06-06 09:08:00] RuntimeError: CUDA error: device-side assert"
    case = evidence(tmp_path, TRACEBACK, OOM, *FIRST, timed, its_own, *LAST)
    assert [error.line for error in case.errors] == [8]
    assert any("job.log:2" in note and "2 errors" in note for note in case.notes)


def test_incidents_of_other_ranks_are_told_apart_by_the_time_between(tmp_path: Path) -> None:
    case = evidence(tmp_path, *timeout("03:09:08", 0), *timeout("09:09:08", 2, 97, "1(fsdp)"))
    assert list(case.dumps) == ["lines of a log: rank 2"]


def test_an_operation_of_the_same_number_may_time_out_in_each_incident(tmp_path: Path) -> None:
    case = evidence(tmp_path, *timeout("03:09:08", 0), *timeout("03:09:08", 1), *timeout("09:09:08", 0))
    assert list(case.dumps) == ["lines of a log: rank 0"]


@pytest.mark.parametrize(
    "later",
    [
        timeout("03:14:08", 2, 97, "1(fsdp)"),  # it began before the others gave up
        timeout("03:22:08", 2),  # the same operation: it came late
        timeout("03:22:08", 2, 97, "1(fsdp)"),  # a rank that may have come late, by less than one more timeout
    ],
    ids=["began-before", "same-operation", "late"],
)
def test_timeouts_minutes_apart_may_be_of_one_incident(tmp_path: Path, later: list[str]) -> None:
    case = evidence(tmp_path, TRACEBACK, OOM, *FIRST, *later)
    assert len(case.dumps) == 3 and len(case.errors) == 1


def test_a_rank_that_begins_an_operation_after_it_gave_one_up_was_started_again(tmp_path: Path) -> None:
    case = evidence(tmp_path, *FIRST, *timeout("03:22:08", 1, 97, "1(fsdp)"))
    assert list(case.dumps) == ["lines of a log: rank 1"]


def test_the_agents_line_about_a_restart_ends_an_attempt_without_times(tmp_path: Path) -> None:
    restart = RESTART.partition("] ")[2]
    case = evidence(tmp_path, TRACEBACK, OOM, restart, TRACEBACK, "[rank3]: ValueError: second")
    assert [error.line for error in case.errors] == [5]
    assert any("2 attempts" in note for note in case.notes)


def test_agents_of_several_nodes_restart_in_one_attempt_and_the_last_line_ends_none(tmp_path: Path) -> None:
    restart = RESTART.partition("] ")[2]
    case = evidence(tmp_path, TRACEBACK, OOM, restart, restart, TRACEBACK, "[rank3]: ValueError: second")
    assert any("2 attempts" in note for note in case.notes) and len(case.errors) == 1
    assert len(evidence(tmp_path, TRACEBACK, OOM, restart).errors) == 1
