"""A key of torch's store for which a rank waits, and whether anybody is left to set it."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from triage_evidence import TORCH, evidence, process

from harness.triage import judge, source
from harness.triage.evidence import Frame, Process, Sample, Thread
from reports.model import Verdict

PROGRAM = """def sync(rank):
    if rank == 0:
        store.get("weights_ready_v2")
    else:
        store.set("weights_ready_v1", "1")
    dist.barrier()
    store.wait(["a", "b"])
    store.get(key)
"""
BARRIER = (Frame("barrier", TORCH, 4000),)
IN_STORE = Frame("c10d::TCPStore::doGet(std::string const&)", "libtorch_cpu.so", 0)


def waits(number: int, file: Path, line: int, *inner: Frame, net_bytes: int = 0, **fields: object) -> Process:
    """A rank at a line; in front of a key where it stands in nothing of torch."""
    file.write_text(PROGRAM)
    stack = (*inner, Frame("sync", str(file), line))
    look = {"threads": (Thread("MainThread", 100 + number, stack, main=True),), "net_quiet_s": 20.0, **fields}
    samples = tuple(Sample(1.5 * at, "S", net_bytes=at * net_bytes, **look) for at in range(2))  # type: ignore[arg-type]
    native = () if inner else (Thread("MainThread", 100 + number, (IN_STORE, *stack), main=True, native=True),)
    return Process("node0", 100 + number, role="rank", rank=number, world_size=2, samples=samples, native=native)


def judged(*processes: Process) -> Verdict:
    return judge.triage(evidence(*processes, source="live", stall_s=0.0))


def test_a_key_that_no_rank_is_left_to_set_is_a_hang_with_its_place(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    verdict = judged(waits(0, file, 3), waits(1, file, 6, *BARRIER))
    assert verdict.triage is not None and (verdict.verdict, verdict.triage.hang) == ("HUNG", "K2"), verdict.reason
    assert not verdict.triage.culprits and verdict.triage.place == "train.py:3 in sync"
    assert "weights_ready_v2" in verdict.reason
    assert any("train.py:5" in line and "weights_ready_v1" in line for line in verdict.evidence)


@pytest.mark.parametrize(
    ("other", "waiter"),
    [
        pytest.param({"line": 6, "net_quiet_s": 1.0}, {}, id="data a moment ago"),
        pytest.param({"line": 5}, {}, id="a rank that is about to set it"),
        pytest.param({"line": 6}, {"net_bytes": 90}, id="a key that is asked for again and again"),
    ],
)
def test_a_key_that_somebody_may_set_blames_nobody(tmp_path: Path, other: dict, waiter: dict) -> None:
    file = tmp_path / "train.py"
    line, inner = other.pop("line"), BARRIER
    rank = waits(1, file, line, *inner, **other)
    if line == 5:
        rank = dataclasses.replace(waits(1, file, 5), native=())
    assert judged(waits(0, file, 3, **waiter), rank).verdict == "INSUFFICIENT"


def test_a_process_beside_that_may_set_it_leaves_it_open(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    beside = process(300, "process", "main:9 load")
    verdict = judged(waits(0, file, 3), waits(1, file, 6, *BARRIER), beside)
    assert verdict.verdict == "INSUFFICIENT" and any("300" in line for line in verdict.missing)


@pytest.mark.parametrize(("line", "key"), [(3, "weights_ready_v2"), (5, ""), (6, ""), (7, ""), (8, "")])
def test_the_text_has_the_key(tmp_path: Path, line: int, key: str) -> None:
    file = tmp_path / "train.py"
    file.write_text(PROGRAM)
    assert source.store_key(Frame("sync", str(file), line)) == key
    assert source.keys_set(str(file)) == {"weights_ready_v1": 5}


MADE = """import torch.distributed as dist
def work(number, port):
    store = dist.TCPStore("127.0.0.1", port, 2, number == 0)
    store.set("weights_ready", "1")
    store.wait(["ready"])
    dist.all_reduce(x, group=a)
    dist.all_reduce(x, group=b)
    limits.get("ready")
def loop(groups):
    for group in groups:
        dist.all_reduce(x, group=group)
def other():
    dist.all_reduce(x, group=b)
    dist.all_reduce(x, group=a)
"""


def child(pid: int, file: Path, line: int, *inner: Frame, function: str = "work") -> Process:
    """A process of multiprocessing that no variable numbers and of which no stack of C could be had."""
    file.write_text(MADE)
    its = waits(pid - 100, file, line, *(inner or (Frame("", "", 0),)))
    frames = (*inner, Frame(function, str(file), line))
    looks = (
        dataclasses.replace(look, threads=(dataclasses.replace(look.threads[0], frames=frames),), timed=True)
        for look in its.samples
    )
    file.write_text(MADE)
    return dataclasses.replace(its, rank=None, world_size=None, role="process", ppid=50, samples=tuple(looks))


JOIN = (
    Frame("wait", "/usr/lib/python3.11/multiprocessing/popen_fork.py", 43),
    Frame("join", "/usr/lib/python3.11/multiprocessing/process.py", 149),
    Frame("<module>", "/job/train.py", 3),
)
PARENT = Process(
    "node0", 50, role="process",
    samples=tuple(Sample(1.5 * at, "S", threads=(Thread("MainThread", 50, JOIN, main=True),)) for at in range(2)),
)  # fmt: skip


@pytest.mark.parametrize("count", [1, 2], ids=["the setter has ended", "all wait"])
def test_a_key_for_which_processes_without_a_number_wait_is_told(tmp_path: Path, count: int) -> None:
    file = tmp_path / "train.py"
    verdict = judged(PARENT, *(child(101 + number, file, 5) for number in range(count)))
    assert verdict.verdict == "INSUFFICIENT" and verdict.triage is not None and not verdict.triage.culprits
    assert "'ready'" in verdict.reason and verdict.triage.place == "train.py:5 in work", verdict.reason
    assert any("train.py:4" in line and "weights_ready" in line for line in verdict.evidence)


def test_a_dictionary_that_is_asked_for_a_key_is_no_store(tmp_path: Path) -> None:
    verdict = judged(PARENT, *(child(pid, tmp_path / "train.py", 8) for pid in (101, 102)))
    assert "key" not in verdict.reason


def test_processes_without_a_number_that_use_two_groups_in_two_orders_are_told(tmp_path: Path) -> None:
    file, reduces = tmp_path / "train.py", Frame("all_reduce", TORCH, 4000)
    first, second = child(101, file, 6, reduces), child(102, file, 13, reduces, function="other")
    verdict = judged(PARENT, first, second)
    assert verdict.verdict == "INSUFFICIENT" and verdict.triage is not None and not verdict.triage.culprits
    assert "`a`" in verdict.reason and "`b`" in verdict.reason, verdict.reason


def test_a_line_that_goes_through_several_groups_is_told(tmp_path: Path) -> None:
    file, reduces = tmp_path / "train.py", Frame("all_reduce", TORCH, 4000)
    verdict = judged(PARENT, *(child(pid, file, 11, reduces, function="loop") for pid in (101, 102)))
    assert verdict.triage is not None and verdict.verdict == "INSUFFICIENT"
    assert any("`group`" in step and "train.py:11" in step for step in verdict.triage.next)
    same = judged(PARENT, *(child(pid, file, 6, reduces) for pid in (101, 102)))
    assert same.triage is not None and not any("`a`" in step for step in same.triage.next)
