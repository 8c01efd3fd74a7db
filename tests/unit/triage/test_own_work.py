"""K10, a collective that few ranks run: what the program's text says of a function that is named after such work."""

from __future__ import annotations

from pathlib import Path

import pytest
from triage_evidence import HOST, TORCH, compared, evidence, group

from harness.triage import gate_text, source
from harness.triage.evidence import Frame, Process, Sample, Thread
from harness.triage.judge import triage
from reports.model import Verdict

PROGRAM = """
import torch.distributed as dist
r, world = dist.get_rank(), dist.get_world_size()
lora_rank = 8

def evaluate():
    dist.all_gather(parts, part)

def uneven(batches):
    for batch in batches:
        dist.all_reduce(gradient)
    evaluate()

def every_tenth(steps):
    for step in range(steps):
        dist.all_reduce(gradient)
        if step == 9 and r != 0:
            dist.all_reduce(norm)
        if step % 10 == 9:
            evaluate()

def saves(steps):
    for step in steps:
        dist.all_reduce(gradient)
        if wants(step):
            evaluate()

def by_rank(steps):
    for step in steps:
        dist.all_reduce(gradient)
        if r == 0:
            evaluate()
        if lora_rank > 0:
            merge()
"""


def stack(tmp_path: Path, *calls: tuple[str, str]) -> tuple[Frame, ...]:
    """A stack through these (function, text of its line), innermost first, in a collective of torch."""
    path, lines = tmp_path / "train.py", PROGRAM.splitlines()
    path.write_text(PROGRAM)
    frames = []
    for function, text in calls:
        start = next(at for at, line in enumerate(lines) if line.startswith(f"def {function}("))
        at = next(at for at, line in enumerate(lines) if at > start and line.strip().startswith(text))
        frames.append(Frame(function, str(path), at + 1))
    return Frame("all_gather" if calls[0][0] == "evaluate" else "all_reduce", TORCH, 100), *frames


def recorded(many: tuple[Frame, ...], single: tuple[Frame, ...]) -> Verdict:
    """The verdict on four ranks with recorders, of which rank 0 is in `single` and the others are in `many`."""
    ranks = []
    for number in range(4):
        main = Thread("MainThread", 100 + number, single if number == 0 else many, main=True)
        looks = tuple(Sample(at_s, "S", threads=(main,)) for at_s in (0.0, 1.5))
        ranks.append(Process(HOST, 100 + number, rank=number, world_size=4, samples=looks))
    places = {number: (11, "all_gather" if number == 0 else "all_reduce") for number in range(4)}
    return triage(evidence(*ranks), compared(group("default_pg", places)))


def test_an_evaluation_to_which_all_ranks_come_is_no_work_of_few(tmp_path: Path) -> None:
    many = stack(tmp_path, ("uneven", "dist.all_reduce"))
    its = recorded(many, stack(tmp_path, ("evaluate", "dist.all_gather"), ("uneven", "evaluate()"))).triage
    assert its is not None and (its.hang, [culprit.rank for culprit in its.culprits]) == ("K1", [0])


def test_a_branch_of_most_ranks_blames_nobody(tmp_path: Path) -> None:
    """Ranks 1 to 3 run one collective too many, under a condition on the rank; rank 0 does what all should do."""
    many = stack(tmp_path, ("every_tenth", "dist.all_reduce(norm)"))
    its = recorded(many, stack(tmp_path, ("evaluate", "dist.all_gather"), ("every_tenth", "evaluate()"))).triage
    assert its is not None and (its.hang, its.culprits) == ("K10", [])


@pytest.mark.parametrize("function", ["saves", "by_rank"])
def test_an_evaluation_under_a_condition_may_be_of_one_rank(tmp_path: Path, function: str) -> None:
    many = stack(tmp_path, (function, "dist.all_reduce(gradient)"))
    its = recorded(many, stack(tmp_path, ("evaluate", "dist.all_gather"), (function, "evaluate()"))).triage
    assert its is not None and (its.hang, [culprit.rank for culprit in its.culprits]) == ("K10", [0])


@pytest.mark.parametrize(
    ("function", "text", "for_all"),
    [("uneven", "evaluate()", True), ("every_tenth", "evaluate()", True), ("saves", "evaluate()", False),
     ("by_rank", "evaluate()", False), ("every_tenth", "dist.all_reduce(norm)", False)],
)  # fmt: skip
def test_the_text_says_to_what_every_rank_comes(tmp_path: Path, function: str, text: str, for_all: bool) -> None:
    frames = stack(tmp_path, (function, text))[1:]
    assert gate_text.in_every_ranks_way(frames) is for_all
    assert not gate_text.in_every_ranks_way([*frames, Frame("main", "/no/such/file.py", 3)])


def test_a_name_for_the_rank_is_a_rank(tmp_path: Path) -> None:
    by_rank, lora = (stack(tmp_path, ("by_rank", text))[1] for text in ("evaluate()", "merge()"))
    assert source.rank_condition(by_rank) == "r == 0"
    assert source.rank_condition(lora) == ""
