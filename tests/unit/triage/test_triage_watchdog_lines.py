"""Lines of NCCL's watchdog in a log: counters of a recorder, which may prove who has not come, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.triage.flight.synthesis import simulate, write
from harness.triage.run import triage
from reports.model import Verdict

TIMEOUT = (
    "[rank{0}]:[E606 09:09:08.164985344 ProcessGroupNCCL.cpp:757] [Rank {0}] Watchdog caught "
    "collective operation timeout: WorkNCCL(SeqNum={1}, OpType={2}, "
    "NumelIn={3}, NumelOut={3}, Timeout(ms)=600000) ran for 600004 milliseconds"
)
COUNTERS = (
    "[rank{0}]:[E606 09:09:08.169193689 ProcessGroupNCCL.cpp:2395] [PG ID {1} PG GUID {2}({3}) Rank {4}]  failure "
    "detected by watchdog at work sequence id: 7 PG status: last enqueued work: {5}, last completed work: {6}"
)
SIGNAL = (
    "[rank{0}]:[E606 09:09:08.172524105 ProcessGroupNCCL.cpp:1987] [PG ID 0 PG GUID 0(default_pg) Rank {0}] Received a "
    "dump signal due to a collective timeout from  rank 1. Last enqueued NCCL work: {1}, last completed NCCL work: {2}."
)


def waits(rank: int, seq: int = 7310, op: str = "ALLREDUCE", size: int = 8, done: int = 7309) -> list[str]:
    return [TIMEOUT.format(rank, seq, op, size), COUNTERS.format(rank, 0, 0, "default_pg", rank, seq + 3, done)]


def judged(folder: Path, *lines: str) -> Verdict:
    (folder / "job.log").write_text("step 1\n" + "\n".join(lines) + "\n")
    verdict = triage([str(folder / "job.log")])
    assert verdict.triage is not None
    return verdict


def culprits(verdict: Verdict) -> list[int | None]:
    return [party.rank for party in verdict.triage.culprits] if verdict.triage else []


def test_the_rank_that_enqueued_nothing_more_is_the_one_that_has_not_come(tmp_path: Path) -> None:
    verdict = judged(tmp_path, *waits(1), *waits(2), SIGNAL.format(0, 7309, 7309))
    assert (verdict.verdict, culprits(verdict)) == ("HUNG", [0])
    assert verdict.triage is not None
    assert {node.label for node in verdict.triage.nodes if "all_reduce #7310" in node.state} == {"rank 1", "rank 2"}


def test_a_stack_beside_the_lines_says_where_the_missing_rank_stands(tmp_path: Path) -> None:
    (tmp_path / "job.log").write_text("\n".join([*waits(1), *waits(2), SIGNAL.format(0, 7309, 7309)]))
    for rank, line in enumerate((10, 12, 12)):
        stack = f'Process 20{rank}: python train.py\nThread 20{rank} (idle): "MainThread"\n    step (train.py:{line})\n'
        (tmp_path / f"rank{rank}.txt").write_text(stack)
    verdict = triage([str(tmp_path)])
    assert (verdict.verdict, culprits(verdict)) == ("HUNG", [0]) and verdict.triage is not None
    assert verdict.triage.culprits[0].frame == "train.py:10 in step"


def test_the_error_of_the_headline_is_not_listed_as_missing_too(tmp_path: Path) -> None:
    oom = "[rank{}]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    (tmp_path / "job.log").write_text("\n".join([oom.format(1), *waits(0), *waits(2), oom.format(3)]))
    verdict = triage([str(tmp_path / "job.log")])
    assert verdict.triage is not None and verdict.triage.place == "job.log:1"
    listed = [line for line in verdict.missing if "job.log:" in line]
    assert len(listed) == 1 and "rank 3" in listed[0]
    [state] = [node.state for node in verdict.triage.nodes if node.label.startswith("rank 1")]
    assert state.startswith("failed: torch.OutOfMemoryError")


def test_without_its_line_the_missing_rank_is_not_guessed(tmp_path: Path) -> None:
    verdict = judged(tmp_path, *waits(1), *waits(2))
    assert (verdict.verdict, culprits(verdict)) == ("INSUFFICIENT", [])


def test_all_that_wrote_wait_in_one_operation_and_nobody_is_named(tmp_path: Path) -> None:
    verdict = judged(tmp_path, *waits(0), *waits(1), *waits(2))
    assert (verdict.verdict, culprits(verdict)) == ("INSUFFICIENT", [])


def waits_in_all(rank: int, size_in: int, size_out: int, op: str = "ALLGATHER") -> list[str]:
    """Lines of a rank that waits in an operation whose output, or input, has a part of each rank."""
    timeout, counters = waits(rank, op=op)
    return [timeout.replace("NumelIn=8, NumelOut=8", f"NumelIn={size_in}, NumelOut={size_out}"), counters]


@pytest.mark.parametrize("sizes", [(5, 15, "ALLGATHER"), (5, 15, "_ALLGATHER_BASE"), (15, 5, "_REDUCE_SCATTER_BASE")])
def test_the_sizes_say_that_every_member_waits_so_no_rank_is_to_blame(
    tmp_path: Path, sizes: tuple[int, int, str]
) -> None:
    verdict = judged(tmp_path, *(line for rank in range(3) for line in waits_in_all(rank, *sizes)))
    assert verdict.triage is not None
    assert (verdict.verdict, verdict.triage.hang, culprits(verdict)) == ("HUNG", "K12", [])


@pytest.mark.parametrize(
    "sizes", [(5, 20, "ALLGATHER"), (5, 16, "ALLGATHER"), (0, 0, "ALLGATHER"), (5, 15, "REDUCE"), (5, 15, "ALLTOALL")]
)
def test_sizes_of_a_larger_group_or_of_none_prove_nothing(tmp_path: Path, sizes: tuple[int, int, str]) -> None:
    verdict = judged(tmp_path, *(line for rank in range(3) for line in waits_in_all(rank, *sizes)))
    assert (verdict.verdict, culprits(verdict)) == ("INSUFFICIENT", [])


def test_ranks_whose_sizes_name_different_groups_prove_nothing(tmp_path: Path) -> None:
    sizes = ((5, 15), (5, 15), (5, 20))
    verdict = judged(tmp_path, *(line for rank, its in enumerate(sizes) for line in waits_in_all(rank, *its)))
    assert (verdict.triage.hang if verdict.triage else "") != "K12"


@pytest.mark.parametrize("change", [{"op": "BROADCAST"}, {"size": 9}])
def test_the_rank_with_another_operation_at_the_same_place_is_named(tmp_path: Path, change: dict[str, int]) -> None:
    verdict = judged(tmp_path, *waits(0), *waits(1), *waits(2), *waits(3, **change))
    assert (verdict.verdict, culprits(verdict)) == ("HUNG", [3])


@pytest.mark.parametrize("change", [{"op": "BROADCAST"}, {"size": 9}])
def test_of_three_ranks_the_number_alone_names_none(tmp_path: Path, change: dict[str, int]) -> None:
    verdict = judged(tmp_path, *waits(0), *waits(1), *waits(2, **change))
    assert (verdict.verdict, culprits(verdict)) == ("HUNG", [])


def test_sends_and_receives_count_in_another_series(tmp_path: Path) -> None:
    verdict = judged(tmp_path, *waits(0, op="SEND"), *waits(1, op="RECV"), *waits(2), SIGNAL.format(3, 9, 9))
    assert (verdict.verdict, culprits(verdict)) == ("INSUFFICIENT", [])


@pytest.mark.slow
def test_lines_of_another_job_beside_recorder_dumps_are_said_to_be_unused(tmp_path: Path) -> None:
    list(write(simulate(2, 8), tmp_path))
    (tmp_path / "job.log").write_text("\n".join([*waits(1), *waits(2), SIGNAL.format(0, 7309, 7309)]))
    assert any("lines about timeouts were not used" in line for line in triage([str(tmp_path)]).missing)


def test_a_rank_that_has_not_come_to_a_group_with_another_number(tmp_path: Path) -> None:
    """The rank that is behind is in two groups, and those that wait in one of them."""
    lines = [COUNTERS.format(rank, 2, 5, "tp", rank, 41, 40) for rank in (4, 5)]
    lines += [TIMEOUT.format(rank, 41, "ALLREDUCE", 8) for rank in (4, 5)]
    lines += [COUNTERS.format(6, 0, 0, "default_pg", 6, 9, 9), COUNTERS.format(6, 2, 5, "tp", 2, 40, 40)]
    verdict = judged(tmp_path, *lines)
    assert (verdict.verdict, culprits(verdict)) == ("HUNG", [6])


def test_lines_of_two_incidents_are_not_mixed(tmp_path: Path) -> None:
    verdict = judged(tmp_path, *waits(1), *waits(2), *waits(1, 44, done=43), SIGNAL.format(0, 7309, 7309))
    assert (verdict.verdict, culprits(verdict)) == ("INSUFFICIENT", [])
    assert any("several incidents" in line for line in verdict.missing)


@pytest.mark.parametrize(("enqueued", "says"), [(7309, "waits in none"), (7313, "waits, too")])
def test_the_log_of_one_rank_says_what_it_shows_of_the_others(tmp_path: Path, enqueued: int, says: str) -> None:
    verdict = judged(tmp_path, SIGNAL.format(0, enqueued, 7309))
    assert (verdict.verdict, culprits(verdict)) == ("INSUFFICIENT", [])
    assert verdict.reason.startswith("rank 1 gave up a collective; rank 0") and says in verdict.reason


def test_of_several_ranks_that_were_told_the_one_that_waits_in_none_comes_first(tmp_path: Path) -> None:
    verdict = judged(tmp_path, SIGNAL.format(2, 7313, 7309), SIGNAL.format(0, 7309, 7309))
    assert "rank 0 completed all 7,309" in verdict.reason or culprits(verdict) == [0], verdict.reason


def earlier(*lines: str, at: str = "E606 03:") -> list[str]:
    return [line.replace("E606 09:", at) for line in lines]


@pytest.mark.parametrize(
    ("at", "expected"),
    [("E606 03:", ("HUNG", [0])), ("E531 23:", ("HUNG", [0])), ("E606 09:", ("INSUFFICIENT", []))],
)
def test_of_several_incidents_the_last_one_counts_where_times_tell_them_apart(
    tmp_path: Path, at: str, expected: tuple[str, list[int]]
) -> None:
    before = earlier(*waits(0, 44, done=43), *waits(1, 44, done=43), SIGNAL.format(2, 43, 43), at=at)
    verdict = judged(tmp_path, *before, "restarting", *waits(1), *waits(2), SIGNAL.format(0, 7309, 7309))
    assert (verdict.verdict, culprits(verdict)) == expected
    assert any("incidents" in line for line in verdict.missing)


@pytest.mark.slow
def test_dumps_beside_a_log_of_several_incidents_are_of_the_last(tmp_path: Path) -> None:
    list(write(simulate(2, 8), tmp_path))
    before = earlier(*waits(0, 44, done=43), *waits(1, 44, done=43))
    (tmp_path / "job.log").write_text("\n".join([*before, *waits(1), *waits(0)]))
    missing = triage([str(tmp_path)]).missing
    assert any("2 incidents" in line and "dumps" in line for line in missing)


def test_a_timeout_with_its_group_and_one_without_are_of_two_incidents(tmp_path: Path) -> None:
    later = TIMEOUT.format(1, 44, "ALLREDUCE", 8).replace("[Rank 1]", "[PG ID 0 PG GUID 0(default_pg) Rank 1]")
    verdict = judged(tmp_path, *waits(1), *waits(2), later, SIGNAL.format(0, 7309, 7309))
    assert (verdict.verdict, culprits(verdict)) == ("INSUFFICIENT", [])


def test_groups_of_one_description_are_told_apart_by_their_name(tmp_path: Path) -> None:
    """Two tensor-parallel groups: what one enqueued says nothing of the other."""
    lines = [COUNTERS.format(rank, 2, 3 + rank // 2, "tp", rank % 2, 50 if rank < 2 else 9, 40 if rank < 2 else 9)
             for rank in range(4)]  # fmt: skip
    lines += [TIMEOUT.format(rank, 41, "ALLREDUCE", 8) for rank in (0, 1)]
    assert culprits(judged(tmp_path, *lines)) == []


def test_without_a_prefix_the_rank_in_a_smaller_group_is_no_rank_of_the_job(tmp_path: Path) -> None:
    lines = [line.partition("] ")[2] for line in (COUNTERS.format(5, 2, 3, "tp", 1, 50, 40),)]
    (tmp_path / "job.log").write_text("\n".join(lines))
    from harness.triage.pasted import evidence

    counted = evidence([str(tmp_path / "job.log")])
    assert counted is not None and (counted.dumps, counted.processes) == ({}, ())


def test_the_mismatch_of_the_detailed_debug_level(tmp_path: Path) -> None:
    text = (
        "RuntimeError: Detected mismatch between collectives on ranks. Rank 2 is running collective: "
        "CollectiveFingerPrint(SequenceNumber=911, OpType=BROADCAST, TensorShape=[4096000], TensorDtypes=BFloat16), "
        "but Rank 0 is running collective: CollectiveFingerPrint(SequenceNumber=911, OpType=BROADCAST, "
        "TensorShape=[4194304])"
    )
    verdict = judged(tmp_path, text)
    assert (verdict.verdict, culprits(verdict)) == ("HUNG", [])
    assert any("4096000" in line for line in verdict.evidence) and "nobody is named" in " ".join(verdict.evidence)
    assert verdict.triage is not None and "tensor" in verdict.triage.next[0]
    assert not any("TORCH_DISTRIBUTED_DEBUG" in advice for advice in verdict.triage.next)  # which wrote this log


def wrapped(lines: list[str], columns: int) -> list[str]:
    return [line[at : at + columns] for line in lines for at in range(0, len(line), columns)]


OLD_COUNTERS = (
    "[rank{0}]:[E606 09:09:08.165815661 ProcessGroupNCCL.cpp:1785] [PG ID 0 PG GUID 0(default_pg) Rank {0}] Exception "
    "(either an error or timeout) detected by watchdog at work: 7310, last enqueued NCCL work: {1}, last completed "
    "NCCL work: {2}."
)


@pytest.mark.parametrize("columns", [*range(80, 130, 7), 165, 200])
def test_lines_that_a_terminal_wrapped_are_put_together(tmp_path: Path, columns: int) -> None:
    timeout = TIMEOUT.replace("milliseconds", "milliseconds before timing out.")
    lines = [timeout.format(1, 7310, "ALLREDUCE", 8), OLD_COUNTERS.format(1, 7312, 7309),
             timeout.format(2, 7310, "ALLREDUCE", 8), OLD_COUNTERS.format(2, 7312, 7309),
             SIGNAL.format(0, 7309, 7309)]  # fmt: skip
    verdict = judged(tmp_path, *wrapped(lines, columns))
    assert (verdict.verdict, culprits(verdict)) == ("HUNG", [0])


def test_a_line_after_a_whole_one_is_not_joined_to_it(tmp_path: Path) -> None:
    verdict = judged(tmp_path, *waits(1), "0 steps", *waits(2), "0 steps", SIGNAL.format(0, 7309, 7309), "12/26 INFO")
    assert (verdict.verdict, culprits(verdict)) == ("HUNG", [0])


MISMATCH = (
    "RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running collective: CollectiveFingerPrint("
    "SequenceNumber={0}{2}OpType=BARRIER), but Rank 1 is running collective: CollectiveFingerPrint(SequenceNumber={1}"
    "{2}OpType=GATHER).Collectives differ in the following aspects: \t Op type: BARRIERvs GATHER"
)


@pytest.mark.parametrize("numbers", [(7, 7), (1649, 0)])
@pytest.mark.parametrize("comma", ["", ", "])
def test_a_mismatch_is_one_place_whatever_the_counters_say(
    tmp_path: Path, numbers: tuple[int, int], comma: str
) -> None:
    verdict = judged(tmp_path, MISMATCH.format(*numbers, comma))
    assert (verdict.verdict, culprits(verdict)) == ("HUNG", []) and "different operations" in verdict.reason


def test_who_gave_up_says_how_long_it_waited(tmp_path: Path) -> None:
    verdict = judged(tmp_path, *waits(5))
    assert verdict.reason.startswith("rank 5 waited 600 s in all_reduce #7310") and verdict.verdict == "INSUFFICIENT"


TERMINATED = (
    "[rank{0}]:[E606 09:09:08.2 ProcessGroupNCCL.cpp:1595] [PG ID 0 PG GUID 0(default_pg) Rank {0}] Process group "
    "watchdog thread terminated with exception: [Rank {0}] Watchdog caught collective operation timeout: WorkNCCL("
    "SeqNum=7310, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran for 600004 milliseconds before "
    "timing out."
)


def test_the_watchdog_that_ends_its_process_is_the_first_end_in_the_log(tmp_path: Path) -> None:
    closed = "RuntimeError: [pair.cc:534] Connection closed by peer [10.0.0.2]:45492"
    peer = ["Traceback (most recent call last):", '  File "train.py", line 3, in step', closed]
    verdict = judged(tmp_path, *waits(5), TERMINATED.format(5), *peer)
    assert (verdict.verdict, culprits(verdict)) == ("INSUFFICIENT", [])
    assert verdict.reason.startswith("first to end: rank 5") and len(verdict.reason.split()) <= 20
    assert any("Connection closed by peer" in line for line in verdict.evidence)


def test_an_error_of_its_own_comes_before_the_end_by_the_watchdog(tmp_path: Path) -> None:
    oom = "[rank4]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
    verdict = judged(tmp_path, oom, *waits(5), TERMINATED.format(5))
    assert verdict.reason.startswith("first failure: rank 4")


BAR = "Loading shards: {percent:3d}% Completed | {done}/8 [{took}<00:00, 26.68s/it]"


@pytest.mark.parametrize(("took", "late"), [("1:09:28", True), ("09:59", False)])
def test_a_phase_longer_than_the_wait_may_have_come_late(tmp_path: Path, took: str, late: bool) -> None:
    verdict = judged(tmp_path, BAR.format(percent=100, done=8, took=took), *waits(5))
    assert any(f"Loading shards took {took}" in line for line in verdict.evidence) is late
    assert (verdict.verdict, culprits(verdict)) == ("INSUFFICIENT", [])


OLD = (
    "[E ProcessGroupNCCL.cpp:821] [Rank {0}] Watchdog caught collective operation timeout: WorkNCCL(SeqNum={1}, "
    "OpType={2}, Timeout(ms)=1800000) ran for 1802710 milliseconds before timing out."
)


def test_lines_without_sizes_as_torch_before_2_1_writes_them(tmp_path: Path) -> None:
    """Ranks that run different operations differ without sizes too. Equal ones prove nothing."""
    lines = [OLD.format(rank, 134, "BROADCAST" if rank == 1 else "ALLREDUCE") for rank in range(4)]
    verdict = judged(tmp_path, *lines)
    assert (verdict.verdict, culprits(verdict)) == ("HUNG", [1])
    equal = judged(tmp_path, *(OLD.format(rank, 134, "ALLREDUCE") for rank in range(3)))
    assert (equal.verdict, culprits(equal)) == ("INSUFFICIENT", [])
    assert "#134" in equal.reason and "[]" not in equal.to_json().replace(": []", "")


def test_a_line_without_sizes_and_without_a_rank(tmp_path: Path) -> None:
    text = OLD.replace("[Rank {0}] ", "").format(0, 134, "ALLREDUCE")
    verdict = judged(tmp_path, text)
    assert "all_reduce #134" in verdict.reason and "sizes" not in verdict.reason


@pytest.mark.parametrize("backend", ["XCCL", "HCCL"])
def test_the_watchdogs_of_other_backends(tmp_path: Path, backend: str) -> None:
    lines = [*waits(1), *waits(2), SIGNAL.format(0, 7309, 7309)]
    verdict = judged(tmp_path, *(line.replace("NCCL", backend) for line in lines))
    assert (verdict.verdict, culprits(verdict)) == ("HUNG", [0])


@pytest.mark.parametrize("completed", [7310, 7315])
def test_a_rank_that_completed_what_another_waits_in_is_told(tmp_path: Path, completed: int) -> None:
    verdict = judged(tmp_path, *waits(1), SIGNAL.format(0, completed, completed))
    assert (verdict.verdict, culprits(verdict)) == ("INSUFFICIENT", [])
    assert "rank 0 completed #7310" in verdict.reason and "rank 1" in verdict.reason
    assert any(f"#{completed}" in line for line in verdict.evidence)


def test_a_rank_that_completed_it_and_waits_in_the_next_one_is_told(tmp_path: Path) -> None:
    verdict = judged(tmp_path, *waits(1), *waits(0, 7311, "BROADCAST", done=7310))
    assert culprits(verdict) != [0] and "rank 0 completed #7310" in verdict.reason


@pytest.mark.parametrize(
    "line",
    [
        pytest.param(SIGNAL.format(0, 7315, 7309), id="it has not completed that one"),
        pytest.param(SIGNAL.format(0, 7315, 7315).replace("PG GUID 0(default_pg)", "PG GUID 7(tensor)"),
                     id="another group"),
    ],
)  # fmt: skip
def test_a_rank_that_did_not_complete_it_is_not_said_to_have(tmp_path: Path, line: str) -> None:
    verdict = judged(tmp_path, *waits(1), line)
    assert "completed #7310" not in verdict.reason
