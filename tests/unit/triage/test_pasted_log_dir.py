"""The folder of `torchrun --log-dir`: the rank is the name of a folder, and each attempt has one."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.triage.evidence import Frame
from harness.triage.pasted import evidence
from harness.triage.places import users
from harness.triage.run import triage

STACK = """\
Timeout (0:10:00)!
Thread 0x00007f2bc8a01740 (most recent call first):
  File "/opt/pytorch/torch/distributed/distributed_c10d.py", line 2806 in {function}
  File "/job/train.py", line {line} in main
"""
FULL = "Traceback (most recent call last):\ntorch.OutOfMemoryError: CUDA out of memory.\n"
UNRANKED_TIMEOUT = (
    "[E606 09:09:08.16 ProcessGroupNCCL.cpp:757] [Rank 0] [PG ID 2 PG GUID 3(tp) Rank 0] Watchdog caught collective "
    "operation timeout: WorkNCCL(SeqNum=7, OpType=ALLREDUCE, NumelIn=8, NumelOut=8, Timeout(ms)=600000) ran for 600004 "
    "milliseconds before timing out."
)


def logs(folder: Path, attempt: int, texts: dict[int, str], run: str = "none_8xk2") -> Path:
    for rank, text in texts.items():
        place = folder / run / f"attempt_{attempt}" / str(rank)
        place.mkdir(parents=True)
        (place / "stderr.log").write_text(text)
        (place / "stdout.log").write_text("step 1\n")
    return folder


def ranks(folder: Path) -> list[int | None]:
    read = evidence([str(folder)])
    return sorted((process.rank for process in read.processes), key=str) if read else []


def test_the_folder_names_the_rank_and_torch_built_from_source_is_not_the_users_code(tmp_path: Path) -> None:
    texts = {rank: STACK.format(function="all_reduce", line=22) for rank in (1, 2)}
    verdict = triage([str(logs(tmp_path, 0, texts | {0: STACK.format(function="all_gather", line=20)}))])
    assert verdict.triage is not None
    assert {node.label for node in verdict.triage.nodes} == {"rank 0", "rank 1", "rank 2"}
    assert "rank 0 at train.py:20 all_gather" in verdict.reason


def test_errors_are_of_the_rank_of_their_folder(tmp_path: Path) -> None:
    assert "rank 3" in triage([str(logs(tmp_path, 0, {3: FULL, 1: "step 1\n"}))]).reason


def test_lines_of_the_watchdog_are_of_the_rank_of_their_folder(tmp_path: Path) -> None:
    read = evidence([str(logs(tmp_path, 0, {5: UNRANKED_TIMEOUT}))])
    assert read is not None and list(read.dumps) == ["lines of a log: rank 5"]


def test_attempts_before_the_last_are_not_read_and_named(tmp_path: Path) -> None:
    logs(tmp_path, 0, {3: FULL})
    read = evidence([str(logs(tmp_path, 1, {0: STACK.format(function="all_reduce", line=22)}))])
    assert read is not None and read.errors == () and any("attempt_1" in note for note in read.notes)
    assert ranks(tmp_path) == [0]


def test_runs_of_two_jobs_are_not_attempts_of_one(tmp_path: Path) -> None:
    logs(tmp_path, 0, {3: FULL}, "one")
    logs(tmp_path, 1, {0: FULL}, "two")
    read = evidence([str(tmp_path)])
    assert read is not None and {error.rank for error in read.errors} == {0, 3}


def test_on_one_of_several_hosts_the_folder_is_no_rank(tmp_path: Path) -> None:
    assert ranks(logs(tmp_path / "node-2", 0, {0: STACK.format(function="all_reduce", line=22)})) == [None]


@pytest.mark.parametrize("path", ["attempt/3/stderr.log", "attempt_0/3/notes.log", "attempt_0/x/stderr.log"])
def test_a_number_in_another_folder_is_no_rank(tmp_path: Path, path: str) -> None:
    (tmp_path / path).parent.mkdir(parents=True)
    (tmp_path / path).write_text(STACK.format(function="all_reduce", line=22))
    assert ranks(tmp_path) == [None]


@pytest.mark.parametrize(
    ("file", "own"),
    [
        ("/opt/pytorch/torch/distributed/distributed_c10d.py", False),
        ("/src/torch/nn/modules/module.py", False),
        ("/src/torch/_tensor.py", False),
        ("/job/torch/train.py", True),
        ("/job/torch_utils/distributed.py", True),
        ("/job/torch/utils/mine.py", True),
    ],
)
def test_torch_built_from_source_is_torch_wherever_it_lies(file: str, own: bool) -> None:
    assert users(Frame("f", file, 1)) is own
