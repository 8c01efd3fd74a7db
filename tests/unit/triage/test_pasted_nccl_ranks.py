"""Stacks by pid beside a log of NCCL: its lines about communicators say which rank each process is."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.triage.run import triage

DUMP = """Process {pid}: /usr/bin/python3.11 -u train.py
Python v3.11.7 (/usr/bin/python3.11)

Thread {pid} (idle): "MainThread"
    all_reduce (torch/distributed/distributed_c10d.py:3252)
    wrapper (torch/distributed/c10d_logger.py:83)
    main (train.py:{line})
    <module> (train.py:56)
"""
LINE = (
    "{host}:{pid}:4801 [0] NCCL INFO {call}comm 0x55d0c8a3f0e0 rank {rank} nranks {size} cudaDev 0 nvmlDev 0 "
    "busId 1000{identity} - Init COMPLETE"
)
WORLD = [("node1", 4711, 0, 4), ("node1", 4712, 1, 4), ("node1", 4713, 2, 4), ("node1", 4714, 3, 4)]


def pasted(
    folder: Path, members: list[tuple[str, int, int, int]], *, call: str = "", identities: tuple[str, ...] = ("0xf3",)
) -> list[str]:
    """The labels of the processes. Two are pasted: 4711 at line 12, 4714 at line 10."""
    for pid, line in ((4711, 12), (4714, 10)):
        (folder / f"stack{pid}.txt").write_text(DUMP.format(pid=pid, line=line))
    lines = [
        LINE.format(host=host, pid=pid, rank=rank, size=size, call=call, identity=f" commId {its}" if its else "")
        for its in identities
        for host, pid, rank, size in members
    ]
    if lines:
        (folder / "job.log").write_text("\n".join(["step 1", *lines, "step 2"]) + "\n")
    verdict = triage([str(folder)])
    assert verdict.triage is not None
    assert not any("nothing was recognised" in line for line in verdict.missing)
    return sorted(node.label for node in verdict.triage.nodes)


@pytest.mark.parametrize("call", ["", "ncclCommInitRank ", "ncclCommSplit "])
@pytest.mark.parametrize("identity", ["0xf3", ""])
def test_processes_have_the_ranks_of_their_communicator(tmp_path: Path, call: str, identity: str) -> None:
    assert pasted(tmp_path, WORLD, call=call, identities=(identity,)) == ["rank 0", "rank 3"]


def test_the_largest_communicator_counts(tmp_path: Path) -> None:
    pairs = [("node1", 4711, 1, 2), ("node1", 4714, 0, 2)]
    assert pasted(tmp_path, [*pairs, *WORLD]) == ["rank 0", "rank 3"]


def test_an_earlier_attempt_has_other_pids(tmp_path: Path) -> None:
    earlier = [(host, pid - 1000, rank, size) for host, pid, rank, size in WORLD]
    assert pasted(tmp_path, [*earlier, *WORLD]) == ["rank 0", "rank 3"]


@pytest.mark.parametrize(
    "members",
    [
        pytest.param([("node1", 4711, 0, 2), ("node1", 4714, 0, 2)], id="one rank in two communicators"),
        pytest.param(
            [("node1", 4711, 0, 4), ("node1", 4711, 1, 4), ("node1", 4714, 2, 4)], id="two ranks in a process"
        ),
        pytest.param([*WORLD, ("node2", 4714, 1, 4)], id="a pid on two hosts"),
    ],
)
def test_no_rank_is_guessed(tmp_path: Path, members: list[tuple[str, int, int, int]]) -> None:
    assert not any("rank" in label for label in pasted(tmp_path, members))


def test_processes_that_share_no_largest_communicator_have_no_rank(tmp_path: Path) -> None:
    (tmp_path / "more.log").write_text(
        LINE.format(host="node1", pid=4711, rank=0, size=2, call="", identity=" commId 0x1")
        + "\n"
        + LINE.format(host="node1", pid=4714, rank=1, size=2, call="", identity=" commId 0x2")
        + "\n"
    )
    assert not any("rank" in label for label in pasted(tmp_path, []))
