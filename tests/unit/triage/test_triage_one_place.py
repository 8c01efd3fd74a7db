"""Ranks that all wait in one call at one line: what its text says of why none goes on."""

from __future__ import annotations

from pathlib import Path

import pytest
from triage_evidence import HOST, TORCH, evidence

from harness.triage import slip_text
from harness.triage.evidence import Frame, Process, Sample, Thread
from harness.triage.judge import triage
from reports.model import Verdict

BROADCAST = """
def main(rank, size, groups):
    mine = dist.get_rank()
    dist.broadcast(state, {source})
"""
GROUPS = """
def main(rank, size):
    if {condition}:
        actor = dist.new_group([0, 1]{more})
    else:
        {other}
    everyone = dist.new_group()
"""


def job(file: Path, line: int, call: str, *, lines: tuple[int, ...] = (), quiet_s: float = 20.0) -> Verdict:
    """Three ranks that stand in `call` at a line of a program, or each at its own of `lines`."""
    ranks = []
    for number, at in enumerate(lines or (line,) * 3):
        thread = Thread("MainThread", 100 + number, (Frame(call, TORCH, 100), Frame("main", str(file), at)), main=True)
        looks = tuple(Sample(at_s, "S", threads=(thread,), net_quiet_s=quiet_s) for at_s in (0.0, 1.5))
        ranks.append(Process(HOST, 100 + number, rank=number, world_size=3, samples=looks))
    return triage(evidence(*ranks, source="live", stall_s=0.0))


@pytest.mark.parametrize(
    ("source", "root"),
    [
        ("src=(rank + 1) % size", "src=(rank + 1) % size"),
        ("mine", "src=mine"),
        ("src=dist.get_rank()", "src=dist.get_rank()"),
        ("src=0", ""),
        ("src=src_rank", ""),
        ("src=rank // 2 * 2, group=groups[rank // 2]", ""),  # of each group its first rank
        ("src=dist.get_global_rank(group, 0)", ""),
    ],
)
def test_a_source_that_each_rank_computes_is_told(tmp_path: Path, source: str, root: str) -> None:
    file = tmp_path / "train.py"
    file.write_text(BROADCAST.format(source=source))
    verdict = job(file, 4, "broadcast")
    assert slip_text.root_by_rank(Frame("main", str(file), 4)) == root
    assert (verdict.verdict == "HUNG" and root in verdict.reason) is bool(root)
    assert verdict.triage is not None and not verdict.triage.culprits


@pytest.mark.parametrize(
    ("condition", "more", "other", "line"),
    [
        ("rank < 2", "", "pass", 4),
        ("dist.get_rank() in trainers", "", "pass", 4),
        ("size > 2", "", "pass", 0),
        ("rank < 2", ", use_local_synchronization=True", "pass", 0),
        ("rank < 2", "", "critic = dist.new_group([2])", 0),
    ],
)
def test_a_group_that_stands_in_a_branch_on_the_rank_is_told(
    tmp_path: Path, condition: str, more: str, other: str, line: int
) -> None:
    file = tmp_path / "train.py"
    file.write_text(GROUPS.format(condition=condition, more=more, other=other))
    verdict = job(file, 7, "new_group")
    assert slip_text.group_in_a_branch(Frame("main", str(file), 7))[0] == line
    assert (verdict.verdict == "HUNG" and f"line {line} makes one" in verdict.reason) is bool(line)
    assert verdict.triage is not None and (not line or verdict.triage.hang == "K5")


def test_nothing_is_told_of_ranks_at_several_lines_or_before_they_stood_long_enough(tmp_path: Path) -> None:
    file = tmp_path / "train.py"
    file.write_text(BROADCAST.format(source="src=rank"))
    assert job(file, 4, "broadcast", quiet_s=1.0).verdict == "INSUFFICIENT"
    assert "src=rank" not in job(file, 4, "broadcast", lines=(4, 4, 3)).reason
