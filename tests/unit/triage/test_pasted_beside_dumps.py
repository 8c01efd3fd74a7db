"""A log beside flight recorder dumps says what the dumps lack, and nothing where it contradicts them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.triage.run import triage
from reports.model import Verdict

START_NS = 1_760_000_000_000_000_000  # 2025-10-09, 08:53
TIMEOUT = (
    "[rank{0}]:[E1009 09:09:08.164985344 ProcessGroupNCCL.cpp:757] [Rank {0}] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum={1}, OpType={2}, NumelIn={3}, NumelOut={3}, Timeout(ms)=600000) ran for 600004 "
    "milliseconds before timing out."
)
COUNTERS = (
    "[rank{0}]:[E1009 09:09:08.169193689 ProcessGroupNCCL.cpp:2395] [PG ID {4} PG GUID {4}({3}) Rank {0}]  failure "
    "detected by watchdog at work sequence id: {1} PG status: last enqueued work: {1}, last completed work: {2}"
)
OUT_OF_MEMORY = (
    "[rank{0}]: Traceback (most recent call last):",
    '[rank{0}]:   File "/job/train.py", line 40, in step',
    "[rank{0}]:     loss.backward()",
    "[rank{0}]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
)
STACK = (
    "[rank2]: Thread 0x00007f2b34ff9700 (most recent call first):",
    '[rank2]:   File "/job/save.py", line 9 in write',
    '[rank2]:   File "/job/train.py", line 20 in main',
)
WAITS = (17, 16)  # enqueued, completed
THREE = {0: WAITS, 1: WAITS, 3: WAITS}  # rank 2 wrote no dump


def dump(enqueued: int, completed: int, members: tuple[int, ...], name: str = "0", desc: str = "default_pg") -> Any:
    """What the recorder of a rank has of one group in which it runs all_reduce."""
    entries = [
        {
            "frames": [], "record_id": at, "pg_id": 0, "process_group": [name, desc], "collective_seq_id": seq,
            "p2p_seq_id": 0, "op_id": seq, "profiling_name": "nccl:all_reduce",
            "time_created_ns": START_NS + seq * 10**9, "input_sizes": [[2, 4]], "output_sizes": [[2, 4]],
            "input_dtypes": ["Float"], "output_dtypes": ["Float"],
            "state": "completed" if seq <= completed else "started",
            "time_discovered_started_ns": START_NS, "time_discovered_completed_ns": 0, "retired": seq <= completed,
            "timeout_ms": 600_000, "is_p2p": False,
        }
        for at, seq in enumerate(range(max(1, enqueued - 5), enqueued + 1))
    ]  # fmt: skip
    counters = {"last_enqueued_collective": enqueued, "last_started_collective": enqueued,
                "last_completed_collective": completed}  # fmt: skip
    config = {name: {"name": name, "desc": desc, "ranks": str(list(members))}}
    return {"version": "2.10", "pg_config": config, "pg_status": {"0": counters}, "entries": entries}


def judged(
    folder: Path, ranks: dict[int, tuple[int, int]], *lines: str, members: Any = (0, 1, 2, 3), **group: str
) -> Verdict:
    dumps = folder / "dumps"
    dumps.mkdir()
    for rank, (enqueued, completed) in ranks.items():
        (dumps / f"nccl_trace_rank_{rank}").write_text(json.dumps(dump(enqueued, completed, members, **group)))
    (folder / "job.log").write_text("\n".join(("step 1", *lines, "")))
    return triage([str(dumps), str(folder / "job.log")])


def culprits(verdict: Verdict) -> list[int | None]:
    assert verdict.triage is not None
    return [party.rank for party in verdict.triage.culprits]


def counted(rank: int, enqueued: int, completed: int, desc: str = "default_pg", name: str = "0") -> str:
    return COUNTERS.format(rank, enqueued, completed, desc, name)


def failed(rank: int) -> list[str]:
    return [line.format(rank) for line in OUT_OF_MEMORY]


def test_counters_in_the_log_stand_in_for_the_dump_that_is_missing(tmp_path: Path) -> None:
    verdict = judged(tmp_path, THREE, counted(2, 16, 16))
    assert (verdict.verdict, culprits(verdict)) == ("HUNG", [2])
    assert not any("no recorder data" in line for line in verdict.missing)


def test_the_log_has_some_of_the_waiters_too(tmp_path: Path) -> None:
    waiter = TIMEOUT.format(3, 17, "ALLREDUCE", 8), counted(3, 17, 16)
    verdict = judged(tmp_path, {0: WAITS, 1: WAITS}, *waiter, counted(2, 16, 16))
    assert (verdict.verdict, culprits(verdict)) == ("HUNG", [2])
    assert verdict.triage is not None
    assert {node.state for node in verdict.triage.nodes if node.label == "rank 3"} == {
        "in all_reduce #17 of group default_pg"
    }


@pytest.mark.parametrize("numels", ["NumelIn=8, NumelOut=8, ", ""])
def test_a_rank_of_the_log_that_waits_as_the_others_is_not_behind_on_its_device(tmp_path: Path, numels: str) -> None:
    line = TIMEOUT.format(2, 17, "ALLREDUCE", 8).replace("NumelIn=8, NumelOut=8, ", numels)
    verdict = judged(tmp_path, THREE, line, counted(2, 17, 16))
    assert verdict.triage is not None
    assert (verdict.verdict, verdict.triage.hang, culprits(verdict)) == ("HUNG", "K12", [])


def test_a_rank_of_the_log_in_another_operation_is_the_odd_one(tmp_path: Path) -> None:
    verdict = judged(tmp_path, THREE, TIMEOUT.format(2, 17, "BROADCAST", 8), counted(2, 17, 16))
    assert (verdict.verdict, culprits(verdict)) == ("HUNG", [2])


def test_a_rank_of_the_log_with_another_size_is_the_odd_one(tmp_path: Path) -> None:
    verdict = judged(tmp_path, THREE, TIMEOUT.format(2, 17, "ALLREDUCE", 9), counted(2, 17, 16))
    assert (verdict.verdict, culprits(verdict)) == ("HUNG", [2])
    assert any("9" in line for line in verdict.evidence)


def test_counters_of_a_group_with_another_number(tmp_path: Path) -> None:
    ranks, group = {4: WAITS, 5: WAITS, 7: WAITS}, {"name": "3", "desc": "tp"}
    lines = counted(6, 16, 16, "tp", "3"), counted(6, 90, 90, "default_pg", "0")
    verdict = judged(tmp_path, ranks, *lines, members=(4, 5, 6, 7), **group)
    assert (verdict.verdict, culprits(verdict)) == ("HUNG", [6])


@pytest.mark.parametrize("ranks", [THREE, THREE | {2: (16, 16)}])
def test_who_died_is_in_the_log_alone(tmp_path: Path, ranks: dict[int, tuple[int, int]]) -> None:
    verdict = judged(tmp_path, ranks, *failed(2))
    assert verdict.triage is not None
    assert (verdict.verdict, verdict.triage.hang, culprits(verdict)) == ("HUNG", "K4", [2])
    assert "OutOfMemoryError" in verdict.triage.culprits[0].why
    assert verdict.triage.next[0].startswith("nvidia-smi")
    assert not any("by its stack" in wait.because for wait in verdict.triage.waits)


def test_prefixes_of_the_log_say_where_a_rank_ran(tmp_path: Path) -> None:
    lines = [f"node7: {line}" for line in failed(2)] + ["node3: [rank0]: step 5"]
    verdict = judged(tmp_path, THREE, *lines)
    assert verdict.triage is not None and verdict.triage.culprits[0].host == "node7"


def test_prefixes_say_it_of_a_rank_without_an_error_too(tmp_path: Path) -> None:
    lines = [f"node7: {line}" for line in failed(1)] + [f"node7: {counted(2, 16, 16)}"]
    verdict = judged(tmp_path, THREE, *lines)
    assert culprits(verdict) == [2] and any("node7" in line for line in verdict.evidence)


def test_one_stack_of_a_rank_without_a_dump_says_where_it_stood_and_proves_nothing(tmp_path: Path) -> None:
    verdict = judged(tmp_path, THREE, *STACK)
    assert verdict.triage is not None
    assert (verdict.verdict, culprits(verdict), verdict.triage.place) == ("INSUFFICIENT", [], "save.py:9 in write")


def test_with_its_dump_the_stack_is_the_culprits_place(tmp_path: Path) -> None:
    verdict = judged(tmp_path, THREE | {2: (16, 16)}, *STACK)
    assert verdict.triage is not None
    assert (culprits(verdict), verdict.triage.culprits[0].frame) == ([2], "save.py:9 in write")


CONTRADICTIONS = {
    "another operation of a rank with a dump": (TIMEOUT.format(1, 17, "BROADCAST", 8), counted(1, 17, 16)),
    "another number of a rank with a dump": (TIMEOUT.format(1, 44, "ALLREDUCE", 8), counted(1, 44, 43)),
    "counters of a rank without a dump that it cannot have": (),
    "a rank that the job does not have": (counted(9, 17, 16),),
    "a group of another description": (counted(1, 17, 16, "tp"),),
}


@pytest.mark.parametrize("kind", CONTRADICTIONS)
def test_a_log_that_contradicts_the_dumps_blames_nobody(tmp_path: Path, kind: str) -> None:
    lines = CONTRADICTIONS[kind]
    behind = counted(2, 16, 16) if lines else counted(2, 7309, 7309)
    verdict = judged(tmp_path, THREE, *lines, behind, *failed(2))
    assert (verdict.verdict, culprits(verdict)) == ("INSUFFICIENT", [])
    assert any("no recorder data from rank 2" in line for line in verdict.missing)
    assert any("lines about timeouts were not used" in line for line in verdict.missing)
    assert any("job.log:" in line and "not used" in line for line in verdict.missing)


def test_a_rank_that_is_too_far_behind_is_of_another_job(tmp_path: Path) -> None:
    """Its peers could not have completed operation 16 without it."""
    verdict = judged(tmp_path, THREE, counted(2, 5, 5))
    assert (verdict.verdict, culprits(verdict)) == ("INSUFFICIENT", [])


def test_an_error_of_a_rank_that_the_job_does_not_have_is_told_and_not_used(tmp_path: Path) -> None:
    verdict = judged(tmp_path, THREE, *failed(6))
    assert verdict.verdict == "INSUFFICIENT" and "rank 6" not in verdict.reason
    assert any("rank 6" in line and "4 ranks" in line for line in verdict.missing)


def test_an_engine_beside_the_trainer_has_ranks_of_its_own(tmp_path: Path) -> None:
    lines = [line.replace("[rank6]:", "(VllmWorker rank=6 pid=812)") for line in failed(6)]
    verdict = judged(tmp_path, THREE, *lines)
    assert verdict.verdict == "INSUFFICIENT" and "rank 6" in verdict.reason


@pytest.mark.parametrize(("day", "named"), [("2026-01-20", []), ("2025-10-09", [2]), ("2025-10-10", [2])])
def test_an_error_of_another_day_is_of_another_run(tmp_path: Path, day: str, named: list[int]) -> None:
    lines = [line.replace("[rank2]: ", f"[rank2]: {day} 09:10:00,000 ", 1) if "Trace" in line or "Memory" in line
             else line for line in failed(2)]  # fmt: skip
    assert culprits(judged(tmp_path, THREE, *lines)) == named


def test_a_log_without_errors_changes_nothing(tmp_path: Path) -> None:
    steps = [f"[rank{rank}]: step {step} loss 0.3" for step in range(9) for rank in range(4)]
    verdict = judged(tmp_path, THREE, *steps)
    assert (verdict.verdict, culprits(verdict)) == ("INSUFFICIENT", [])
    assert any("job.log: nothing was recognised" in line for line in verdict.missing)
    assert verdict.triage is not None and verdict.triage.next[0].startswith(f"harness triage {tmp_path}/dumps")


def test_a_death_without_a_rank_is_told_beside_the_rank_without_a_dump(tmp_path: Path) -> None:
    line = "slurmstepd: error: Detected 1 oom_kill event in StepId=1.0. Some of the step tasks have been OOM Killed."
    verdict = judged(tmp_path, THREE, line)
    assert (verdict.verdict, culprits(verdict)) == ("INSUFFICIENT", [])
    assert any("rank 2" in line for line in verdict.evidence)
    assert not any("members of the group" in line for line in verdict.missing)


def test_what_was_kept_says_the_same(tmp_path: Path) -> None:
    verdict = judged(tmp_path, THREE, counted(2, 16, 16))
    triage([str(tmp_path / "dumps"), str(tmp_path / "job.log")], out=tmp_path / "kept")
    again = triage([str(tmp_path / "kept")])
    assert (again.verdict, culprits(again)) == (verdict.verdict, culprits(verdict))
